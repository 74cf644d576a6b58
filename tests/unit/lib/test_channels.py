from __future__ import annotations

from dataclasses import dataclass

import pytest

from dios.errors import InvalidError, ProtocolError
from dios.lib.channels import decode, encode


@dataclass
class Pair:
    """A record that travels."""

    left: int
    right: str


@pytest.mark.parametrize("value", [1, "text", b"bytes", [1, 2], {"a": 1.5}, (1, "a"), Pair(1, "b"), None])
def test_values_come_back_as_their_type(value: object) -> None:
    """What is sent as a type is received as it, tuples and records among it."""
    assert decode(encode(value), type(value)) == value


@pytest.mark.parametrize(
    "data", [encode("text"), encode(Pair(1, "b")), encode(1) + b"x", b"", b"\xc1", b"\xd9"]
)
def test_what_is_not_of_the_type_is_refused(data: bytes) -> None:
    """Another type, bytes too many or too few, and no MessagePack at all: ProtocolError, whoever sent it."""
    with pytest.raises(ProtocolError, match="int"):
        decode(data, int)


def test_deep_nesting_is_refused() -> None:
    """A writer that nests without end costs itself the message, and the reader nothing."""
    with pytest.raises(ProtocolError):
        decode(b"\x91" * 100_000, list)


@pytest.mark.parametrize("value", [object(), 1 << 70, {object(): 1}])
def test_what_cannot_travel_is_told(value: object) -> None:
    """A value that MessagePack does not hold is the sender's mistake, before anything is sent."""
    with pytest.raises(InvalidError, match="cannot send this"):
        encode(value)
