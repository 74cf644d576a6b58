"""Anonymous shared memory: creation, seals, copies inside the kernel, and read-only descriptors.

The seals. A read-only descriptor alone is no protection, because its receiver can open it again through
/proc. A seal on the memory protects it: WRITE, once nobody maps it for writing (an immutable version), or
FUTURE_WRITE, where the node has the only writable mapping. In addition, every memory created here has a
fixed size (SHRINK and GROW), so that truncation cannot make a reader fault; it cannot be executed; and it has
mode 0400, so that opening it again for writing needs a capability that no task has.

A receiver of a writable descriptor may add seals itself, unless the memory was created otherwise. Then
``seal_forever`` returns False, no more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
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
_SET_FLAGS: Final = 0x40086602
_NO_TIME_OF_READING: Final = struct.pack("@l", 0x80)
_OWNER_WRITES: Final = 0o600


def create_memory(size: int, label: str = "", *, sealable: bool = True) -> int:
    """Create ``size`` bytes of zeroed memory; return its writable descriptor, which the caller closes.

    The size is fixed, the memory cannot be executed where the kernel supports that, and the descriptor is
    closed on exec. ``label`` is visible in /proc for this user, so it must not be a name. With ``sealable``
    False nobody can add seals: no writer of the memory can keep other writers from it. Raises
    OutOfMemoryError if there are no descriptors or no memory.
    """
    text = f"dios {label}"[:_LABEL_BYTES_MAX]
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            fd = os.memfd_create(text, flags | _MFD_NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A kernel before 6.3 does not know the flag.
            fd = os.memfd_create(text, flags)
    except OSError as error:
        raise OutOfMemoryError(f"no memory for a buffer of {size} bytes: {error.strerror}") from error
    try:
        os.ftruncate(fd, size)
        os.fchmod(fd, _OWNER_READS)
        with contextlib.suppress(OSError):
            # Readers could signal each other by the time of the last reading. Older kernels record it.
            fcntl.ioctl(fd, _SET_FLAGS, _NO_TIME_OF_READING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEAL_SIZE if sealable else SEAL_SIZE | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise OutOfMemoryError(f"no memory for a buffer of {size} bytes: {error.strerror}") from error
    return fd


def sealed_memory(data: bytes | bytearray | memoryview, label: str = "") -> int:
    """Create an immutable memory with the bytes ``data``; the caller closes the descriptor."""
    fd = create_memory(len(data), label)
    try:
        write_all(fd, data)
        seal(fd, SEAL_FOREVER)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal(fd: int, seals: int) -> None:
    """Add seals; OSError if the kernel refuses."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def seals_of(fd: int) -> int:
    """Return the seals of a memory."""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS)


def seal_forever(fd: int) -> bool:
    """Make the memory immutable; return True if it is from now on, for all of its holders.

    False if it is still mapped for writing, or a holder has forbidden further seals: then its bytes must be
    copied to become a version.
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
    """Forbid new ways of writing; earlier mappings still write. Call it before sharing the memory."""
    seal(fd, SEAL_FUTURE_WRITE | SEAL_SIZE | fcntl.F_SEAL_SEAL)


def reopen_read_only(fd: int) -> int:
    """Open the memory again for reading only; the caller closes the descriptor.

    A copy of a descriptor shares position and flags with the original, in both directions, so its receivers
    could communicate through it. Each receiver therefore gets an open file of its own. It protects against
    writing only together with a seal, or from receivers without capabilities (the mode is 0400). Raises
    OSError if there are no descriptors.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def reopen_for_writing(fd: int) -> int:
    """Open the memory again for a writer; the caller closes the descriptor. OSError without descriptors.

    A copy would share its flags: with O_APPEND set by the writer, the node's own writes would go elsewhere.
    Call it before the memory has another writer.
    """
    path = f"/proc/self/fd/{fd}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # With this mode only root opens it for writing.
        os.fchmod(fd, _OWNER_WRITES)
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.fchmod(fd, _OWNER_READS)


def copies_of(fds: Iterable[int]) -> list[int]:
    """Return a copy of each descriptor, which the caller closes; OSError if one cannot be copied."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - the copies before a failure must be known
    except OSError:
        close_all(copies)
        raise
    return copies


def close_all(fds: Iterable[int]) -> None:
    """Close all of them."""
    for fd in fds:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
    """Write all of ``data`` at ``offset``; NoSpaceError if it does not fit.

    This is faster than a new mapping.
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
    """Copy bytes between memories or files inside the kernel, without the interpreter lock.

    Moves no position of a descriptor. Raises InvalidError if the source ends early, NoSpaceError if the
    destination has no room. 64 MiB take about 13 ms to existing pages and about 32 ms to new ones. Holes of
    a large source are not copied, and are holes of the destination.
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
    """Yield the offsets and lengths of the parts that have data, in order; the rest reads as zeros.

    Short holes are part of the data. Raises InvalidError if the file ends early, OSError without
    descriptors.
    """
    end = offset + length
    # Seeking moves a position, which others may share with ``fd``.
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
    """Return the next beginning of data or of a hole; ``end`` if there is none before it."""
    if offset >= end:
        return end
    try:
        return min(os.lseek(fd, offset, whence), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Zero bytes and free their pages; NoSpaceError or OSError if the kernel refuses."""
    if length <= 0:
        return
    if _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        if number not in _NO_COPY_HERE:
            raise OSError(number, os.strerror(number))
        # The file system has no holes.
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
    """Copy between different kinds of files through a block that stays in the processor's cache."""
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
    """Fill ``view`` from a memory or file, without the interpreter lock; InvalidError if it ends early.

    64 MiB take about 7 ms to existing pages; a pooled memory gets its new bytes in this way. Two threads
    share a large copy, because the page lookups take the time and not the memory.
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
