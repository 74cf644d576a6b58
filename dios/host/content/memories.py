"""Memories and files of the store with a count of users: the last user closes them.

The system calls are in ``dios.transport.memory.memfd``, the pool in ``dios.transport.memory.pool``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator

from dios import limits
from dios.errors import DamagedError, DiosError, NoSpaceError, OutOfMemoryError
from dios.host.handover.format import Memory
from dios.transport.memory import memfd
from dios.transport.memory.pool import MemoryPool, PooledMemory
from dios.transport.memory.reclaimer import RECLAIMER


class ContentMemory:
    """A descriptor of ``size`` bytes and a count of its users, kept by the node's event loop only.

    ``frozen`` means that only the node could change the bytes, and it does not. ``raw`` marks an object's
    own memory, which its writers change in place, ``stored`` a file of the store.

    ``contested`` means that another user's program has a descriptor for writing. Such a program can hold the
    memory's lock for ever: it writes from a mapped file of a file system that it runs itself (FUSE). Then
    everything that needs this lock waits, and not even SIGKILL ends it: writing, seals, looking for holes.
    Reading and mapped memory do not need it.
    """

    __slots__ = (
        "_pool",
        "_pooled",
        "_users",
        "_writers",
        "contested",
        "fd",
        "frozen",
        "raw",
        "size",
        "stored",
    )

    def __init__(
        self, fd: int, size: int, *, frozen: bool = False, raw: bool = False, stored: bool = False
    ) -> None:
        self.fd = fd
        self.size = size
        self.frozen = frozen
        self.raw = raw
        self.stored = stored
        self.contested = False
        self._users = 1
        self._writers = -1
        self._pool: MemoryPool | None = None
        self._pooled: PooledMemory | None = None

    @classmethod
    def taken_over(cls, described: Memory) -> ContentMemory:
        """Return a memory of this process's predecessor."""
        memory = cls(
            described.fd, described.size, frozen=described.frozen, raw=described.raw, stored=described.stored
        )
        memory.contested, memory._writers = described.contested, described.writers
        return memory

    def hand_over(self) -> Memory:
        """Describe the memory for the successor of this process.

        A memory of the pool loses the node's mapping and is not written again.
        """
        return Memory(self.fd, self.size, self.frozen, self.raw, self.stored, self.contested, self._writers)

    @classmethod
    def shadow(cls, size: int) -> ContentMemory:
        """Create a zeroed memory for a task to fill. Raise OutOfMemoryError."""
        return cls(memfd.create_memory(size, "shadow"), size)

    @classmethod
    def own(cls, size: int) -> ContentMemory:
        """Create a zeroed raw memory, whose size nobody can change. Raise OutOfMemoryError."""
        return cls(memfd.create_memory(size, "raw blob", sealable=False), size, raw=True)

    @classmethod
    def version(cls, size: int, pool: MemoryPool) -> ContentMemory:
        """Take a memory from the pool, to be filled completely before use. Raise OutOfMemoryError."""
        pooled = pool.take(size)
        memory = cls(pooled.fd, size, frozen=True)
        memory._pool, memory._pooled = pool, pooled
        return memory

    def retain(self) -> ContentMemory:
        """Add a user."""
        self._users += 1
        return self

    def release(self) -> None:
        """Remove a user; the last one frees the memory, a large one in a thread."""
        self._users -= 1
        if self._users:
            return
        if self._pool is not None and self._pooled is not None:
            self._pool.give_back(self._pooled)
        else:
            RECLAIMER.close(self.fd, self.size)
        if self._writers >= 0:
            RECLAIMER.close(self._writers, self.size)
        self.fd = self._writers = -1

    def reader_fd(self) -> int:
        """Open the memory for one reader, which cannot write through the descriptor; the caller closes it.

        Raise OSError if descriptors are exhausted.
        """
        return memfd.reopen_read_only(self.fd) if self._pooled is None else self._pooled.hand_out()

    def writer_fd(self, *, contested: bool = False) -> int:
        """Return an open file of the memory for a writer; the caller closes it. Raise OSError without any.

        It is not the node's own. The writers of raw memory share one: they can communicate anyway.
        """
        if self._writers >= 0:
            fd = os.dup(self._writers)
        else:
            fd = memfd.reopen_for_writing(self.fd)
            if self.raw:
                try:
                    self._writers = os.dup(fd)
                except OSError:
                    os.close(fd)
                    raise
        self.contested = self.contested or contested
        return fd

    def adopt(self, length: int) -> bool:
        """Freeze a shadow of exactly ``length`` bytes. Return False while its task maps it for writing."""
        if not self.frozen and not self.raw and not self.contested and length == self.size:
            self.frozen = memfd.seal_forever(self.fd)
        return self.frozen and length == self.size

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of some bytes. Raise DamagedError if there are fewer."""
        data = os.pread(self.fd, length, offset)
        while len(data) < length:
            more = os.pread(self.fd, length - len(data), offset + len(data))
            if not more:
                raise DamagedError(f"cannot read {length} bytes at {offset}: only {len(data)} are there")
            data += more
        return data

    def fill(self, offset: int, source: ContentMemory | bytes, start: int, length: int) -> None:
        """Copy bytes into the memory. May run in another thread. Raise NoSpaceError or OSError."""
        if not length:
            return
        contested = self.contested or (isinstance(source, ContentMemory) and source.contested)
        if self._pooled is not None or contested:
            with self._writable(offset, length) as view:
                if isinstance(source, bytes):
                    view[:] = memoryview(source)[start : start + length]
                elif (
                    self._pooled is not None
                    and self._pooled.fresh
                    and length >= limits.SPARSE_COPY_BYTES_MIN
                    and not contested
                ):
                    for place, count in memfd.data_ranges(source.fd, start, length):
                        memfd.read_into(source.fd, place, view[place - start : place - start + count])
                else:
                    memfd.read_into(source.fd, start, view)
        elif isinstance(source, bytes):
            memfd.write_all(self.fd, memoryview(source)[start : start + length], offset)
        else:
            memfd.copy_bytes(source.fd, start, self.fd, offset, length)

    @contextlib.contextmanager
    def _writable(self, offset: int, length: int) -> Iterator[memoryview]:
        """Map some bytes for writing, unless the pool has. Raise OutOfMemoryError."""
        if self._pooled is not None:
            yield self._pooled.view[offset : offset + length]
            return
        skip = offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(self.fd, skip + length, offset=offset - skip)
        except OSError as error:
            raise translate_os_error(error) from error
        with mapped, memoryview(mapped) as whole, whole[skip:] as view:
            yield view

    def filled(self, data: bytes) -> ContentMemory:
        """Write ``data`` at the beginning and return the memory."""
        self.fill(0, data, 0, len(data))
        return self

    def wipe(self, offset: int) -> None:
        """Zero everything from ``offset`` on, before anything is written there. Raise OSError."""
        length = self.size - offset
        if length <= 0:
            return
        if self._pooled is None and not self.contested:
            memfd.punch_hole(self.fd, offset, length)
        elif self._pooled is None or not self._pooled.fresh:
            with self._writable(offset, length) as view:
                _wipe_view(view)


def _wipe_view(view: memoryview) -> None:
    zeros = bytes(min(len(view), limits.COPY_BLOCK_BYTES))
    for done in range(0, len(view), limits.COPY_BLOCK_BYTES):
        part = view[done : done + len(zeros)]
        part[:] = zeros[: len(part)]


def translate_os_error(error: OSError | DiosError) -> DiosError:
    """Translate an error of the system's memory or files into the error for a caller."""
    if isinstance(error, DiosError) and not isinstance(error, NoSpaceError):
        return error
    if isinstance(error, NoSpaceError):
        return OutOfMemoryError(
            f"the node has no memory left: {error.message}. Release buffers and try again."
        )
    if error.errno in {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EFBIG}:
        return OutOfMemoryError(
            f"the node has no memory or descriptors left ({error.strerror}). Release buffers and try again."
        )
    return DamagedError(f"the node's memory or disk failed: {error.strerror}")
