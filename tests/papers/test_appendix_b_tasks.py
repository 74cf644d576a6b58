"""B.1.5, B.1.6, B.1.13 and Table 4.7: run, pause, resume, select, and brands as far as the core decides."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.core.model.accounts import Defaults
from dios.errors import Code
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.types import (
    Brand,
    Cause,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Resource,
    TaskState,
)
from tests.support.core.harness import Client, Node


@pytest.fixture
def client(node: Node) -> Client:
    """A session."""
    return node.session()


def program(client: Client) -> int:
    """Something to run."""
    return client.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref


def narrowed(client: Client, ref: int, rights: Permission) -> int:
    """The client's own reference with fewer rights."""
    call = messages.Copy(ref, client.self_ref, int(rights))
    return client.ask(messages.References, call).references[0].ref


def state_of(node: Node, task: Client) -> TaskState:
    """A task's state."""
    return node.core.state.tasks[TaskId(task.task)].state


# -- B.1.5 dios_run --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB])
def test_executables(client: Client, kind: ObjectType) -> None:
    """B.1.5: a durable blob and a blob of executable memory can be run."""
    ref = client.create(kind, data=b"pass").reference.ref
    client.ask(messages.Created, messages.Run(ref, flags=int(Flag.NON_BLOCKING)))


@pytest.mark.parametrize("kind", [ObjectType.PRIVMEM_BLOB, ObjectType.TIMER_BLOB, ObjectType.SHMEM_STREAM])
def test_no_executables(client: Client, kind: ObjectType) -> None:
    """B.1.5: nothing else is a program."""
    assert client.refused(messages.Run(client.create(kind).reference.ref)) == Code.ENOEXEC
    assert client.refused(messages.Run(client.self_ref)) == Code.EPERM  # a self-reference cannot execute
    assert client.refused(messages.Run(client.groups[0])) == Code.ENOEXEC


def test_executable_permission(client: Client) -> None:
    """B.1.5: without the executable permission run fails."""
    ref = narrowed(client, program(client), Permission.ALL & ~Permission.EXECUTE)
    assert client.refused(messages.Run(ref)) == Code.EPERM


def test_child_of_its_parent(node: Node, client: Client) -> None:
    """B.1.5: the new task is a child of the caller, who gets a reference with every right to it."""
    child = client.run(label="worker")
    assert child.reference.permissions == int(Permission.ALL)
    row = node.core.state.tasks[TaskId(child.task)].row()
    assert (row.parent, row.label) == (client.welcome.self_ref.fingerprint, "worker")


def test_child_shares_no_reference(node: Node, client: Client) -> None:
    """B.1.5: the child has the default references and what it was handed, fresh and narrowed, no more."""
    kept = client.create(data=b"kept").reference
    given = client.create(data=b"given").reference
    child = client.run(
        inputs=(messages.Handed(given.ref, int(Permission.READ), "in"),),
        outputs=(messages.Handed(given.ref, int(Permission.WRITE), "out"),),
    )
    (reading,), (writing,) = child.welcome.inputs, child.welcome.outputs
    assert (reading.permissions, writing.permissions) == (1, 2)
    assert (reading.label, writing.label) == ("in", "out")
    assert len({given.ref, reading.ref, writing.ref}) == 3
    for ref in (kept.ref, given.ref):
        assert child.refused(messages.Stat(ref)) == Code.EBADF
    own = {reference.object.id for reference in node.core.state.tasks[TaskId(child.task)].table}
    assert kept.object not in own


@pytest.mark.parametrize("case", range(4))
def test_group_sets(node: Node, client: Client, case: int) -> None:
    """B.1.5: a child resolves a subset, a disjoint set, a superset, or a mixture of its parent's names."""
    shared = client.create(ObjectType.GROUP).reference.ref
    other = client.create(ObjectType.GROUP).reference.ref
    parent = client.run(groups=(shared, other))
    created = parent.ask(messages.Created, messages.Create(ObjectType.GROUP, (parent.groups[0],)))
    names = [
        parent.create(groups=(group,)).name for group in (*parent.groups, created.reference.ref)
    ]  # the parent resolves the first two
    groups = [
        (parent.groups[0],),
        (created.reference.ref,),
        (*parent.groups, created.reference.ref),
        (parent.groups[1], created.reference.ref),
    ][case]
    child = parent.run(groups=groups)
    expected = [(1, 0, 0), (0, 0, 1), (1, 1, 1), (0, 1, 1)][case]
    assert tuple(len(child.lookup(name)) for name in names) == expected
    assert [len(parent.lookup(name)) for name in names] == [1, 1, 0]


def test_no_groups_means_a_fresh_one(client: Client) -> None:
    """B.1.5: with no groups given the child gets one newly made group of its own."""
    first, second = client.run(), client.run()
    assert first.welcome.groups[0].object != second.welcome.groups[0].object


def test_run_blocks_until_the_child_runs(node: Node, client: Client) -> None:
    """B.1.5: without NON_BLOCKING the answer comes when the child runs."""
    seq = client.send(messages.Run(program(client)))
    assert client.answer(seq) is None
    (spawn,) = (effect for effect in node.outcome.after if isinstance(effect, effects.Spawn))
    node.step(events.TaskStarted(node.now, spawn.task, 7))
    assert isinstance(client.answer(seq), messages.Created)


def test_run_non_blocking(node: Node, client: Client) -> None:
    """B.1.5, NON_BLOCKING: the answer comes at once."""
    client.ask(messages.Created, messages.Run(program(client), flags=int(Flag.NON_BLOCKING)))


@pytest.mark.parametrize("flags", [0, int(Flag.NON_BLOCKING)])
def test_run_that_never_runs(node: Node, client: Client, flags: int) -> None:
    """B.1.5: a process that could not be started refuses the waiting run, or ends the task."""
    seq = client.send(messages.Run(program(client), flags=flags))
    spawn = next(effect for effect in node.outcome.after if isinstance(effect, effects.Spawn))
    node.end(spawn.task, Cause.SPAWN)
    answer = client.answer(seq)
    if flags:
        assert isinstance(answer, messages.Created)
        assert node.core.state.tasks[spawn.task].state is TaskState.ENDED
    else:
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.ENOEXEC


def test_the_error_of_a_start_that_failed_says_what_the_caller_can_do(node: Node, client: Client) -> None:
    """B.1.5: a machine without room, and one without a mechanism, refuse the waiting run with their codes."""
    for code in (Code.ENOMEM, Code.ENOSYS):
        seq = client.send(messages.Run(program(client)))
        spawn = next(effect for effect in node.outcome.after if isinstance(effect, effects.Spawn))
        node.end(spawn.task, Cause.SPAWN, int(code))
        answer = client.answer(seq)
        assert isinstance(answer, messages.Failure)
        assert answer.code == code


def test_spawn_local_and_hosts(client: Client) -> None:
    """B.1.5: SPAWN_LOCAL runs here whatever host is named; another host is not known here."""
    ref = program(client)
    assert client.refused(messages.Run(ref, host="elsewhere")) == Code.EHOSTUNREACH
    flags = int(Flag.SPAWN_LOCAL | Flag.NON_BLOCKING)
    client.ask(messages.Created, messages.Run(ref, host="elsewhere", flags=flags))
    client.ask(messages.Created, messages.Run(ref, flags=flags))


def test_run_refusals_leave_no_task(node: Node, client: Client) -> None:
    """B.1.5: whatever is wrong with a run is found before the child is made."""
    ref, private = program(client), client.create(ObjectType.PRIVMEM_BLOB).reference.ref
    undelegable = narrowed(client, ref, Permission.READ)
    assert client.refused(messages.Run(ref, inputs=(messages.Handed(private, 31),))) == Code.EPERM
    assert client.refused(messages.Run(ref, outputs=(messages.Handed(undelegable, 31),))) == Code.EPERM
    assert client.refused(messages.Run(ref, inputs=(messages.Handed(5, 31),))) == Code.EBADF
    assert client.refused(messages.Run(ref, groups=(ref,))) == Code.EINVAL
    assert client.refused(messages.Run(ref, arguments=("x" * 4096,) * 17)) == Code.EFBIG
    assert client.refused(messages.Run(ref, flags=int(Flag.STAY_RUNNABLE))) == Code.EINVAL
    client.given()  # nothing is left to read on the self-reference, so that selects on it wait
    for _ in range(limits.PENDING_PER_TASK_MAX):
        client.send(messages.Select((client.self_ref,)))
    assert client.refused(messages.Run(ref)) == Code.ENOBUFS
    assert len(node.core.state.tasks) == 1


def test_task_bound() -> None:
    """B.1.5: over the node's bound of tasks a run that may not wait is refused; it is not after an end."""
    node = Node(defaults=Defaults(node=(messages.Bound(Resource.TASKS, 1),)))
    client = node.session()
    child = client.run()
    call = messages.Run(program(client), flags=int(Flag.NON_BLOCKING))
    assert client.refused(call) == Code.EDQUOT
    node.end(TaskId(child.task))
    client.run()


def test_deterministic_tasks(node: Node) -> None:
    """§4.3.1: a task's children and deterministic creations have the same names in every replay."""

    def names(parent: Client) -> list[bytes | None]:
        children = [parent.run(), parent.run()]
        created = [parent.create(name_kind=NameKind.DETERMINISTIC).name for _ in range(2)]
        return [*(child.welcome.name for child in children), *created]

    first = names(node.session().run())
    assert len(set(first)) == 4
    assert names(Node().session().run()) == first


# -- B.1.6 dios_pause and dios_resume --------------------------------------------------------------
def test_pause_and_resume(node: Node, client: Client) -> None:
    """B.1.6: pause suspends a running task, resume lets it run on; both say true."""
    child = client.run()
    assert client.ask(messages.Done, messages.Pause(child.reference.ref)).value == 1
    assert effects.Suspend(TaskId(child.task)) in node.outcome.after
    assert state_of(node, child) is TaskState.PAUSED
    assert client.ask(messages.Done, messages.Resume(child.reference.ref)).value == 1
    assert effects.Continue(TaskId(child.task)) in node.outcome.after
    assert state_of(node, child) is TaskState.RUNNING


def test_pause_has_no_effect_twice(node: Node, client: Client) -> None:
    """B.1.6: pausing the paused and resuming the running has no effect; of the ended neither is true."""
    child = client.run()
    assert client.ask(messages.Done, messages.Resume(child.reference.ref)).value == 0
    client.call(messages.Pause(child.reference.ref))
    assert client.ask(messages.Done, messages.Pause(child.reference.ref)).value == 1
    assert not [effect for effect in node.outcome.after if isinstance(effect, effects.Suspend)]
    node.end(TaskId(child.task))
    assert client.ask(messages.Done, messages.Pause(child.reference.ref)).value == 0
    assert client.ask(messages.Done, messages.Resume(child.reference.ref)).value == 0


def test_pause_needs_a_task_and_the_right(node: Node, client: Client) -> None:
    """B.1.6: only a task object can be paused, and only with the right to execute."""
    child = client.run()
    blob = client.create().reference.ref
    weak = narrowed(client, child.reference.ref, Permission.ALL & ~Permission.EXECUTE)
    for kind in (messages.Pause, messages.Resume):
        assert client.refused(kind(blob)) == Code.EINVAL
        assert client.refused(kind(weak)) == Code.EPERM
    call = messages.Pause(child.reference.ref, int(Flag.STAY_RUNNABLE))
    assert client.refused(call) == Code.EINVAL


def test_yield(node: Node, client: Client) -> None:
    """B.1.6, STAY_RUNNABLE: pausing oneself with it yields and nothing more."""
    child = client.run()
    call = messages.Pause(child.self_ref, int(Flag.STAY_RUNNABLE))
    child.ask(messages.Done, call)
    assert state_of(node, child) is TaskState.RUNNING
    assert not [effect for effect in node.outcome.after if isinstance(effect, effects.Suspend)]


def test_pausing_oneself(node: Node, client: Client) -> None:
    """B.1.6: a task that pauses itself is suspended until another resumes it; it cannot itself."""
    child = client.run()
    assert child.refused(messages.Resume(child.self_ref)) == Code.EINVAL
    child.ask(messages.Done, messages.Pause(child.self_ref))
    assert state_of(node, child) is TaskState.PAUSED
    assert client.ask(messages.Done, messages.Resume(child.reference.ref)).value == 1


def test_sessions_are_not_paused(node: Node, client: Client) -> None:
    """B.1.6: a person's process is not the node's to suspend."""
    assert client.refused(messages.Pause(client.self_ref)) == Code.EINVAL
    other = node.session()
    (reference,) = client.lookup(other.welcome.name)
    assert client.refused(messages.Pause(reference.ref)) == Code.EINVAL


# -- B.1.13 dios_select ----------------------------------------------------------------------------
def test_select_gives_the_first_ready(node: Node, client: Client) -> None:
    """B.1.13: the first reference that is ready for I/O in the mode, by its place in the list."""
    timer = client.create(ObjectType.TIMER_BLOB).reference.ref
    blob = client.create(data=b"x").reference.ref
    assert client.call(messages.Select((client.self_ref, blob, timer))) == messages.Selected(1)
    assert client.call(messages.Select((timer, blob))) == messages.Selected(0)
    assert client.call(messages.Select((blob,), Mode.WRITE)) == messages.Selected(0)


def test_select_blocks_until_ready(node: Node, client: Client) -> None:
    """B.1.13: the caller waits until one becomes ready, for each of the things it can wait on."""
    child = client.run()
    (console,) = client.ask(messages.References, messages.ConsoleOf(child.reference.ref)).references
    stream = client.create(ObjectType.SHMEM_STREAM).reference.ref
    waiting = {
        name: client.send(messages.Select((ref,)))
        for name, ref in (("child", child.reference.ref), ("console", console.ref), ("stream", stream))
    }
    assert all(client.answer(seq) is None for seq in waiting.values())
    node.step(events.ConsoleArrived(node.now, TaskId(child.task), 3))
    assert client.answer(waiting["console"]) == messages.Selected(0)
    assert client.answer(waiting["child"]) is None
    node.end(TaskId(child.task))
    assert client.answer(waiting["child"]) == messages.Selected(0)
    assert client.answer(waiting["stream"]) is None


def test_select_non_blocking(client: Client) -> None:
    """B.1.13, NON_BLOCKING: nothing ready is told at once."""
    for options in ({"flags": int(Flag.NON_BLOCKING)}, {"timeout_ns": 0}):
        assert client.call(messages.Select((client.self_ref,), **options)) == messages.Selected(-1)  # type: ignore[arg-type]


def test_timed_wait_by_a_timer(node: Node, client: Client) -> None:
    """B.1.13: a timer object among the references makes the wait a timed one."""
    timer = client.ask(messages.Created, messages.Create(ObjectType.TIMER_BLOB, size=500)).reference.ref
    seq = client.send(messages.Select((client.self_ref, timer)))
    assert node.outcome.deadline == node.now + 500
    node.step(events.TimerFired(node.now + 499))
    assert client.answer(seq) is None
    node.step(events.TimerFired(node.now + 500))
    assert client.answer(seq) == messages.Selected(1)


def test_select_on_a_deleted_object(node: Node, client: Client) -> None:
    """§4.2, B.1.13: the end of an object wakes who waits on it."""
    child = client.run()
    stream = client.create(ObjectType.SHMEM_STREAM)
    (other,) = node.session().lookup(stream.name)
    assert other.type is ObjectType.SHMEM_STREAM
    seq = client.send(messages.Select((stream.reference.ref, child.reference.ref)))
    client.call(messages.Delete(stream.reference.ref))
    assert isinstance(client.answer(seq), messages.Failure)
    assert not len(node.core.state.pending)


def test_waiting_read_of_a_deleted_reference(node: Node, client: Client) -> None:
    """B.1.4: a call that waits on a reference is told when the reference is deleted."""
    child = client.run()
    (console,) = client.ask(messages.References, messages.ConsoleOf(child.reference.ref)).references
    seq = client.send(messages.ReadOnce(console.ref))
    client.call(messages.Delete(console.ref))
    assert isinstance(client.answer(seq), messages.Failure)


def test_cancelled_select(node: Node, client: Client) -> None:
    """A waiting call can be given up; it is answered, and nothing waits any more."""
    seq = client.send(messages.Select((client.self_ref,)))
    assert client.ask(messages.Done, messages.Cancel(seq)).value == 1
    assert isinstance(client.answer(seq), messages.Failure)
    assert client.ask(messages.Done, messages.Cancel(seq)).value == 0


# -- Table 4.7 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize(
    ("by", "wanted", "liberal", "strict"),
    [
        ("session", Brand.PURE, Brand.PURE, Brand.PURE),
        ("session", Brand.LIMBO, Brand.LIMBO, Brand.PURE),
        ("session", Brand.LEGACY, Code.EINVAL, Code.EINVAL),
        ("limbo", Brand.PURE, Brand.PURE, Brand.PURE),
        ("limbo", Brand.LIMBO, Brand.LIMBO, Code.EPERM),
        ("limbo", Brand.LEGACY, Code.EINVAL, Code.EINVAL),
        ("pure", Brand.PURE, Brand.PURE, Brand.PURE),
        ("pure", Brand.LIMBO, Code.EPERM, Code.EPERM),
        ("pure", Brand.LEGACY, Code.EINVAL, Code.EINVAL),
    ],
)
def test_row_of_a_brand(by: str, wanted: Brand, liberal: object, strict: object, *, restricted: bool) -> None:
    """Table 4.7: who starts what through run in each mode; in restricted mode limbo is pure."""
    node = Node(restricted=restricted)
    parent = node.session()
    if by != "session":
        parent = parent.run(brand=Brand.LIMBO if by == "limbo" else Brand.PURE)
    expected = strict if restricted else liberal
    call = messages.Run(program(parent), brand=wanted, flags=int(Flag.NON_BLOCKING))
    if isinstance(expected, Code):
        assert parent.refused(call) == expected
        return
    parent.ask(messages.Created, call)
    (spawn,) = (effect for effect in node.outcome.after if isinstance(effect, effects.Spawn))
    assert spawn.brand is expected
    welcome = node.answers[spawn.task, 0]
    assert isinstance(welcome, messages.Welcome)
    assert welcome.brand is expected


@pytest.mark.parametrize("restricted", [False, True])
def test_limbo_is_for_the_nodes_own_user(*, restricted: bool) -> None:
    """Table 4.7, limbo: it has the rights of the node's user, so nobody else can start one."""
    stranger = Node(restricted=restricted).session(Principal("uid:4711"))
    call = messages.Run(program(stranger), brand=Brand.LIMBO, flags=int(Flag.NON_BLOCKING))
    if not restricted:
        assert stranger.refused(call) == Code.EPERM
        return
    stranger.ask(messages.Created, call)
    (spawn,) = (effect for effect in stranger.node.outcome.after if isinstance(effect, effects.Spawn))
    assert spawn.brand is Brand.PURE


def test_legacy_is_started_by_the_host(client: Client) -> None:
    """Table 4.7, legacy: a person's process was started by the host and has the calls all the same."""
    assert client.welcome.brand is Brand.LEGACY


def test_pure_tasks_see_only_what_they_were_handed(client: Client) -> None:
    """Table 4.7, pure: no list of tasks, no counts of the node, no stopping it; limbo may look."""
    pure, limbo = client.run(), client.run(brand=Brand.LIMBO)
    for call in (messages.ListTasks(), messages.NodeInfo(), messages.Shutdown()):
        assert pure.refused(call) == Code.EPERM
    limbo.ask(messages.Tasks, messages.ListTasks())
    limbo.ask(messages.Info, messages.NodeInfo())
