"""B.1.7 to B.1.12: the buffer options of acquire, commit and release, each flag and paragraph."""

from __future__ import annotations

import pytest

from dios.core import effects
from dios.core.model.records import Buffer
from dios.errors import Code
from dios.ids import BufferId, TaskId
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Buffering,
    CommitIov,
    Flag,
    Mode,
    ObjectType,
    Permission,
    Persistence,
    Semantics,
)
from tests.support.core.harness import Client, Node


class Blobs:
    """A session with two blobs of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client: Client = node.session()
        self.first = self.client.create(data=b"0123456789").reference.ref
        self.second = self.client.create(data=b"abcde").reference.ref

    def acquire(self, ref: int, mode: Mode = Mode.READ, **options: object) -> messages.Buffer:
        """Acquire, expected to be admitted."""
        kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
        return self.client.ask(messages.Buffer, kind(ref, **options))  # type: ignore[arg-type]

    def idle(self, ref: int, mode: Mode = Mode.READ) -> int:
        """A buffer whose request is committed."""
        buffer = self.acquire(ref, mode).buffer
        kind = messages.CommitRead if mode is Mode.READ else messages.CommitWrite
        self.client.ask(messages.Committed, kind(ref, buffer))
        return buffer

    def buffers(self) -> dict[BufferId, Buffer]:
        """The buffers of the session."""
        return self.node.core.state.tasks[TaskId(self.client.task)].buffers

    def applied(self) -> effects.ApplyWrite | None:
        """The write of the last step."""
        return next((e for e in self.node.outcome.after if isinstance(e, effects.ApplyWrite)), None)

    def raw(self) -> int:
        """A raw blob."""
        call = messages.Create(ObjectType.SHMEM_BLOB, buffering=Buffering.RAW, data=b"raw")
        return self.client.ask(messages.Created, call).reference.ref


@pytest.fixture
def blobs(node: Node) -> Blobs:
    """Two blobs."""
    return Blobs(node)


# -- B.1.7 -----------------------------------------------------------------------------------------
def test_read_size_and_offset(blobs: Blobs) -> None:
    """B.1.7: a read gives the bytes asked for, all there are for size 0, from an optional offset."""
    for size, offset, expected in ((4, 0, 4), (0, 0, 10), (0, 3, 7), (99, 3, 7), (0, 10, 0)):
        assert blobs.acquire(blobs.first, size=size, offset=offset).size == expected
    assert blobs.client.refused(messages.AcquireRead(blobs.first, offset=11)) == Code.EINVAL
    assert blobs.client.refused(messages.ReadOnce(blobs.first, offset=11)) == Code.EINVAL


def test_iov_create(blobs: Blobs) -> None:
    """B.1.7, IOV_CREATE: a new buffer for every acquire; naming an old one beside it is refused."""
    buffer, two = blobs.acquire(blobs.first).buffer, blobs.acquire(blobs.first).buffer
    assert buffer != two
    assert blobs.client.refused(messages.AcquireRead(blobs.first, buffer=buffer)) == Code.EINVAL


@pytest.mark.parametrize("mode", list(Mode))
def test_iov_take(blobs: Blobs, mode: Mode) -> None:
    """B.1.7, IOV_TAKE: the buffer changes hands for good, and is deleted on release."""
    buffer = blobs.idle(blobs.first)
    assert blobs.acquire(blobs.second, mode, iov=AcquireIov.TAKE, buffer=buffer).buffer == buffer
    assert blobs.client.refused(messages.ReleaseRead(blobs.first, buffer)) == Code.EBADF
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    blobs.client.ask(messages.Done, release(blobs.second, buffer))
    assert effects.CloseBuffer(BufferId(buffer)) in blobs.node.outcome.after
    assert not blobs.buffers()


@pytest.mark.parametrize("mode", list(Mode))
def test_iov_borrow(blobs: Blobs, mode: Mode) -> None:
    """B.1.7, IOV_BORROW: on release the buffer is back with its owner, alive and as it was."""
    buffer = blobs.idle(blobs.first)
    blobs.acquire(blobs.second, mode, iov=AcquireIov.BORROW, buffer=buffer)
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    blobs.client.ask(messages.Done, release(blobs.second, buffer))
    assert effects.CloseBuffer(BufferId(buffer)) not in blobs.node.outcome.after
    assert blobs.client.counters(blobs.second)[:2] == (0, 0)
    # Its last request was on another object: the owner starts a new one, or releases it.
    assert blobs.client.refused(messages.CommitRead(blobs.first, buffer)) == Code.EINVAL
    assert blobs.acquire(blobs.first, iov=AcquireIov.REUSE, buffer=buffer).size == 10
    blobs.client.ask(messages.Committed, messages.CommitRead(blobs.first, buffer))
    blobs.client.ask(messages.Done, messages.ReleaseRead(blobs.first, buffer))
    assert not blobs.buffers()


def test_borrowed_level_does_not_stay(blobs: Blobs) -> None:
    """B.1.7, IOV_BORROW: a commit after the return is not judged by what the borrower asked for."""
    client, other = blobs.client, blobs.node.session()
    created = client.create(data=b"x")
    ref, others = created.reference.ref, other.lookup(created.name)[0].ref
    buffer = client.ask(messages.Buffer, messages.AcquireWrite(ref, semantics=Semantics.EXCL)).buffer
    client.ask(messages.Committed, messages.CommitWrite(ref, buffer))
    blobs.acquire(blobs.second, Mode.WRITE, iov=AcquireIov.BORROW, buffer=buffer, semantics=Semantics.ANY)
    client.ask(messages.Done, messages.ReleaseWrite(blobs.second, buffer))
    other.call(messages.WriteOnce(others, b"y"))
    assert client.refused(messages.CommitWrite(ref, buffer)) == Code.EINVAL


def test_borrower_deleted(blobs: Blobs) -> None:
    """B.1.4, B.1.7: with the borrowing reference its request is aborted and the buffer goes home."""
    buffer = blobs.idle(blobs.first)
    blobs.acquire(blobs.second, iov=AcquireIov.BORROW, buffer=buffer)
    blobs.client.call(messages.Delete(blobs.second))
    assert blobs.acquire(blobs.first, iov=AcquireIov.REUSE, buffer=buffer).buffer == buffer


def test_owner_deleted(blobs: Blobs) -> None:
    """B.1.4, B.1.7: with its owner a borrowed buffer is gone, its request aborted."""
    buffer = blobs.idle(blobs.first)
    blobs.acquire(blobs.second, iov=AcquireIov.BORROW, buffer=buffer)
    blobs.client.call(messages.Delete(blobs.first))
    assert blobs.client.counters(blobs.second)[:2] == (0, 0)
    assert blobs.client.refused(messages.ReleaseRead(blobs.second, buffer)) == Code.EBADF


@pytest.mark.parametrize("iov", [AcquireIov.TAKE, AcquireIov.BORROW])
def test_borrowed_buffers_do_not_move_on(blobs: Blobs, iov: AcquireIov) -> None:
    """B.1.7: what is borrowed is neither lent on nor given away."""
    buffer = blobs.idle(blobs.first)
    blobs.acquire(blobs.second, iov=AcquireIov.BORROW, buffer=buffer)
    blobs.client.call(messages.CommitRead(blobs.second, buffer))
    third = blobs.client.create(data=b"").reference.ref
    assert blobs.client.refused(messages.AcquireRead(third, iov=iov, buffer=buffer)) == Code.EINVAL
    call = messages.CommitRead(third, buffer, CommitIov.MOVE)
    assert blobs.client.refused(call) == Code.EINVAL


@pytest.mark.parametrize("iov", [AcquireIov.TAKE, AcquireIov.BORROW, AcquireIov.REUSE])
def test_active_buffers_stay(blobs: Blobs, iov: AcquireIov) -> None:
    """Figure 4.8: a buffer whose request is not committed starts no other one."""
    buffer = blobs.acquire(blobs.first).buffer
    ref = blobs.first if iov is AcquireIov.REUSE else blobs.second
    assert blobs.client.refused(messages.AcquireRead(ref, iov=iov, buffer=buffer)) == Code.EINVAL


def test_borrowing_from_oneself(blobs: Blobs) -> None:
    """B.1.7: a reference takes its own buffer again with REUSE, it does not borrow it."""
    buffer = blobs.idle(blobs.first)
    call = messages.AcquireRead(blobs.first, iov=AcquireIov.BORROW, buffer=buffer)
    assert blobs.client.refused(call) == Code.EINVAL


def test_taking_from_oneself(blobs: Blobs) -> None:
    """B.1.7: what was read can be written back from the same buffer."""
    buffer = blobs.idle(blobs.first)
    blobs.acquire(blobs.first, Mode.WRITE, iov=AcquireIov.TAKE, buffer=buffer)
    blobs.client.ask(messages.Committed, messages.CommitWrite(blobs.first, buffer))


@pytest.mark.parametrize("iov", [AcquireIov.TAKE, AcquireIov.BORROW])
def test_raw_memory_is_no_buffer_to_move(blobs: Blobs, iov: AcquireIov) -> None:
    """§3.7: a raw object is written in its own memory; other buffers' bytes never become it silently."""
    raw = blobs.raw()
    buffer = blobs.idle(blobs.first)
    assert blobs.client.refused(messages.AcquireWrite(raw, iov=iov, buffer=buffer)) == Code.EINVAL
    assert blobs.client.refused(messages.CommitWrite(raw, buffer, iov=CommitIov.MOVE)) == Code.EINVAL
    mine = blobs.idle(raw, Mode.WRITE)
    assert blobs.client.refused(messages.AcquireWrite(blobs.first, iov=iov, buffer=mine)) == Code.EINVAL
    assert blobs.client.refused(messages.CommitWrite(blobs.first, mine, iov=CommitIov.MOVE)) == Code.EINVAL


def test_iov_reuse(blobs: Blobs) -> None:
    """B.1.7, IOV_REUSE: the same buffer, a new request with the versions of now."""
    buffer = blobs.idle(blobs.first)
    blobs.client.call(messages.WriteOnce(blobs.first, b"x"))
    again = blobs.acquire(blobs.first, iov=AcquireIov.REUSE, buffer=buffer, semantics=Semantics.EXCL)
    assert (again.buffer, again.v_w) == (buffer, 1)
    blobs.client.ask(messages.Committed, messages.CommitRead(blobs.first, buffer))


def test_reuse_does_not_grow_a_write_buffer(blobs: Blobs) -> None:
    """B.1.10: a re-used write buffer keeps its memory; a larger one is acquired anew."""
    buffer = blobs.idle(blobs.first, Mode.WRITE)
    call = messages.AcquireWrite(blobs.first, 11, iov=AcquireIov.REUSE, buffer=buffer)
    assert blobs.client.refused(call) == Code.EINVAL


@pytest.mark.parametrize("mode", list(Mode))
def test_iov_none(blobs: Blobs, mode: Mode) -> None:
    """B.1.7, IOV_NONE: the request is registered, with no bytes and nothing to commit by itself."""
    bare = blobs.acquire(blobs.first, mode, iov=AcquireIov.NONE)
    assert bare.size == 0
    assert not any(isinstance(effect, effects.AnswerRead) for effect in blobs.node.outcome.after)
    assert sum(blobs.client.counters(blobs.first)[:2]) == 1
    commit = messages.CommitRead if mode is Mode.READ else messages.CommitWrite
    assert blobs.client.refused(commit(blobs.first, bare.buffer)) == Code.EINVAL
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    call = release(blobs.first, bare.buffer, flags=int(Flag.RELEASE_COMMIT))
    assert blobs.client.refused(call) == Code.EINVAL
    blobs.client.ask(messages.Done, release(blobs.first, bare.buffer))
    assert blobs.client.counters(blobs.first) == (0, 0, 0, 0)


# -- B.1.8 and B.1.11 ------------------------------------------------------------------------------
def test_commit_use(blobs: Blobs) -> None:
    """B.1.8, COMMIT_USE: the buffer stays associated and ready for re-use."""
    buffer = blobs.idle(blobs.first)
    assert blobs.buffers()[BufferId(buffer)].reference.id == blobs.first
    blobs.acquire(blobs.first, iov=AcquireIov.REUSE, buffer=buffer)


def test_commit_read_move(blobs: Blobs) -> None:
    """B.1.8, COMMIT_MOVE: the answer speaks of the original reference; the buffer is the new one's."""
    buffer = blobs.acquire(blobs.first, semantics=Semantics.MRSW).buffer
    blobs.client.ask(messages.Committed, messages.CommitRead(blobs.second, buffer, CommitIov.MOVE))
    assert blobs.client.counters(blobs.first) == (0, 0, 1, 0)
    assert blobs.client.counters(blobs.second) == (0, 0, 0, 0)
    blobs.client.ask(messages.Done, messages.ReleaseRead(blobs.second, buffer))


def test_commit_read_move_of_an_invalid_read(blobs: Blobs) -> None:
    """B.1.8, COMMIT_MOVE: a write to the original in between shows, one to the target does not."""
    buffer = blobs.acquire(blobs.first, semantics=Semantics.MRSW).buffer
    blobs.client.call(messages.WriteOnce(blobs.second, b"x"))
    blobs.client.call(messages.WriteOnce(blobs.first, b"x"))
    blobs.client.conflicts(messages.CommitRead(blobs.second, buffer, CommitIov.MOVE))
    assert blobs.client.counters(blobs.first) == (0, 0, 0, 1)


def test_commit_read_takes_no_write(blobs: Blobs) -> None:
    """B.1.8: a write is committed as one, or versions would count writes that never were."""
    buffer = blobs.acquire(blobs.first, Mode.WRITE).buffer
    call = messages.CommitRead(blobs.second, buffer, CommitIov.MOVE)
    assert blobs.client.refused(call) == Code.EINVAL
    call = messages.CommitRead(blobs.second, buffer, CommitIov.BORROW)
    assert blobs.client.refused(call) == Code.EINVAL


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("iov", [CommitIov.MOVE, CommitIov.BORROW])
def test_commit_write_elsewhere(blobs: Blobs, mode: Mode, iov: CommitIov) -> None:
    """B.1.11, MOVE and BORROW: another reference's buffer is written to this one's object."""
    buffer = blobs.acquire(blobs.first, mode).buffer
    blobs.client.ask(messages.Committed, messages.CommitWrite(blobs.second, buffer, 4, iov))
    applied = blobs.applied()
    assert applied is not None
    assert applied.object == blobs.client.stat(blobs.second).object
    assert (applied.source.buffer, applied.source.length) == (buffer, 4)
    assert blobs.client.counters(blobs.second) == (0, 0, 0, 1)
    assert blobs.client.counters(blobs.first) == (0, 0, 1 if mode is Mode.READ else 0, 0)
    holder = blobs.second if iov is CommitIov.MOVE else blobs.first
    assert blobs.buffers()[BufferId(buffer)].reference.id == holder


def test_commit_borrow_to_many(blobs: Blobs) -> None:
    """B.1.11, COMMIT_BORROW: one buffer is quickly written to several objects and stays its owner's."""
    buffer = blobs.idle(blobs.first)
    targets = [blobs.client.create(data=b"").reference.ref for _ in range(3)]
    for target in targets:
        call = messages.CommitWrite(target, buffer, iov=CommitIov.BORROW)
        blobs.client.ask(messages.Committed, call)
        assert blobs.client.stat(target).size == 10
    blobs.client.ask(messages.Done, messages.ReleaseRead(blobs.first, buffer))


@pytest.mark.parametrize("iov", [CommitIov.MOVE, CommitIov.BORROW])
def test_commit_of_its_own_buffer_is_use(blobs: Blobs, iov: CommitIov) -> None:
    """B.1.11: MOVE and BORROW are for the buffers of other references."""
    buffer = blobs.acquire(blobs.first, Mode.WRITE).buffer
    assert blobs.client.refused(messages.CommitWrite(blobs.first, buffer, iov=iov)) == Code.EINVAL
    call = messages.CommitRead(blobs.first, buffer, CommitIov.MOVE)
    assert blobs.client.refused(call) == Code.EINVAL


def test_bare_request_commits_with_a_borrowed_buffer(blobs: Blobs) -> None:
    """B.1.7, IOV_NONE: a later commit lends the bytes; the bare request's own semantics are judged."""
    bare = blobs.acquire(blobs.second, Mode.WRITE, iov=AcquireIov.NONE, semantics=Semantics.EXCL, offset=2)
    buffer = blobs.idle(blobs.first)
    call = messages.CommitWrite(blobs.second, buffer, 3, CommitIov.BORROW)
    blobs.client.ask(messages.Committed, call)
    applied = blobs.applied()
    assert applied is not None
    assert applied.source.offset == 2
    assert blobs.client.counters(blobs.second) == (0, 0, 0, 1)
    blobs.client.ask(messages.Done, messages.ReleaseWrite(blobs.second, bare.buffer))


def test_bare_request_that_does_not_hold(blobs: Blobs) -> None:
    """B.1.7, IOV_NONE: a disturbed bare request fails the commit, and nothing is written."""
    blobs.acquire(blobs.second, Mode.WRITE, iov=AcquireIov.NONE, semantics=Semantics.EXCL)
    buffer = blobs.idle(blobs.first)
    blobs.client.call(messages.ReadOnce(blobs.second))
    blobs.client.conflicts(messages.CommitWrite(blobs.second, buffer, iov=CommitIov.BORROW))
    assert blobs.applied() is None
    assert blobs.client.counters(blobs.second) == (0, 0, 1, 0)


def test_bare_write_beside_an_invalid_original(blobs: Blobs) -> None:
    """B.1.8: when the lent bytes are invalid nothing is written, and no version says that it was."""
    blobs.acquire(blobs.second, Mode.WRITE, iov=AcquireIov.NONE)
    buffer = blobs.acquire(blobs.first, semantics=Semantics.MRSW).buffer
    blobs.client.call(messages.WriteOnce(blobs.first, b"x"))
    blobs.client.conflicts(messages.CommitWrite(blobs.second, buffer, iov=CommitIov.BORROW))
    assert blobs.client.counters(blobs.second) == (0, 0, 0, 0)


def test_bare_read_is_no_write(blobs: Blobs) -> None:
    """B.1.7, IOV_NONE: a bare read beside it does not swallow a write's version."""
    blobs.acquire(blobs.second, Mode.READ, iov=AcquireIov.NONE)
    buffer = blobs.idle(blobs.first)
    blobs.client.ask(messages.Committed, messages.CommitWrite(blobs.second, buffer, iov=CommitIov.BORROW))
    assert blobs.client.counters(blobs.second) == (1, 0, 0, 1)


def test_commit_sizes(blobs: Blobs) -> None:
    """B.1.11: the bytes written are those of the buffer up to the size; a larger size is refused."""
    buffer = blobs.acquire(blobs.first, Mode.WRITE, size=6, offset=8).buffer
    assert blobs.client.refused(messages.CommitWrite(blobs.first, buffer, 7)) == Code.EINVAL
    assert blobs.client.refused(messages.CommitWrite(blobs.first, buffer, 3, data=b"four")) == Code.EINVAL
    assert blobs.client.refused(messages.CommitWrite(blobs.first, buffer, data=b"seven77")) == Code.EINVAL
    blobs.client.ask(messages.Committed, messages.CommitWrite(blobs.first, buffer, 5))
    assert blobs.client.stat(blobs.first).size == 13


def test_commit_replace(blobs: Blobs) -> None:
    """B.1.11 with REPLACE: the object ends where the written range ends; without, old bytes stay."""
    buffer = blobs.acquire(blobs.first, Mode.WRITE, size=3).buffer
    blobs.client.ask(messages.Committed, messages.CommitWrite(blobs.first, buffer))
    assert blobs.client.stat(blobs.first).size == 10
    call = messages.CommitWrite(blobs.first, buffer, flags=int(Flag.REPLACE))
    blobs.client.ask(messages.Committed, call)
    assert blobs.client.stat(blobs.first).size == 3


def test_durable_commit_waits_for_the_store(blobs: Blobs) -> None:
    """B.1.11: what a commit on a durable object says is durable when the answer leaves."""
    call = messages.Copy(blobs.first, blobs.client.self_ref, persistence=Persistence.DURABLE)
    (durable,) = blobs.client.ask(messages.References, call).references
    buffer = blobs.acquire(durable.ref, Mode.WRITE).buffer
    blobs.client.ask(messages.Committed, messages.CommitWrite(durable.ref, buffer))
    assert blobs.node.outcome.ticket == blobs.node.outcome.wait_for != 0


# -- B.1.9, B.1.10 and B.1.12 ----------------------------------------------------------------------
@pytest.mark.parametrize("mode", list(Mode))
def test_release_commit(blobs: Blobs, mode: Mode) -> None:
    """B.1.9, B.1.12, RELEASE_COMMIT: the request is committed first; the buffer goes in any case."""
    release = messages.ReleaseRead if mode is Mode.READ else messages.ReleaseWrite
    for disturbed in (False, True):
        buffer = blobs.acquire(blobs.first, mode, semantics=Semantics.EXCL).buffer
        if disturbed:
            blobs.client.call(messages.ReadOnce(blobs.first))
        call = release(blobs.first, buffer, flags=int(Flag.RELEASE_COMMIT))
        if disturbed:
            blobs.client.conflicts(call)
        else:
            blobs.client.ask(messages.Done, call)
        assert (blobs.applied() is not None) is (mode is Mode.WRITE and not disturbed)
        assert not blobs.buffers()
        assert blobs.client.counters(blobs.first)[:2] == (0, 0)


def test_release_needs_nothing_but_the_buffer(blobs: Blobs) -> None:
    """B.1.9: releasing is possible on a stale object, exactly once."""
    call = messages.Create(ObjectType.DURABLE_BLOB, (blobs.client.groups[0],), data=b"x")
    created = blobs.client.ask(messages.Created, call)
    (other,) = blobs.client.lookup(created.name)
    buffer = blobs.acquire(other.ref).buffer
    blobs.client.call(messages.Delete(created.reference.ref))
    assert blobs.client.refused(messages.CommitRead(other.ref, buffer)) == Code.ESTALE
    blobs.client.ask(messages.Done, messages.ReleaseRead(other.ref, buffer))
    assert blobs.client.refused(messages.ReleaseRead(other.ref, buffer)) == Code.EBADF


def test_write_buffers(blobs: Blobs) -> None:
    """B.1.10: the buffer has the size asked for, or the object's, or a default; it may start blank."""
    for size, offset, expected in ((3, 0, 3), (0, 0, 10), (0, 4, 6), (50, 10, 50)):
        assert blobs.acquire(blobs.first, Mode.WRITE, size=size, offset=offset).size == expected
    empty = blobs.client.create().reference.ref
    assert blobs.acquire(empty, Mode.WRITE).size > 0
    seq = blobs.client.send(messages.AcquireWrite(blobs.first, flags=int(Flag.BLANK)))
    assert blobs.client.answer(seq) is not None
    (answer,) = (e for e in blobs.node.outcome.after if isinstance(e, effects.AnswerWrite))
    assert answer.blank
    assert not answer.raw
    assert blobs.client.refused(messages.AcquireWrite(blobs.first, offset=11)) == Code.EINVAL
    assert blobs.client.refused(messages.AcquireWrite(blobs.first, 2**50)) == Code.EFBIG


def test_commit_data_fills_the_buffer(blobs: Blobs) -> None:
    """B.1.11: bytes that come with the commit are what is written."""
    buffer = blobs.acquire(blobs.first, Mode.WRITE).buffer
    blobs.client.ask(messages.Committed, messages.CommitWrite(blobs.first, buffer, data=b"abc"))
    applied = blobs.applied()
    assert applied is not None
    assert applied.source.payload == blobs.node.payload
    assert applied.source.length == 3


def test_rights(blobs: Blobs) -> None:
    """B.1.7, B.1.10: reading needs the right to read, writing the right to write, each by itself."""
    for right, mode in ((Permission.READ, Mode.WRITE), (Permission.WRITE, Mode.READ)):
        call = messages.Copy(blobs.first, blobs.client.self_ref, int(right))
        (narrow,) = blobs.client.ask(messages.References, call).references
        kind = messages.AcquireRead if mode is Mode.READ else messages.AcquireWrite
        assert blobs.client.refused(kind(narrow.ref)) == Code.EPERM
        once = messages.ReadOnce(narrow.ref) if mode is Mode.READ else messages.WriteOnce(narrow.ref, b"")
        assert blobs.client.refused(once) == Code.EPERM


def test_moving_a_buffer_brings_no_right(blobs: Blobs) -> None:
    """B.1.8: a buffer moved to a reference is used with that reference's rights."""
    call = messages.Copy(blobs.second, blobs.client.self_ref, int(Permission.READ))
    (narrow,) = blobs.client.ask(messages.References, call).references
    buffer = blobs.idle(blobs.first)
    for iov in (CommitIov.MOVE, CommitIov.BORROW):
        assert blobs.client.refused(messages.CommitWrite(narrow.ref, buffer, iov=iov)) == Code.EPERM
    call_write = messages.AcquireWrite(narrow.ref, iov=AcquireIov.TAKE, buffer=buffer)
    assert blobs.client.refused(call_write) == Code.EPERM


def test_moved_buffer_needs_a_request_of_its_own(blobs: Blobs) -> None:
    """B.1.8, COMMIT_MOVE: nothing is known of the target; its own validity takes an acquire-commit cycle."""
    buffer = blobs.acquire(blobs.first).buffer
    blobs.client.ask(messages.Committed, messages.CommitRead(blobs.second, buffer, CommitIov.MOVE))
    assert blobs.client.refused(messages.CommitRead(blobs.second, buffer)) == Code.EINVAL
    blobs.acquire(blobs.second, iov=AcquireIov.REUSE, buffer=buffer)
    blobs.client.ask(messages.Committed, messages.CommitRead(blobs.second, buffer))
