import errno
import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import limits
from dios.errors import InvalidError, NoSpaceError, OutOfMemoryError
from dios.transport.memory import memfd
from dios.transport.memory.pool import MemoryPool

PAGE = mmap.PAGESIZE


@pytest.fixture
def fd() -> Iterator[int]:
    """A memory of two pages."""
    fd = memfd.create_memory(2 * PAGE, "test")
    yield fd
    os.close(fd)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[int]:
    """A file, which is no memory."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def refused(number: int, errors: set[int]) -> None:
    """Check that mapping for writing is refused with one of ``errors``."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at below
        mmap.mmap(number, PAGE)
    assert caught.value.errno in errors


def test_a_memory_has_a_fixed_size(fd: int) -> None:
    """Nobody who holds a memory can cut it short under a reader's eyes, nor make it longer."""
    for size in (PAGE, 3 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    assert not os.get_inheritable(fd)
    assert os.fstat(fd).st_mode & 0o777 == 0o400


def test_no_free_descriptor_is_an_error_of_its_own() -> None:
    """A process that may open nothing more gets OutOfMemoryError, not an error of the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OutOfMemoryError):
            memfd.create_memory(PAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_sealed_memory_is_immutable(fd: int) -> None:
    """After the last writable mapping is gone a memory can be sealed, and nothing writes it any more."""
    with mmap.mmap(fd, 2 * PAGE) as mapping:
        mapping[:5] = b"hello"
        assert not memfd.seal_forever(fd)
    assert memfd.seal_forever(fd)
    assert memfd.seal_forever(fd)
    refused(fd, {errno.EPERM})
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        memfd.seal(fd, memfd.SEAL_FUTURE_WRITE)
    with mmap.mmap(fd, PAGE, prot=mmap.PROT_READ) as mapping:
        assert mapping[:5] == b"hello"


def test_who_forbids_seals_gains_nothing(fd: int) -> None:
    """A holder that forbids further seals only makes the node copy."""
    memfd.seal(fd, fcntl.F_SEAL_SEAL)
    assert not memfd.seal_forever(fd)


def test_only_earlier_mappings_write_after_future_write(fd: int) -> None:
    """The node's own mapping goes on writing, which readers see; every new way of writing is refused."""
    with mmap.mmap(fd, 2 * PAGE) as mapping:
        memfd.seal_future_write(fd)
        refused(fd, {errno.EPERM})
        reader = memfd.reopen_read_only(fd)
        refused(reader, {errno.EACCES, errno.EPERM})
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        # The trick of re-opening through /proc, which makes a read-only descriptor no boundary by itself.
        try:
            again = os.open(f"/proc/self/fd/{reader}", os.O_RDWR)
        except PermissionError:
            pass
        else:
            refused(again, {errno.EPERM})
            os.close(again)
        with mmap.mmap(reader, PAGE, prot=mmap.PROT_READ) as view:
            mapping[:3] = b"new"
            assert view[:3] == b"new"
        os.close(reader)


def test_bytes_become_an_immutable_memory() -> None:
    """Bytes of any length, none included, become a sealed memory that holds them."""
    for data in (b"", b"x", bytes(range(256)) * 1000):
        fd = memfd.sealed_memory(data)
        assert os.pread(fd, len(data) + 1, 0) == data
        assert memfd.seals_of(fd) & memfd.SEAL_FOREVER == memfd.SEAL_FOREVER
        os.close(fd)


def test_bytes_are_copied_between_memories(fd: int) -> None:
    """A range of one memory lands where it should in another, and positions stay."""
    target = memfd.create_memory(PAGE)
    memfd.write_all(fd, b"0123456789", 100)
    memfd.copy_bytes(fd, 103, target, 7, 5)
    assert os.pread(target, 20, 0) == bytes(7) + b"34567" + bytes(8)
    assert os.lseek(target, 0, os.SEEK_CUR) == os.lseek(fd, 0, os.SEEK_CUR) == 0
    os.close(target)


def test_bytes_are_copied_between_kinds_of_file(fd: int, other: int) -> None:
    """A memory is copied to a file on disk and back, in blocks."""
    data = os.urandom(1_000_000)
    source = memfd.sealed_memory(data)
    memfd.copy_bytes(source, 1, other, 3, len(data) - 1)
    assert os.pread(other, len(data) + 9, 0) == bytes(3) + data[1:]
    memfd.copy_bytes(other, 3, fd, 0, PAGE)
    assert os.pread(fd, PAGE, 0) == data[1 : PAGE + 1]
    os.close(source)


def test_a_copy_is_whole_or_an_error(fd: int, other: int) -> None:
    """A source that ends early and a destination without room are errors, never a short copy."""
    target = memfd.create_memory(PAGE)
    with pytest.raises(InvalidError, match="ends"):
        memfd.copy_bytes(fd, PAGE, target, 0, 2 * PAGE)
    with pytest.raises(InvalidError, match="ends"):
        memfd.copy_bytes(other, 0, target, 0, 1)
    with pytest.raises(InvalidError, match="ends"):
        memfd.read_into(other, 0, memoryview(bytearray(1)))
    with pytest.raises((NoSpaceError, PermissionError)):
        memfd.copy_bytes(fd, 0, target, 0, 2 * PAGE)
    os.close(target)


# -- the pool -------------------------------------------------------------------------------------
def test_a_memory_nobody_saw_is_used_again() -> None:
    """A memory that never left the node comes back for the same number of pages, its tail zeroed."""
    pool = MemoryPool()
    first = pool.take(PAGE + 9)
    first.view[: PAGE + 9] = b"x" * (PAGE + 9)
    pool.give_back(first)
    second = pool.take(PAGE + 5)
    assert second is first
    assert bytes(second.view[PAGE:]) == b"x" * 5 + bytes(PAGE - 5)
    assert pool.reused == 1
    third = pool.take(PAGE)
    assert third is not first
    for memory in (second, third):
        pool.give_back(memory)
    pool.close()


def test_a_memory_somebody_may_see_is_never_used_again() -> None:
    """Once handed out, a memory goes back to the system, and its reader keeps what it read."""
    pool = MemoryPool()
    first = pool.take(PAGE)
    first.view[:3] = b"old"
    fd = first.hand_out()
    with mmap.mmap(fd, PAGE, prot=mmap.PROT_READ) as reader:
        os.close(fd)
        pool.give_back(first)
        second = pool.take(PAGE)
        assert second is not first
        second.view[:3] = b"new"
        assert reader[:3] == b"old"
    pool.give_back(second)
    pool.close()


def test_nobody_but_the_node_writes_a_pooled_memory() -> None:
    """The descriptor of a pooled memory cannot be mapped for writing."""
    pool = MemoryPool()
    memory = pool.take(10)
    fd = memory.hand_out()
    # Neither through what a reader gets, nor through an open file that could be written.
    refused(fd, {errno.EACCES, errno.EPERM, errno.EBADF})
    refused(memory.fd, {errno.EPERM})
    os.close(fd)
    pool.give_back(memory)
    pool.close()


def test_the_pool_is_bounded() -> None:
    """Over its bound the pool closes what was unused longest."""
    pool = MemoryPool(bytes_max=2 * PAGE)
    taken = [pool.take(PAGE) for _ in range(3)]
    huge = pool.take(3 * PAGE)
    for memory in [*taken, huge]:
        pool.give_back(memory)
    assert pool.free_bytes == 2 * PAGE
    assert [pooled.fd >= 0 for pooled in [*taken, huge]] == [False, True, True, False]
    pool.close()
    assert pool.free_bytes == 0


def test_a_large_memory_is_read_whole(tmp_path: Path) -> None:
    """What two threads read is what stands there, and a source that ends early is told by either."""
    size = limits.COPY_SPLIT_BYTES_MIN + 3 * PAGE + 1
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    source = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        target = bytearray(size)
        memfd.read_into(source, 0, memoryview(target))
        assert target == data
        memfd.read_into(source, 1, memoryview(target)[:-1])
        assert target[:-1] == data[1:]
        with pytest.raises(InvalidError):
            memfd.read_into(source, 1, memoryview(target))
        with pytest.raises(InvalidError):
            memfd.read_into(source, size - 1, memoryview(target))
    finally:
        os.close(source)


@pytest.mark.parametrize("dirty", [False, True], ids=["fresh", "used"])
def test_holes_are_copied_as_holes(dirty: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A copy of sparse memory has the same bytes, and pages only where the source has some."""
    size = 4 * limits.GIB
    source, target = memfd.create_memory(size), memfd.create_memory(size)
    places = (0, 5 * limits.MIB + 3, 2 * limits.GIB, size - 9)
    for place in places:
        memfd.write_all(source, b"something", place)
    if dirty:
        memfd.write_all(target, b"\xff" * limits.MIB, limits.GIB)
    memfd.copy_bytes(source, 0, target, 0, size)
    assert os.fstat(target).st_blocks <= os.fstat(source).st_blocks
    for place in places:
        assert os.pread(target, 9, place) == b"something"
    assert os.pread(target, 9, limits.GIB) == bytes(9)
    assert os.lseek(source, 0, os.SEEK_CUR) == 0, "a position was moved"
    with pytest.raises(InvalidError):
        memfd.copy_bytes(source, limits.MIB, target, 0, size)
    os.close(source)
    os.close(target)


def test_a_part_with_holes_is_copied_in_place() -> None:
    """Bytes between holes land where they belong, whatever the places in source and target are."""
    size = 4 * limits.MIB
    source, target = memfd.create_memory(size), memfd.create_memory(size)
    memfd.write_all(source, b"x" * PAGE, 2 * limits.MIB)
    memfd.write_all(target, b"\xff" * size)
    length = 3 * limits.MIB
    memfd.copy_bytes(source, 100, target, 7, length)
    expected = b"\xff" * 7 + os.pread(source, length, 100) + b"\xff" * (size - length - 7)
    assert os.pread(target, size, 0) == expected
    os.close(source)
    os.close(target)


def test_a_writers_flags_are_its_own() -> None:
    """A writer that sets O_APPEND does not move the writes of the node, whichever user runs the node."""

    def check() -> bool:
        fd = memfd.create_memory(8)
        theirs = memfd.reopen_for_writing(fd)
        fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        untouched = not fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK)
        memfd.write_all(fd, b"ours", 2)
        return untouched and os.pread(theirs, 8, 0) == b"\0\0ours\0\0" and not os.fstat(fd).st_mode & 0o377

    assert check()
    if os.geteuid():
        return
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65_533, 65_533, 65_533)
            os._exit(0 if check() else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
