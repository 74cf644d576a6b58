"""A node's whole state as bytes: encode it, decode it and continue, or take its digest.

A snapshot is exact: a core that continues from one behaves as the core that it was taken from. Every class
that may occur in the state is known here by its module, with all its fields; anything else is refused when
the state is encoded. ``_INJECTED`` lists what is no state: ``decode`` is given the entropy function and the
placement policy again.

Format: a magic number, the version, the digest of the schema (the names of all classes and fields, so that
a snapshot is read only by code with the same classes), the records as MessagePack, and the BLAKE3 digest of
all that. A record is the number of its class and then its fields; records refer to each other by place, and
the first record is the state.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from types import ModuleType
from typing import Final, NamedTuple, Never, cast

import msgspec
from blake3 import blake3
from msgspec import Struct, msgpack

from dios.core import effects, events
from dios.core.membership import dissemination, member_table, probes, swim
from dios.core.model import (
    accounts,
    expiries,
    io_requests,
    name_table,
    pending,
    placement,
    records,
    state,
    submission_queue,
    type_states,
)
from dios.core.remote import continuations, peers, watermark
from dios.wire import calls, dcp, fields, gossip, rates, replies, scheduling, types

VERSION: Final = 1

_MODULES: Final[tuple[ModuleType, ...]] = (
    accounts,
    calls,
    continuations,
    dcp,
    dissemination,
    effects,
    events,
    expiries,
    fields,
    gossip,
    io_requests,
    member_table,
    name_table,
    peers,
    pending,
    probes,
    rates,
    records,
    replies,
    scheduling,
    state,
    submission_queue,
    swim,
    type_states,
    types,
    watermark,
)
"""The modules whose classes may occur in the state."""

_INJECTED: Final = {(state.State, "entropy"), (probes.Probes, "_entropy"), (peers.Cluster, "placement")}

_MAGIC: Final = b"DIOSTATE"
_DIGEST_BYTES: Final = 32
_HEAD_BYTES: Final = len(_MAGIC) + 4 + _DIGEST_BYTES
_PURPOSE: Final = "dios 2026 digest of a node's state"
_SCALARS: Final = frozenset({int, str, bytes, bool, float, type(None)})


class SnapshotError(ValueError):
    """The bytes are no snapshot that this code can continue, or the state holds what no snapshot can."""


# -- the classes ------------------------------------------------------------------------------------
class _Schema(NamedTuple):
    """A class that may occur in the state, and its fields in order."""

    number: int
    kind: type
    fields: tuple[str, ...]
    read: Callable[[object], tuple[object, ...]]


def _fields_of(kind: type) -> tuple[str, ...]:
    """The fields of a class: those of a Struct or NamedTuple, or the slots of a class and its bases."""
    if issubclass(kind, enum.Enum):
        return ()
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if issubclass(kind, tuple):
        return cast("tuple[str, ...]", kind._fields)  # type: ignore[attr-defined]
    slots = (name for base in reversed(kind.__mro__) for name in base.__dict__.get("__slots__", ()))
    return tuple(name for name in slots if (kind, name) not in _INJECTED)


def _reader(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    """A function that returns the values of these fields as a tuple."""
    if not names:
        return lambda value: ()  # noqa: ARG005 - a record without fields
    if len(names) == 1:
        one = attrgetter(names[0])
        return lambda value: (one(value),)
    return attrgetter(*names)


def _classes() -> Iterator[type]:
    for module in _MODULES:
        for found in vars(module).values():
            if isinstance(found, type) and found.__module__ == module.__name__:
                plain = "__slots__" in found.__dict__ or hasattr(found, "_fields")
                if issubclass(found, Struct | enum.Enum) or plain:
                    yield found


def _schemas() -> dict[type, _Schema]:
    known = sorted(_classes(), key=lambda kind: (kind.__module__, kind.__qualname__))
    return {
        kind: _Schema(number, kind, names, _reader(names))
        for number, kind in enumerate(known)
        for names in [_fields_of(kind)]
    }


_SCHEMAS: Final = _schemas()
_BY_NUMBER: Final = tuple(_SCHEMAS.values())
_RECORDS: Final = frozenset(kind for kind in _SCHEMAS if not issubclass(kind, Struct | enum.Enum | tuple))
"""Classes with identity: a record is written once, and referred to by its place."""
_ENUMS: Final = frozenset(kind for kind in _SCHEMAS if issubclass(kind, enum.Enum))
_CHANGING: Final = frozenset(
    kind for kind in _SCHEMAS if issubclass(kind, Struct) and not kind.__struct_config__.frozen
)


def _fingerprint() -> bytes:
    names = [(one.kind.__module__, one.kind.__qualname__, one.fields) for one in _BY_NUMBER]
    values = [
        (kind.__qualname__, sorted(kind.__members__)) for kind in _SCHEMAS if issubclass(kind, enum.Enum)
    ]
    return blake3(msgpack.encode((names, values))).digest()


_FINGERPRINT: Final = _fingerprint()


class _Tag(enum.IntEnum):
    """The kinds of values that are no scalars; each is an array that begins with its tag."""

    TUPLE = 0
    LIST = 1
    DICT = 2
    SET = 3
    FROZENSET = 4
    DEQUE = 5
    ENUM = 6
    STRUCT = 7
    RECORD = 8


# -- encoding ---------------------------------------------------------------------------------------
class _Encoder:
    """Writes records one after the other, each before those that it is the first to refer to."""

    def __init__(self, first: object) -> None:
        self._places: dict[int, int] = {id(first): 0}
        self._records: list[object] = [first]
        self._owned: set[int] = set()

    def encode(self) -> bytes:
        """Return every record that the first one leads to."""
        rows: list[list[object]] = []
        for record in self._records:  # grows as records are found
            schema = _SCHEMAS[type(record)]
            rows.append([schema.number, *self._many(schema.read(record))])
        return msgpack.encode(rows)

    def _value(self, value: object) -> object:
        """Return what stands for a value that is no scalar; the most frequent kinds come first."""
        kind = type(value)
        if kind in _RECORDS:
            place = self._places.get(id(value))
            if place is None:
                place = self._places[id(value)] = len(self._records)
                self._records.append(value)
            return [8, place]
        if kind is tuple:
            return [0, *self._many(cast("tuple[object, ...]", value))]
        if kind is dict:
            return [
                2,
                *self._many(
                    [part for entry in cast("dict[object, object]", value).items() for part in entry]
                ),
            ]
        schema = _SCHEMAS.get(kind)
        if schema is not None:
            if kind in _ENUMS:
                return [6, schema.number, cast("enum.Enum", value).value]
            if kind in _CHANGING:
                self._own(value)
            return [7, schema.number, *self._many(schema.read(value))]
        if kind is list:
            return [1, *self._many(cast("list[object]", value))]
        if kind is set or kind is frozenset:
            return [
                3 if kind is set else 4,
                *sorted(self._many(cast("set[object]", value)), key=msgpack.encode),
            ]
        if kind is deque:
            queue = cast("deque[object]", value)
            return [5, queue.maxlen, *self._many(queue)]
        raise SnapshotError(f"a {kind.__module__}.{kind.__qualname__} cannot be part of a node's state")

    def _many(self, values: Iterable[object]) -> list[object]:
        return [one if type(one) in _SCALARS else self._value(one) for one in values]

    def _own(self, value: object) -> None:
        """A Struct that changes is written with its one owner; two owners would become two Structs."""
        if id(value) in self._owned:
            raise SnapshotError(f"two owners share a {type(value).__qualname__}")
        self._owned.add(id(value))


def _content(of: state.State) -> bytes:
    try:
        return _Encoder(of).encode()
    except AttributeError as error:
        raise SnapshotError(f"a record of the state lacks a field: {error}") from error


def encode(of: state.State) -> bytes:
    """Return a snapshot of a node's state; SnapshotError if it holds anything that is no data."""
    body = _MAGIC + VERSION.to_bytes(4, "big") + _FINGERPRINT + _content(of)
    return body + blake3(body).digest()


def digest(of: state.State) -> bytes:
    """Return a digest of a node's state: equal for equal states, on every machine."""
    return blake3(_FINGERPRINT + _content(of), derive_key_context=_PURPOSE).digest()


# -- decoding ---------------------------------------------------------------------------------------
class _Decoder:
    """Makes every record first, and fills them in then."""

    def __init__(self, rows: list[list[object]]) -> None:
        self._rows: Final = rows
        self._records: Final = [self._blank(row) for row in rows]

    def decode(self, injected: dict[tuple[type, str], object]) -> object:
        """Return the first record, with everything that it leads to."""
        for row, record in zip(self._rows, self._records, strict=True):
            kind = type(record)
            names = _SCHEMAS[kind].fields
            if len(row) != len(names) + 1:
                raise SnapshotError(f"a {kind.__qualname__} with {len(row) - 1} of {len(names)} fields")
            for name, value in zip(names, row[1:], strict=True):
                setattr(record, name, self._value(value))
            for (owner, name), value in injected.items():
                if owner is kind:
                    setattr(record, name, value)
        return self._records[0]

    def _blank(self, row: list[object]) -> object:
        if not row:
            raise SnapshotError("a record without a class")
        kind = self._kind(row[0])
        if kind not in _RECORDS:
            raise SnapshotError(f"a {kind.__qualname__} is no record")
        return object.__new__(kind)

    @staticmethod
    def _kind(number: object) -> type:
        if type(number) is not int or not 0 <= number < len(_BY_NUMBER):
            raise SnapshotError(f"there is no class {number!r}")
        return _BY_NUMBER[number].kind

    def _value(self, value: object) -> object:
        if type(value) is not list:
            return value
        if not value:
            raise SnapshotError("a value without a tag")
        parts = value[1:]
        match value[0]:
            case _Tag.TUPLE:
                return tuple(self._value(one) for one in parts)
            case _Tag.LIST:
                return [self._value(one) for one in parts]
            case _Tag.DICT:
                flat = [self._value(one) for one in parts]
                return dict(zip(flat[::2], flat[1::2], strict=True))
            case _Tag.SET:
                return {self._value(one) for one in parts}
            case _Tag.FROZENSET:
                return frozenset(self._value(one) for one in parts)
            case _Tag.DEQUE if parts:
                return deque((self._value(one) for one in parts[1:]), maxlen=parts[0])
            case _Tag.RECORD if (
                len(parts) == 1 and type(parts[0]) is int and 0 <= parts[0] < len(self._records)
            ):
                return self._records[parts[0]]
            case _Tag.ENUM if len(parts) == 2:
                return self._member(self._kind(parts[0]), parts[1])
            case _Tag.STRUCT if parts:
                return self._struct(self._kind(parts[0]), parts[1:])
        raise SnapshotError(f"a value with the tag {value[0]!r} and {len(parts)} parts")

    def _record(self, place: object) -> object:
        if type(place) is not int or not 0 <= place < len(self._records):
            raise SnapshotError(f"there is no record {place!r}")
        return self._records[place]

    def _struct(self, kind: type, parts: list[object]) -> object:
        if not issubclass(kind, Struct | tuple) or len(parts) != len(_SCHEMAS[kind].fields):
            raise SnapshotError(f"a {kind.__qualname__} with {len(parts)} fields")
        return kind(*(cast("Never", self._value(one)) for one in parts))

    @staticmethod
    def _member(kind: type, value: object) -> object:
        if not issubclass(kind, enum.Enum):
            raise SnapshotError(f"a {kind.__qualname__} is no enumeration")
        return kind(value)


def decode(
    data: bytes,
    entropy: Callable[[int], bytes],
    policy: placement.Placement = placement.LeastLoaded(),  # noqa: B008 - it has no state
) -> state.State:
    """Return the state of a snapshot, to continue with this entropy function and placement policy.

    Raises:
        SnapshotError: the bytes are damaged, or were written by code with other classes or fields.
    """
    body, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(_MAGIC) or len(body) < _HEAD_BYTES or blake3(body).digest() != checksum:
        raise SnapshotError("the bytes are no snapshot, or were damaged")
    version = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 4], "big")
    if version != VERSION or data[len(_MAGIC) + 4 : _HEAD_BYTES] != _FINGERPRINT:
        raise SnapshotError("the snapshot is of another version of DIOS; read it with that version")
    injected: dict[tuple[type, str], object] = {
        (state.State, "entropy"): entropy,
        (probes.Probes, "_entropy"): entropy,
        (peers.Cluster, "placement"): policy,
    }
    try:
        rows = msgpack.decode(body[_HEAD_BYTES:], type=list[list[object]])
        if not rows:
            raise SnapshotError("a snapshot without a state")
        found = _Decoder(rows).decode(injected)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is wrong in itself: {error}") from error
    if not isinstance(found, state.State):
        raise SnapshotError("the first record is no node's state")
    return found
