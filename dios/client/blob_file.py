"""Files over bytes in memory: reading and seeking without a call to the node."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PEEK_BYTES: Final = 64 * 1024


class PositionFile(io.IOBase):
    """A file with a position and a ``size``, which subclasses read from any position on."""

    _at = 0

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        self._require_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to ``offset`` bytes from the beginning, the position or the end, and return the position."""
        self._require_open()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}
        if whence not in bases:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        place = bases[whence] + offset
        if place < 0:
            raise ValueError(f"cannot seek to {place}, before the beginning of the file")
        self._at = place
        return place

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


class BlobFile(PositionFile, io.BufferedIOBase):
    """A seekable, read-only file over a view of an object's bytes.

    ``read`` and the iteration over lines return copies; ``getbuffer`` and ``read_buffer`` return views, and
    pyarrow uses the latter to read without a copy. Views stay valid after ``close``, which releases the bytes
    otherwise.
    """

    def __init__(self, view: memoryview, name: str = "") -> None:
        self._view = view
        self.name: Final = name
        self.mode: Final = "rb"

    @property
    def size(self) -> int:
        """Return the number of bytes; 0 once it is closed."""
        return self._view.nbytes

    def read_buffer(self, size: int | None = -1, /) -> memoryview:
        """Return a view of up to ``size`` bytes (all that follow by default), and move behind them."""
        self._require_open()
        begin = min(self._at, self.size)
        end = self.size if size is None or size < 0 else min(begin + size, self.size)
        if end > begin:
            self._at = end
        return self._view[begin:end]

    def read(self, size: int | None = -1, /) -> bytes:
        """Return a copy of up to ``size`` bytes (all that follow by default), and move behind them."""
        return bytes(self.read_buffer(size))

    def read1(self, size: int = -1, /) -> bytes:
        """Return a copy of some of the next bytes."""
        return bytes(self.read_buffer(_PEEK_BYTES if size < 0 else size))

    def readinto(self, buffer: Buffer, /) -> int:
        """Copy the next bytes into ``buffer`` and return their number."""
        with memoryview(buffer) as given, given.cast("B") as target:
            part = self.read_buffer(target.nbytes)
            target[: part.nbytes] = part
            return part.nbytes

    def readinto1(self, buffer: Buffer, /) -> int:
        """Copy the next bytes into ``buffer`` and return their number."""
        return self.readinto(buffer)

    def peek(self, size: int = 0, /) -> bytes:
        """Return a copy of some of the next bytes without moving."""
        self._require_open()
        return bytes(self._view[self._at : self._at + max(size, _PEEK_BYTES)])

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line with its end, or up to ``size`` bytes of it."""
        parts = []
        left = self.size if size is None or size < 0 else size
        while left > 0 and (part := bytes(self._view[self._at : self._at + min(left, 8192)])):
            self._require_open()
            end = part.find(b"\n") + 1
            part = part[:end] if end else part
            self._at += len(part)
            left -= len(part)
            parts.append(part)
            if end:
                break
        self._require_open()
        return b"".join(parts)

    def getbuffer(self) -> memoryview:
        """Return a view of the whole file."""
        self._require_open()
        return self._view

    def close(self) -> None:
        """Close the file, and use its bytes no more."""
        super().close()
        self._view = memoryview(b"")
