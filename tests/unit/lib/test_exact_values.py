from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
import zoneinfo
from typing import NamedTuple

import msgspec
import pytest

from dios.errors import InvalidError, ProtocolError
from dios.lib.exact_values import decode_exact, encode_exact, require_same


@dataclasses.dataclass
class Point:
    """A record with a tuple."""

    place: tuple[int, int]


class Colour(enum.IntEnum):
    """An enumeration that is a number as well."""

    RED = 1


class Pair(NamedTuple):
    """A named tuple."""

    left: int


@pytest.mark.parametrize(
    "value",
    [
        *(1, "text", b"bytes", None, [1, (2, (3,))], {"a": {1, 2}}, frozenset({(1, "a")})),
        *({(1, 2): "pair", None: 3}, (), set(), {}, decimal.Decimal("1.50"), uuid.UUID(int=7)),
        *(dt.date(2024, 2, 29), dt.time(1, 2, 3, 4), dt.timedelta(-1, 2, 3)),
        *(dt.datetime(2024, 1, 1, 2, 3, 4, 5), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),  # noqa: DTZ001 - kept so
    ],
    ids=repr,
)
def test_a_value_keeps_its_type(value: object) -> None:
    """Values arrive equal and with the same types, without annotations."""
    decoded = decode_exact(encode_exact(value))
    assert repr(decoded) == repr(value) or decoded == value
    assert type(decoded) is type(value)
    require_same(value, object, "it")


@pytest.mark.parametrize(
    "value",
    [
        *(Point((1, 2)), [Point((1, 2))], Colour.RED, (Colour.RED,), {"a": Pair(1)}),
        *(bytearray(b"x"), dt.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))),
    ],
    ids=repr,
)
def test_a_value_that_would_change_is_refused(value: object) -> None:
    """Records, enumerations and named zones need an annotation."""
    with pytest.raises(InvalidError, match="it has a part that would change"):
        require_same(value, object, "it")


def test_an_annotation_keeps_records_and_enumerations() -> None:
    """The receiver makes them again from the annotation."""
    require_same(Point((1, 2)), Point, "it")
    require_same([Point((1, 2))], list[Point], "it")
    require_same(Colour.RED, Colour, "it")
    require_same(Pair(1), Pair, "it")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xc1", msgspec.msgpack.encode(msgspec.msgpack.Ext(16, b"\xc1"))),
        *(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, b"\x91\x90")) for code in (17, 18, 19, 20, 24)),
        *(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, b"x")) for code in (1, 15, 26, 127)),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(24, b"1e")),
        b"\x91" * 100_000,
    ],
)
def test_made_up_bytes_are_refused(data: bytes) -> None:
    """A task that sends something else is not believed."""
    with pytest.raises(ProtocolError):
        decode_exact(data)
