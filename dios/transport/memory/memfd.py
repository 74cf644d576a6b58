"""Anonymous shared memory: made, sealed, copied inside the system, handed on for reading only.

Not for: deciding which memory an object's content is (``dios.host``), or rings
(``dios.transport.rings.waiting``).

What a seal is worth. A descriptor opened for reading only is no boundary by itself: its receiver can
re-open it through /proc. What holds is a seal on the memory: WRITE, once nobody maps it for writing (an
immutable version), or FUTURE_WRITE, where the node keeps the one writable mapping there will ever be.
Beside it every memory made here has a fixed size (SHRINK and GROW), so that no reader can be made to fault
by cutting it short, cannot be executed, and has mode 0400, so that re-opening for writing needs a
capability that no task has.

A receiver of a writable descriptor may add seals itself. That can only make ``seal_forever`` answer False.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from dios import limits
from dios.errors import DiosError, InvalidError, NoSpaceError, OutOfMemoryError

SEAL_FUTURE_WRITE: Final = 0x10
SEAL_EXEC: Final = 0x20
SEAL_SIZE: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SEAL_FOREVER: Final = fcntl.F_SEAL_WRITE | SEAL_SIZE | fcntl.F_SEAL_SEAL

_MFD_NOEXEC_SEAL: Final = 0x08
_NO_COPY_HERE: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EMFILE, errno.ENFILE})
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_PUNCH_HOLE_KEEP_SIZE: Final = 3
_LABEL_BYTES_MAX: Final = 200
_OWNER_READS: Final = 0o400


def create_memory(size: int, label: str = "") -> int:
    """Make ``size`` bytes of zeroed memory and return its descriptor, for writing; its owner closes it.

    Its size is fixed, it cannot be executed where the system can hold that, and it does not survive exec.
    ``label`` is seen in /proc by this user: never a name. Raises OutOfMemoryError when there are no
    descriptors or memory.
    """
    text = f"dios {label}"[:_LABEL_BYTES_MAX]
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            fd = os.memfd_create(text, flags | _MFD_NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A system before 6.3 does not know the flag.
            fd = os.memfd_create(text, flags)
    except OSError as error:
        raise OutOfMemoryError(f"no memory for a buffer of {size} bytes: {error.strerror}") from error
    try:
        os.ftruncate(fd, size)
        os.fchmod(fd, _OWNER_READS)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEAL_SIZE)
    except OSError as error:
        os.close(fd)
        raise OutOfMemoryError(f"no memory for a buffer of {size} bytes: {error.strerror}") from error
    return fd


def sealed_memory(data: bytes | bytearray | memoryview, label: str = "") -> int:
    """Make an immutable memory that holds ``data``; its owner closes the descriptor."""
    fd = create_memory(len(data), label)
    try:
        write_all(fd, data)
        seal(fd, SEAL_FOREVER)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal(fd: int, seals: int) -> None:
    """Add seals; OSError when the system refuses."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def seals_of(fd: int) -> int:
    """The seals that a memory has."""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS)


def seal_forever(fd: int) -> bool:
    """Make the memory immutable; True when it is from now on, whoever holds what.

    False when somebody still maps it for writing, or when a holder has forbidden further seals: then its
    bytes must be copied to become a version.
    """
    try:
        seal(fd, SEAL_FOREVER)
    except OSError as error:
        if error.errno == errno.EPERM:
            return seals_of(fd) & SEAL_FOREVER == SEAL_FOREVER
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def seal_future_write(fd: int) -> None:
    """Forbid every new way of writing, while mappings made earlier go on writing: do it before handing on."""
    seal(fd, SEAL_FUTURE_WRITE | SEAL_SIZE | fcntl.F_SEAL_SEAL)


def reopen_read_only(fd: int) -> int:
    """An open file of its own on the same memory, that cannot be written through; its owner closes it.

    A copy of a descriptor shares position and flags with the first, in both directions: whoever gets one gets
    a way to talk to everybody else who has. So each receiver is given an open file of its own. A boundary
    against writing only together with a seal, or for receivers without capabilities (the memory's mode is
    0400). Raises OSError without descriptors.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def reopen_for_writing(fd: int) -> int:
    """An open file of its own for one who may write; its owner closes it. Raises OSError without descriptors.

    The memory's mode lets only root open it again. Otherwise it is a copy: those who write one memory can
    talk through it anyway.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return os.dup(fd)


def copies_of(fds: Iterable[int]) -> list[int]:
    """A copy of each descriptor; their owner closes them. Raises OSError, and then there is none."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - what was made before a failure must be known
    except OSError:
        close_all(copies)
        raise
    return copies


def close_all(fds: Iterable[int]) -> None:
    """Close every one."""
    for fd in fds:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
    """Write all of ``data`` at ``offset``, faster than through a fresh mapping; NoSpaceError when it does
    not fit.
    """
    rest = memoryview(data)
    while rest:
        try:
            done = os.pwrite(fd, rest, offset)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise NoSpaceError(f"no room for {len(rest)} bytes: {error.strerror}") from error
            raise
        offset += done
        rest = rest[done:]


def copy_bytes(src_fd: int, src_offset: int, dst_fd: int, dst_offset: int, length: int) -> None:
    """Copy between memories or files inside the system, without the interpreter lock (bytes, offsets in
    bytes).

    Moves neither descriptor's position. Raises InvalidError when the source ends early, NoSpaceError when the
    destination has no room. 64 MiB take about 13 ms onto pages that exist, and about 32 ms onto fresh ones.
    What is not there in a large source costs nothing, and is not there in the destination either.
    """
    if length < limits.SPARSE_COPY_BYTES_MIN:
        _copy_whole(src_fd, src_offset, dst_fd, dst_offset, length)
        return
    done = 0
    for start, count in data_ranges(src_fd, src_offset, length):
        at = start - src_offset
        punch_hole(dst_fd, dst_offset + done, at - done)
        _copy_whole(src_fd, start, dst_fd, dst_offset + at, count)
        done = at + count
    punch_hole(dst_fd, dst_offset + done, length - done)


def data_ranges(fd: int, offset: int, length: int) -> Iterator[tuple[int, int]]:
    """Where in this part of a memory or file there is anything: offsets and lengths, in order.

    The rest reads as zeros. Short holes are not told apart. Raises InvalidError when the file ends early,
    OSError without descriptors.
    """
    end = offset + length
    # Looking moves a position, and that of ``fd`` may be somebody else's too.
    own = reopen_read_only(fd)
    try:
        missing = end - os.fstat(own).st_size
        if missing > 0:
            raise InvalidError(f"the source ends {missing} bytes early")
        while offset < end:
            start = _place(own, offset, os.SEEK_DATA, end)
            stop = _place(own, start, os.SEEK_HOLE, end) if start < end else end
            while stop < end and _place(own, stop, os.SEEK_DATA, end) - stop < limits.COPY_BLOCK_BYTES:
                stop = _place(own, _place(own, stop, os.SEEK_DATA, end), os.SEEK_HOLE, end)
            if start < end:
                yield start, stop - start
            offset = stop
    finally:
        os.close(own)


def _place(fd: int, offset: int, whence: int, end: int) -> int:
    """The next beginning of bytes or of a hole; ``end`` where there is none before it."""
    if offset >= end:
        return end
    try:
        return min(os.lseek(fd, offset, whence), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Make bytes zero and give their pages back; NoSpaceError or OSError when the system refuses."""
    if length <= 0:
        return
    if _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        if number not in _NO_COPY_HERE:
            raise OSError(number, os.strerror(number))
        # A file system without holes.
        zeros = bytes(min(length, limits.COPY_BLOCK_BYTES))
        for done in range(0, length, len(zeros)):
            write_all(fd, memoryview(zeros)[: length - done], offset + done)


def _copy_whole(src_fd: int, src_offset: int, dst_fd: int, dst_offset: int, length: int) -> None:
    while length:
        try:
            done = os.copy_file_range(src_fd, dst_fd, length, src_offset, dst_offset)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise NoSpaceError(f"no room for {length} bytes: {error.strerror}") from error
            if error.errno not in _NO_COPY_HERE:
                raise
            _copy_through(src_fd, src_offset, dst_fd, dst_offset, length)
            return
        if not done:
            raise InvalidError(f"the source ends {length} bytes early")
        length -= done
        src_offset += done
        dst_offset += done


def _copy_through(src_fd: int, src_offset: int, dst_fd: int, dst_offset: int, length: int) -> None:
    """Copy between different kinds of file by a block that stays in the processor's cache."""
    block = memoryview(bytearray(min(length, limits.COPY_BLOCK_BYTES)))
    while length:
        done = os.preadv(src_fd, [block[: min(length, len(block))]], src_offset)
        if not done:
            raise InvalidError(f"the source ends {length} bytes early")
        write_all(dst_fd, block[:done], dst_offset)
        length -= done
        src_offset += done
        dst_offset += done


def read_into(fd: int, offset: int, view: memoryview) -> None:
    """Fill ``view`` from a memory or file, without the interpreter lock; InvalidError when it ends early.

    Onto pages that exist, 64 MiB take about 7 ms: this is how a pooled memory gets its new bytes. Two threads
    share a large one, because it is the looking up of pages that takes the time, not the memory.
    """
    if len(view) < limits.COPY_SPLIT_BYTES_MIN:
        _read_part(fd, offset, view)
        return
    half = len(view) // 2
    failed: list[OSError | DiosError] = []

    def read_rest() -> None:
        try:
            _read_part(fd, offset + half, view[half:])
        except (OSError, DiosError) as error:
            failed.append(error)

    other = threading.Thread(target=read_rest, name="second half of a copy")
    other.start()
    try:
        _read_part(fd, offset, view[:half])
    finally:
        other.join()
    if failed:
        raise failed[0]


def _read_part(fd: int, offset: int, view: memoryview) -> None:
    while view:
        done = os.preadv(fd, [view], offset)
        if not done:
            raise InvalidError(f"the source ends {len(view)} bytes early")
        offset += done
        view = view[done:]
