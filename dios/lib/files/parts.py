"""Reading a file that is stored in parts: the view of a part, of a range, and an open file over all parts.

One part is in memory at a time. ``uploads`` stores the parts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from dios.client.sync.node import Group, Node, Reference
from dios.errors import BadReferenceError, DamagedError, StaleError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Part
from dios.wire.nametext import fingerprint

if TYPE_CHECKING:
    from typing_extensions import Buffer


class StoredParts:
    """The parts of one file. They end with the file, also for readers that have not read them yet."""

    def __init__(self, node: Node, group: Group, entry: CatalogueEntry) -> None:
        self._node: Final = node
        self._group: Final = group
        self._entry: Final = entry
        self.parts: Final[tuple[Part, ...]] = entry.parts()

    def reference(self, number: int) -> Reference:
        """Return a reference to a part.

        Raises FileNotFoundError if the file was replaced or removed, UnreachableError if its node does not
        answer, and DamagedError if the part has another size.
        """
        found = self._node.lookup(self.parts[number].name, group=self._group, limit=1)
        if not found:
            if found.incomplete:
                raise UnreachableError(
                    f"part {number + 1} of {self._entry.file!r} is on a node that does not answer",
                    call="lookup",
                )
            raise self._gone()
        if found[0].size != self._entry.size_of_part(number):
            raise self._damaged(number)
        return found[0]

    def view(self, number: int) -> memoryview:
        """Return a view of a part's bytes, without a copy if they are on this node."""
        reference = self.reference(number)
        try:
            with self._node.batch() as batch:
                viewed = batch.add(reference.view_bytes)
                batch.add(reference.close)
            return viewed.result()
        except (StaleError, BadReferenceError):
            raise self._gone() from None

    def checked(self, first: int = 0) -> Iterator[memoryview]:
        """Yield a view of each part from ``first`` on; DamagedError for one with another digest."""
        for number in range(first, len(self.parts)):
            view = self.view(number)
            if blake3(view).digest() != self.parts[number].digest:
                raise self._damaged(number)
            yield view

    def chunks(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a range, a piece of each part, so that a file can be copied as a ``Source``."""
        at, end = offset, min(offset + size, self._entry.size)
        while at < end:
            number, inside = divmod(at, self._entry.part_bytes)
            piece = self.view(number)[inside : inside + end - at]
            yield piece
            at += piece.nbytes

    def range(self, start: int, end: int) -> memoryview:
        """Return the bytes of a range: without a copy if they are in one part, else copied together."""
        pieces = self.chunks(start, end - start)
        first = next(pieces, memoryview(b""))
        if first.nbytes >= end - start:
            return first
        joined, at = bytearray(end - start), first.nbytes
        joined[:at] = first
        for piece in pieces:
            joined[at : at + piece.nbytes] = piece
            at += piece.nbytes
        return memoryview(joined).toreadonly()

    def _gone(self) -> FileNotFoundError:
        return FileNotFoundError(
            2, "the file was replaced or removed while it was read; open it again", self._entry.file
        )

    def _damaged(self, number: int) -> DamagedError:
        mark = fingerprint(self.parts[number].name)
        return DamagedError(
            f"the bytes of part {number + 1} of {self._entry.file}, which is the object {mark}, are not "
            "those that were stored. Restore the file from a replica or a backup."
        )


class PartsFile(io.RawIOBase):
    """A seekable file over all parts. ``open_part`` opens one of them, and one is open at a time."""

    def __init__(self, entry: CatalogueEntry, open_part: Callable[[int], io.BufferedIOBase]) -> None:
        self._entry: Final = entry
        self._open_part: Final = open_part
        self._number = -1
        self._part: io.BufferedIOBase = io.BytesIO()
        self._at = 0
        self.name: Final = entry.file
        self.size: Final = entry.size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to ``offset`` bytes from the beginning, the position or the end, and return the position."""
        place = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        if place < 0:
            raise ValueError(f"cannot seek to {place}, before the beginning of the file")
        self._at = place
        return place

    def readinto(self, buffer: Buffer, /) -> int:
        """Copy the next bytes into ``buffer``, at most to the end of a part, and return their number."""
        if self._at >= self.size:
            return 0
        number, inside = divmod(self._at, self._entry.part_bytes)
        if number != self._number:
            self._part.close()
            self._part, self._number = self._open_part(number), number
        self._part.seek(inside)
        got = self._part.readinto(buffer)
        self._at += got
        return got

    def close(self) -> None:
        """Close the file, and the part that is open."""
        if not self.closed:
            super().close()
            self._part.close()
