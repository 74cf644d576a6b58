"""Memories and extents of this node by use: each closes with its last user.

Not for: the system calls (``dios.transport.memory.memfd``), re-use (``dios.transport.memory.pool``), or which
object a memory belongs to (``dios.host.content.contents``).
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

from dios import limits
from dios.errors import DamagedError, DiosError, NoSpaceError, OutOfMemoryError
from dios.transport.memory import memfd
from dios.transport.memory.pool import MemoryPool, PooledMemory

_OWNER_READS: Final = 0o400


class Memory:
    """A descriptor with ``size`` bytes behind it. Only the node's loop counts users.

    ``frozen``: nobody but the node can change the bytes, and the node will not. ``raw``: an object's own
    memory, which its writers change in place.
    """

    __slots__ = ("_pool", "_pooled", "_users", "fd", "frozen", "raw", "size")

    def __init__(self, fd: int, size: int, *, frozen: bool = False, raw: bool = False) -> None:
        self.fd = fd
        self.size = size
        self.frozen = frozen
        self.raw = raw
        self._users = 1
        self._pool: MemoryPool | None = None
        self._pooled: PooledMemory | None = None

    @classmethod
    def shadow(cls, size: int) -> Memory:
        """A zeroed memory for a task to fill; raises OutOfMemoryError."""
        return cls(memfd.create_memory(size, "shadow"), size)

    @classmethod
    def own(cls, size: int) -> Memory:
        """A zeroed raw memory; it can grow and never shrinks under its mappings. Raises OutOfMemoryError."""
        try:
            fd = os.memfd_create("dios raw blob", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise translated(error) from error
        try:
            os.ftruncate(fd, size)
            os.fchmod(fd, _OWNER_READS)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError as error:
            os.close(fd)
            raise translated(error) from error
        return cls(fd, size, raw=True)

    @classmethod
    def version(cls, size: int, pool: MemoryPool) -> Memory:
        """A memory that the node must fill completely, before it hands it out; raises OutOfMemoryError."""
        pooled = pool.take(size)
        made = cls(pooled.fd, size, frozen=True)
        made._pool, made._pooled = pool, pooled
        return made

    def retain(self) -> Memory:
        """One user more."""
        self._users += 1
        return self

    def release(self) -> None:
        """One user less; the last one frees the memory."""
        self._users -= 1
        if self._users:
            return
        if self._pool is not None and self._pooled is not None:
            self._pool.give_back(self._pooled)
        else:
            os.close(self.fd)
        self.fd = -1

    def reader_fd(self) -> int:
        """An open file of its own for one reader, which cannot be written through; the caller closes it.

        Raises OSError without descriptors.
        """
        return memfd.reopen_read_only(self.fd) if self._pooled is None else self._pooled.hand_out()

    def writer_fd(self) -> int:
        """A descriptor for one who writes; the caller closes it. Raises OSError without descriptors."""
        return memfd.reopen_for_writing(self.fd)

    def adopt(self, length: int) -> bool:
        """Freeze a shadow of exactly ``length`` bytes; False while its task still maps it for writing."""
        if not self.frozen and not self.raw and length == self.size:
            self.frozen = memfd.seal_forever(self.fd)
        return self.frozen and length == self.size

    def read(self, offset: int, length: int) -> bytes:
        """Copy bytes out; raises DamagedError where there are fewer."""
        data = os.pread(self.fd, length, offset)
        while len(data) < length:
            more = os.pread(self.fd, length - len(data), offset + len(data))
            if not more:
                raise DamagedError(f"{length} bytes at {offset} were promised, {len(data)} are there")
            data += more
        return data

    def fill(self, offset: int, source: Memory | bytes, start: int, length: int) -> None:
        """Copy bytes in; may run in another thread. Raises NoSpaceError, OSError."""
        if not length:
            return
        if self._pooled is not None:
            view = self._pooled.view[offset : offset + length]
            if isinstance(source, bytes):
                view[:] = memoryview(source)[start : start + length]
            elif self._pooled.fresh and length >= limits.SPARSE_COPY_BYTES_MIN:
                for place, count in memfd.data_ranges(source.fd, start, length):
                    memfd.read_into(source.fd, place, view[place - start : place - start + count])
            else:
                memfd.read_into(source.fd, start, view)
        elif isinstance(source, bytes):
            memfd.write_all(self.fd, memoryview(source)[start : start + length], offset)
        else:
            memfd.copy_bytes(source.fd, start, self.fd, offset, length)

    def filled(self, data: bytes) -> Memory:
        """The memory itself, with ``data`` at its beginning."""
        self.fill(0, data, 0, len(data))
        return self

    def wipe(self, offset: int) -> None:
        """Make everything from ``offset`` on zero, before anything is written there; raises OSError."""
        length = self.size - offset
        if length <= 0:
            return
        if self._pooled is not None:
            if not self._pooled.fresh:
                _wipe_view(self._pooled.view[offset : offset + length])
        else:
            memfd.punch_hole(self.fd, offset, length)

    def grow(self, size: int) -> None:
        """Make room for ``size`` bytes; what is new is zero."""
        if size > self.size:
            try:
                os.ftruncate(self.fd, size)
            except OSError as error:
                raise translated(error) from error
            self.size = size


def _wipe_view(view: memoryview) -> None:
    zeros = bytes(min(len(view), limits.COPY_BLOCK_BYTES))
    for done in range(0, len(view), limits.COPY_BLOCK_BYTES):
        part = view[done : done + len(zeros)]
        part[:] = zeros[: len(part)]


def translated(error: OSError | DiosError) -> DiosError:
    """What an error of the system's memory or files means to a caller."""
    if isinstance(error, DiosError) and not isinstance(error, NoSpaceError):
        return error
    if isinstance(error, NoSpaceError):
        return OutOfMemoryError(f"the node has no memory left: {error.message}; release buffers")
    if error.errno in {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EFBIG}:
        return OutOfMemoryError(
            f"the node has no memory or descriptors left ({error.strerror}); release buffers and try again"
        )
    return DamagedError(f"the node's memory or disk failed: {error.strerror}")
