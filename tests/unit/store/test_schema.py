from __future__ import annotations

import pytest
from blake3 import blake3

from dios.core.events import ObjectRecord
from dios.errors import DamagedError, NotSupportedError
from dios.ids import Name, ObjectId, Principal
from dios.store import schema
from dios.store.schema import ContentKind, ObjectRow, Payload
from dios.wire.messages import Bound
from dios.wire.types import Buffering, Deletion, ObjectType, Resource
from tests.support.store.records import record

VECTOR_ROW = ObjectRow(
    ObjectRecord(
        ObjectId(0x0123456789ABCDEF),
        Name(bytes(range(32))),
        ObjectType.DURABLE_BLOB,
        (Name(b"\x11" * 32), Name(b"\x22" * 32)),
        Principal("uid:1000"),
        Deletion.IMMORTAL,
        Buffering.DOUBLE,
        5,
        0,
        3,
    ),
    Payload(ContentKind.INLINE, 5, blake3(b"hello").digest(), 0),
)
VECTOR_EXTENT_ROW = ObjectRow(
    ObjectRecord(
        ObjectId(7),
        None,
        ObjectType.DURABLE_BLOB,
        (),
        Principal("node"),
        Deletion.REFERENCE_COUNTED,
        Buffering.RAW,
        2**40,
        1,
        2**33,
    ),
    Payload(ContentKind.EXTENT, 2**40, b"\x33" * 32, 0xFEDCBA9876543210),
)
VECTOR_LIMITS_ROW = ObjectRow(
    ObjectRecord(
        ObjectId(9),
        Name(b"\x33" * 32),
        ObjectType.GROUP,
        (),
        Principal("uid:1000"),
        Deletion.IMMORTAL,
        Buffering.DOUBLE,
        32,
        0,
        0,
        (Bound(Resource.OBJECTS, 1_000), Bound(Resource.BYTES, 2**33)),
    ),
    Payload(),
)
VECTOR_LABELLED_ROW = ObjectRow(
    ObjectRecord(
        ObjectId(10),
        Name(b"\x33" * 32),
        ObjectType.DURABLE_BLOB,
        (),
        Principal("uid:1000"),
        Deletion.IMMEDIATE,
        Buffering.DOUBLE,
        0,
        0,
        0,
        (),
        ("uid:1000/payroll",),
    ),
    Payload(),
)
VECTOR_LABELLED = (
    "010000004e8524799364e02651fb02abf19730584c929c0ac42033333333333333333333333333333333333333"
    "333333333333333333333333330190a87569643a3130303001000000009091b07569643a313030302f70617972"
    "6f6c6c940000c40000"
)
# What a program wrote that knew no secrecy labels yet.
VECTOR_LIMITS = (
    "010000004c3cbaa886ac355b56c2a1e16ca17f81b1929b09c42033333333333333333333333333333333333333"
    "333333333333333333333333330a90a87569643a313030300200200000929200cd03e89201cf00000002000000"
    "00940000c40000"
)
# What a program wrote that knew no limits yet: one element less in the record, and none is meant.
VECTOR = (
    "01000000a7d73481004c4eac3966740cb8a908f32e929acf0123456789abcdefc420000102030405060708090a"
    "0b0c0d0e0f101112131415161718191a1b1c1d1e1f0192c4201111111111111111111111111111111111111111"
    "111111111111111111111111c42022222222222222222222222222222222222222222222222222222222222222"
    "22a87569643a313030300200050003940105c420ea8f163db38682925e4491c5e58d4bb3506ef8c14eb78a86e9"
    "08c5624a67200f0068656c6c6f"
)
VECTOR_EXTENT = (
    "01000000564609b079a2197cb8a029a43b705a77e7929a07c00190a46e6f64650001cf000001000000000001cf"
    "00000002000000009402cf0000010000000000c420333333333333333333333333333333333333333333333333"
    "3333333333333333cffedcba9876543210"
)


def test_the_frozen_vectors_of_version_1() -> None:
    """A row of version 1 has exactly these bytes, for ever: stores on disks hold them."""
    assert schema.encode_row(VECTOR_LABELLED_ROW).hex() == VECTOR_LABELLED
    assert schema.key_of(VECTOR_ROW.record.object).hex() == "0123456789abcdef"
    assert schema.encode_schema(1).hex() == "00000001"


def test_the_frozen_vectors_can_be_read() -> None:
    """Rows that an earlier program wrote are read as they were meant."""
    stored = bytes.fromhex(VECTOR)
    assert schema.decode_row(VECTOR_ROW.record.object, stored) == VECTOR_ROW
    assert read(stored) == b"hello"
    assert schema.decode_row(ObjectId(7), memoryview(bytes.fromhex(VECTOR_EXTENT))) == VECTOR_EXTENT_ROW
    assert schema.decode_row(ObjectId(9), bytes.fromhex(VECTOR_LIMITS)) == VECTOR_LIMITS_ROW
    assert schema.decode_row(ObjectId(10), bytes.fromhex(VECTOR_LABELLED)) == VECTOR_LABELLED_ROW
    assert schema.decode_schema(bytes.fromhex("00000001")) == 1


def test_a_row_comes_back_as_it_was_written() -> None:
    """Encoding and decoding are inverse, with content and without."""
    assert read(schema.encode_row(VECTOR_ROW, b"hello")) == b"hello"
    for row in (VECTOR_ROW, VECTOR_EXTENT_ROW, VECTOR_LIMITS_ROW, VECTOR_LABELLED_ROW):
        assert schema.decode_row(row.record.object, schema.encode_row(row)) == row


def read(stored: bytes) -> bytes:
    """The content of the first vector's object, everything checked."""
    row = schema.decode_row(VECTOR_ROW.record.object, stored)
    return schema.check_inline(row, bytes(schema.inline_part(stored)))


def test_every_flipped_bit_of_a_row_is_noticed() -> None:
    """No change of one bit in a row, its head or its content goes unnoticed."""
    stored = bytes.fromhex(VECTOR)
    for place in range(len(stored) * 8):
        bent = bytearray(stored)
        bent[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedError):
            read(bytes(bent))


def test_every_cut_of_a_row_is_noticed() -> None:
    """A row cut off anywhere is damaged."""
    stored = bytes.fromhex(VECTOR)
    for length in range(len(stored)):
        with pytest.raises(DamagedError):
            read(stored[:length])


def test_a_row_under_another_key_is_damaged() -> None:
    """A row belongs to its key: it cannot stand for another object."""
    with pytest.raises(DamagedError, match="does not match its check value"):
        schema.decode_row(ObjectId(8), bytes.fromhex(VECTOR_EXTENT))


def test_a_newer_schema_is_refused() -> None:
    """A later schema version asks for a newer program; an illegible one is damage."""
    with pytest.raises(NotSupportedError, match="newer program"):
        schema.decode_schema(schema.encode_schema(schema.SCHEMA_LABELLED_WITHOUT_INDEX + 1))
    with pytest.raises(DamagedError):
        schema.decode_schema(b"1")


def test_a_key_of_another_length_is_no_key() -> None:
    """Keys have eight bytes."""
    with pytest.raises(DamagedError, match="9 bytes"):
        schema.object_of(bytes(9))


def test_keys_sort_like_object_ids() -> None:
    """The order of keys is the order of ids."""
    ids = [ObjectId(number) for number in (0, 1, 255, 256, 2**32, 2**63, 2**64 - 1)]
    assert sorted(schema.key_of(number) for number in reversed(ids)) == [schema.key_of(n) for n in ids]
    assert [schema.object_of(schema.key_of(number)) for number in ids] == ids


def test_errors_show_the_fingerprint_never_the_name() -> None:
    """The message of a damaged value tells which one by fingerprint; an object without name by its id."""
    error = schema.damaged(record(5))
    assert schema.describe(record(5)) in error.message
    assert (record(5).name or b"").hex() not in str(error)
    assert error.fingerprint == schema.describe(record(5))
    assert schema.describe(VECTOR_EXTENT_ROW.record) == "object 0000000000000007"
