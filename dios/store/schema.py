"""The stored form of one object, version 1: a row with a check value, and small content after it.

``docs/formats.md`` describes the format. Stored bytes never change meaning: a new form gets a new
version number.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated, Final

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from dios.core.events import ObjectRecord
from dios.errors import DamagedError, NotSupportedError
from dios.ids import ObjectId
from dios.wire.fields import ByteCount
from dios.wire.nametext import fingerprint

SCHEMA_VERSION: Final = 2
SCHEMA_WITHOUT_INDEX: Final = 1
"""The version of a store whose index must be built from its rows."""

SCHEMA_LABELLED: Final = 3
"""The version of a store that has had a labelled object, which an earlier program would show without it."""

SCHEMA_LABELLED_WITHOUT_INDEX: Final = 4

ROW_VERSION: Final = 1

_HEAD: Final = struct.Struct(">BI16s")
_CHECK_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
_CHECK_TAG: Final = b"dios store row 1\0"
_KEY: Final = struct.Struct(">Q")
_SCHEMA: Final = struct.Struct(">I")


class ContentKind(enum.IntEnum):
    """The place of an object's content."""

    NONE = 0
    INLINE = 1
    EXTENT = 2


class Payload(Struct, frozen=True, array_like=True):
    """The description of the content in a row: ``size`` bytes with that BLAKE3-256 digest."""

    kind: ContentKind = ContentKind.NONE
    size: ByteCount = 0
    digest: Annotated[bytes, Meta(max_length=_DIGEST_BYTES)] = b""
    extent: Annotated[int, Meta(ge=0)] = 0


class ObjectRow(Struct, frozen=True, array_like=True):
    """The record of one object and the description of its content."""

    record: ObjectRecord
    payload: Payload


NO_PAYLOAD: Final = Payload()

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ObjectRow).decode


def key_of(object_id: ObjectId) -> bytes:
    """Return the database key of an object: its id, big endian, so that rows are in the order of ids."""
    return _KEY.pack(object_id)


def object_of(key: bytes | memoryview) -> ObjectId:
    """Return the object id of a database key; DamagedError if it is not a key of this format."""
    if len(key) != _KEY.size:
        raise DamagedError(f"a row has a key of {len(key)} bytes instead of {_KEY.size}")
    unpacked: tuple[int] = _KEY.unpack(key)
    return ObjectId(unpacked[0])


def describe(record: ObjectRecord) -> str:
    """Return the object for messages and logs: the fingerprint of its name, or its id without a name."""
    return object_text(record.object) if record.name is None else fingerprint(record.name)


def object_text(object_id: ObjectId) -> str:
    """Return an object id for messages and logs."""
    return f"object {object_id:016x}"


def inline_payload(data: bytes | memoryview) -> Payload:
    """Describe content that is stored in the row."""
    return Payload(ContentKind.INLINE, len(data), blake3(data).digest()) if data else NO_PAYLOAD


def encode_row(row: ObjectRow, inline: bytes | memoryview = b"") -> bytes:
    """Return the stored form of a row, with its content if that is of kind INLINE."""
    body = _encode(row)
    head = _HEAD.pack(ROW_VERSION, len(body), _check(row.record.object, body))
    return b"".join((head, body, inline))


def decode_row(object_id: ObjectId, stored: bytes | memoryview) -> ObjectRow:
    """Check and decode the row of an object; its inline content is not checked.

    Raises DamagedError if the row is not what was written under that key. An unknown row version is
    damage too: it changes together with the schema version, which was checked before.
    """
    place = object_text(object_id)
    if len(stored) < _HEAD.size:
        raise DamagedError(f"the row of {place} is truncated after {len(stored)} bytes")
    head: tuple[int, int, bytes] = _HEAD.unpack_from(stored)
    version, length, check = head
    if version != ROW_VERSION:
        raise DamagedError(f"the row of {place} has the unknown version {version}")
    body = stored[_HEAD.size : _HEAD.size + length]
    if len(body) != length or _check(object_id, body) != check:
        raise DamagedError(f"the row of {place} does not match its check value")
    try:
        row = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DamagedError(f"the row of {place} cannot be decoded: {error}") from None
    if row.record.object != object_id:
        raise DamagedError(f"the row of {place} describes another object")
    return row


def inline_part(stored: bytes | memoryview) -> bytes | memoryview:
    """Return the content of a row that ``decode_row`` accepted, unchecked."""
    head: tuple[int, int, bytes] = _HEAD.unpack_from(stored)
    return stored[_HEAD.size + head[1] :]


def check_inline(row: ObjectRow, data: bytes) -> bytes:
    """Return ``data`` if ``row`` describes it; raise DamagedError with the fingerprint otherwise."""
    payload = row.payload
    if len(data) != payload.size or (payload.size and blake3(data).digest() != payload.digest):
        raise damaged(row.record)
    return data


def damaged(record: ObjectRecord, reason: str = "does not match its BLAKE3 digest") -> DamagedError:
    """Return the error for a content that must not be returned."""
    place = describe(record)
    return DamagedError(f"the stored value of {place} {reason}; write it again", fingerprint=place)


def has_index(version: int) -> bool:
    """Return True if a store of this version has an index."""
    return version in {SCHEMA_VERSION, SCHEMA_LABELLED}


def is_labelled(version: int) -> bool:
    """Return True if a store of this version has had a labelled object."""
    return version >= SCHEMA_LABELLED


def version_for(*, labelled: bool, index: bool) -> int:
    """Return the lowest version for a store, so that the most programs can read it."""
    if labelled:
        return SCHEMA_LABELLED if index else SCHEMA_LABELLED_WITHOUT_INDEX
    return SCHEMA_VERSION if index else SCHEMA_WITHOUT_INDEX


def encode_schema(version: int) -> bytes:
    """Return the stored form of the schema version."""
    return _SCHEMA.pack(version)


def decode_schema(stored: bytes) -> int:
    """Return the schema version of a store; NotSupportedError if this program is too old for it."""
    if len(stored) != _SCHEMA.size:
        raise DamagedError(
            "the schema version of the store cannot be read. See docs/formats.md#the-store-on-disk."
        )
    unpacked: tuple[int] = _SCHEMA.unpack(stored)
    if unpacked[0] > SCHEMA_LABELLED_WITHOUT_INDEX:
        raise NotSupportedError(
            f"the store has schema version {unpacked[0]}, this program knows versions up to "
            f"{SCHEMA_LABELLED_WITHOUT_INDEX}. "
            "Use a newer program. See docs/formats.md#the-store-on-disk."
        )
    return unpacked[0]


def _check(object_id: ObjectId, body: bytes | memoryview) -> bytes:
    hasher = blake3(_CHECK_TAG + _KEY.pack(object_id))
    return hasher.update(body).digest(_CHECK_BYTES)
