"""Bytes are counted wherever the node keeps them: no way to write, hold or copy has them for nothing."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import events
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Buffering,
    CommitIov,
    Flag,
    NameKind,
    ObjectType,
    Persistence,
    Proximity,
    Resource,
    Scope,
)
from tests.support.core.harness import Client, Node
from tests.support.core.limits import Office, anonymous, destroyed, ordered, over, started

ROOM = 100


@pytest.fixture
def office(node: Node) -> Office:
    """Somebody who sets limits, and a task that has them."""
    return Office(node)


def used(office: Office) -> int:
    """The bytes that count with the worker."""
    return office.used(Scope.TASK, Resource.BYTES)


def blob(client: Client, size: int = 10, **options: object) -> int:
    """An object of so many bytes."""
    kind = options.pop("kind", ObjectType.SHMEM_BLOB)
    assert isinstance(kind, ObjectType)
    call = messages.Create(kind, (), NameKind.ANONYMOUS, data=b"x" * size, **options)  # type: ignore[arg-type]
    return client.ask(messages.Created, call).reference.ref


def to_write(
    client: Client, ref: int, size: int, *, flags: int = 0, iov: AcquireIov = AcquireIov.CREATE
) -> int:
    """A buffer to write an object."""
    return client.ask(messages.Buffer, messages.AcquireWrite(ref, size, flags=flags, iov=iov)).buffer


# -- growth -----------------------------------------------------------------------------------------
def test_growth_by_one_message(office: Office) -> None:
    """A write in one message grows an object up to the limit and not past it."""
    ref = blob(office.worker)
    office.leave(Scope.TASK, Resource.BYTES, 10)
    office.worker.ask(messages.Committed, messages.WriteOnce(ref, b"y" * 20))
    over(office.worker, messages.WriteOnce(ref, b"y", offset=20))
    office.worker.ask(messages.Committed, messages.WriteOnce(ref, b"z" * 20))


@pytest.mark.parametrize("way", ["commit", "commit_acquire", "release_commit"])
def test_growth_by_a_buffer(office: Office, way: str) -> None:
    """However a buffer is committed, the object grows up to the limit and not past it."""
    worker = office.worker
    for room, fits in ((20, True), (19, False)):
        ref = blob(worker)
        buffer = to_write(worker, ref, 30)
        office.leave(Scope.TASK, Resource.BYTES, room)
        call: messages.AnyCall = messages.CommitWrite(ref, buffer)
        if way == "commit_acquire":
            call = messages.CommitAcquireWrite(ref, buffer)
        elif way == "release_commit":
            call = messages.ReleaseWrite(ref, buffer, int(Flag.RELEASE_COMMIT))
        if fits:
            assert not isinstance(worker.call(call), messages.Failure)
            assert worker.stat(ref).size == 30
        else:
            over(worker, call)
        office.row(Scope.TASK, messages.Bound(Resource.BYTES, None))


@pytest.mark.parametrize("iov", [CommitIov.MOVE, CommitIov.BORROW])
def test_growth_of_another_object(office: Office, iov: CommitIov) -> None:
    """A buffer committed to another object is counted with that one as it grows."""
    worker = office.worker
    source, target = blob(worker, 30), blob(worker, 10)
    for room, fits in ((19, False), (20, True)):
        buffer = worker.ask(messages.Buffer, messages.AcquireRead(source)).buffer
        office.leave(Scope.TASK, Resource.BYTES, room)
        call = messages.CommitWrite(target, buffer, iov=iov)
        if fits:
            worker.ask(messages.Committed, call)
        else:
            over(worker, call)
            worker.ask(messages.Done, messages.ReleaseRead(source, buffer))
        office.row(Scope.TASK, messages.Bound(Resource.BYTES, None))


def test_shrinking_makes_room(office: Office) -> None:
    """What REPLACE cuts off is free again."""
    ref = blob(office.worker, 50)
    office.leave(Scope.TASK, Resource.BYTES, 0)
    over(office.worker, anonymous(b"x"))
    office.worker.ask(messages.Committed, messages.WriteOnce(ref, b"y", flags=int(Flag.REPLACE)))
    blob(office.worker, 49)
    over(office.worker, anonymous(b"x"))


def test_whoever_writes_the_creator_pays(office: Office) -> None:
    """An object written by somebody else counts with the task that made it, and is refused there."""
    created = office.worker.create(data=b"x" * 10)
    (theirs,) = office.admin.lookup(created.name)
    bound = office.leave(Scope.TASK, Resource.BYTES, 5)
    office.admin.ask(messages.Committed, messages.WriteOnce(theirs.ref, b"y" * 15))
    assert used(office) == bound
    over(office.admin, messages.WriteOnce(theirs.ref, b"y" * 16))


# -- what is held -----------------------------------------------------------------------------------
def test_old_versions_that_are_read_count(office: Office) -> None:
    """Re-writing an object while its old versions are held costs their bytes until they are let go."""
    worker = office.worker
    ref = blob(worker, 10)
    office.leave(Scope.TASK, Resource.BYTES, 30)
    before, held = used(office), []
    for _ in range(3):
        held.append(worker.ask(messages.Buffer, messages.AcquireRead(ref)).buffer)
        worker.ask(messages.Committed, messages.WriteOnce(ref, b"z" * 10))
    held.append(worker.ask(messages.Buffer, messages.AcquireRead(ref)).buffer)
    assert used(office) == before + 30
    over(worker, messages.WriteOnce(ref, b"z" * 10))
    worker.ask(messages.Done, messages.ReleaseRead(ref, held[0]))
    worker.ask(messages.Committed, messages.WriteOnce(ref, b"z" * 10))
    worker.ask(messages.Done, messages.Delete(ref))
    assert used(office) == before - 10


def test_an_object_that_is_gone_counts_while_it_is_read(office: Office) -> None:
    """Destroying an object frees its bytes only when nobody holds them in a buffer."""
    worker = office.worker
    ref = blob(worker, 40)
    again = worker.ask(messages.References, messages.Copy(ref, worker.self_ref)).references[0].ref
    buffer = worker.ask(messages.Buffer, messages.AcquireRead(again)).buffer
    before = used(office)
    worker.ask(messages.Done, destroyed(ref))
    assert used(office) == before
    worker.ask(messages.Done, messages.ReleaseRead(again, buffer))
    assert used(office) == before - 40


@pytest.mark.parametrize("flags", [0, int(Flag.BLANK)])
def test_buffers_never_committed_count(office: Office, flags: int) -> None:
    """A buffer to write counts with the task that has it, and is refused at the limit."""
    worker = office.worker
    ref = blob(worker, 0)
    office.leave(Scope.TASK, Resource.BYTES, 60)
    buffer = to_write(worker, ref, 30, flags=flags)
    to_write(worker, ref, 30, flags=flags)
    over(worker, messages.AcquireWrite(ref, 1, flags=flags))
    worker.ask(messages.Done, messages.ReleaseWrite(ref, buffer))
    to_write(worker, ref, 30, flags=flags)


def test_a_buffer_of_no_given_size_counts(office: Office) -> None:
    """A buffer whose size is left to the node counts with as much as the node makes."""
    ref = blob(office.worker, 0)
    before = used(office)
    size = office.worker.ask(messages.Buffer, messages.AcquireWrite(ref)).size
    assert used(office) == before + size > before


def test_a_request_without_bytes_costs_none(office: Office) -> None:
    """A request acquired with IOV_NONE has no bytes, so none are counted."""
    ref = blob(office.worker, 0)
    office.leave(Scope.TASK, Resource.BYTES, 0)
    to_write(office.worker, ref, 50, iov=AcquireIov.NONE)


# -- raw memory -------------------------------------------------------------------------------------
def test_raw_memory_counts_though_nothing_is_committed(office: Office) -> None:
    """An object's own memory never shrinks: it counts from the acquire until the object is gone."""
    worker = office.worker
    ref = blob(worker, 10, buffering=Buffering.RAW)
    office.leave(Scope.TASK, Resource.BYTES, 40)
    before = used(office)
    buffer = to_write(worker, ref, 50)
    assert used(office) == before + 40
    worker.ask(messages.Done, messages.ReleaseWrite(ref, buffer))
    assert used(office) == before + 40
    over(worker, messages.AcquireWrite(ref, 51))
    buffer = to_write(worker, ref, 50)
    over(worker, messages.Create(ObjectType.SHMEM_BLOB, (), NameKind.ANONYMOUS, data=b"x"))
    worker.ask(messages.Committed, messages.CommitWrite(ref, buffer))
    worker.ask(messages.Done, messages.Delete(ref))
    assert used(office) == before - 10


def test_raw_memory_counts_with_its_creator_and_group(office: Office) -> None:
    """Whoever opens an object's own memory further, its creator and its groups need the room."""
    worker = office.worker
    call = messages.Create(
        ObjectType.SHMEM_BLOB, (worker.groups[0],), buffering=Buffering.RAW, data=b"x" * 10
    )
    ref = worker.ask(messages.Created, call).reference.ref
    office.leave(Scope.GROUP, Resource.BYTES, 5)
    to_write(worker, ref, 15)
    over(worker, messages.AcquireWrite(ref, 16))


def test_raw_memory_used_again_further_on_counts(office: Office) -> None:
    """REUSE at a later place needs a larger memory, next to the former one until its holders release that."""
    worker = office.worker
    ref = blob(worker, 10, buffering=Buffering.RAW)
    buffer = to_write(worker, ref, 10)
    worker.ask(messages.Committed, messages.CommitWrite(ref, buffer))
    again = messages.AcquireWrite(ref, 10, offset=10, iov=AcquireIov.REUSE, buffer=buffer)
    office.leave(Scope.TASK, Resource.BYTES, 19)
    over(worker, again)
    office.leave(Scope.TASK, Resource.BYTES, 20)
    before = used(office)
    worker.ask(messages.Buffer, again)
    assert used(office) == before + 10
    worker.ask(messages.Created, anonymous(b"x" * 10))
    over(worker, anonymous(b"x"))


def test_former_memory_counts_while_it_is_held(office: Office) -> None:
    """A raw object that grows step by step counts with each memory that a buffer still holds."""
    worker = office.worker
    ref = blob(worker, 10, buffering=Buffering.RAW)
    before = used(office)
    buffers = [to_write(worker, ref, size) for size in (10, 20, 30)]
    assert used(office) == before + 10 + 20 + 20
    office.leave(Scope.TASK, Resource.BYTES, 39)
    over(worker, messages.AcquireWrite(ref, 40))
    for buffer in buffers:
        worker.ask(messages.Done, messages.ReleaseWrite(ref, buffer))
    assert used(office) == before + 20
    to_write(worker, ref, 40)
    assert used(office) == before + 30


def test_former_memory_counts_with_its_descriptors(office: Office) -> None:
    """However small it is, a former memory that a buffer holds takes descriptors of the node."""
    worker = office.worker
    ref = blob(worker, 10, buffering=Buffering.RAW)
    office.leave(Scope.TASK, Resource.DESCRIPTORS, 2 * limits.MEMORY_DESCRIPTORS)
    buffers = [to_write(worker, ref, size) for size in (11, 12, 13)]
    over(worker, messages.AcquireWrite(ref, 14))
    worker.ask(messages.Done, messages.ReleaseWrite(ref, buffers[0]))
    to_write(worker, ref, 14)
    over(worker, messages.AcquireWrite(ref, 15))


def test_raw_memory_counts_as_a_whole_for_a_part(office: Office) -> None:
    """A writer of a few bytes gets memory for all of them, and all of it counts, next to a reader's."""
    worker = office.worker
    ref = blob(worker, 50, buffering=Buffering.RAW)
    before = used(office)
    worker.ask(messages.Buffer, messages.AcquireRead(ref))
    office.leave(Scope.TASK, Resource.BYTES, 49)
    over(worker, messages.AcquireWrite(ref, 1))
    office.leave(Scope.TASK, Resource.BYTES, 50)
    to_write(worker, ref, 1)
    assert used(office) == before + 50


def test_readers_of_raw_memory_cost_nothing_more(office: Office) -> None:
    """Writers and readers of an object's own memory share it, so re-writing it costs nothing."""
    worker = office.worker
    ref = blob(worker, 20, buffering=Buffering.RAW)
    worker.ask(messages.Done, messages.ReleaseWrite(ref, to_write(worker, ref, 20)))
    office.leave(Scope.TASK, Resource.BYTES, 0)
    worker.ask(messages.Buffer, messages.AcquireRead(ref))
    worker.ask(messages.Committed, messages.WriteOnce(ref, b"y" * 20))
    worker.ask(messages.Committed, messages.WriteOnce(ref, b"y", flags=int(Flag.REPLACE)))
    over(worker, anonymous(b"x"))


def test_before_its_own_memory_a_raw_object_has_versions(office: Office) -> None:
    """Until a writer opens it, a raw object is re-written like any other: held versions count."""
    worker = office.worker
    ref = blob(worker, 20, buffering=Buffering.RAW)
    before = used(office)
    worker.ask(messages.Buffer, messages.AcquireRead(ref))
    worker.ask(messages.Committed, messages.WriteOnce(ref, b"y" * 20))
    assert used(office) == before + 20
    worker.ask(messages.Buffer, messages.AcquireRead(ref))
    to_write(worker, ref, 20)
    assert used(office) == before + 40


# -- copies, streams, vectors -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "wanted",
    [
        {"persistence": Persistence.DURABLE},
        {"proximity": Proximity.PROCESS},
        {"buffering": Buffering.RAW},
    ],
    ids=str,
)
def test_copies_count_with_who_makes_them(office: Office, wanted: dict[str, object]) -> None:
    """A copy of the data is another object of as many bytes, of who asked for it and of the group."""
    worker = office.worker
    ref = worker.create(data=b"x" * 30).reference.ref
    copy = messages.Copy(ref, worker.self_ref, **wanted)  # type: ignore[arg-type]
    for scope, resource, room in (
        (Scope.TASK, Resource.BYTES, 29),
        (Scope.GROUP, Resource.BYTES, 29),
        (Scope.TASK, Resource.OBJECTS, 0),
        (Scope.GROUP, Resource.OBJECTS, 0),
    ):
        office.leave(scope, resource, room)
        over(worker, copy)
        office.row(scope, messages.Bound(resource, None))
    office.leave(Scope.TASK, Resource.BYTES, 30)
    office.leave(Scope.GROUP, Resource.BYTES, 30)
    worker.ask(messages.References, copy)
    over(worker, anonymous(b"x"))


def test_rings_of_streams_count(office: Office) -> None:
    """A stream counts with the ring that it was asked for."""
    office.leave(Scope.TASK, Resource.BYTES, 2 * 4096)
    ring = messages.Create(ObjectType.SHMEM_STREAM, (), NameKind.ANONYMOUS, size=4096)
    first = office.worker.ask(messages.Created, ring).reference.ref
    office.worker.ask(messages.Created, ring)
    over(office.worker, ring)
    office.worker.ask(messages.Done, messages.Delete(first))
    office.worker.ask(messages.Created, ring)


def test_a_vector_stops_at_the_limit(office: Office) -> None:
    """The calls of a vector are counted one after the other: just those that fit succeed."""
    office.leave(Scope.TASK, Resource.BYTES, 25)
    sent = office.worker.call(messages.Vector(tuple(anonymous(b"x" * 10) for _ in range(4))))
    assert [type(part.result) for part in sent.parts] == [  # type: ignore[attr-defined]
        messages.Created,
        messages.Created,
        messages.Failure,
        messages.Failure,
    ]
    blob(office.worker, 5)


# -- what outlives ----------------------------------------------------------------------------------
def test_objects_that_outlive_their_task_stay_counted(office: Office) -> None:
    """What a task made counts with those above it after its end, until the object is gone."""
    admin, worker = office.admin, office.worker
    created = worker.create(data=b"x" * 30)
    (kept,) = admin.lookup(created.name)
    before = office.used(Scope.PRINCIPAL, Resource.BYTES)
    office.node.end(worker.task)
    assert office.used(Scope.PRINCIPAL, Resource.BYTES) == before
    office.leave(Scope.PRINCIPAL, Resource.BYTES, 5)
    over(admin, messages.WriteOnce(kept.ref, b"y" * 36))
    admin.ask(messages.Done, destroyed(kept.ref))
    assert office.used(Scope.PRINCIPAL, Resource.BYTES) == before - 30


def test_a_grandchild_of_an_ended_task_stays_under_its_limit(office: Office) -> None:
    """A task's limit holds for what it started also when it is over itself."""
    worker = office.worker
    child = worker.run()
    child.ask(messages.References, messages.Copy(child.self_ref, child.self_ref))
    office.leave(Scope.TASK, Resource.OBJECTS, 1)
    office.node.end(worker.task)
    child.ask(messages.Created, anonymous())
    over(child, anonymous())


def test_a_failed_effect_gives_its_buffer_back(office: Office) -> None:
    """A buffer that the host could not make is closed, and its bytes are free again."""
    worker = office.worker
    ref = blob(worker, 0)
    before = used(office)
    buffer = to_write(worker, ref, 30)
    number = worker.stat(ref).object
    office.node.step(
        events.EffectFailed(office.node.now, worker.task, buffer, number, int(Code.ENOMEM), "full")  # type: ignore[arg-type]
    )
    assert used(office) == before
    assert office.used(Scope.TASK, Resource.REQUESTS) == 0


def _program(task: Client) -> int:
    assert task.welcome.executable is not None
    return task.welcome.executable.ref


def test_everything_is_free_after_a_task(office: Office) -> None:
    """When a task ends, all but the CPU time that it used is free again."""
    admin = office.admin
    program = blob(admin)
    before = list(office.shown(Scope.PRINCIPAL).used)
    child = started(admin, ordered(program, memory_bytes=1 << 26, total_memory_bytes=1 << 27))
    ref = blob(child, 30)
    to_write(child, ref, 30)
    child.ask(messages.Buffer, messages.AcquireRead(ref))
    child.ask(messages.Done, messages.Delete(ref, int(Flag.HANDLE_ONLY)))
    child.send(messages.ReadOnce(child.self_ref))
    orphan = started(child, ordered(_program(child), memory_bytes=1 << 26, cpu_ms=100))
    office.node.end(child.task, cpu_ms=7)
    office.node.end(orphan.task)
    admin.ask(messages.Done, messages.Delete(child.reference.ref))
    before[Resource.CPU_MS] += 7
    assert list(office.shown(Scope.PRINCIPAL).used) == before
