"""A node's whole state as bytes: encode it, decode it and continue, or take its digest.

A snapshot is exact: a core that continues from a snapshot behaves as the core that it was taken from. The
modules in ``_MODULES`` define every class that may occur in the state; encoding refuses all others.
``_INJECTED`` lists the fields that are not part of the state: the caller of ``decode`` supplies the entropy
function and the placement policy again.

Format: a magic number, the version, the digest of the schema, the length of the schema, the schema (the
names of all classes and of their fields), the records as MessagePack, and the BLAKE3 digest of all that. A
record is the number of its class and then its fields. Records refer to each other by position, and the first
record is the state.

Code with another schema reads a snapshot if each class that occurs in it still exists, and has the same
fields, or more fields with defaults. It refuses all others: nothing of a state may be dropped.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Final, NamedTuple, Never, cast

import msgspec
from blake3 import blake3
from msgspec import Struct, msgpack, structs

from dios.core import effects, events
from dios.core.membership import (
    clocks,
    dissemination,
    live_view,
    member_table,
    partners,
    probes,
    swim,
    table_digest,
)
from dios.core.model import (
    accounts,
    defects,
    expiries,
    history,
    io_requests,
    moves,
    name_table,
    pending,
    placement,
    quotas,
    records,
    rows,
    scheduler_leases,
    start_queue,
    state,
    story,
    submission_queue,
    type_states,
    work_items,
)
from dios.core.remote import continuations, lease_table, name_index, peers, version_cache, watermark
from dios.wire import (
    admission,
    calls,
    dcp,
    fields,
    gossip,
    mandates,
    rates,
    replies,
    requests,
    scheduling,
    types,
)

VERSION: Final = 2

_MODULES: Final[tuple[ModuleType, ...]] = (
    accounts,
    admission,
    calls,
    clocks,
    continuations,
    dcp,
    defects,
    dissemination,
    effects,
    events,
    expiries,
    fields,
    gossip,
    history,
    io_requests,
    lease_table,
    live_view,
    mandates,
    member_table,
    moves,
    name_index,
    name_table,
    partners,
    peers,
    pending,
    probes,
    quotas,
    rates,
    records,
    replies,
    requests,
    scheduler_leases,
    scheduling,
    start_queue,
    state,
    submission_queue,
    swim,
    table_digest,
    type_states,
    types,
    version_cache,
    watermark,
    work_items,
)
"""The modules whose classes may occur in the state."""

_INJECTED: Final = {
    (state.State, "entropy"),
    (state.State, "rows"),
    (state.State, "story"),
    (probes.Probes, "_entropy"),
    (peers.Cluster, "placement"),
}

_MAGIC: Final = b"DIOSTATE"
_DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 8
_HEAD_BYTES: Final = len(_MAGIC) + 4 + _DIGEST_BYTES + _LENGTH_BYTES
_PURPOSE: Final = "dios 2026 digest of a node's state"
_SCALARS: Final = frozenset({int, str, bytes, bool, float, type(None)})


class SnapshotError(ValueError):
    """The bytes are not a snapshot that this code can continue, or the state cannot be encoded."""


# -- the classes ------------------------------------------------------------------------------------
class _Schema(NamedTuple):
    """A class that may occur in the state, and its fields in order."""

    number: int
    kind: type
    fields: tuple[str, ...]
    read: Callable[[object], tuple[object, ...]]


def _fields_of(kind: type) -> tuple[str, ...]:
    """Return the fields of a Struct or NamedTuple, or the slots of another class and its bases."""
    if issubclass(kind, enum.Enum):
        return ()
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if issubclass(kind, tuple):
        return cast("tuple[str, ...]", kind._fields)  # type: ignore[attr-defined]
    slots = (name for base in reversed(kind.__mro__) for name in base.__dict__.get("__slots__", ()))
    return tuple(name for name in slots if (kind, name) not in _INJECTED)


def _reader(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    """Return a function that returns the values of these fields as a tuple."""
    if not names:
        return lambda value: ()  # noqa: ARG005 - a record without fields
    if len(names) == 1:
        read = attrgetter(names[0])
        return lambda value: (read(value),)
    return attrgetter(*names)


def _classes() -> Iterator[type]:
    for module in _MODULES:
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                plain = "__slots__" in kind.__dict__ or hasattr(kind, "_fields")
                if issubclass(kind, Struct | enum.Enum) or plain:
                    yield kind


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
"""Classes with identity: a record is written once, and others refer to it by its position."""
_ENUMS: Final = frozenset(kind for kind in _SCHEMAS if issubclass(kind, enum.Enum))
_CHANGING: Final = frozenset(
    kind for kind in _SCHEMAS if issubclass(kind, Struct) and not kind.__struct_config__.frozen
)


_TABLE: Final = msgpack.encode(
    [(schema.kind.__module__, schema.kind.__qualname__, schema.fields) for schema in _BY_NUMBER]
)
"""The schema: the names of all classes, in the order of their numbers, and of their fields."""


def _fingerprint() -> bytes:
    names = [(schema.kind.__module__, schema.kind.__qualname__, schema.fields) for schema in _BY_NUMBER]
    values = [
        (kind.__qualname__, sorted(kind.__members__)) for kind in _SCHEMAS if issubclass(kind, enum.Enum)
    ]
    return blake3(msgpack.encode((names, values))).digest()


_FINGERPRINT: Final = _fingerprint()


class _Tag(enum.IntEnum):
    """The kinds of values that are not scalars; each is an array that begins with its tag."""

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
    """An encoder that writes each record once, in the order in which references to records are found."""

    def __init__(self, first: object) -> None:
        self._places: dict[int, int] = {id(first): 0}
        self._records: list[object] = [first]
        self._owned: set[int] = set()

    def encode(self) -> bytes:
        """Return every record that is reachable from the first."""
        rows: list[list[object]] = []
        for record in self._records:  # grows as records are found
            schema = _SCHEMAS[type(record)]
            rows.append([schema.number, *self._many(schema.read(record))])
        return msgpack.encode(rows)

    def _value(self, value: object) -> object:
        """Return the encoding of a value that is not a scalar; the most frequent kinds come first."""
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
        raise SnapshotError(
            f"cannot encode a {kind.__module__}.{kind.__qualname__} as part of a node's state"
        )

    def _many(self, values: Iterable[object]) -> list[object]:
        return [part if type(part) in _SCALARS else self._value(part) for part in values]

    def _own(self, value: object) -> None:
        """Note the owner of a mutable Struct; two owners would become two Structs after decoding."""
        if id(value) in self._owned:
            raise SnapshotError(f"cannot encode the state: two owners share a {type(value).__qualname__}")
        self._owned.add(id(value))


def _content(of: state.State) -> bytes:
    try:
        return _Encoder(of).encode()
    except AttributeError as error:
        raise SnapshotError(f"cannot encode the state: a record lacks a field: {error}") from error


def encode(of: state.State) -> bytes:
    """Return a snapshot of a node's state.

    Raises:
        SnapshotError: the state holds anything that is not data.
    """
    head = _MAGIC + VERSION.to_bytes(4, "big") + _FINGERPRINT + len(_TABLE).to_bytes(_LENGTH_BYTES, "big")
    body = b"".join((head, _TABLE, _content(of)))
    return body + blake3(body).digest()


def digest(of: state.State) -> bytes:
    """Return a digest of a node's state: equal for equal states, on every machine."""
    return blake3(_FINGERPRINT + _content(of), derive_key_context=_PURPOSE).digest()


# -- decoding ---------------------------------------------------------------------------------------
class _Read(NamedTuple):
    """A class as it is in a snapshot: the present class, the fields there, and values for newer fields."""

    kind: type
    fields: tuple[str, ...]
    added: dict[str, Callable[[], object]]


def _defaults(kind: type) -> dict[str, Callable[[], object]]:
    """Return functions that make the defaults of the fields of a class which have one."""
    if issubclass(kind, Struct):
        defaults: dict[str, Callable[[], object]] = {}
        for field in structs.fields(kind):
            if field.default is not msgspec.NODEFAULT:
                defaults[field.name] = partial(copy, field.default)
            elif field.default_factory is not msgspec.NODEFAULT:
                defaults[field.name] = field.default_factory
        return defaults
    if issubclass(kind, tuple):
        values: dict[str, object] = kind._field_defaults  # type: ignore[attr-defined]
    else:
        # Classes of tables name the fields that an earlier release did not have. Empty values are copied.
        values = getattr(kind, "ADDED_FIELDS", {})
    return {name: partial(copy, value) for name, value in values.items()}


class _Classes:
    """The classes of a snapshot by their numbers there. Only those that occur are compared with this code."""

    def __init__(self, table: list[tuple[str, str, tuple[str, ...]]] | None) -> None:
        self._table: Final = table
        self._known: Final[dict[int, _Read]] = {}

    def read(self, number: object) -> _Read:
        """Return a class. Raise SnapshotError if this code cannot continue with it."""
        size = len(_BY_NUMBER if self._table is None else self._table)
        if type(number) is not int or not 0 <= number < size:
            raise SnapshotError(f"the class number {number!r} does not exist")
        reader = self._known.get(number)
        if reader is None:
            reader = self._known[number] = self._compared(number)
        return reader

    def _compared(self, number: int) -> _Read:
        if self._table is None:
            schema = _BY_NUMBER[number]
            return _Read(schema.kind, schema.fields, {})
        module, name, written = self._table[number]
        present = _BY_NAME.get((_MOVED.get((module, name), module), name))
        if present is None:
            raise SnapshotError(f"this program has no {name}")
        if missing := [field_name for field_name in written if field_name not in present.fields]:
            raise SnapshotError(f"the {name} of this program has no {', '.join(missing)}")
        defaults = _defaults(present.kind)
        new = [field_name for field_name in present.fields if field_name not in written]
        if without := [field_name for field_name in new if field_name not in defaults]:
            raise SnapshotError(f"the {name} of this program also needs {', '.join(without)}")
        return _Read(present.kind, written, {field_name: defaults[field_name] for field_name in new})


_MOVED: Final = {
    ("dios.wire.calls", kind.__qualname__): requests.__name__ for kind in (requests.Vector, requests.Hello)
}
"""The modules of classes that earlier releases had in other modules."""
_BY_NAME: Final = {(schema.kind.__module__, schema.kind.__qualname__): schema for schema in _BY_NUMBER}


class _Decoder:
    """A decoder that makes all records first, and then sets their fields."""

    def __init__(self, rows: list[list[object]], classes: _Classes) -> None:
        self._classes: Final = classes
        self._rows: Final = rows
        self._records: Final = [self._blank(row) for row in rows]

    def decode(self, injected: dict[tuple[type, str], object]) -> object:
        """Return the first record, with everything that is reachable from it."""
        for row, record in zip(self._rows, self._records, strict=True):
            kind, names, _ = self._classes.read(row[0])
            if len(row) != len(names) + 1:
                raise SnapshotError(
                    f"a {kind.__qualname__} has {len(row) - 1} fields instead of {len(names)}"
                )
            for name, value in zip(names, row[1:], strict=True):
                setattr(record, name, self._value(value))
            for (owner, name), value in injected.items():
                if owner is kind:
                    setattr(record, name, value)
        return self._records[0]

    def _blank(self, row: list[object]) -> object:
        if not row:
            raise SnapshotError("a record has no class")
        kind = self._classes.read(row[0]).kind
        if kind not in _RECORDS:
            raise SnapshotError(f"a {kind.__qualname__} is not a record")
        return object.__new__(kind)

    def _value(self, value: object) -> object:
        if type(value) is not list:
            return value
        if not value:
            raise SnapshotError("a value has no tag")
        parts = value[1:]
        match value[0]:
            case _Tag.TUPLE:
                return tuple(self._value(part) for part in parts)
            case _Tag.LIST:
                return [self._value(part) for part in parts]
            case _Tag.DICT:
                flat = [self._value(part) for part in parts]
                return dict(zip(flat[::2], flat[1::2], strict=True))
            case _Tag.SET:
                return {self._value(part) for part in parts}
            case _Tag.FROZENSET:
                return frozenset(self._value(part) for part in parts)
            case _Tag.DEQUE if parts:
                return deque((self._value(part) for part in parts[1:]), maxlen=parts[0])
            case _Tag.RECORD if (
                len(parts) == 1 and type(parts[0]) is int and 0 <= parts[0] < len(self._records)
            ):
                return self._records[parts[0]]
            case _Tag.ENUM if len(parts) == 2:
                return self._member(self._classes.read(parts[0]).kind, parts[1])
            case _Tag.STRUCT if parts:
                return self._struct(self._classes.read(parts[0]), parts[1:])
        raise SnapshotError(f"a value has the invalid tag {value[0]!r} with {len(parts)} parts")

    def _record(self, place: object) -> object:
        if type(place) is not int or not 0 <= place < len(self._records):
            raise SnapshotError(f"the record number {place!r} does not exist")
        return self._records[place]

    def _struct(self, read: _Read, parts: list[object]) -> object:
        kind, names, added = read
        if not issubclass(kind, Struct | tuple) or len(parts) != len(names):
            raise SnapshotError(f"a {kind.__qualname__} has a wrong number of fields: {len(parts)}")
        values = [cast("Never", self._value(part)) for part in parts]
        if names == _SCHEMAS[kind].fields:
            return kind(*values)
        given: dict[str, object] = dict(zip(names, values, strict=True))
        return kind(**given, **{name: make() for name, make in added.items()})

    @staticmethod
    def _member(kind: type, value: object) -> object:
        if not issubclass(kind, enum.Enum):
            raise SnapshotError(f"a {kind.__qualname__} is not an enumeration")
        return kind(value)


def decode(
    data: bytes,
    entropy: Callable[[int], bytes],
    policy: placement.Placement = placement.LeastLoaded(),  # noqa: B008 - it has no state
    source: rows.RowSource = rows.NoRows(),  # noqa: B008 - likewise
) -> state.State:
    """Return the state of a snapshot, to continue with this entropy function, placement policy and rows.

    Raises:
        SnapshotError: the bytes are damaged, or were written by code with other classes or fields.
    """
    body, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(_MAGIC) or len(body) < _HEAD_BYTES or blake3(body).digest() != checksum:
        raise SnapshotError("cannot read the snapshot: the bytes are damaged, or are not a snapshot")
    version = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 4], "big")
    if version != VERSION:
        raise SnapshotError("cannot read the snapshot: another version of DIOS wrote it. Use that version.")
    fingerprint = data[len(_MAGIC) + 4 : _HEAD_BYTES - _LENGTH_BYTES]
    end = _HEAD_BYTES + int.from_bytes(data[_HEAD_BYTES - _LENGTH_BYTES : _HEAD_BYTES], "big")
    injected: dict[tuple[type, str], object] = {
        (state.State, "entropy"): entropy,
        (state.State, "rows"): source,
        (state.State, "story"): story.Story(),
        (probes.Probes, "_entropy"): entropy,
        (peers.Cluster, "placement"): policy,
    }
    try:
        table = None
        if fingerprint != _FINGERPRINT:
            table = msgpack.decode(body[_HEAD_BYTES:end], type=list[tuple[str, str, tuple[str, ...]]])
        rows = msgpack.decode(body[end:], type=list[list[object]])
        if not rows:
            raise SnapshotError("it has no state")
        decoded = _Decoder(rows, _Classes(table)).decode(injected)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(f"cannot read the snapshot: its content is inconsistent: {error}") from error
    if not isinstance(decoded, state.State):
        raise SnapshotError("cannot read the snapshot: its first record is not the state of a node")
    return decoded
