"""A node's state as bytes: exact, complete, and read by nothing but the code that wrote it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.core import snapshot
from dios.core.model.invariants import check
from dios.core.snapshot import SnapshotError, decode, digest, encode
from dios.wire import messages
from dios.wire.types import ObjectType
from tests.support.core.cluster import Cluster
from tests.support.core.harness import Node


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


def test_another_schema_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code with other classes or fields does not continue a snapshot."""
    monkeypatch.setattr(snapshot, "_FINGERPRINT", bytes(32))
    with pytest.raises(SnapshotError, match="another version"):
        decode(data, no_entropy)


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
