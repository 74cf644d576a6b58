"""Reading a file that is stored in parts: the view of a part, of a range, and an open file over all parts.

One part is in memory at a time. ``uploads`` stores the parts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from dios.client.blob_file import BlobFile, PositionFile
from dios.client.sync.node import Group, Node, Reference
from dios.errors import StaleError
from dios.lib.catalogue import CatalogueEntry, Part
from dios.lib.files.sound_replicas import Notice, SoundReplicas, WantedObject, log_notice

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class StoredParts:
    """The parts of one file. They end with the file, also for readers that have not read them yet.

    Each part is read from a sound replica. Every method that reads raises FileNotFoundError if the file was
    replaced or removed, and otherwise as ``SoundReplicas`` does.
    """

    def __init__(self, node: Node, group: Group, entry: CatalogueEntry, notice: Notice = log_notice) -> None:
        self._node: Final = node
        self._group: Final = group
        self._entry: Final = entry
        self._notice: Final = notice
        self.parts: Final[tuple[Part, ...]] = entry.parts()

    def reference(self, number: int) -> Reference:
        """Return a reference to a part that can be read. The caller closes it."""
        return self.read(number, SoundReplicas.reference)

    def view(self, number: int) -> memoryview:
        """Return a view of a part's bytes, without a copy if they are on this node."""
        return self.read(number, SoundReplicas.view)

    def open(self, number: int) -> BlobFile | io.BufferedReader:
        """Open a part for reading."""
        return self.read(number, lambda replicas: replicas.open(self._entry.file))

    def checked(self, first: int = 0) -> Iterator[memoryview]:
        """Yield a view of each part from ``first`` on, all bytes of which have the digest of the part."""
        for number in range(first, len(self.parts)):
            yield self.read(number, SoundReplicas.checked_view)

    def read(self, number: int, read: Callable[[SoundReplicas], T]) -> T:
        """Return the result of reading the replicas of a part."""
        part, file = self.parts[number], self._entry.file
        label = f"part {number + 1} of {file}"
        wanted = WantedObject(label, part.name, self._entry.size_of_part(number), part.digest)
        try:
            return read(SoundReplicas(self._node, self._group, wanted, self._notice))
        except StaleError:
            raise FileNotFoundError(
                2, "the file was replaced or removed while it was read; open it again", file
            ) from None

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


class PartsFile(PositionFile, io.RawIOBase):
    """A seekable file over all parts. ``open_part`` opens one of them, and one is open at a time."""

    def __init__(self, entry: CatalogueEntry, open_part: Callable[[int], io.BufferedIOBase]) -> None:
        self._entry: Final = entry
        self._open_part: Final = open_part
        self._number = -1
        self._part: io.BufferedIOBase = io.BytesIO()
        self.name: Final = entry.file

    @property
    def size(self) -> int:
        return self._entry.size

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
