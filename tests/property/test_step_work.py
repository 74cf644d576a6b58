"""No step of the core costs more than a bound, whatever the tables hold (``limits.STEP_WORK_MAX``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pytest

from dios import limits
from dios.core import events
from dios.core.calls import dispatch
from dios.core.effects import AnswerVector
from dios.ids import Name, Principal, TaskId
from dios.wire import messages
from dios.wire.types import (
    Cause,
    CommitIov,
    Flag,
    Mode,
    NameKind,
    NodeWish,
    ObjectType,
    RequestEnd,
    Resource,
    SandboxUse,
    Scope,
)
from tests.support.core.full_tables import FullNode, Scene

PENDING: Final = limits.PENDING_PER_TASK_MAX
BUFFERS: Final = limits.BUFFERS_PER_TASK_MAX
SELECTED: Final = limits.SELECT_REFERENCES_MAX
CALLS: Final = limits.VECTOR_CALLS_MAX

Make = Callable[[Scene], Iterable[messages.PlainCall]]


@pytest.fixture
def node() -> FullNode:
    """A node whose steps are measured."""
    return FullNode()


# -- long work ----------------------------------------------------------------------------------------
def test_the_end_of_a_task_with_a_full_table_takes_many_short_steps(node: FullNode) -> None:
    """A full table of references to one stream, whose holder leaves: the ends are closed in short steps."""
    client = node.session()
    stream = node.anonymous(client, ObjectType.SHMEM_STREAM)
    for mode in Mode:
        client.ask(messages.Attached, messages.Attach(stream, mode))
    node.copies(client, stream, node.room(client))
    most = node.measure(events.Disconnected(node.now, client.task))
    assert node.steps["TimerFired"] > 50
    assert most < limits.STEP_WORK_MAX // 8
    assert not node.core.state.tasks
    assert not node.core.state.work


def test_a_destroyed_object_with_many_references_and_buffers_is_gone_at_once(node: FullNode) -> None:
    """The step that destroys an object does not look at its references or buffers."""
    client = node.session()
    created = client.create(data=b"content")
    refs = node.copies(client, created.reference.ref, node.room(client))
    for ref in refs[:BUFFERS]:
        client.call(messages.AcquireRead(ref))
    most = node.measure_call(client, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    assert most < 2_000
    assert client.lookup(created.name) == ()
    node.measure(events.Disconnected(node.now, client.task))


def test_a_change_of_one_object_is_not_compared_with_all_selected_ones(node: FullNode) -> None:
    """All waiting calls of a task select all the objects that they can; one object changes."""
    client = node.session()
    streams = node.many(client, SELECTED, ObjectType.SHMEM_STREAM)
    calls = [messages.Select(tuple(streams), Mode.READ, None) for _ in range(PENDING)]
    waiting = node.wait_with(client, calls)
    most = node.measure_call(client, messages.Delete(streams[5], int(Flag.DESTROY)))
    assert most < limits.STEP_WORK_MAX // 8
    assert all(client.answer(seq) is not None for seq in waiting)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 12])
@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB, ObjectType.SHMEM_STREAM])
def test_a_vector_of_creations_in_groups_fits_a_step(node: FullNode, kind: ObjectType, count: int) -> None:
    """The groups of new objects and the rings of streams are charged, so that a full vector fits."""
    client = node.session()
    groups = [client.groups[0], *(client.create(ObjectType.GROUP).reference.ref for _ in range(count))]
    data = None if kind is ObjectType.SHMEM_STREAM else b"x"
    naming = NameKind.RANDOM if count else NameKind.ANONYMOUS
    call = messages.Create(kind, tuple(groups[:count]), naming, data=data)
    node.measure_call(client, messages.Vector((call,) * CALLS))
    assert node.outcome.units >= CALLS


def test_a_change_that_many_references_show_is_charged(node: FullNode) -> None:
    """The host shows new counters to every reference, so that a change costs turns by their number."""
    client = node.session()
    ref = node.anonymous(client)
    client.call(messages.WriteOnce(ref, b"x"))
    few = node.outcome.units
    node.copies(client, ref, node.room(client))
    client.call(messages.WriteOnce(ref, b"x"))
    assert node.outcome.units > few + 500


def test_all_waiting_calls_of_a_task_end_with_it_in_short_steps(node: FullNode) -> None:
    """A task with all waiting calls, each on as many objects as possible, leaves."""
    client = node.session()
    streams = node.many(client, SELECTED, ObjectType.SHMEM_STREAM)
    calls = [messages.Select(tuple(streams), Mode.READ, None) for _ in range(PENDING)]
    node.wait_with(client, calls)
    node.measure(events.Disconnected(node.now, client.task))
    assert not len(node.core.state.pending)


def test_calls_whose_time_is_over_are_answered_in_short_steps(node: FullNode) -> None:
    """Every waiting call of three tasks has the same deadline."""
    clients = [node.session() for _ in range(3)]
    waiting = []
    for client in clients:
        streams = node.many(client, 64, ObjectType.SHMEM_STREAM)
        calls = [messages.Select(tuple(streams), Mode.READ, 1_000) for _ in range(PENDING)]
        waiting += [(client, seq) for seq in node.wait_with(client, calls)]
    node.now += 10_000
    node.measure(events.TimerFired(node.now))
    assert all(client.answer(seq) == messages.Selected(-1) for client, seq in waiting)


def test_references_that_expire_together_are_taken_back_in_short_steps(node: FullNode) -> None:
    """A full table of references expires at one moment; meanwhile none of them can be used."""
    client = node.session()
    ref = node.anonymous(client)
    call = messages.Copy(ref, client.self_ref, 31, lifetime_ns=1_000)
    copies = [client.ask(messages.References, call).references[0].ref for _ in range(node.room(client) // 2)]
    node.now += 10_000
    node.measured, node.most = True, 0
    assert isinstance(client.call(messages.Stat(copies[-1])), messages.Failure)
    node.measured = False
    assert len(node.core.state.tasks[client.task].table) > len(copies) // 2, "no step takes them all back"
    node.measure(events.TimerFired(node.now))
    assert len(node.core.state.tasks[client.task].table) < 10


@pytest.mark.parametrize("everyone", [False, True])
@pytest.mark.parametrize("shape", ["wide", "deep", "bushy"])
def test_retirements_take_many_short_steps_and_answer_at_the_end(
    node: FullNode, shape: str, *, everyone: bool
) -> None:
    """A wide, a deep or a bushy tree of delegations is retired; new delegations do not escape."""
    owner, other = node.session(), node.session()
    task = node.core.state.tasks[other.task]
    ref = owner.create(data=b"x").reference.ref
    to_other = next(reference for reference in owner.lookup(other.welcome.name))
    owner.delegate(ref, to_other.ref)
    first = other.given().ref
    last = first
    count = 6_000
    copies = [first]
    for number in range(count):
        origin = {"wide": first, "deep": last, "bushy": copies[number // 3]}[shape]
        last = other.ask(messages.References, messages.Copy(origin, other.self_ref, 31)).references[0].ref
        copies.append(last)
        if number % 500 == 0:
            node.answers.clear()
    held = len(task.table)
    seq = owner.send(messages.Retire(ref, int(Flag.EVERYONE) if everyone else 0))
    assert owner.answer(seq) is None, "it takes several steps"
    assert isinstance(other.call(messages.Stat(last)), (messages.References, messages.Failure))
    for source in (first, copies[3], last):
        other.call(messages.Copy(source, other.self_ref, 31))  # what is left may still be delegated
    node.measure(events.TimerFired(node.now))
    assert isinstance(owner.answer(seq), messages.Done)
    assert len(task.table) == held - count - 1
    assert owner.stat(ref).ref == ref


def test_a_retirement_goes_on_when_its_caller_leaves(node: FullNode) -> None:
    """The references are taken back although the task that asked for it ends at once."""
    owner, other = node.session(), node.session()
    task = node.core.state.tasks[other.task]
    ref = owner.create(data=b"x").reference.ref
    to_other = next(reference for reference in owner.lookup(other.welcome.name))
    before = len(task.table)
    node.copies(owner, ref, 3_000, to_other.ref)
    owner.send(messages.Retire(ref))
    node.measure(events.Disconnected(node.now, owner.task))
    assert len(task.table) == before


def test_a_refused_store_looks_only_at_changes_that_are_not_durable(node: FullNode) -> None:
    """A node with many stored objects learns that one change failed."""
    client = node.session()
    for _ in range(3_000):
        client.create(ObjectType.DURABLE_BLOB, data=b"x")
    last = node.outcome.ticket
    node.step(events.Persisted(node.now, last))
    client.create(ObjectType.DURABLE_BLOB, data=b"x")
    ticket = node.outcome.ticket
    most = node.measure(events.PersistFailed(node.now, ticket, ticket, 28, "the disk is full"))
    assert most < 5_000


# -- every call -----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def scene() -> Scene:
    """A session with full tables, on a node with many tasks."""
    return Scene()


def some(make: Callable[[Scene, int], messages.PlainCall]) -> Make:
    """As many calls as a vector holds."""
    return lambda scene: (make(scene, number) for number in range(CALLS))


def buffers(scene: Scene, number: int) -> tuple[int, int]:
    """A buffer to write of the scene, and the reference that it belongs to."""
    return scene.written[number % len(scene.written)]


_BOUNDS: Final = tuple(messages.Bound(resource, None) for resource in Resource)

_EVERY: Final[dict[type, Make | list[messages.PlainCall]]] = {
    messages.Create: some(
        lambda scene, _: messages.Create(ObjectType.DURABLE_BLOB, tuple(scene.groups), data=b"x")
    ),
    messages.CreateLabelled: some(
        lambda scene, number: messages.CreateLabelled(
            ObjectType.DURABLE_BLOB,
            tuple(scene.groups),
            data=b"x",
            secrecy=tuple(f"tag{number}.{index}" for index in range(limits.SECRECY_TAGS_MAX)),
        )
    ),
    messages.Lookup: some(lambda scene, _: messages.Lookup(scene.name)),
    messages.Copy: some(lambda scene, _: messages.Copy(scene.blob, scene.client.self_ref, 31)),
    messages.Delete: lambda scene: (messages.Delete(ref) for ref in scene.take(CALLS)),
    messages.Run: some(
        lambda scene, _: messages.Run(
            scene.blob,
            tuple(scene.groups),
            tuple(messages.Handed(scene.blob, 3) for _ in range(limits.ARGUMENTS_MAX)),
            flags=int(Flag.NON_BLOCKING),
        )
    ),
    messages.Pause: some(lambda scene, _: messages.Pause(scene.child)),
    messages.Resume: some(lambda scene, _: messages.Resume(scene.child)),
    messages.AcquireRead: some(lambda scene, _: messages.AcquireRead(scene.blob)),
    messages.CommitRead: some(lambda scene, number: messages.CommitRead(*scene.read[number])),
    messages.ReleaseRead: lambda scene: (messages.ReleaseRead(*pair) for pair in scene.read[:CALLS]),
    messages.AcquireWrite: some(lambda scene, _: messages.AcquireWrite(scene.blob)),
    messages.CommitWrite: some(
        lambda scene, number: messages.CommitWrite(scene.blob, buffers(scene, number)[1], iov=CommitIov.MOVE)
    ),
    messages.ReleaseWrite: some(lambda scene, number: messages.ReleaseWrite(*buffers(scene, number))),
    messages.Select: some(lambda scene, _: messages.Select(tuple(scene.streams[:SELECTED]), Mode.READ, 0)),
    messages.ReadOnce: some(lambda scene, _: messages.ReadOnce(scene.blob)),
    messages.WriteOnce: some(lambda scene, _: messages.WriteOnce(scene.blob, b"x")),
    messages.CommitAcquireRead: some(lambda scene, number: messages.CommitAcquireRead(*scene.read[number])),
    messages.CommitAcquireWrite: some(
        lambda scene, number: messages.CommitAcquireWrite(*buffers(scene, number))
    ),
    messages.Attach: some(lambda scene, number: messages.Attach(scene.streams[number], Mode.READ)),
    messages.Retire: some(lambda scene, _: messages.Retire(scene.blob, int(Flag.EVERYONE))),
    messages.Stat: some(lambda scene, _: messages.Stat(scene.blob)),
    messages.ConsoleOf: some(lambda scene, _: messages.ConsoleOf(scene.child)),
    messages.ListTasks: [messages.ListTasks()] * CALLS,
    messages.NodeInfo: [messages.NodeInfo()] * CALLS,
    messages.Cancel: lambda scene: (messages.Cancel(seq) for seq in scene.waiting),
    messages.Shutdown: [messages.Shutdown()] * CALLS,
    messages.Describe: some(lambda scene, _: messages.Describe(scene.child)),
    messages.ListLimits: [messages.ListLimits()] * CALLS,
    messages.SetLimits: [
        messages.SetLimits(Scope.PRINCIPAL, _BOUNDS, principal=f"uid:{number + 5_000}")
        for number in range(CALLS)
    ],
    messages.ListNodes: [messages.ListNodes()] * CALLS,
    messages.SetNode: [messages.SetNode("n1", NodeWish.DRAIN)] * CALLS,
    messages.LabelNode: [
        messages.LabelNode("n1", tuple((f"{number}-{place}", "x" * 8) for place in range(32)))
        for number in range(CALLS)
    ],
    messages.ReadQueue: [messages.ReadQueue(wait_ms=0)] * CALLS,
    messages.Place: [messages.Place()] * CALLS,
    messages.KeepRooms: [
        messages.KeepRooms(
            "", tuple(messages.PromisedStart(number + 1, "n1") for number in range(limits.RESERVATIONS_MAX))
        )
    ]
    * CALLS,
    messages.AskScheduler: [messages.AskScheduler(b"{}")] * CALLS,
    messages.Advise: [messages.Advise("", 1, b"{}")] * CALLS,
    messages.Report: [messages.Report(b"{}")] * CALLS,
    messages.Govern: [messages.Govern()] * CALLS,
    messages.SetAdmission: [
        messages.SetAdmission(
            "", tuple(messages.Quota(f"uid:{number}", tasks=1) for number in range(limits.QUOTAS_MAX))
        )
    ]
    * CALLS,
    messages.ReadTable: [messages.ReadTable("references", 9_000)] * CALLS,
    messages.Present: [
        messages.Present(
            tuple(bytes([number % 256, place]) * 16 for place in range(limits.GROUPS_PER_CALL_MAX))
        )
        for number in range(CALLS)
    ],
    messages.AwaitMove: [messages.AwaitMove()] * CALLS,
    messages.Leave: [messages.Leave()] * CALLS,
    messages.ReportProgress: [messages.ReportProgress(500)] * CALLS,
    messages.ShareGroup: some(
        lambda scene, number: messages.ShareGroup(
            scene.groups[0], bytes([number % 256]) * 32, "uid:7", scene.client.node.now + 10**12
        )
    ),
    messages.AcceptShare: [messages.AcceptShare(bytes(32), bytes(32), "uid:7", 2**62)] * CALLS,
    messages.IssueToken: some(
        lambda scene, number: messages.IssueToken(scene.groups[0], bytes([number % 256]) * 100)
    ),
    messages.RedeemToken: [messages.RedeemToken(bytes(limits.SEALED_TOKEN_BYTES_MAX))] * CALLS,
    messages.ReadRegister: [messages.ReadRegister()] * CALLS,
    messages.Enrol: [messages.Enrol(bytes(100))] * CALLS,
    messages.Vouch: [messages.Vouch(bytes(100))] * CALLS,
    messages.ReadMandateTerms: [messages.ReadMandateTerms()] * CALLS,
    messages.PruneEnvironments: [messages.PruneEnvironments()] * CALLS,
    messages.RecordRequest: some(
        lambda scene, _: messages.RecordRequest(scene.blob, 0, "GET", RequestEnd.ANSWERED)
    ),
    messages.RecordUse: some(
        lambda scene, number: messages.RecordUse(scene.child, SandboxUse.PROGRAM, number, "sh", 2)
    ),
}


def calls_of(scene: Scene, kind: type) -> tuple[messages.PlainCall, ...]:
    """Make the calls of a vector."""
    make = _EVERY[kind]
    return tuple(make if isinstance(make, list) else make(scene))


def test_every_call_is_driven_at_its_limits() -> None:
    """A new call needs a line in this file."""
    assert set(_EVERY) == set(dispatch._HANDLERS)


@pytest.mark.long
@pytest.mark.parametrize("kind", _EVERY, ids=lambda kind: kind.__name__)
def test_a_call_and_a_vector_of_it_are_bounded_with_full_tables(scene: Scene, kind: type) -> None:
    """One call costs far less than a step may; a vector ends with refusals before it costs more."""
    scene.refresh()
    calls = calls_of(scene, kind)
    assert all(type(call) is kind for call in calls)
    node = scene.node
    lines = node.measure_call(scene.client, calls[0])
    assert lines < limits.STEP_WORK_MAX // 4, f"one {kind.__name__} executes {lines} lines"
    scene.refresh()
    vector = messages.Vector(calls_of(scene, kind))
    node.measure_call(scene.client, vector)
    answer = node.answers[scene.client.task, node.seq]
    assert isinstance(answer, AnswerVector)
    assert len(answer.parts) == len(vector.calls)
    node.answers.clear()


# -- events of the host ---------------------------------------------------------------------------------
@pytest.mark.long
def test_the_end_of_a_task_with_all_children_is_bounded(node: FullNode) -> None:
    """A task with as many children as a node has ends, and so do they."""
    session = node.session()
    parent = session.run(groups=(session.groups[0],))
    blob = node.anonymous(parent)
    for _ in range(limits.TASKS_MAX - 2):
        parent.call(messages.Run(blob, flags=int(Flag.NON_BLOCKING)))
    node.measure(events.TaskEnded(node.now, parent.task, Cause.EXITED))


def test_an_event_for_a_task_that_many_wait_for_is_bounded(node: FullNode) -> None:
    """All waiting calls of many sessions wait for one task, which gets an event and then ends."""
    owner = node.session()
    child = owner.run()
    clients = [node.session() for _ in range(20)]
    for client in clients:
        (reference,) = client.lookup(child.welcome.name)
        node.wait_with(client, [messages.ReadOnce(reference.ref) for _ in range(PENDING - 1)])
    most = node.measure(events.TaskEnded(node.now, child.task, Cause.EXITED))
    assert most < limits.STEP_WORK_MAX // 8
    assert not len(node.core.state.pending)


def test_the_end_of_a_node_takes_many_short_steps(node: FullNode) -> None:
    """Every session has as many waiting calls as it can when the node ends; each of them is answered."""
    clients = [node.session() for _ in range(100)]
    waiting = []
    for client in clients:
        streams = node.many(client, 4, ObjectType.SHMEM_STREAM)
        calls = [messages.Select(tuple(streams), Mode.READ, None) for _ in range(PENDING)]
        waiting += [(client, seq) for seq in node.wait_with(client, calls)]
    most = node.measure(events.ShutdownBegan(node.now))
    assert most < limits.STEP_WORK_MAX // 8
    assert node.steps["TimerFired"] >= len(waiting) // limits.STEP_UNITS
    assert all(isinstance(client.answer(seq), messages.Failure) for client, seq in waiting)


def test_a_session_of_a_user_who_has_many_groups_is_bounded(node: FullNode) -> None:
    """A Hello with as many groups as it can carry."""
    client = node.session()
    group_names = [client.create(ObjectType.GROUP).name for _ in range(limits.GROUPS_PER_CALL_MAX)]
    names = tuple(Name(name) for name in group_names if name)
    node.tasks += 1
    owner = Principal("uid:1000")
    node.measure(events.SessionOpened(node.now, TaskId(node.tasks), 1, owner, names, "many", 1))


def test_a_session_cannot_collect_groups_without_end(node: FullNode) -> None:
    """Lookups search all groups of the caller, so that their number has a bound."""
    client = node.session()
    count = 0
    while isinstance(client.call(messages.Create(ObjectType.GROUP, (client.groups[0],))), messages.Created):
        count += 1
    assert count == limits.MEMBERSHIPS_PER_TASK_MAX - 2
