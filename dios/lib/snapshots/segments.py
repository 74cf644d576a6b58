"""The pieces of an archive. Their limits depend on the paths of files and not on what comes before them.

So a file that is new or longer changes the piece that it is in, and the pieces after it stay as they were.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from dios import limits
from dios.errors import InvalidError
from dios.lib.snapshots.records import SEGMENT_BYTES_MAX, VERSION, Segment, StoredArchive
from dios.wire import images
from dios.wire.environments import LENGTH
from dios.wire.images import EntryKind, ImageEntry, decode_changes, decode_image

PIECE_BYTES: Final = 4 * limits.MIB
"""The pieces of a large file, and of a manifest."""

_FILES: Final = 64
"""A piece with small files has this number on average."""


def segments_of(path: Path, digest: str) -> StoredArchive:
    """Read an archive of an image or of changes, and return its pieces. Raise InvalidError, OSError."""
    with path.open("rb") as file:
        magic = file.read(len(images.MAGIC))
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        if length > limits.IMAGE_MANIFEST_BYTES_MAX:
            raise InvalidError("the manifest of the archive is too long")
        decode = decode_changes if magic == images.MAGIC_OF_CHANGES else decode_image
        body = file.read(length)
        sizes = [*_pieces(file.tell()), *sizes_of(decode(body).entries)]
        file.seek(0)
        segments: list[Segment] = []
        for size in sizes:
            data = file.read(size)
            segments.append(Segment(blake3(data).digest(), len(data)))
    return StoredArchive(VERSION, digest, tuple(segments))


def sizes_of(entries: Sequence[ImageEntry]) -> Iterator[int]:
    """Yield the sizes of the pieces of the files: many small ones together, and of large ones 4 MiB each."""
    together = 0
    for entry in entries:
        if entry.kind is not EntryKind.FILE or not entry.size:
            continue
        if together and together + entry.size > SEGMENT_BYTES_MAX:
            yield together
            together = 0
        if entry.size > PIECE_BYTES:
            if together:
                yield together
                together = 0
            yield from _pieces(entry.size)
            continue
        together += entry.size
        if zlib.crc32(entry.path.encode()) % _FILES == 0:
            yield together
            together = 0
    if together:
        yield together


def _pieces(size: int) -> Iterator[int]:
    for start in range(0, size, PIECE_BYTES):
        yield min(PIECE_BYTES, size - start)
