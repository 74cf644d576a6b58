"""The memory of I/O requests: bytes from a message, or shared memory mapped from a descriptor."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from typing import Final

from dios.errors import DamagedError, InvalidError, OutOfMemoryError, ProtocolError
from dios.limits import INLINE_BYTES_MAX, MIB
from dios.transport.unix.client import close_all
from dios.wire.messages import Buffer, Mapping

_COPY_BYTES: Final = 1 << 30
"""The most bytes of one read or write call; Linux itself stops below two gigabytes."""

_POPULATE_BYTES_MIN: Final = MIB


class MappedMemory:
    """The bytes of one buffer: ``data``, or memory that is mapped from ``fd``, which it owns."""

    __slots__ = ("_data", "_fd", "_map", "_start", "_view", "capacity", "size", "writable")

    def __init__(
        self,
        size: int,
        *,
        data: bytes | bytearray | memoryview | None = None,
        fd: int = -1,
        start: int = 0,
        writable: bool,
    ) -> None:
        self.size = size
        self.capacity: Final = size
        self.writable: Final = writable
        self._data: Final = data
        self._fd = fd
        self._start: Final = start
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @property
    def inline(self) -> bool:
        """Return True if the bytes are sent in messages."""
        return self._data is not None

    def view(self) -> memoryview:
        """Return the bytes, mapped at the first call; read-only unless the buffer is for writing.

        Raises OutOfMemoryError if they cannot be mapped.
        """
        if self._view is None:
            whole = memoryview(b"" if self._data is None else self._data)
            if self._data is None and self.size:
                whole = self._mapped()
            self._view = whole[: self.size]
        return self._view

    def _mapped(self) -> memoryview:
        # Only the needed pages: a task's address space is limited, an object's size is not.
        skip = self._start % mmap.ALLOCATIONGRANULARITY
        flags, rights = mmap.MAP_SHARED, mmap.PROT_READ
        if self.writable:
            rights |= mmap.PROT_WRITE
            if self.size >= _POPULATE_BYTES_MIN:
                # One call for all pages costs less than a page fault for each.
                flags |= mmap.MAP_POPULATE
        try:
            self._map = mmap.mmap(self._fd, skip + self.size, flags, rights, offset=self._start - skip)
        except ValueError as error:
            raise ProtocolError(f"the node's buffer cannot be mapped: {error}") from None
        except OSError as error:
            raise OutOfMemoryError(
                f"cannot map {self.size} bytes ({error.strerror}). Release some buffers."
            ) from None
        return memoryview(self._map)[skip:]

    def read(self) -> bytes:
        """Return a copy of the bytes, without mapping them."""
        if self._data is not None:
            data = self._data
            return data if isinstance(data, bytes) and len(data) == self.size else bytes(data[: self.size])
        if self._fd < 0:
            return b""
        parts = []
        done = 0
        while done < self.size:
            part = os.pread(self._fd, min(self.size - done, _COPY_BYTES), self._start + done)
            if not part:
                raise DamagedError(f"the node's buffer ends after {done} of {self.size} bytes")
            parts.append(part)
            done += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fill(self, data: memoryview, at: int = 0) -> None:
        """Copy ``data`` to the buffer, from the place ``at`` on.

        Shared memory is written through its descriptor, which causes no page faults. A pure task maps it,
        because its limit of file sizes is zero.
        """
        end = at + data.nbytes
        if end > self.size:
            raise InvalidError(f"the buffer has {self.size} bytes, not {end}")
        if self._data is not None or self._map is not None:
            self.view()[at:end] = data
            return
        done = 0
        while done < data.nbytes:
            try:
                done += os.pwrite(self._fd, data[done : done + _COPY_BYTES], self._start + at + done)
            except OSError as error:
                if error.errno == errno.EFBIG:
                    self.view()[at:end] = data
                    return
                if error.errno != errno.ENOSPC:
                    raise
                raise OutOfMemoryError(
                    f"no memory left for {data.nbytes} bytes. Release some buffers."
                ) from None

    def unmap(self) -> None:
        """Release the views, so that the node may keep the memory without a copy.

        A derived view that the program still has keeps the mapping; then the node copies.
        """
        view, self._view = self._view, None
        mapping, self._map = self._map, None
        with contextlib.suppress(BufferError):
            if view is not None:
                view.release()
            if mapping is not None:
                mapping.close()

    def close(self) -> None:
        """Release the views and close the descriptor."""
        self.unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def memory_of(
    result: Buffer, fd: int | None, *, writable: bool, former: MappedMemory | None = None
) -> MappedMemory:
    """Return the memory of an answer, which takes over ``fd``.

    ``former`` is the earlier memory of the same buffer: it is still valid if the answer has neither bytes
    nor a descriptor, and closed otherwise.
    """
    unfit = writable and result.mapping is Mapping.READ_ONLY
    if fd is None and former is None and writable:
        unfit = result.size > INLINE_BYTES_MAX  # more than a commit could send back
    if unfit or (result.mapping is Mapping.NONE) != (fd is None):
        close_all(() if fd is None else (fd,))
        raise ProtocolError("the node's buffer does not match the request")
    if fd is None and result.data is None and former is not None:
        if result.size > former.capacity:
            raise ProtocolError("the node re-used a buffer for more bytes than it has")
        if former.size != result.size:
            former.unmap()
            former.size = result.size
        return former
    if former is not None:
        former.close()
    if fd is not None:
        return MappedMemory(result.size, fd=fd, start=result.start, writable=writable)
    if not writable:
        return MappedMemory(result.size, data=result.data or b"", writable=False)
    room = bytearray(result.size)
    if result.data:
        room[: len(result.data)] = result.data
    return MappedMemory(result.size, data=room, writable=True)
