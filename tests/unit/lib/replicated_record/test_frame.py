"""The bytes of a replica of a record: frozen vectors, and the refusal of all other bytes."""

from __future__ import annotations

import pytest
from blake3 import blake3

from dios.errors import DamagedError
from dios.lib.replicated_record import frame
from dios.lib.replicated_record.frame import CHANGES_KEPT, ZERO, Member, ReplicaState, Value

HERE = Member(11, "n1")
CONTENT = b"the list"
STATE = ReplicaState(
    (7, 5),
    Value(
        (6, 0),
        (HERE, Member(12, "n2"), Member(13, "n3")),
        (HERE, Member(12, "n2")),
        4,
        len(CONTENT),
        blake3(CONTENT).digest(),
        CONTENT,
        (3, 2),
        b"",
    ),
)
VECTOR = (
    "44494f53524543010"
    "04c9a0192070592060093920ba26e31920ca26e32920da26e3392920ba26e31920ca26e320408"
    "c4207aba535b0fcc7fe888f0a29c7682896a7183fb96a3ec64e9ead116e8a4bb9861920302c4007468652"
    "06c697374"
)


def test_version_1_has_the_bytes_that_it_always_had() -> None:
    """Version 1 has the bytes that it always had."""
    assert frame.encode(STATE).hex() == VECTOR
    assert frame.decode(bytes.fromhex(VECTOR), HERE) == STATE


def test_bytes_after_the_content_are_no_part_of_it() -> None:
    """Bytes after the content are no part of it."""
    data = frame.encode(STATE) + bytes(100)
    assert frame.decode(data, HERE) == STATE
    assert frame.content_of(data) == CONTENT


def test_a_header_is_read_without_the_content() -> None:
    """A header is read without the content."""
    data = frame.encode(STATE)[: -len(CONTENT)]
    assert frame.decode(data, HERE, whole=False).value == STATE.value._replace(content=None)


def test_bytes_without_a_header_are_content_of_a_record_with_one_replica() -> None:
    """Bytes without a header are content of a record with one replica."""
    state = frame.decode(CONTENT, HERE)
    assert state.plain
    assert (state.promised, state.value.ballot, state.value.members) == (ZERO, ZERO, (HERE,))
    assert (state.value.content, state.value.digest) == (CONTENT, blake3(CONTENT).digest())
    assert frame.content_of(CONTENT) == CONTENT


@pytest.mark.parametrize("at", [8, 12, 40, -1])
def test_other_bytes_are_refused_and_name_the_node(at: int) -> None:
    """Other bytes are refused and name the node."""
    data = bytearray(frame.encode(STATE))
    data[at] ^= 0x55
    with pytest.raises(DamagedError, match="on n1 "):
        frame.decode(bytes(data), HERE)


def test_the_header_of_a_later_version_is_refused() -> None:
    """The header of a later version is refused."""
    data = frame.encode(STATE)
    first = data.index(b"\x9a") + 1
    with pytest.raises(DamagedError, match="has version 2, this program reads 1"):
        frame.decode(data[:first] + b"\x02" + data[first + 1 :], HERE)


def test_a_value_knows_its_last_changes() -> None:
    """A value knows its last changes."""
    value = STATE.value
    for mark in range(CHANGES_KEPT + 1):
        value = value.with_content(b"next", (8, 0), mark)
    assert value.changes == tuple(range(1, CHANGES_KEPT + 1))
    assert (value.version, value.former) == (STATE.value.version + CHANGES_KEPT + 1, ())
