"""The bytes of a file that is to be stored: of a local file, of memory, or of a pipe.

Each source yields its bytes in pieces, so that a file of any size is stored in constant memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

from dios import limits
from dios.errors import InvalidError

CHUNK_BYTES: Final = 4 * limits.MIB

Moved: TypeAlias = Callable[[int], object]
"""A function that is informed of each number of bytes that were copied."""


class Source(Protocol):
    """The bytes of a file; each part of it may be read several times before the next one is read."""

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield ``size`` bytes from ``offset`` on, in pieces that are valid until the next one.

        There are fewer bytes only if the file ends there.
        """


class LocalSource:
    """An open local file, from its present position on."""

    def __init__(self, fd: int) -> None:
        self._fd: Final = fd
        self._start: Final = os.lseek(fd, 0, os.SEEK_CUR)
        self._buffer: Final = bytearray(CHUNK_BYTES)

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes as ``Source.chunks`` does."""
        done = 0
        with memoryview(self._buffer) as buffer:
            while done < size:
                with buffer[: size - done] as piece:
                    got = os.preadv(self._fd, [piece], self._start + offset + done)
                if not got:
                    return
                yield buffer[:got]
                done += got


class MemorySource:
    """Bytes in memory."""

    def __init__(self, view: memoryview) -> None:
        self._view: Final = view

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes as ``Source.chunks`` does."""
        for start in range(offset, min(offset + size, self._view.nbytes), CHUNK_BYTES):
            yield self._view[start : min(start + CHUNK_BYTES, offset + size)]


class Readable(Protocol):
    """A pipe, a terminal or a file."""

    def read(self, size: int, /) -> bytes:
        """Return some of the next bytes, at most ``size``; none at the end."""


class PipeSource:
    """A pipe, of which the present part is kept in memory. Parts are read in their order."""

    def __init__(self, pipe: Readable) -> None:
        self._pipe: Final = pipe
        self._buffer: Final = bytearray(limits.FILE_PART_BYTES)
        self._offset = 0
        self._size = self._read(len(self._buffer))

    @property
    def first_part(self) -> memoryview | None:
        """The whole content, if it is less than one part, else None."""
        whole = not self._offset and self._size < len(self._buffer)
        return memoryview(self._buffer)[: self._size] if whole else None

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes as ``Source.chunks`` does."""
        if offset == self._offset + self._size and self._size == len(self._buffer):
            self._offset, self._size = offset, self._read(size)
        if offset != self._offset or size > len(self._buffer):
            raise InvalidError(f"the parts of a pipe were not read in their order: {offset}")
        with memoryview(self._buffer) as view:
            for start in range(0, self._size, CHUNK_BYTES):
                yield view[start : min(start + CHUNK_BYTES, self._size)]

    def _read(self, size: int) -> int:
        done = 0
        while done < size and (piece := self._pipe.read(min(size - done, CHUNK_BYTES))):
            self._buffer[done : done + len(piece)] = piece
            done += len(piece)
        return done
