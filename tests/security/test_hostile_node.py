"""A node with a valid certificate that turned hostile: what it still cannot do to another.

Not for: malformed bytes (``tests/unit/host/peers/test_peers_hostile.py``), or messages that make no sense
(``tests/unit/core/remote/test_remote_hostile.py``). Here it speaks rightly, and asks for what is not its own.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from dios import limits
from dios.core import effects, events
from dios.core.calls import delegation
from dios.core.model.invariants import check
from dios.core.model.names import logs_group
from dios.core.model.records import RemoteTask
from dios.core.remote import remote_calls, remote_tasks
from dios.errors import Code, ProtocolError
from dios.ids import Name, NodeId, ObjectId, Principal, RefId, TaskId
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
from tests.support.core.cluster import MS, Citizen, Parcel
from tests.support.core.harness import OWNER
from tests.support.security.hostile_scene import Scene

FAR = NodeId(4_711)
READ = int(Permission.READ)


def record_of(scene: Scene, who: Citizen, task: int = 0) -> RemoteTask:
    """The target's record of a task of another node."""
    cluster = scene.target.core.state.cluster
    assert cluster is not None
    return cluster.peer(who.node.node).remote_tasks[TaskId(task or who.task)]


@pytest.fixture
def scene() -> Scene:
    """A fresh cluster."""
    return Scene()


# -- whose name it may use ------------------------------------------------------------------------------
def test_it_does_not_act_for_tasks_of_others(scene: Scene) -> None:
    """A call in the name of a task of the target costs the connection; an id of a third node's is its own."""
    name = scene.mine.create(data=b"secret").name
    (held,) = scene.friends.lookup(name)
    scene.cluster.settle()
    with pytest.raises(ProtocolError):
        scene.ask(dcp.Forward(scene.caller(scene.mine), messages.Stat(1)))
    stat = dcp.Forward(scene.caller(scene.friends), messages.Stat(held.ref))
    assert scene.refused(stat) == Code.EBADF
    scene.ask(dcp.TasksEnded((scene.friends.task,)))
    assert held.ref in record_of(scene, scene.friends).table


@pytest.mark.parametrize("first", ["call", "answer", "offer"])
def test_it_takes_no_id_of_a_third_nodes_task(scene: Scene, first: str) -> None:
    """The task is served as if nobody had named it, and its node keeps its connection."""
    false = replace(scene.caller(scene.friends, Brand.PURE), principal=STRANGER)
    if first == "call":
        scene.ask(dcp.Resolve(false, (), 1))
    elif first == "answer":
        scene.ask(dcp.ReconcileReferences(1, (dcp.HeldReferences(false, 0, 2**63 - 1, ()),), (), None))
    else:
        body = lies_about(scene, scene.mine)["offer"]
        assert isinstance(body, dcp.Offer)
        scene.ask(replace(body, receiver=false))
    (reference,) = scene.friends.lookup(scene.mine.create(data=b"mine").name)
    scene.cluster.settle()
    assert scene.friends.read(reference.ref) == b"mine"
    record = record_of(scene, scene.friends)
    assert (record.principal, record.brand) == (OWNER, Brand.LEGACY)
    assert reference.ref in record.table


def test_it_starts_no_task_with_the_id_of_a_third_nodes(scene: Scene) -> None:
    """A child of the villain with the id of the friend's session: that session is served all the same."""
    body = replace(start(scene, Brand.PURE, scene.caller(scene.villains)), child=scene.friends.task)
    assert not isinstance(scene.ask(body), messages.Failure)
    assert scene.friends.task in scene.target.core.state.tasks
    (reference,) = scene.friends.lookup(scene.mine.create(data=b"mine").name)
    scene.cluster.settle()
    assert scene.friends.read(reference.ref) == b"mine"


def test_it_takes_no_id_of_a_third_nodes_child(scene: Scene) -> None:
    """The id of a run that was offered references is named first by the villain: the run starts all the same.

    If the villain runs a task with this id there itself, the run is refused, and nobody's connection ends.
    """
    program = scene.friends.create(data=b"pass").reference
    for taken in (False, True):
        offers: list[dcp.Start] = []

        def seen(parcel: Parcel, offers: list[dcp.Start] = offers) -> bool:
            if isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.Start):
                offers.append(parcel.message.body)
            return bool(offers) and isinstance(parcel.message, dcp.Ask)

        scene.cluster.drop = seen
        call = messages.Run(program.ref, host="n1", flags=int(Flag.NON_BLOCKING))
        seq = scene.friends.send(call)
        scene.cluster.settle()
        child = offers[0].child
        villains = scene.caller(scene.villains, Brand.PURE)
        scene.ask(dcp.Resolve(replace(villains, task=child), (), 1))
        if taken:
            scene.ask(replace(start(scene, Brand.PURE, villains), child=child))
        scene.cluster.drop = lambda _: False
        answer = scene.cluster.wait(scene.friends, seq)
        assert isinstance(answer, messages.Failure if taken else messages.Created), answer


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
def test_it_drops_no_reference_of_a_third_nodes_task(scene: Scene) -> None:
    """A release is believed of the task's own node, and of the node that gave the reference."""
    created = scene.mine.create(data=b"secret")
    (held,) = scene.friends.lookup(created.name)
    scene.cluster.settle()
    scene.ask(dcp.Release(scene.friends.task, (RefId(held.ref),)))
    assert scene.friends.read(held.ref) == b"secret"


def test_it_says_good_bye_for_no_other(scene: Scene) -> None:
    """A third node that is said to have left is asked first: its tasks and requests are not given up."""
    state = scene.target.core.state.cluster
    assert state is not None
    row = state.membership.members[scene.friend.node]
    scene.gossip(replace(row, status=NodeStatus.LEFT))
    assert state.membership.members[scene.friend.node].status is NodeStatus.SUSPECT
    assert state.peers[scene.friend.node].dead_since is None
    scene.cluster.settle()
    assert state.membership.members[scene.friend.node].status is NodeStatus.ALIVE


def test_a_guessed_reference_is_none(scene: Scene) -> None:
    """The ids of references that others hold mean nothing for its tasks, even when it knows them."""
    created = scene.mine.create(data=b"secret")
    (friends,) = scene.friends.lookup(created.name)
    for ref in (created.reference.ref, friends.ref, scene.mine.self_ref, 1, 2**63 - 1):
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


@pytest.mark.parametrize("epoch", [0, 1, 2, limits.EPOCH_MAX])
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
    created = scene.mine.create(ObjectType.DURABLE_BLOB, data=b"kept")
    scene.villains.lookup(created.name)
    scene.target.crash()
    for node in (scene.friend, scene.villain):
        scene.cluster.connect(node, scene.target)
        scene.cluster.connect(scene.target, node)
    scene.cluster.settle()
    entry = (RefId(4_711), ObjectId(created.reference.object), int(Permission.ALL), True)
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
    created = scene.mine.create(ObjectType.DURABLE_BLOB, data=b"kept")
    scene.target.crash()
    for node in (scene.friend, scene.villain):
        scene.cluster.connect(node, scene.target)
        scene.cluster.connect(scene.target, node)
    scene.cluster.settle()
    me = scene.cluster.session(scene.target)
    (mine,) = me.lookup(created.name)
    stolen = (RefId(mine.ref), ObjectId(mine.object), int(Permission.ALL), True)
    odd = (RefId(4_711), ObjectId(mine.object), 2**15 | READ, True)
    answer = scene.claim(stolen, odd, epoch=1)
    assert isinstance(answer, dcp.UnknownReferences)
    assert answer.refs == (mine.ref,)
    assert record_of(scene, scene.villains).table.get(4_711).permissions == Permission.READ
    assert me.read(mine.ref) == b"kept"


def given(scene: Scene, reference: messages.Reference, **by: object) -> dcp.ReferenceGiven:
    """What the villain says when its session gives the target's session a reference."""
    held = dcp.HeldReference(scene.villain.node, reference)
    said = dcp.ReferenceGiven(scene.mine.task, "0" * 12, held, scene.villains.task, scene.villain.node)
    return replace(said, **by)


def let_it_give(scene: Scene) -> None:
    """Give the villain's session a reference to the target's, with which it may give to it."""
    itself = scene.target.core.state.tasks[scene.mine.task]
    assert itself.object.name is not None
    (ref,) = scene.villains.lookup(bytes(itself.object.name))
    assert ref.permissions & Permission.WRITE
    scene.cluster.settle()


def test_given_rights_and_ids_are_checked(scene: Scene) -> None:
    """What it gives has no rights that there are not, no id that is taken, and brings no label."""
    let_it_give(scene)
    told = scene.villains.create(data=b"evil").reference
    odd = replace(told, ref=RefId(4_711), permissions=2**15 | READ, label="x" * 100)
    assert isinstance(scene.ask(given(scene, odd)), messages.Done)
    table = scene.target.core.state.tasks[scene.mine.task].table
    assert table.get(4_711).permissions == Permission.READ
    assert not table.get(4_711).label
    with pytest.raises(ProtocolError):
        scene.ask(given(scene, odd))
    task = scene.target.core.state.tasks[scene.mine.task]
    assert len(list(table.get(4_711).object.held_by(task))) == 1


def test_nobody_is_given_what_no_task_may_give_it(scene: Scene) -> None:
    """A gift of who may not write to the receiver, of nobody, or of another node's task is refused."""
    told = replace(scene.villains.create(data=b"evil").reference, ref=RefId(4_711))
    name = scene.mine.create(data=b"x").name
    for citizen in (scene.friends, scene.villains):
        citizen.lookup(name)
    scene.cluster.settle()
    task = scene.target.core.state.tasks[scene.mine.task]
    held = len(task.table)
    for by in (
        {},
        {"by": TaskId(0), "home": NodeId(0)},
        {"by": scene.mine.task, "home": scene.target.node},
        {"by": scene.friends.task},
        {"by": scene.friends.task, "home": scene.friend.node},
    ):
        assert scene.refused(given(scene, told, **by)) == Code.EPERM
    assert len(task.table) == held
    assert not task.events


# -- what it says of others' tasks ------------------------------------------------------------------------
STRANGER = "uid:31337"


def lies_about(scene: Scene, who: Citizen) -> dict[str, dcp.RequestBody]:
    """What the villain may say of a task of the friend's node, and with what principal."""
    (ref,) = scene.villains.lookup(scene.mine.create(data=b"x").name)
    scene.cluster.settle()
    false, me = scene.caller(who, Brand.PURE, STRANGER), scene.caller(scene.villains)
    return {
        "offer": dcp.Offer(me, (dcp.SharedReference(RefId(ref.ref), READ),), false, scene.friend.node),
        "delegate": dcp.Delegate(me, messages.Copy(ref.ref, 0, READ), false, scene.friend.node),
        "replica": dcp.CreateReplica(
            false, None, (), STRANGER, ObjectType.SHMEM_BLOB, Buffering.DOUBLE, 0, 0, 0, scene.friend.node
        ),
    }


@pytest.mark.parametrize("kind", ["offer", "delegate", "replica"])
def test_it_is_not_believed_about_the_principal_of_a_third_nodes_task(scene: Scene, kind: str) -> None:
    """For whom a task acts, and whether it is pure, its own node says: what others said does not count."""
    body = lies_about(scene, scene.friends)[kind]
    scene.cluster.drop = lambda parcel: parcel.to == scene.villain.node
    scene.ask(body)
    scene.cluster.settle()
    assert len(scene.friends.lookup(scene.mine.create(data=b"mine").name)) == 1
    record = record_of(scene, scene.friends)
    assert (record.home, record.principal, record.brand) == (
        scene.friend.node, OWNER, Brand.LEGACY,
    )  # fmt: skip
    check(scene.target.core.state)


def test_it_offers_nothing_to_a_task_that_runs(scene: Scene) -> None:
    """References are offered to a task that will be started, and not to a third node's task that was."""
    scene.friends.lookup(scene.mine.create(data=b"x").name)
    scene.cluster.settle()
    record = record_of(scene, scene.friends)
    held = len(record.table)
    assert scene.refused(lies_about(scene, scene.friends)["offer"]) == Code.EPERM
    assert len(record.table) == held


def test_it_takes_no_references_from_a_third_nodes_task(scene: Scene) -> None:
    """What a task holds is dropped when its own node says so, also where another node knows the ids."""
    (ref,) = scene.friends.lookup(scene.mine.create(data=b"kept").name)
    scene.cluster.settle()
    record = record_of(scene, scene.friends)
    scene.ask(dcp.Release(scene.friends.task, (RefId(ref.ref),)))
    assert ref.ref in record.table


def test_it_describes_no_object_of_a_third_node(scene: Scene) -> None:
    """Size and counters of an object come from its node; a false kind is dropped when that node speaks."""
    theirs = scene.friends.create(data=b"theirs")
    (held,) = scene.mine.lookup(theirs.name)
    scene.cluster.settle()
    scene.cluster.drop = lambda parcel: parcel.to == scene.villain.node
    false = replace(theirs.reference, ref=RefId(4_720), size=7_777, v_w=9)
    scene.ask(
        replace(
            start(scene, Brand.PURE, scene.caller(scene.villains)),
            inputs=(dcp.HeldReference(scene.friend.node, false),),
        )
    )
    table = scene.target.core.state.tasks[scene.mine.task].table
    assert (table.get(held.ref).object.size, table.get(held.ref).object.v_w) == (held.size, held.v_w)
    other = scene.friends.create(data=b"other")
    odd = replace(other.reference, ref=RefId(4_721), type=ObjectType.SHMEM_STREAM)
    scene.ask(
        replace(
            start(scene, Brand.PURE, scene.caller(scene.villains)),
            child=TaskId(4_799),
            program=dcp.HeldReference(
                scene.villain.node,
                replace(odd, ref=RefId(4_722), object=ObjectId(4_723), type=ObjectType.SHMEM_BLOB),
            ),
            inputs=(dcp.HeldReference(scene.friend.node, odd),),
        )
    )
    (right,) = scene.mine.lookup(other.name)
    assert table.get(right.ref).object.type is ObjectType.SHMEM_BLOB
    assert RefId(4_721) not in scene.target.core.state.tasks[TaskId(4_799)].table
    check(scene.target.core.state)


def test_a_third_nodes_task_is_not_kept_from_its_own_node(scene: Scene) -> None:
    """A task that the villain named as another node's is its own node's as soon as that one speaks for it."""
    bodies = lies_about(scene, scene.mine)
    false = dcp.Caller(TaskId(4_711), STRANGER, "", Brand.PURE)
    offer = bodies["offer"]
    assert isinstance(offer, dcp.Offer)
    assert isinstance(scene.ask(replace(offer, receiver=false)), dcp.Offered)
    mine = dcp.Resolve(dcp.Caller(TaskId(4_711), OWNER, "", Brand.LIMBO), (), 1)
    assert isinstance(scene.ask(mine), dcp.Found)
    record = record_of(scene, scene.villains, 4_711)
    assert (record.home, record.principal, record.brand) == (scene.villain.node, OWNER, Brand.LIMBO)
    assert not len(record.table)


def test_it_stores_no_output_for_others(scene: Scene) -> None:
    """An object that it names lands in no group but that of the logs of a principal that is at home here."""
    state = scene.target.core.state
    home = state.homes[Principal(OWNER)].name
    assert home is not None
    before = len(state.objects), len(state.principals)
    name = Name(b"n" * 32)
    for principal, group in ((OWNER, home), (OWNER, Name(b"g" * 32)), ("uid:4000000000", logs_group(home))):
        body = dcp.KeepOutput(principal, name, group, 4)
        assert scene.refused(body, b"evil") == Code.EPERM
    assert (len(state.objects), len(state.principals)) == before
    assert isinstance(scene.ask(dcp.KeepOutput(OWNER, name, logs_group(home), 4), b"evil"), messages.Done)


def test_tasks_that_it_names_leave_room_for_a_third_nodes_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names tasks of the friend up to a bound, above which the friend's own word still counts."""
    monkeypatch.setattr(remote_tasks, "GUESSES_MAX", 3)
    body = lies_about(scene, scene.mine)["offer"]
    assert isinstance(body, dcp.Offer)
    for number in range(3):
        false = dcp.Caller(TaskId(5_000 + number), STRANGER, "", Brand.PURE)
        assert isinstance(scene.ask(replace(body, receiver=false, node=scene.friend.node)), dcp.Offered)
    false = dcp.Caller(TaskId(5_999), STRANGER, "", Brand.PURE)
    assert scene.refused(replace(body, receiver=false, node=scene.friend.node)) == Code.EDQUOT
    (reference,) = scene.friends.lookup(scene.mine.create(data=b"mine").name)
    assert scene.friends.read(reference.ref) == b"mine"


def test_what_it_gives_to_third_nodes_tasks_is_bounded_until_they_confirm(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fills no record of a third node's task with references that the task's node has not confirmed."""
    monkeypatch.setattr(delegation, "HANDING_OVER_MAX", 3)
    (held,) = scene.villains.lookup(scene.mine.create(data=b"given").name)
    receiver = scene.caller(scene.friends)
    body = dcp.Delegate(scene.caller(scene.villains), messages.Copy(held.ref, 0), receiver, scene.friend.node)
    for _ in range(3):
        assert scene.ask(body) is None
    assert scene.refused(body) == Code.EAGAIN
    assert len(record_of(scene, scene.friends).table) == 3


def test_a_ghost_with_the_name_of_a_node_takes_nothing_from_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of gossip alone is not found by the name of one that was connected, nor by its id."""
    state = scene.target.core.state.cluster
    assert state is not None
    villain = state.membership.members[scene.villain.node]
    for name in ("n2", f"{scene.friend.node:x}"):
        ghost = replace(villain, node=NodeId(scene.number), name=name, epoch=1)
        scene.number += 1
        scene.gossip(ghost)
    ordered = dict(reversed(list(state.membership.members.items())))
    assert next(iter(ordered.values())).name != "n2"
    # As if the ghosts had been heard of first.
    monkeypatch.setattr(type(state.membership), "members", property(lambda _: ordered))
    for host in ("n2", f"{scene.friend.node:x}"):
        assert remote_calls.member_named(state, host) == scene.friend.node


# -- tasks ------------------------------------------------------------------------------------------------
def start(scene: Scene, brand: Brand, caller: dcp.Caller) -> dcp.Start:
    """A task of this brand, with a program of the villain's."""
    program = scene.villains.create(data=b"evil").reference
    held = dcp.HeldReference(scene.villain.node, replace(program, ref=RefId(4_712)))
    return dcp.Start(
        caller, TaskId(4_713), Name(bytes(range(32))), messages.Run(0, brand=brand), (), held, (), ()
    )


def test_no_task_outside_the_sandbox_for_the_wrong(scene: Scene) -> None:
    """No word of another node starts a program outside the sandbox, unless the node's owner lets them in.

    Even then only the node's own user has such tasks; none is legacy.
    """
    pure = replace(scene.caller(scene.villains, Brand.PURE), task=TaskId(51))
    stranger = replace(scene.caller(scene.villains, principal="uid:4711"), task=TaskId(52))
    owner = replace(scene.caller(scene.villains), task=TaskId(53))
    tasks = len(scene.target.core.state.tasks)
    assert scene.refused(start(scene, Brand.LIMBO, pure)) == Code.EPERM
    assert scene.refused(start(scene, Brand.LIMBO, stranger)) == Code.EPERM
    assert scene.refused(start(scene, Brand.LIMBO, owner)) == Code.EPERM
    scene.target.let_limbo_in()
    assert scene.refused(start(scene, Brand.LIMBO, pure)) == Code.EPERM
    assert scene.refused(start(scene, Brand.LIMBO, stranger)) == Code.EPERM
    assert scene.refused(start(scene, Brand.LEGACY, owner)) == Code.EINVAL
    assert len(scene.target.core.state.tasks) == tasks


def test_in_restricted_mode_no_node_starts_tasks_outside_the_sandbox(scene: Scene) -> None:
    """A restricted node runs pure tasks alone, whoever asks: no other node reads files through it."""
    scene.target.core.state.restricted = True  # type: ignore[misc] # as if it had been started so
    scene.target.effects.clear()
    scene.ask(start(scene, Brand.LIMBO, scene.caller(scene.villains)))
    (spawn,) = [effect for effect in scene.target.effects if isinstance(effect, effects.Spawn)]
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
    for effect in scene.target.effects:
        assert not isinstance(effect, effects.Contact)
        assert not isinstance(effect, effects.Send) or effect.node != FAR


def test_a_row_of_a_stranger_leads_to_a_dial_and_no_further(scene: Scene) -> None:
    """A made-up row is dialled, where a certificate decides; nobody is asked for anything before."""
    done = scene.gossip(gossip.MemberRow(FAR, "far", "", "127.0.0.1:1", 5))
    assert [effect.address for effect in done if isinstance(effect, effects.Contact)] == ["127.0.0.1:1"]
    assert not [
        effect for effect in done if isinstance(effect, effects.Send) and isinstance(effect.message, dcp.Ask)
    ]


def test_it_does_not_keep_a_third_node_out(scene: Scene) -> None:
    """An epoch that it made up for a node that was never met does not make the target refuse that node."""
    scene.gossip(gossip.MemberRow(FAR, "far", "", "127.0.0.1:1", limits.EPOCH_MAX))
    scene.target.effects.clear()
    scene.target.step(events.PeerUp(scene.target.now, FAR, 3, "far", "", "127.0.0.1:1"))
    assert not [effect for effect in scene.target.effects if isinstance(effect, effects.HangUp)]
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
    for epoch in (1, 2, limits.EPOCH_MAX):
        scene.target.step(events.PeerUp(scene.target.now, scene.villain.node, epoch, "n3", "", ""))
    hung_up = [effect for effect in scene.target.effects if isinstance(effect, effects.HangUp)]
    assert [effect.node for effect in hung_up] == [scene.villain.node] * 3


def test_it_removes_nobody_by_gossip(scene: Scene) -> None:
    """A removal is a signed statement: the ids that came with gossip in earlier releases do nothing."""
    state = scene.villain.core.state.cluster
    assert state is not None
    own = state.membership.own
    for ids in (
        [scene.friend.node],
        [scene.target.node],
        list(range(1_000, 1_000 + limits.GOSSIP_UPDATES_MAX)),
    ):
        scene.target.effects.clear()
        scene.say(dcp.Gossip(msgspec.msgpack.encode([63, own, [], ids])))
        assert not [
            effect
            for effect in scene.target.effects
            if isinstance(effect, effects.HangUp | effects.BeginShutdown | effects.RemoveNode)
        ]
    cluster = scene.target.core.state.cluster
    assert cluster is not None
    assert not cluster.membership.forgotten


def test_a_removed_node_continues_alone(scene: Scene) -> None:
    """A statement that removes the target does not stop it: its own users are served, and the log says so."""
    scene.target.effects.clear()
    scene.target.step(events.NodesRemoved(scene.target.now, (scene.target.node,)))
    assert not [effect for effect in scene.target.effects if isinstance(effect, effects.BeginShutdown)]
    said = [
        (effect.outcome, effect.subject)
        for effect in scene.target.effects
        if isinstance(effect, effects.Audit)
    ]
    assert ("forgotten", "n1") in said
    assert scene.mine.read(scene.mine.create(data=b"served").reference.ref) == b"served"


def test_programs_outside_the_sandbox_end_with_their_node(scene: Scene) -> None:
    """When a node is removed, what its tasks have started outside the sandbox is ended."""
    scene.target.let_limbo_in()
    scene.ask(start(scene, Brand.LIMBO, scene.caller(scene.villains)))
    child = scene.target.core.state.tasks[TaskId(4_713)]
    scene.cluster.drop = lambda parcel: parcel.to == scene.villain.node
    scene.target.step(events.TaskStarted(scene.target.now, child.id, 99))
    scene.target.effects.clear()
    scene.mine.call(messages.SetNode("n3", NodeWish.FORGET))
    assert [effect.task for effect in scene.target.effects if isinstance(effect, effects.Kill)] == [child.id]


def test_a_lie_about_death_kills_nobody(scene: Scene) -> None:
    """That another node is dead makes it a suspect, which denies it: its tasks keep what they hold."""
    scene.friends.lookup(scene.mine.create(data=b"kept").name)
    scene.cluster.settle()
    held = len(record_of(scene, scene.friends).table)
    scene.gossip(gossip.MemberRow(scene.friend.node, "n2", "r1", "10.0.0.2:7117", 1, 5, NodeStatus.DEAD))
    scene.cluster.advance(3_000)
    cluster = scene.target.core.state.cluster
    assert cluster is not None
    assert cluster.membership.members[scene.friend.node].status is NodeStatus.ALIVE
    assert len(record_of(scene, scene.friends).table) == held


# -- memory -----------------------------------------------------------------------------------------------
def test_tasks_that_it_makes_up_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many tasks of one node are known here; more are refused, and the friend's are taken still."""
    monkeypatch.setattr(limits, "REMOTE_TASKS_PER_NODE_MAX", 50)
    codes = [
        scene.ask(dcp.Resolve(dcp.Caller(TaskId(10_000 + n), OWNER, "", Brand.PURE), (), 1))
        for n in range(60)
    ]
    refused = [answer.code for answer in codes if isinstance(answer, messages.Failure)]
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


def test_it_gives_no_group_an_owner(scene: Scene) -> None:
    """A group is entered with the owner that its name proves: nobody else becomes a member by its name."""
    group = scene.friends.create(ObjectType.GROUP)
    name = Name(group.name or b"")
    create = messages.Create(ObjectType.SHMEM_BLOB, data=b"x")
    scene.ask(dcp.Forward(scene.caller(scene.villains), create, (dcp.GroupName(name, STRANGER),)))
    assert scene.target.core.state.groups[name].owner == ""
    thief = scene.target.session(Principal(STRANGER), (name,))
    assert name not in scene.target.core.state.tasks[thief.task].memberships
    owner = scene.target.session(OWNER, (name,))
    assert name in scene.target.core.state.tasks[owner.task].memberships


def test_nodes_that_it_makes_up_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of nodes that come and go leave nothing behind; with smaller tables, which fill sooner."""
    monkeypatch.setattr(limits, "NODES_MAX", 128)
    monkeypatch.setattr(limits, "PEERS_MAX", 256)
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
