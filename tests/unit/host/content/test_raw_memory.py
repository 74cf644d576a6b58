"""The own memory of a raw object: its size is fixed, and a larger one replaces it."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest

from dios import limits
from dios.core.effects import AnswerWrite, ApplyWrite, WriteSource
from dios.host.content.buffers import Buffers
from dios.host.content.contents import Content, Contents, read_from, size_of
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId, ObjectId, PayloadId, TaskId
from dios.transport.rings.waiting import RingDescriptors, create_ring
from dios.wire.messages import Buffer
from dios.wire.types import Mode
from tests.support.host.empty_contents import empty_contents, finish

TARGET, TASK = ObjectId(1), TaskId(1)
LARGE = 2 * limits.INLINE_BYTES_MAX
HUGE = limits.LOOP_COPY_BYTES_MAX + mmap.PAGESIZE


@pytest.fixture
def contents() -> Iterator[Contents]:
    """No contents."""
    with empty_contents() as empty:
        yield empty


@pytest.fixture
def buffers(contents: Contents) -> Iterator[Buffers]:
    """No open buffers."""
    new_buffers = Buffers(contents)
    yield new_buffers
    new_buffers.close_all()


def opened(buffers: Buffers, number: int, length: int, offset: int = 0, *, reuse: bool = False) -> mmap.mmap:
    """Open a buffer of the object's own memory; the bytes that its task maps."""
    order = AnswerWrite(
        TASK, number, Buffer(number, length, 0, 0), TARGET, offset, length, raw=True, reuse=reuse
    )
    answered = finish(buffers.write(order))
    assert answered is not None
    (fd,) = answered.fds
    assert isinstance(answered.result, Buffer)
    assert answered.result.start == offset
    mapping = mmap.mmap(fd, answered.result.length)
    os.close(fd)
    return mapping


def commit(buffers: Buffers, number: int, length: int, offset: int = 0) -> None:
    """Commit a buffer."""
    finish(
        buffers.apply(
            ApplyWrite(TARGET, WriteSource(buffer=BufferId(number), offset=offset, length=length)), None
        )
    )


def bytes_now(contents: Contents) -> bytes:
    """All bytes of the object."""
    content: Content = contents.current(TARGET)
    return read_from(content, 0, size_of(content))


@pytest.mark.parametrize("size", [LARGE, HUGE], ids=["in the loop", "in a thread"])
def test_a_larger_memory_has_the_bytes_of_the_former(contents: Contents, buffers: Buffers, size: int) -> None:
    """What was written before the object grew is in the larger memory, also if it was not committed."""
    with opened(buffers, 1, size) as small:
        small[:5] = b"hello"
        with opened(buffers, 2, size, size) as larger:
            assert larger[:5] == b"hello"
            larger[size : size + 5] = b"world"
    assert bytes_now(contents) == b"hello".ljust(size, b"\0") + b"world".ljust(size, b"\0")


def test_a_commit_of_a_former_memory_is_not_lost(contents: Contents, buffers: Buffers) -> None:
    """A writer that got its memory before another one made the object grow commits what it wrote."""
    with opened(buffers, 1, LARGE) as small, opened(buffers, 2, 2 * LARGE) as larger:
        small[:5] = b"early"
        larger[LARGE : LARGE + 4] = b"late"
        commit(buffers, 1, LARGE)
        assert larger[:5] == b"early"
        commit(buffers, 2, 2 * LARGE)
    assert bytes_now(contents) == b"early".ljust(LARGE, b"\0") + b"late".ljust(LARGE, b"\0")


def test_a_commit_in_place_copies_nothing(contents: Contents, buffers: Buffers) -> None:
    """The memory stays the same while no writer needs a larger one."""
    with opened(buffers, 1, LARGE) as mine:
        before = contents.current(TARGET)
        mine[:4] = b"here"
        commit(buffers, 1, LARGE)
        with opened(buffers, 2, 10, LARGE - 10) as other:
            other[-4:] = b"also"
            assert mine[-4:] == b"also"
        assert contents.current(TARGET) is before


def test_bytes_of_a_message_make_it_grow(contents: Contents, buffers: Buffers) -> None:
    """A write in one message beyond the end makes a larger memory, which stays the object's own."""
    with opened(buffers, 1, LARGE) as mine:
        mine[:5] = b"first"
        order = ApplyWrite(TARGET, WriteSource(payload=PayloadId(1), offset=LARGE - 2, length=4))
        finish(buffers.apply(order, b"tail"))
    content = contents.current(TARGET)
    assert isinstance(content, ContentMemory)
    assert content.raw
    assert bytes_now(contents) == b"first".ljust(LARGE - 2, b"\0") + b"tail"


def _descriptors(buffers: Buffers, contents: Contents, ring: RingDescriptors) -> Iterator[tuple[str, int]]:
    shadow = AnswerWrite(TASK, 1, Buffer(8, LARGE, 0, 0), TARGET, 0, LARGE, blank=True)
    answered = finish(buffers.write(shadow))
    assert answered is not None
    yield "a shadow", answered.fds[0]
    raw = ContentMemory.own(LARGE)
    yield "raw memory", raw.writer_fd()
    yield "raw memory, to read", raw.reader_fd()
    version = ContentMemory.version(LARGE, contents.pool)
    yield "a version", version.reader_fd()
    for mode in Mode:
        end = ring.hand_out(mode)
        yield f"an end's own memory {mode}", end[0]
        yield f"the other end's memory {mode}", end[1]
        os.close(end[2])
    raw.release()
    version.release()


def test_no_memory_that_is_handed_out_changes_its_size(contents: Contents, buffers: Buffers) -> None:
    """Its receiver can make none larger, smaller or executable, or fill it beyond what was counted."""
    ring = create_ring()
    libc = ctypes.CDLL(None, use_errno=True)
    for label, fd in _descriptors(buffers, contents, ring):
        size = os.fstat(fd).st_size
        for attempt in (
            lambda fd=fd, size=size: os.ftruncate(fd, size + mmap.PAGESIZE),
            lambda fd=fd: os.ftruncate(fd, 0),
            lambda fd=fd, size=size: os.pwrite(fd, b"x", size),
            lambda fd=fd, size=size: os.posix_fallocate(fd, size, mmap.PAGESIZE),
        ):
            with pytest.raises(OSError, match=r"permitted|descriptor|Invalid"):
                attempt()
        assert not os.fstat(fd).st_mode & 0o133, label
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & 6 == 6, label
        assert libc.fallocate(fd, 0, ctypes.c_int64(size), ctypes.c_int64(1 << 20)) == -1, label
        assert os.fstat(fd).st_size == size, label
        os.close(fd)
    ring.close()


def test_no_writer_of_a_shared_memory_locks_the_others_out(contents: Contents) -> None:
    """A writer of raw memory or of a ring cannot add a seal, which would forbid the others to write."""
    raw = ContentMemory.own(LARGE)
    ring = create_ring()
    for fd in (raw.writer_fd(), *(ring.hand_out(mode)[0] for mode in Mode)):
        for seal in (fcntl.F_SEAL_WRITE, 0x10):
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
        os.close(fd)
    raw.fill(0, b"written", 0, 7)
    assert raw.read(0, 7) == b"written"
    raw.release()
    ring.close()
