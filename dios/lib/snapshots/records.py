"""The stored records of snapshots, and the files of a group in which they are.

``docs/formats.md`` describes them. A reader trusts no record: sizes and digests are compared.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import InvalidError
from dios.wire.environments import DIGEST_CHARS

FOLDER: Final = "snapshots"
"""The folder of a group with its snapshots, by name."""
PARTS: Final = f"{FOLDER}/parts"
"""The pieces of archives, by digest, which snapshots share."""
IMAGES: Final = f"{FOLDER}/images"
"""The images of snapshots: one list of pieces for each, by the digest of its archive."""

SEGMENT_BYTES_MAX: Final = 8 * limits.MIB
RECORD_BYTES_MAX: Final = 16 * limits.MIB
VERSION: Final = 1
_MAGIC: Final = b"DIOSSNP1"
_SEGMENTS_MAX: Final = 100_000
"""Pieces of an archive: more than those of the largest one with the smallest pieces."""

_Digest = Annotated[str, Meta(pattern=rf"\A[0-9a-f]{{{DIGEST_CHARS}}}\Z", max_length=DIGEST_CHARS)]
_R = TypeVar("_R", bound=Struct)


class Segment(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A piece of an archive: the BLAKE3 digest of its bytes, and their number."""

    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    size: Annotated[int, Meta(ge=1, le=SEGMENT_BYTES_MAX)]

    @property
    def path(self) -> str:
        """The path of the piece in its group."""
        return f"{PARTS}/{self.digest.hex()}"


class StoredArchive(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An archive in pieces. ``digest`` is the one in the name of its environment."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    digest: _Digest
    segments: Annotated[tuple[Segment, ...], Meta(max_length=_SEGMENTS_MAX)]

    @property
    def size(self) -> int:
        """The number of bytes of the archive."""
        return sum(segment.size for segment in self.segments)


class SnapshotRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A snapshot: the digest of the image's archive, and the archive of the changes to it."""

    image: _Digest
    changes: StoredArchive


def encode_record(record: StoredArchive | SnapshotRecord) -> bytes:
    """Return the bytes of a record. Raise InvalidError for one that is too long."""
    data = _MAGIC + msgspec.msgpack.encode(record)
    if len(data) > RECORD_BYTES_MAX:
        raise InvalidError("the snapshot has too many pieces")
    return data


def decode_record(data: bytes | memoryview, kind: type[_R]) -> _R:
    """Return a record. Raise InvalidError for bytes that are none of this release."""
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise InvalidError("the file is no snapshot of this release")
    try:
        return msgspec.msgpack.decode(data[len(_MAGIC) :], type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise InvalidError(f"the file is no snapshot of this release: {error}") from None
