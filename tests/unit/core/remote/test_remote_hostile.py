"""What no node would say: a peer with a valid certificate loses its connection by it, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dios.core import events
from dios.errors import ProtocolError
from dios.ids import InternalName, Name, NodeId, ObjectId, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.types import Brand, Buffering, Flag, Mode, NodeWish, ObjectType, Permission
from tests.support.core.cluster import Citizen, Cluster, Parcel
from tests.support.core.harness import OWNER

Make = Callable[["Scene"], dcp.RequestBody]
NAME = Name(bytes(range(32)))


class Scene:
    """Three nodes; the second one lies, the first one listens. Sessions and references everywhere."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.victim, self.liar, self.third = self.cluster.nodes
        self.me, self.other, self.far = (self.cluster.session(node) for node in self.cluster.nodes)
        self.mine = self.me.create(data=b"mine")
        (self.of_liar,) = self.other.lookup(self.mine.name)
        (self.of_third,) = self.far.lookup(self.mine.name)
        self.theirs = self.other.create(data=b"theirs")
        (self.to_theirs,) = self.me.lookup(self.theirs.name)
        self.cluster.advance(20)
        book = self.liar.core.state.cluster
        assert book is not None
        self.number = book.peer(self.victim.node).next_number

    def caller(self, who: Citizen) -> dcp.Caller:
        """As its own node would say."""
        return dcp.Caller(who.task, OWNER, "0" * 12, Brand.LEGACY)

    def held(self, **changed: object) -> dcp.HeldReference:
        """A reference to an object of the liar's."""
        told = self.theirs.reference
        return dcp.HeldReference(self.liar.node, replace(told, ref=RefId(4711), **changed))

    def forward(self, call: messages.AnyCall, who: Citizen | None = None) -> dcp.Forward:
        """The call of a task, the liar's session when nothing else is said."""
        return dcp.Forward(self.caller(who or self.other), call)  # type: ignore[arg-type]

    def start(self, **changed: object) -> dcp.Start:
        """A task to be started, with a program of the liar's."""
        body = dcp.Start(
            self.caller(self.other), TaskId(4712), NAME, messages.Run(0), (), self.held(), (), ()
        )
        return replace(body, **changed)

    def plant(self, **changed: object) -> dcp.CreateReplica:
        """A copy of nothing."""
        body = dcp.CreateReplica(
            self.caller(self.other), NAME, (), OWNER, ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 0, 0, 0
        )
        return replace(body, **changed)

    def hear(self, message: dcp.Message, beside: bytes = b"") -> None:
        """The first node gets this message of the second."""
        self.victim.take(Parcel(self.liar.node, self.victim.node, self.liar.epoch, message, beside))


NOT_FORWARDED = (
    messages.Lookup(NAME),
    messages.Copy(1, 2),
    messages.Run(1),
    messages.ListTasks(),
    messages.Shutdown(),
    messages.ListLimits(),
    messages.ListNodes(),
)


def sharing(scene: Scene) -> dcp.SharedReference:
    """The liar's own reference, to be handed on."""
    return dcp.SharedReference(RefId(scene.of_liar.ref), int(Permission.READ))


NONSENSE: dict[str, Make] = {
    "a task of here": lambda scene: scene.forward(messages.Stat(1), scene.me),
    "resolve for a task of here": lambda scene: dcp.Resolve(scene.caller(scene.me), (InternalName(NAME),), 1),
    "rows for a task of here": lambda scene: dcp.Rows(scene.caller(scene.me)),
    "offer by a task of here": lambda scene: dcp.Offer(
        scene.caller(scene.me), (), scene.caller(scene.other), scene.liar.node
    ),
    "offer for a task of here": lambda scene: dcp.Offer(
        scene.caller(scene.other), (sharing(scene),), scene.caller(scene.me), scene.liar.node
    ),
    "offer for a task of here, on here": lambda scene: dcp.Offer(
        scene.caller(scene.other),
        (sharing(scene),),
        dcp.Caller(TaskId(999), OWNER, "", Brand.PURE),
        scene.victim.node,
    ),
    "give what another has": lambda scene: dcp.ReferenceGiven(
        scene.me.task, "", replace(scene.held(), node=scene.third.node)
    ),
    "give what is here": lambda scene: dcp.ReferenceGiven(
        scene.me.task, "", scene.held(object=scene.mine.reference.object)
    ),
    "give a reference that is here": lambda scene: dcp.ReferenceGiven(
        scene.me.task, "", dcp.HeldReference(scene.liar.node, replace(scene.to_theirs))
    ),
    "start with the id of a task": lambda scene: scene.start(child=scene.me.task),
    "start with the id of an object": lambda scene: scene.start(child=TaskId(scene.mine.reference.object)),
    "start with an object of here that is not": lambda scene: scene.start(
        inputs=(scene.held(object=scene.mine.reference.object),)
    ),
    "plant more than came": lambda scene: scene.plant(size=1),
    "plant what has no bytes": lambda scene: scene.plant(kind=ObjectType.GROUP),
    "claim for a task of here": lambda scene: dcp.ReconcileReferences(
        1, (dcp.HeldReferences(scene.caller(scene.me), 0, 2**63 - 1, ()),)
    ),
    "keep what did not come": lambda _: dcp.KeepOutput(OWNER, NAME, NAME, 5),
    **{
        f"{type(call).__name__} forwarded": lambda scene, call=call: scene.forward(call)  # type: ignore[misc]
        for call in NOT_FORWARDED
    },
    **{
        f"{type(call).__name__} in a vector": lambda scene, call=call: scene.forward(  # type: ignore[misc]
            messages.Vector((messages.Stat(1), call))
        )
        for call in NOT_FORWARDED
    },
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_request_that_makes_no_sense(nonsense: str) -> None:
    """It raises ProtocolError, with everything as it was, and nothing is said to anybody."""
    scene = Scene()
    before = scene.cluster.snapshot()
    asked = dcp.Ask(scene.number, 0, NONSENSE[nonsense](scene))
    with pytest.raises(ProtocolError):
        scene.hear(asked)
    after = scene.cluster.snapshot()
    assert [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]][:5] == []
    assert after == before
    assert not scene.cluster.wire


ANSWERS: dict[str, Callable[[Scene], dcp.Answer]] = {
    "done": lambda _: messages.Done(),
    "unknown": lambda _: dcp.UnknownReferences((), ()),
    "offered": lambda scene: dcp.Offered((scene.held().reference,)),
    "found": lambda scene: dcp.Found((scene.held().reference,)),
    "planted": lambda scene: dcp.ReplicaCreated(scene.held()),
    "created": lambda scene: messages.Created(NAME, scene.held().reference),
    "created what is here": lambda scene: messages.Created(
        NAME, scene.held(object=scene.mine.reference.object).reference
    ),
    "offered what is here": lambda scene: dcp.Offered(
        (scene.held(object=scene.mine.reference.object).reference,)
    ),
    "found what is here": lambda scene: dcp.Found(
        (scene.held(object=scene.mine.reference.object).reference,)
    ),
    "planted what is here": lambda scene: dcp.ReplicaCreated(scene.held(object=scene.mine.reference.object)),
    "planted here, which is not": lambda scene: dcp.ReplicaCreated(
        replace(scene.held(), node=scene.victim.node)
    ),
    "created with a known id": lambda scene: messages.Created(NAME, scene.to_theirs),
    "results": lambda _: messages.Results(()),
    "a buffer": lambda _: messages.Buffer(5, 10, 0, 0, data=b"0123456789"),
    "references": lambda scene: messages.References((scene.held().reference,)),
    "tasks": lambda _: messages.Tasks(()),
    "selected": lambda _: messages.Selected(7),
    "committed": lambda _: messages.Committed(-3, 2),
    "attached": lambda _: messages.Attached(7),
}
ASKING: dict[str, Callable[[Scene], messages.AnyCall]] = {
    "read": lambda scene: messages.ReadOnce(scene.to_theirs.ref),
    "acquire": lambda scene: messages.AcquireRead(scene.to_theirs.ref),
    "stat": lambda scene: messages.Stat(scene.to_theirs.ref),
    "write": lambda scene: messages.WriteOnce(scene.to_theirs.ref, b"x"),
    "delete": lambda scene: messages.Delete(scene.to_theirs.ref),
    "retire": lambda scene: messages.Retire(scene.to_theirs.ref),
    "select": lambda scene: messages.Select((scene.to_theirs.ref,)),
    "attach": lambda scene: messages.Attach(scene.to_theirs.ref, Mode.READ),
    "create": lambda scene: messages.Create(ObjectType.SHMEM_BLOB, (scene.me.groups[0],), host="n2"),
    "copy": lambda scene: messages.Copy(scene.to_theirs.ref, scene.me.self_ref),
    "plant": lambda scene: messages.Copy(scene.mine.reference.ref, scene.me.self_ref, host="n2"),
    "lookup": lambda _: messages.Lookup(NAME),
    "run": lambda scene: messages.Run(scene.mine.reference.ref, host="n2"),
    "run with theirs": lambda scene: messages.Run(
        scene.to_theirs.ref, flags=int(Flag.SPAWN_LOCAL | Flag.NON_BLOCKING)
    ),
    "list": lambda _: messages.ListTasks(),
    "info": lambda _: messages.NodeInfo("n2"),
    "drain": lambda _: messages.SetNode("n2", NodeWish.DRAIN),
    "label": lambda _: messages.LabelNode("n2", (("ssd", "yes"),)),
    "vector": lambda scene: messages.Vector(
        (messages.ReadOnce(scene.to_theirs.ref), messages.Stat(scene.to_theirs.ref))
    ),
}


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("said", ANSWERS)
def test_an_answer_that_makes_no_sense(asking: str, said: str) -> None:
    """Whatever a node answers, the call is answered in the end, and this node's tables are right."""
    scene = Scene()
    cluster = scene.cluster
    answer = ANSWERS[said](scene)
    seq = scene.me.send(ASKING[asking](scene))
    for parcel in [posted for posted in cluster.wire if posted.to == scene.liar.node]:
        if isinstance(parcel.message, dcp.Ask):
            cluster.wire.remove(parcel)
            # A ProtocolError ends the connection; in any case the node is started anew.
            with contextlib.suppress(ProtocolError):
                scene.hear(dcp.PeerReply(parcel.message.number, answer))
    scene.cluster.cut = {frozenset({scene.victim.node, scene.liar.node})}
    anew = events.PeerUp(cluster.now, scene.liar.node, scene.liar.epoch + 1, "n2", "r1", "10.0.0.2:7117")
    scene.victim.step(anew)
    cluster.wait(scene.me, seq)
    assert scene.me.read(scene.mine.reference.ref) == b"mine"
    assert scene.me.node.core.state.objects[ObjectId(scene.mine.reference.object)].home == NodeId(0)


def test_a_made_up_group_name_is_nobodys() -> None:
    """A group's name that was not made in this cluster gives no membership, whoever presents it."""
    scene = Scene()
    group_name = scene.other.ask(messages.Created, messages.Create(ObjectType.GROUP)).name
    assert group_name is not None
    forged = group_name[:16] + bytes(16)
    assert len(scene.cluster.session(scene.victim, (group_name,)).groups) == 2
    assert len(scene.cluster.session(scene.victim, (forged,)).groups) == 1
