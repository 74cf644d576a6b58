"""A node with a valid certificate that turned hostile: what it still cannot do to another.

Not for: malformed bytes (``tests/unit/host/peers/test_peers_hostile.py``), or messages that make no sense
(``tests/unit/core/remote/test_remote_hostile.py``). Here it speaks rightly, and asks for what is not its own.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core import effects, events
from dios.core.model.invariants import check
from dios.errors import Code, ProtocolError
from dios.ids import Name, NodeId, ObjectId, RefId, TaskId
from dios.wire import dcp, gossip, messages
from dios.wire.types import (
    Brand,
    Buffering,
    Cause,
    Flag,
    NodeStatus,
    NodeWish,
    ObjectType,
    Permission,
    TaskState,
)
from tests.support.core.cluster import MS, Citizen, Cluster, Parcel
from tests.support.core.harness import OWNER

FAR = NodeId(4_711)
READ = int(Permission.READ)


class Scene:
    """The target, a friend of it, and the villain; each with a person."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.target, self.friend, self.villain = self.cluster.nodes
        self.mine, self.friends, self.villains = (self.cluster.session(node) for node in self.cluster.nodes)
        self.number = 2**40

    def caller(self, who: Citizen, brand: Brand = Brand.LEGACY, principal: str = OWNER) -> dcp.Caller:
        """As a task's node would say."""
        return dcp.Caller(who.task, principal, "0" * 12, brand)

    def say(self, message: dcp.Message, beside: bytes = b"") -> None:
        """The villain says this, and everybody does what follows; time passes a little."""
        self.target.take(Parcel(self.villain.node, self.target.node, self.villain.epoch, message, beside))
        check(self.target.core.state)

    def ask(self, body: dcp.RequestBody, beside: bytes = b"") -> object:
        """The villain asks; what it is answered, None when it is not."""
        self.number += 1
        self.cluster.wire.clear()
        self.say(dcp.Ask(self.number, 0, body), beside)
        answer = None
        for parcel in list(self.cluster.wire):
            told = parcel.message
            if (
                parcel.to == self.villain.node
                and isinstance(told, dcp.PeerReply)
                and told.number == self.number
            ):
                answer = told.result
                self.cluster.wire.remove(parcel)
        return answer

    def refused(self, body: dcp.RequestBody, beside: bytes = b"") -> int:
        """The villain asks in vain; the code that it is refused with."""
        answer = self.ask(body, beside)
        assert isinstance(answer, messages.Failure), answer
        return answer.code

    def forward(self, call: messages.PlainCall) -> dcp.Forward:
        """A call of the villain's session."""
        return dcp.Forward(self.caller(self.villains), call)

    def gossip(self, *rows: gossip.MemberRow, forgotten: tuple[NodeId, ...] = ()) -> list[object]:
        """The villain tells of nodes; what the target does then."""
        state = self.villain.core.state.cluster
        assert state is not None
        self.target.effects.clear()
        self.say(dcp.Gossip(gossip.encode(gossip.News(state.membership.own, rows, forgotten))))
        return self.target.effects

    def claim(self, *references: tuple[RefId, ObjectId, int, bool], epoch: int) -> object:
        """The villain says what its session holds."""
        holding = dcp.HeldReferences(self.caller(self.villains), 0, 2**63 - 1, references)
        return self.ask(dcp.ReconcileReferences(epoch, (holding,), (), (self.villains.task,)))


@pytest.fixture
def scene() -> Scene:
    """A fresh cluster."""
    return Scene()


# -- whose name it may use ------------------------------------------------------------------------------
def test_it_does_not_act_for_tasks_of_others(scene: Scene) -> None:
    """A call in the name of a task of the target, or of a third node, costs the connection."""
    name = scene.mine.create(data=b"secret").name
    scene.friends.lookup(name)
    scene.cluster.settle()
    for who in (scene.mine, scene.friends):
        with pytest.raises(ProtocolError):
            scene.ask(dcp.Forward(scene.caller(who), messages.Stat(1)))


def test_it_does_not_tell_of_the_end_of_others_children(scene: Scene) -> None:
    """That a child has ended is believed of the node which runs it alone."""
    blob = scene.mine.create(data=b"pass").reference
    seq = scene.mine.send(messages.Run(blob.ref, host="n2", flags=int(Flag.NON_BLOCKING)))
    created = scene.cluster.wait(scene.mine, seq)
    assert isinstance(created, messages.Created), created
    child = created.reference.object
    row = messages.TaskRow(
        None,
        "0" * 12,
        "",
        TaskState.ENDED,
        Brand.PURE,
        OWNER,
        0,
        0,
        0,
        Cause.EXITED,
        0,
        0,
        "",
        "",
    )
    scene.ask(dcp.DeliverEvent(scene.mine.task, messages.ChildEnded(child, row)))
    task = scene.target.core.state.tasks[scene.mine.task]
    assert TaskId(child) in task.remote_children
    assert not task.events


def test_it_puts_no_made_up_events_before_tasks(scene: Scene) -> None:
    """Neither a reference that was never given, nor the loss of one that another node has, is told."""
    own = scene.mine.create(data=b"here").reference
    (far,) = scene.mine.lookup(scene.friends.create(data=b"there").name)
    scene.cluster.settle()
    task = scene.target.core.state.tasks[scene.mine.task]
    for event in (
        messages.Delegated(replace(own, ref=RefId(99)), "0" * 12),
        messages.Retired(own.ref, own.object, own.fingerprint, "", False),
        messages.Retired(far.ref, far.object, far.fingerprint, "", False),
    ):
        scene.ask(dcp.DeliverEvent(scene.mine.task, event))
    assert not task.events
    assert own.ref in task.table
    assert far.ref in task.table


def test_it_puts_nothing_unasked_into_tables(scene: Scene) -> None:
    """A copy for a task that asked for none is refused."""
    held = len(scene.target.core.state.tasks[scene.mine.task].table)
    plant = dcp.CreateReplica(
        scene.caller(scene.mine), None, (), OWNER, ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 0, 0, 4,
        scene.target.node,
    )  # fmt: skip
    assert scene.refused(plant, b"evil") == Code.EPERM
    assert len(scene.target.core.state.tasks[scene.mine.task].table) == held


# -- references that it does not have ---------------------------------------------------------------------
def test_a_guessed_reference_is_none(scene: Scene) -> None:
    """The ids of references that others hold mean nothing for its tasks, even when it knows them."""
    made = scene.mine.create(data=b"secret")
    (friends,) = scene.friends.lookup(made.name)
    for ref in (made.reference.ref, friends.ref, scene.mine.self_ref, 1, 2**63 - 1):
        for call in (messages.ReadOnce(ref), messages.Delete(ref), messages.Stat(ref), messages.Retire(ref)):
            assert scene.refused(scene.forward(call)) == Code.EBADF


def delegated(scene: Scene, *, lifetime_ns: int = 0) -> tuple[messages.Reference, messages.Reference]:
    """A durable object's reference, and the one made of it that a task of the villain was handed, to read."""
    blob = scene.mine.create(ObjectType.DURABLE_BLOB, data=b"for a while").reference
    started = scene.mine.create(data=b"pass").reference
    seq = scene.mine.send(
        messages.Run(
            started.ref,
            host="n3",
            inputs=(messages.Handed(blob.ref, READ, "in", lifetime_ns),),
            flags=int(Flag.NON_BLOCKING),
        )
    )
    assert isinstance(scene.cluster.wait(scene.mine, seq), messages.Created)
    (scene.villains,) = scene.cluster.start_spawned()
    (given,) = scene.villains.welcome.inputs
    assert scene.villains.read(given.ref) == b"for a while"
    return blob, given


@pytest.mark.parametrize("epoch", [0, 1, 2, 2**62])
def test_what_was_retired_is_not_claimed_back(scene: Scene, epoch: int) -> None:
    """Whatever epoch a claim names, a reference that was taken back is not granted again."""
    lent, given = delegated(scene)
    scene.mine.call(messages.Retire(lent.ref))
    scene.cluster.advance(200)
    entry = (RefId(given.ref), ObjectId(given.object), int(Permission.ALL), True)
    answer = scene.claim(entry, epoch=epoch)
    assert isinstance(answer, dcp.UnknownReferences), answer
    assert given.ref in answer.refs
    assert scene.refused(scene.forward(messages.ReadOnce(given.ref))) == Code.EBADF


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_what_has_expired_is_not_claimed_back(scene: Scene, epoch: int) -> None:
    """A reference whose time is over stays gone, whatever its node says that it holds."""
    _, given = delegated(scene, lifetime_ns=500 * MS)
    scene.cluster.advance(1_000)
    answer = scene.claim((RefId(given.ref), ObjectId(given.object), READ, True), epoch=epoch)
    assert isinstance(answer, dcp.UnknownReferences), answer
    assert given.ref in answer.refs


def test_claims_of_before_are_late_after_the_first(scene: Scene) -> None:
    """After a new start a node is told once what another held; what that loses then it cannot claim back."""
    made = scene.mine.create(ObjectType.DURABLE_BLOB, data=b"kept")
    scene.villains.lookup(made.name)
    scene.target.crash()
    for node in (scene.friend, scene.villain):
        scene.cluster.connect(node, scene.target)
        scene.cluster.connect(scene.target, node)
    scene.cluster.settle()
    entry = (RefId(4_711), ObjectId(made.reference.object), int(Permission.ALL), True)
    early = scene.claim(entry, epoch=1)
    assert isinstance(early, dcp.UnknownReferences)
    assert not early.refs, "what was held before is granted again, with every right that there is and no more"
    scene.ask(dcp.Release(scene.villains.task, (RefId(4_711),)))
    scene.cluster.advance(limits.RECONCILE_YOUNG_MS + 1_000, 500)
    late = scene.claim(entry, epoch=1)
    assert isinstance(late, dcp.UnknownReferences)
    assert late.refs == (4_711,)


def test_claimed_rights_and_ids_are_checked(scene: Scene) -> None:
    """A claim brings neither rights that there are not, nor a reference with the id of another's."""
    made = scene.mine.create(ObjectType.DURABLE_BLOB, data=b"kept")
    scene.target.crash()
    for node in (scene.friend, scene.villain):
        scene.cluster.connect(node, scene.target)
        scene.cluster.connect(scene.target, node)
    scene.cluster.settle()
    me = scene.cluster.session(scene.target)
    (mine,) = me.lookup(made.name)
    stolen = (RefId(mine.ref), ObjectId(mine.object), int(Permission.ALL), True)
    odd = (RefId(4_711), ObjectId(mine.object), 2**62 | READ, True)
    answer = scene.claim(stolen, odd, epoch=1)
    assert isinstance(answer, dcp.UnknownReferences)
    assert answer.refs == (mine.ref,)
    assert (
        scene.target.core.state.remote_tasks[scene.villains.task].table.get(4_711).permissions
        == Permission.READ
    )
    assert me.read(mine.ref) == b"kept"


def test_given_rights_and_ids_are_checked(scene: Scene) -> None:
    """What it gives has no rights that there are not, and no id that is taken."""
    told = scene.villains.create(data=b"evil").reference
    given = replace(told, ref=RefId(4_711), permissions=2**62 | READ)
    held = dcp.HeldReference(scene.villain.node, given)
    assert isinstance(scene.ask(dcp.ReferenceGiven(scene.mine.task, "0" * 12, held)), messages.Done)
    table = scene.target.core.state.tasks[scene.mine.task].table
    assert table.get(4_711).permissions == Permission.READ
    with pytest.raises(ProtocolError):
        scene.ask(dcp.ReferenceGiven(scene.mine.task, "0" * 12, held))
    assert len(table.holding(table.get(4_711).object)) == 1


# -- tasks ------------------------------------------------------------------------------------------------
def start(scene: Scene, brand: Brand, caller: dcp.Caller) -> dcp.Start:
    """A task of this brand, with a program of the villain's."""
    program = scene.villains.create(data=b"evil").reference
    held = dcp.HeldReference(scene.villain.node, replace(program, ref=RefId(4_712)))
    return dcp.Start(
        caller, TaskId(4_713), Name(bytes(range(32))), messages.Run(0, brand=brand), (), held, (), ()
    )


def test_no_task_outside_the_sandbox_for_the_wrong(scene: Scene) -> None:
    """For another node, too, only the node's own user has tasks outside the sandbox; none is legacy."""
    pure = replace(scene.caller(scene.villains, Brand.PURE), task=TaskId(51))
    stranger = replace(scene.caller(scene.villains, principal="uid:4711"), task=TaskId(52))
    owner = replace(scene.caller(scene.villains), task=TaskId(53))
    tasks = len(scene.target.core.state.tasks)
    assert scene.refused(start(scene, Brand.LIMBO, pure)) == Code.EPERM
    assert scene.refused(start(scene, Brand.LIMBO, stranger)) == Code.EPERM
    assert scene.refused(start(scene, Brand.LEGACY, owner)) == Code.EINVAL
    assert len(scene.target.core.state.tasks) == tasks


def test_in_restricted_mode_no_node_starts_tasks_outside_the_sandbox(scene: Scene) -> None:
    """A restricted node runs pure tasks alone, whoever asks: no other node reads files through it."""
    scene.target.core.state.restricted = True  # type: ignore[misc] # as if it had been started so
    scene.target.effects.clear()
    scene.ask(start(scene, Brand.LIMBO, scene.caller(scene.villains)))
    (spawn,) = [one for one in scene.target.effects if isinstance(one, effects.Spawn)]
    assert spawn.brand is Brand.PURE


# -- other nodes ------------------------------------------------------------------------------------------
def test_it_makes_nobody_talk_to_strangers(scene: Scene) -> None:
    """A node that nobody has heard of is no place for anything, and nothing is sent there."""
    scene.target.effects.clear()
    blob = scene.mine.create(data=b"x")
    (ref,) = scene.villains.lookup(blob.name)
    scene.cluster.settle()
    known = set(scene.target.core.state.cluster.peers)  # type: ignore[union-attr]
    far = dcp.Caller(TaskId(5), OWNER, "0" * 12, Brand.PURE)
    me = scene.caller(scene.villains)
    plant = dcp.CreateReplica(far, None, (), OWNER, ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 0, 0, 0, FAR)
    for body in (
        dcp.Offer(me, (dcp.SharedReference(RefId(ref.ref), READ),), far, FAR),
        dcp.Delegate(me, messages.Copy(ref.ref, 0, READ), far, FAR),
        plant,
        replace(
            start(scene, Brand.PURE, me),
            program=dcp.HeldReference(FAR, replace(blob.reference, object=ObjectId(6))),
        ),
    ):
        assert scene.refused(body) in {Code.EHOSTUNREACH, Code.EBADF}
    assert set(scene.target.core.state.cluster.peers) == known  # type: ignore[union-attr]
    for one in scene.target.effects:
        assert not isinstance(one, effects.Contact)
        assert not isinstance(one, effects.Send) or one.node != FAR


def test_a_row_of_a_stranger_leads_to_a_dial_and_no_further(scene: Scene) -> None:
    """A made-up row is dialled, where a certificate decides; nobody is asked for anything before."""
    done = scene.gossip(gossip.MemberRow(FAR, "far", "", "127.0.0.1:1", 5))
    assert [one.address for one in done if isinstance(one, effects.Contact)] == ["127.0.0.1:1"]
    assert not [one for one in done if isinstance(one, effects.Send) and isinstance(one.message, dcp.Ask)]


def test_it_does_not_keep_a_third_node_out(scene: Scene) -> None:
    """An epoch that it made up for a node that was never met does not make the target refuse that node."""
    scene.gossip(gossip.MemberRow(FAR, "far", "", "127.0.0.1:1", 2**62))
    scene.target.effects.clear()
    scene.target.step(events.PeerUp(scene.target.now, FAR, 3, "far", "", "127.0.0.1:1"))
    assert not [one for one in scene.target.effects if isinstance(one, effects.HangUp)]
    cluster = scene.target.core.state.cluster
    assert cluster is not None
    assert cluster.peers[FAR].epoch == 3
    assert cluster.membership.members[FAR].epoch == 3


def test_who_was_removed_is_not_heard_again(scene: Scene) -> None:
    """After `dios node forget` a node gets no connection, and what it says on an old one does nothing."""
    scene.mine.call(messages.SetNode("n3", NodeWish.FORGET))
    scene.target.effects.clear()
    assert scene.ask(scene.forward(messages.NodeInfo())) is None
    assert not scene.target.core.state.remote_tasks
    for epoch in (1, 2, 2**62):
        scene.target.step(events.PeerUp(scene.target.now, scene.villain.node, epoch, "n3", "", ""))
    hung_up = [one for one in scene.target.effects if isinstance(one, effects.HangUp)]
    assert [(one.node, one.revoked) for one in hung_up] == [(scene.villain.node, True)] * 3


def test_removals_are_believed_and_audited(scene: Scene) -> None:
    """Any member may remove any other, this one too, as people of any member may; each audit log says so."""
    done = scene.gossip(forgotten=(scene.friend.node, scene.target.node))
    assert [one.node for one in done if isinstance(one, effects.HangUp)] == [scene.friend.node]
    assert [one for one in done if isinstance(one, effects.BeginShutdown)]
    said = [(one.outcome, one.subject) for one in done if isinstance(one, effects.Audit)]
    assert ("forgotten", "n2") in said
    assert ("forgotten", "n1") in said


def test_a_lie_about_death_kills_nobody(scene: Scene) -> None:
    """That another node is dead makes it a suspect, which denies it: its tasks keep what they hold."""
    scene.friends.lookup(scene.mine.create(data=b"kept").name)
    scene.cluster.settle()
    held = len(scene.target.core.state.remote_tasks[scene.friends.task].table)
    scene.gossip(gossip.MemberRow(scene.friend.node, "n2", "r1", "10.0.0.2:7117", 1, 5, NodeStatus.DEAD))
    scene.cluster.advance(3_000)
    cluster = scene.target.core.state.cluster
    assert cluster is not None
    assert cluster.membership.members[scene.friend.node].status is NodeStatus.ALIVE
    assert len(scene.target.core.state.remote_tasks[scene.friends.task].table) == held


# -- memory -----------------------------------------------------------------------------------------------
def test_tasks_that_it_makes_up_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many tasks of one node are known here; more are refused, and the friend's are taken still."""
    monkeypatch.setattr(limits, "REMOTE_TASKS_PER_NODE_MAX", 50)
    codes = [
        scene.ask(dcp.Resolve(dcp.Caller(TaskId(10_000 + n), OWNER, "", Brand.PURE), (), 1))
        for n in range(60)
    ]
    refused = [one.code for one in codes if isinstance(one, messages.Failure)]
    assert refused == [Code.EDQUOT] * 10
    scene.cluster.wire.clear()
    assert len(scene.friends.lookup(scene.mine.create(data=b"x").name)) == 1


def test_principals_that_it_makes_up_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many principals are known here; a node tells of no more."""
    monkeypatch.setattr(limits, "PRINCIPALS_MAX", 20)
    for n in range(60):
        scene.ask(dcp.Resolve(dcp.Caller(TaskId(10_000 + n), f"uid:{n}", "", Brand.PURE), (), 1))
        scene.ask(dcp.TasksEnded((TaskId(10_000 + n),)))
    assert len(scene.target.core.state.principals) == 20


def test_groups_that_it_makes_up_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many groups are known here; a node tells of no more."""
    known = len(scene.target.core.state.groups)
    monkeypatch.setattr(limits, "GROUPS_KNOWN_MAX", known + 5)
    for n in range(20):
        told = dcp.GroupName(Name(n.to_bytes(32, "big")), OWNER)
        create = messages.Create(ObjectType.SHMEM_BLOB, data=b"x")
        scene.ask(dcp.Forward(scene.caller(scene.villains), create, (told,)))
    assert len(scene.target.core.state.groups) == known + 5


def test_nodes_that_it_makes_up_are_bounded(scene: Scene) -> None:
    """Rows of nodes that come and go leave nothing behind."""
    for n in range(3 * limits.PEERS_MAX):
        row = gossip.MemberRow(NodeId(10_000 + n), f"m{n}", "", "127.0.0.1:1", 1)
        scene.gossip(row)
        scene.gossip(replace(row, status=NodeStatus.LEFT))
    cluster = scene.target.core.state.cluster
    assert cluster is not None
    assert len(cluster.peers) <= limits.PEERS_MAX
    assert len(cluster.membership.members) < limits.NODES_MAX
    assert scene.friend.node in cluster.peers


def test_requests_without_end_are_refused(scene: Scene) -> None:
    """A node whose answers are never settled loses its connection when there are too many."""

    def ask() -> None:
        scene.number += 1
        asked = dcp.Ask(scene.number, 0, dcp.Resolve(scene.caller(scene.villains), (), 1))
        scene.target.core.step(events.Received(scene.target.now, scene.villain.node, 1, asked))

    cluster = scene.target.core.state.cluster
    assert cluster is not None
    answers = cluster.peers[scene.villain.node].answers
    while len(answers) < 2 * limits.DCP_REQUESTS_MAX:
        ask()
    with pytest.raises(ProtocolError):
        ask()
    assert len(answers) == 2 * limits.DCP_REQUESTS_MAX
