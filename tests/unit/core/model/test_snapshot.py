"""A node's state as bytes: exact, complete, and continued by no code that would drop a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from dios.core.model.invariants import check
from dios.core.snapshot import SnapshotError, decode, digest, encode
from dios.wire import messages
from dios.wire.types import ObjectType
from tests.support.core.cluster import Cluster
from tests.support.core.harness import Node
from tests.support.core.two_nodes import Two


def no_entropy(size: int) -> bytes:
    """A core that only exists draws nothing."""
    raise AssertionError(f"{size} bytes were drawn")


@pytest.fixture
def data() -> bytes:
    """The snapshot of a node with a session and an object."""
    node = Node()
    node.session().ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, data=b"x"))
    return encode(node.core.state)


def test_a_decoded_state_is_the_same(data: bytes) -> None:
    """A state that was encoded and decoded keeps its invariants and is encoded to the same bytes."""
    state = decode(data, no_entropy)
    check(state)
    assert encode(state) == data


def test_every_field_is_part_of_the_digest() -> None:
    """States that differ in one number have different digests."""
    node = Node()
    node.session()
    before = digest(node.core.state)
    node.core.state.next_ticket += 1
    assert digest(node.core.state) != before


def test_what_is_no_data_is_refused() -> None:
    """A function in the state is refused with the name of its type."""
    node = Node()
    node.core.state.dropped = no_entropy  # type: ignore[assignment]
    with pytest.raises(SnapshotError, match="function as part of"):
        encode(node.core.state)


def test_a_field_that_was_never_set_is_refused() -> None:
    """A record that lacks a field is refused when it is encoded, not when the field is needed."""
    node = Node()
    del node.core.state.dropped
    with pytest.raises(SnapshotError, match="dropped"):
        encode(node.core.state)


@given(place=st.integers(0), change=st.integers(1, 255))
def test_damaged_bytes_are_refused(place: int, change: int) -> None:
    """One changed byte anywhere is noticed."""
    whole = bytearray(_SMALL)
    whole[place % len(whole)] ^= change
    with pytest.raises(SnapshotError):
        decode(bytes(whole), no_entropy)


@given(st.integers(0, 10_000))
def test_cut_bytes_are_refused(length: int) -> None:
    """A snapshot that is not whole is noticed."""
    with pytest.raises(SnapshotError):
        decode(_SMALL[: min(length, len(_SMALL) - 1)], no_entropy)


def rewritten(data: bytes, change: Callable[[list[list[Any]], list[list[Any]]], None]) -> bytes:  # type: ignore[explicit-any] # of any classes
    """The snapshot of code with another schema: ``change`` gets the table of classes, and the records."""
    head = len(b"DIOSTATE") + 4
    end = head + 32 + 8 + int.from_bytes(data[head + 32 : head + 40], "big")
    table, rows = msgpack.decode(data[head + 40 : end]), msgpack.decode(data[end:-32])
    change(table, rows)
    packed = msgpack.encode(table)
    body = data[:head] + bytes(32) + len(packed).to_bytes(8, "big") + packed + msgpack.encode(rows)
    return body + blake3(body).digest()


def structs_of(value: Any, number: int) -> Iterator[list[Any]]:  # type: ignore[explicit-any] # of any classes
    """All Structs of that class inside a value."""
    if isinstance(value, list):
        if value[:2] == [7, number]:
            yield value
        for part in value:
            yield from structs_of(part, number)


def number_of(table: list[list[Any]], name: str) -> int:  # type: ignore[explicit-any] # of any classes
    """The number of a class in a table."""
    return next(number for number, row in enumerate(table) if row[1] == name)


def test_the_order_of_classes_does_not_matter(data: bytes) -> None:
    """Code that has more classes, or classes that the state does not use, continues the state."""

    def change(table: list[list[Any]], rows: list[list[Any]]) -> None:  # type: ignore[explicit-any] # of any classes
        del rows
        table.append(["dios.core.model.records", "Unused", ["field"]])

    assert encode(decode(rewritten(data, change), no_entropy)) == data


def test_a_newer_field_has_its_default(data: bytes) -> None:
    """A Struct that had fewer fields is continued with the defaults of the others."""

    def change(table: list[list[Any]], rows: list[list[Any]]) -> None:  # type: ignore[explicit-any] # of any classes
        number = number_of(table, "Defaults")
        assert table[number][2].pop() == "sandbox"
        next(structs_of(rows, number)).pop()

    assert encode(decode(rewritten(data, change), no_entropy)) == data


def test_a_class_that_moved_to_another_module_is_found() -> None:
    """The state of an earlier release, in which a vector waits, is continued."""
    two = Two()
    two.held_back(messages.Vector((messages.Stat(two.ref),)))
    data = encode(two.here.core.state)

    def change(table: list[list[Any]], rows: list[list[Any]]) -> None:  # type: ignore[explicit-any] # of any classes
        number = number_of(table, "Vector")
        table[number][0] = "dios.wire.calls"
        assert list(structs_of(rows, number))

    assert encode(decode(rewritten(data, change), no_entropy)) == data


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("State", ["flavour"], "State of this program has no flavour"),
        ("State", None, "this program has no Gone"),
        ("PhysicalObject", [], "PhysicalObject of this program also needs"),
    ],
)
def test_a_schema_that_cannot_be_continued_is_refused(
    data: bytes, name: str, fields: list[str] | None, why: str
) -> None:
    """A class or a field that is gone, and a new field of a record, are refused with their names."""

    def change(table: list[list[Any]], rows: list[list[Any]]) -> None:  # type: ignore[explicit-any] # of any classes
        number = number_of(table, name)
        if fields is None:
            table[number][1] = "Gone"
        elif fields:
            table[number][2] += fields
            rows[0].append(0)
        else:
            table[number][2].pop()
            for row in rows:
                if row[0] == number:
                    row.pop()

    with pytest.raises(SnapshotError, match=why):
        decode(rewritten(data, change), no_entropy)


def test_another_version_of_the_format_is_refused(data: bytes) -> None:
    """The version comes before everything else."""
    body = data[:8] + (1).to_bytes(4, "big") + data[12:-32]
    with pytest.raises(SnapshotError, match="another version"):
        decode(body + blake3(body).digest(), no_entropy)


def test_two_owners_of_one_changing_struct_are_refused() -> None:
    """A Struct that changes belongs to one record; shared, it would be two after decoding."""
    harness = Cluster()
    member = harness.nodes[0].core.state.cluster
    assert member is not None
    standings = member.membership._table._standings
    node = next(iter(standings))
    standings[type(node)(77)] = standings[node]
    with pytest.raises(SnapshotError, match="two owners share a MemberRecord"):
        encode(harness.nodes[0].core.state)


_SMALL = encode(Node().core.state)
