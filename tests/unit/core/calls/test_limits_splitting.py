"""Objects, references, requests and tasks are counted whoever makes them and wherever they go."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core.model.names import special_name
from dios.errors import Code
from dios.wire import messages
from dios.wire.messages import Bound
from dios.wire.types import AcquireIov, Cause, Flag, NameKind, ObjectType, Resource, Scope
from tests.support.core.harness import Client, Node
from tests.support.core.limits import Office, anonymous, destroyed, ordered, over, started


@pytest.fixture
def office(node: Node) -> Office:
    """Somebody who sets limits, and a task that has them."""
    return Office(node)


def grouped(client: Client, kind: ObjectType = ObjectType.SHMEM_BLOB) -> int:
    """An object in the client's first group."""
    return client.create(kind).reference.ref


def program(task: Client) -> int:
    """The task's reference to what it runs."""
    assert task.welcome.executable is not None
    return task.welcome.executable.ref


# -- over tasks and sessions ------------------------------------------------------------------------
@pytest.mark.parametrize("resource", [Resource.OBJECTS, Resource.REFERENCES, Resource.BYTES], ids=str)
def test_over_sessions(office: Office, resource: Resource) -> None:
    """All sessions of one principal share its limit."""
    other = office.node.session()
    room = 10 if resource is Resource.BYTES else 1
    office.leave(Scope.PRINCIPAL, resource, room)
    office.admin.ask(messages.Created, anonymous(b"x" * 10))
    over(other, anonymous(b"x" * 10))


def test_other_principals_have_their_own(node: Node, office: Office) -> None:
    """A limit reached by one principal refuses nothing to another."""
    office.leave(Scope.PRINCIPAL, Resource.OBJECTS, 0)
    over(office.admin, anonymous())
    node.session("uid:7").ask(messages.Created, anonymous())  # type: ignore[arg-type]


def test_over_tasks_side_by_side(office: Office) -> None:
    """Two tasks started by one share what it may have, each however little it used itself."""
    first, second = office.worker.run(), office.worker.run()
    office.leave(Scope.TASK, Resource.OBJECTS, 2)
    first.ask(messages.Created, anonymous())
    second.ask(messages.Created, anonymous())
    over(first, anonymous())
    over(second, anonymous())
    over(office.worker, anonymous())


@pytest.mark.parametrize("cause", [Cause.EXITED, Cause.SIGNAL, Cause.MEMORY, Cause.SPAWN, Cause.KILLED])
def test_ends_of_every_cause_give_back(office: Office, cause: Cause) -> None:
    """However a task ends, or never begins, the task and what was set aside are given back, once."""
    before = office.shown(Scope.PRINCIPAL).used
    blob = grouped(office.worker)
    call = ordered(blob, office.worker.groups[0], memory_bytes=1 << 26, cpu_ms=1000)
    task = started(office.worker, call)
    assert office.used(Scope.PRINCIPAL, Resource.CPU_MS) == before[Resource.CPU_MS] + 1000
    if cause is Cause.KILLED:
        office.worker.ask(messages.Done, destroyed(task.reference.ref))
    office.node.end(task.task, cause)
    office.node.end(task.task, cause)
    office.worker.ask(messages.Done, messages.Delete(task.reference.ref))
    office.worker.ask(messages.Done, messages.Delete(blob))
    assert office.shown(Scope.PRINCIPAL).used == before


def test_generations_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that end while those they started go on make no chain of accounts without end."""
    monkeypatch.setattr(limits, "TASK_GENERATIONS_MAX", 6)
    session = node.session()
    task, generations = session.run(), 1
    while not isinstance(task.call(ordered(program(task))), messages.Failure):
        child = started(task, ordered(program(task)))
        child.ask(messages.References, messages.Copy(child.self_ref, child.self_ref))
        node.end(task.task)
        task, generations = child, generations + 1
        assert generations < limits.TASK_GENERATIONS_MAX
    assert generations > 1
    assert task.refused(ordered(program(task))) == Code.EDQUOT
    session.run()


# -- references -------------------------------------------------------------------------------------
def test_references_to_oneself(office: Office) -> None:
    """Delegating a reference to oneself gives one more that counts."""
    ref = grouped(office.worker)
    office.leave(Scope.TASK, Resource.REFERENCES, 1)
    office.worker.ask(messages.References, messages.Copy(ref, office.worker.self_ref))
    over(office.worker, messages.Copy(ref, office.worker.self_ref))


def test_references_that_are_resolved(office: Office) -> None:
    """A lookup needs room for all that it finds, with the task and with the group."""
    created = office.worker.create()
    assert created.name is not None
    for scope in (Scope.TASK, Scope.GROUP):
        office.leave(scope, Resource.REFERENCES, 0)
        over(office.worker, messages.Lookup(created.name))
        office.row(scope, Bound(Resource.REFERENCES, None))


def test_references_given_by_others(office: Office) -> None:
    """Who is given a reference pays for it: the giver is refused when the receiver has no room."""
    ref = office.admin.ask(messages.Created, anonymous()).reference.ref
    to = office.worker.reference.ref
    office.leave(Scope.TASK, Resource.REFERENCES, 0)
    assert "task " in over(office.admin, messages.Copy(ref, to))


@pytest.mark.parametrize("given", [0, 1, 2])
@pytest.mark.parametrize("members", [0, 1])
@pytest.mark.parametrize("waits", [False, True])
def test_references_a_task_begins_with(office: Office, given: int, members: int, *, waits: bool) -> None:
    """A run call needs room for just those references that it makes, with the child and above it."""
    worker = office.worker
    blob = worker.ask(messages.Created, anonymous()).reference.ref
    call = messages.Run(
        blob,
        (worker.groups[0],) * members,
        tuple(messages.Handed(blob, 1) for _ in range(given)),
        flags=0 if waits else int(Flag.NON_BLOCKING),
    )
    of_the_child = 4 + given  # itself, its console, its group and its program
    office.leave(Scope.TASK, Resource.REFERENCES, of_the_child)
    over(worker, call)
    bound = office.leave(Scope.TASK, Resource.REFERENCES, of_the_child + 1)
    worker.send(call)
    assert office.used(Scope.TASK, Resource.REFERENCES) == bound
    office.row(Scope.TASK, Bound(Resource.REFERENCES, None))
    narrow = messages.Limits(references=of_the_child - 1)
    over(worker, messages.Run(call.executable, call.groups, call.inputs, limits=narrow, flags=call.flags))


def test_references_to_groups_in_a_group(office: Office) -> None:
    """A task that becomes a member of a group within a group counts its reference with the outer one."""
    worker = office.worker
    inner = grouped(worker, ObjectType.GROUP)
    blob = worker.ask(messages.Created, anonymous()).reference.ref
    office.leave(Scope.GROUP, Resource.REFERENCES, 0)
    over(worker, ordered(blob, inner))
    bound = office.leave(Scope.GROUP, Resource.REFERENCES, 1)
    worker.ask(messages.Created, ordered(blob, inner))
    assert office.used(Scope.GROUP, Resource.REFERENCES) == bound


# -- requests ---------------------------------------------------------------------------------------
def test_calls_that_wait_are_requests(office: Office) -> None:
    """A waiting call counts like a buffer, and is refused at the limit, a run before it starts anything."""
    worker = office.worker
    blob = grouped(worker)
    office.leave(Scope.TASK, Resource.REQUESTS, 1)
    seq = worker.send(messages.Select((worker.self_ref,)))
    over(worker, messages.AcquireRead(blob))
    over(worker, messages.ReadOnce(worker.self_ref))
    over(worker, messages.Run(blob))
    worker.ask(messages.Done, messages.Cancel(seq))
    worker.ask(messages.Buffer, messages.AcquireRead(blob))


@pytest.mark.parametrize("iov", [AcquireIov.TAKE, AcquireIov.BORROW])
def test_buffers_that_serve_a_groups_object_count_there(office: Office, iov: AcquireIov) -> None:
    """A buffer moved onto an object counts with its group, until it is moved on or given back."""
    worker = office.worker
    outside = worker.ask(messages.Created, anonymous(b"x")).reference.ref
    inside = grouped(worker)
    buffer = worker.ask(messages.Buffer, messages.AcquireRead(outside)).buffer
    worker.ask(messages.Committed, messages.CommitRead(outside, buffer))
    office.leave(Scope.GROUP, Resource.REQUESTS, 0)
    move = messages.AcquireRead(inside, iov=iov, buffer=buffer)
    over(worker, move)
    bound = office.leave(Scope.GROUP, Resource.REQUESTS, 1)
    worker.ask(messages.Buffer, move)
    assert office.used(Scope.GROUP, Resource.REQUESTS) == bound
    worker.ask(messages.Done, messages.ReleaseRead(inside, buffer))
    assert office.used(Scope.GROUP, Resource.REQUESTS) == bound - 1
    if iov is AcquireIov.BORROW:
        worker.ask(messages.Done, messages.ReleaseRead(outside, buffer))
    assert office.used(Scope.TASK, Resource.REQUESTS) == 0


def test_buffers_lent_out_of_a_group_stay_its_own(office: Office) -> None:
    """A group's buffer that serves an object elsewhere comes back to it, so it stays counted."""
    worker = office.worker
    outside = worker.ask(messages.Created, anonymous(b"x")).reference.ref
    inside = grouped(worker)
    buffer = worker.ask(messages.Buffer, messages.AcquireRead(inside)).buffer
    worker.ask(messages.Committed, messages.CommitRead(inside, buffer))
    before = office.used(Scope.GROUP, Resource.REQUESTS)
    worker.ask(messages.Buffer, messages.AcquireRead(outside, iov=AcquireIov.BORROW, buffer=buffer))
    assert office.used(Scope.GROUP, Resource.REQUESTS) == before == 1
    worker.ask(messages.Done, messages.Delete(inside))
    assert office.used(Scope.GROUP, Resource.REQUESTS) == 0


# -- objects ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("durable", [False, True])
def test_objects_without_a_name_count(office: Office, *, durable: bool) -> None:
    """An object that nobody can resolve counts like any other."""
    kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    office.leave(Scope.TASK, Resource.OBJECTS, 1)
    created = office.worker.ask(messages.Created, anonymous(kind=kind))
    over(office.worker, anonymous(kind=kind))
    office.worker.ask(messages.Done, messages.Delete(created.reference.ref))
    office.worker.ask(messages.Created, anonymous(kind=kind))


def test_timers_by_their_special_name_count(office: Office) -> None:
    """The timer that a lookup makes is an object like one that was created."""
    timer = messages.Lookup(special_name(2))
    office.leave(Scope.TASK, Resource.OBJECTS, 1)
    (reference,) = office.worker.ask(messages.References, timer).references
    assert reference.type is ObjectType.TIMER_BLOB
    over(office.worker, timer)
    office.worker.ask(messages.Done, messages.Delete(reference.ref))
    office.worker.ask(messages.References, timer)


def test_kept_programs_of_failed_tasks_count_with_nobody(office: Office) -> None:
    """Whoever cannot delete what the node keeps of failed tasks does not pay for it."""
    admin = office.admin
    before = office.shown(Scope.PRINCIPAL).used
    for _ in range(3):
        created = admin.ask(messages.Created, anonymous(b"fail"))
        task = started(admin, ordered(created.reference.ref))
        admin.ask(messages.Done, messages.Delete(created.reference.ref))
        office.node.end(task.task, exit_code=1)
        admin.ask(messages.Done, messages.Delete(task.reference.ref))
    assert len(office.node.core.state.failed_programs) == 3
    assert office.shown(Scope.PRINCIPAL).used == before


def test_a_running_program_counts_though_nobody_refers_to_it(office: Office) -> None:
    """A program that its task and its starter let go of is kept while the task runs, and counts."""
    worker = office.worker
    created = worker.ask(messages.Created, anonymous(b"x" * 1000))
    before = office.used(Scope.TASK, Resource.BYTES)
    task = started(worker, ordered(created.reference.ref))
    worker.ask(messages.Done, messages.Delete(created.reference.ref))
    task.ask(messages.Done, messages.Delete(program(task)))
    assert office.used(Scope.TASK, Resource.BYTES) == before
    office.node.end(task.task)
    assert office.used(Scope.TASK, Resource.BYTES) == before - 1000


def test_two_groups_count_both(office: Office) -> None:
    """An object in two groups counts with each, and is refused by either."""
    admin = office.admin
    other = grouped(admin, ObjectType.GROUP)
    both = messages.Create(ObjectType.SHMEM_BLOB, (other, office.group_ref), NameKind.RANDOM, data=b"")
    office.leave(Scope.GROUP, Resource.OBJECTS, 1)
    admin.ask(messages.Created, both)
    over(admin, both)
    admin.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (other,), data=b""))


def test_references_to_what_is_in_a_group(office: Office) -> None:
    """Every way to have a reference to a group's object needs the group's room for it."""
    worker = office.worker
    created = worker.create()
    (theirs,) = office.admin.lookup(created.name)
    program_ref = worker.ask(messages.Created, anonymous()).reference.ref
    handed = (messages.Handed(created.reference.ref, 1),)
    ways = (
        (office.admin, messages.Copy(theirs.ref, worker.reference.ref)),
        (worker, messages.Copy(created.reference.ref, worker.self_ref)),
        (worker, messages.Run(program_ref, (), handed, flags=int(Flag.NON_BLOCKING))),
        (worker, messages.Run(program_ref, (), (), handed, flags=int(Flag.NON_BLOCKING))),
        (worker, ordered(created.reference.ref)),
        (worker, messages.Create(ObjectType.SHMEM_BLOB, (worker.groups[0],), data=b"")),
    )
    office.leave(Scope.GROUP, Resource.REFERENCES, 0)
    for client, call in ways:
        assert "group " in over(client, call)
    for client, call in ways:
        bound = office.leave(Scope.GROUP, Resource.REFERENCES, 1)
        assert not isinstance(client.call(call), messages.Failure)
        assert office.used(Scope.GROUP, Resource.REFERENCES) == bound
