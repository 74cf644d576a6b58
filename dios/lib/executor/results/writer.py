"""Writes a value in the closed format, in a worker. ``reader`` describes the operations."""

from __future__ import annotations

import array
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, cast

import msgspec

from dios.lib.executor.results import reader
from dios.lib.executor.results.builtin_forms import (
    DICT,
    LARGE_BYTES,
    LARGE_INT,
    LIST,
    RECORD,
    RECORD_ROWS,
    SURROGATES,
    TUPLE,
    TUPLE_ROWS,
)
from dios.lib.executor.results.class_forms import form_of_object
from dios.lib.executor.results.forms import (
    FORM_OF_CODE,
    FORM_OF_PACKAGE,
    FORM_OF_TYPE,
    Form,
    load_forms_of,
    name_of,
    refusal,
    require_keys,
)
from dios.lib.executor.results.reader import Body, Reader

SCALAR_TYPES: Final = frozenset({int, float, str, bool, type(None)})

_Container: TypeAlias = "list[object] | tuple[object, ...] | dict[object, object]"
_NESTED_CONTAINERS: Final = frozenset({list, tuple, dict})
_NESTED_TYPES: Final = SCALAR_TYPES | _NESTED_CONTAINERS

_CHUNK_SCALARS: Final = 32_768
"""The scalars in one array of MessagePack, which the caller decodes in one step."""

_PLAIN_MAX: Final = 1_000_000
"""Longer lists are decoded in several steps."""

_KEPT_TEXT_MIN: Final = 256
"""Text and bytes of this length are written once."""

_LARGE_BYTES_MIN: Final = 64 * 1024
"""Bytes of this length are in a buffer."""

_ROWS_MIN: Final = 4
"""Shorter lists are not written as rows."""

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

_pack: Final = msgspec.msgpack.Encoder().encode


class WrittenValue(NamedTuple):
    """A value in the closed format."""

    body: bytes
    buffers: list[memoryview]


def write_value(value: object) -> WrittenValue:
    """Return a value in the closed format. Raise UntrustedResultError for one that it does not have.

    Raises whatever the parts of the value raise when they are taken apart.
    """
    try:
        return Writer(is_careful=False).write(value)
    except (OverflowError, UnicodeEncodeError, _RepeatedRowError):
        return Writer(is_careful=True).write(value)


def plain_body(value: object) -> bytes | None:
    """Return a scalar, or a list, tuple or dictionary of scalars, in MessagePack; None for another value."""
    kind = type(value)
    parts: Collection[object] = (value,)
    if kind is list or kind is tuple:
        parts = cast("list[object]", value)
    elif kind is dict:
        table = cast("dict[object, object]", value)
        parts = table.values()
        if not {str}.issuperset(map(type, table)):
            return None
    if len(parts) > _PLAIN_MAX or not _are_short_scalars(parts):
        return None
    try:
        return _pack(value)
    except (OverflowError, UnicodeEncodeError):
        return None


def nested_body(value: object) -> bytes | None:
    """Return containers of scalars and containers in MessagePack; None for another or a larger value.

    The first byte says which sequences are tuples. No container occurs twice, because it would be copied.
    """
    if type(value) not in _NESTED_CONTAINERS:
        return None
    level = [cast("_Container", value)]
    identities: list[int] = []
    tuples, count = 0, 0
    for depth in range(reader.NESTED_LEVELS_MAX):
        identities += map(id, level)
        count += sum(map(len, level))
        if count > reader.NESTED_BYTES_MAX:
            return None
        tables = [part for part in level if type(part) is dict]
        sequences = [part for part in level if type(part) is not dict] if len(tables) < len(level) else []
        kinds: set[type] = set(map(type, sequences))
        if len(kinds) > 1 or not {str}.issuperset(map(type, chain.from_iterable(tables))):
            return None
        tuples |= (tuple in kinds) << depth
        parts = list(chain(chain.from_iterable(map(dict.values, tables)), chain.from_iterable(sequences)))
        kinds = set(map(type, parts))
        if kinds <= SCALAR_TYPES:
            break
        if not kinds <= _NESTED_TYPES:
            return None
        level = [cast("_Container", part) for part in parts if type(part) in _NESTED_CONTAINERS]
    else:
        return None
    if len(set(identities)) < len(identities):
        return None
    try:
        body = _pack(value)
    except (OverflowError, UnicodeEncodeError):
        return None
    return bytes((tuples,)) + body if len(body) <= reader.NESTED_BYTES_MAX else None


class _RepeatedRowError(Exception):
    """A value that was written as a row is used again."""


class _Parts:
    """The parts of a form that are still to be written."""

    __slots__ = ("before", "height", "place", "rest")

    def __init__(self, rest: Iterator[object], place: int, before: int) -> None:
        self.rest: Final = rest
        self.place: Final = place
        self.before: Final = before
        self.height = 0


class Writer:
    """Takes a value apart.

    A careful one looks for scalars that MessagePack does not have, and writes no lists as rows.
    """

    def __init__(self, *, is_careful: bool) -> None:
        self._is_careful: Final = is_careful
        self._kinds: Final = bytearray()
        self._counts: Final = array.array("I")
        self._scalars: list[object] = []
        self._run_kind = reader.SCALARS
        self._run = 0
        """The scalars, or small bytes, that have no operation yet."""
        self._chunks: Final[list[bytes]] = []
        self._octets: Final[list[bytes]] = []
        self._buffers: Final[list[memoryview]] = []
        self._places: Final[dict[int, tuple[int, object]]] = {}
        """The operation of each value by its identity, and the value, which must live as long."""
        self._sizes: Final[dict[int, tuple[int, int]]] = {}
        """The elements and the height of each value that is complete, by its operation."""
        self._names: Final[dict[tuple[object, ...], tuple[object, ...]]] = {}
        self._rows: set[int] = set()
        """The identities of values that were written as rows, and have no operation."""
        self._elements = 0
        self._repeated = 0
        self._checked: Final[list[tuple[int, Form, object]]] = []

    def write(self, value: object) -> WrittenValue:
        """Return the body and the buffers of a value."""
        outer: list[_Parts] = []
        parts = _Parts(iter((value,)), -1, 0)
        while True:
            for part in parts.rest:
                inner = self._add(part, parts, len(outer))
                if inner is not None:
                    outer.append(parts)
                    parts = inner
                    break
            else:
                self._end_run(reader.SCALARS)
                if not outer:
                    break
                height = parts.height + 1
                self._sizes[parts.place] = self._elements - parts.before, height
                parts = outer.pop()
                parts.height = max(parts.height, height)
        return self._written()

    def _written(self) -> WrittenValue:
        self._flush(1)
        body = _pack(Body(self._chunks, self._octets, bytes(self._kinds), self._counts.tobytes()))
        if self._repeated > reader.elements_max(len(body) + sum(map(len, self._buffers))):
            raise refusal("parts that it repeats without end")
        if self._checked:
            decoded = Reader(body, self._buffers, is_comparison=True)
            reader.guarded(decoded.read)
            for place, row, value in self._checked:
                _require_same(row, value, decoded.kept[place].value)
        return WrittenValue(body, self._buffers)

    # -- parts ------------------------------------------------------------------------------------
    def _add(self, part: object, parent: _Parts, depth: int) -> _Parts | None:
        """Write a part; return its own parts, which come next, if they are not written yet."""
        kind = type(part)
        if kind in SCALAR_TYPES and self._is_scalar(part) and not _is_long(part):
            if self._run_kind != reader.SCALARS:
                self._end_run(reader.SCALARS)
            self._scalars.append(part)
            self._run += 1
            return None
        if kind is bytes and len(cast("bytes", part)) < _KEPT_TEXT_MIN:
            if self._run_kind != reader.OCTETS:
                self._end_run(reader.OCTETS)
            self._octets.append(cast("bytes", part))
            self._run += 1
            return None
        self._end_run(reader.SCALARS)
        if id(part) in self._rows:
            raise _RepeatedRowError
        kept = self._places.get(id(part))
        if kept is not None:
            self._repeat(kept[0], parent, depth)
            return None
        if depth >= reader.NESTING_MAX:
            raise refusal(f"values that are nested deeper than {reader.NESTING_MAX}")
        if kind is memoryview:
            if len(self._buffers) >= reader.BUFFERS_MAX:
                raise refusal(f"more than {reader.BUFFERS_MAX:,} arrays")
            self._operation(reader.BUFFER, len(self._buffers))
            self._buffers.append(cast("memoryview", part))
            return None
        place = len(self._kinds)
        self._places[id(part)] = place, part
        if kind in SCALAR_TYPES or kind is bytes:
            row = self._add_text(part)
        else:
            row = _form_of(part)
        if row is None:
            return None
        return self._open(row, part, place, parent)

    def _add_text(self, part: object) -> Form | None:
        """Write long text or bytes, or return the form of a scalar that needs one."""
        if isinstance(part, bytes):
            if len(part) >= _LARGE_BYTES_MIN:
                return FORM_OF_CODE[LARGE_BYTES]
            self._octets.append(part)
            self._operation(reader.OCTETS, 1)
        elif isinstance(part, str) and self._is_scalar(part):
            self._scalars.append(part)
            self._operation(reader.SCALARS, 1)
        else:
            return FORM_OF_CODE[SURROGATES if isinstance(part, str) else LARGE_INT]
        self._elements += 1
        place = len(self._kinds) - 1
        self._sizes[place] = 1 + len(part) // reader.TEXT_PER_ELEMENT, 0
        return None

    def _open(self, row: Form, value: object, place: int, parent: _Parts) -> _Parts | None:
        if row.schema is not None:
            self._checked.append((place, row, value))
        code, parts = self._parts_of(row, value)
        if code in {LIST, TUPLE} and self._add_octets(code, parts, place, parent):
            return None
        before = self._elements
        self._elements += 1
        bulk = self._are_scalars(parts)
        if bulk and code in {LIST, TUPLE}:
            self._operation(reader.SCALAR_LIST if code == LIST else reader.SCALAR_TUPLE, len(parts))
        else:
            self._operation(code, len(parts))
        if row.schema is not None:
            self._kinds[place] |= reader.USED_AGAIN
        if not bulk:
            return _Parts(iter(parts), place, before)
        self._scalars += parts
        self._elements += len(parts)
        self._sizes[place] = len(parts) + 1, 1
        parent.height = max(parent.height, 1)
        if parts and code not in {LIST, TUPLE}:
            self._operation(reader.SCALARS, len(parts))
        self._flush(_CHUNK_SCALARS)
        return None

    def _add_octets(self, code: int, parts: Sequence[object], place: int, parent: _Parts) -> bool:
        """Write a list or tuple of short bytes; return False for others."""
        if (
            set(map(type, parts)) != {bytes}
            or max(map(len, cast("Sequence[bytes]", parts))) >= _KEPT_TEXT_MIN
        ):
            return False
        self._operation(code, len(parts))
        self._operation(reader.OCTETS, len(parts))
        self._octets.extend(cast("Sequence[bytes]", parts))
        self._elements += len(parts) + 1
        self._sizes[place] = len(parts) + 1, 1
        parent.height = max(parent.height, 1)
        return True

    def _parts_of(self, row: Form, value: object) -> tuple[int, Sequence[object]]:
        if row.code == DICT:
            table = cast("dict[object, object]", value)
            require_keys(table.keys())
            names = tuple(table)
            if names and set(map(type, names)) == {str}:
                kept = self._names.setdefault(names, names)
                if kept is not names:
                    return RECORD, (kept, *table.values())
        elif row.code == LIST:
            items = cast("list[object]", value)
            return self._rows_of(items) or (LIST, items)
        elif row.code == TUPLE:
            return TUPLE, cast("tuple[object, ...]", value)
        parts = tuple(row.take_apart(value))
        if row.types and parts and row.types[0] in {set, frozenset}:
            require_keys(parts)
        return row.code, parts

    def _rows_of(self, items: list[object]) -> tuple[int, Sequence[object]] | None:
        """Return the parts of a list as rows, if it has only tuples or dictionaries of scalars."""
        if len(items) < _ROWS_MIN or self._is_careful:
            return None
        kinds = set(map(type, items))
        names: tuple[object, ...] = ()
        width = 0
        if kinds == {tuple}:
            rows = cast("list[tuple[object, ...]]", items)
            width = len(rows[0])
            if not width or set(map(len, rows)) != {width}:
                return None
            parts = list(chain.from_iterable(rows))
        elif kinds == {dict}:
            tables = cast("list[dict[object, object]]", items)
            names = tuple(tables[0])
            if set(map(type, names)) != {str} or any(tuple(table) != names for table in tables):
                return None
            parts = list(chain.from_iterable(map(dict.values, tables)))
        else:
            return None
        identities = set(map(id, items))
        if (
            len(identities) < len(items)
            or not identities.isdisjoint(self._places)
            or not self._are_scalars(parts)
        ):
            return None
        self._rows |= identities
        return (RECORD_ROWS, (names, parts)) if names else (TUPLE_ROWS, (width, parts))

    def _repeat(self, place: int, parent: _Parts, depth: int) -> None:
        if place not in self._sizes:
            raise refusal("a value that contains itself; return its parts")
        elements, height = self._sizes[place]
        if depth + height > reader.NESTING_MAX:
            raise refusal(f"values that are nested deeper than {reader.NESTING_MAX}")
        self._kinds[place] |= reader.USED_AGAIN
        self._operation(reader.SHARED, place)
        self._elements += elements
        self._repeated += elements
        parent.height = max(parent.height, height)

    # -- operations and scalars -------------------------------------------------------------------
    def _operation(self, kind: int, count: int) -> None:
        self._kinds.append(kind)
        self._counts.append(count)

    def _end_run(self, kind: int) -> None:
        """Write the operation of the scalars since the last one; the next ones are of another kind."""
        if self._run:
            self._operation(self._run_kind, self._run)
            self._elements += self._run
            self._run = 0
            self._flush(_CHUNK_SCALARS)
        self._run_kind = kind

    def _flush(self, count_min: int) -> None:
        """Encode the scalars if they are at least ``count_min``."""
        if len(self._scalars) >= count_min:
            for start in range(0, len(self._scalars), _CHUNK_SCALARS):
                self._chunks.append(_pack(self._scalars[start : start + _CHUNK_SCALARS]))
            self._scalars = []

    def _are_scalars(self, parts: Sequence[object]) -> bool:
        return _are_short_scalars(parts) and (not self._is_careful or all(map(self._is_scalar, parts)))

    def _is_scalar(self, part: object) -> bool:
        if not self._is_careful:
            return True
        if isinstance(part, int):
            return _INT_MIN <= part <= _INT_MAX
        return not isinstance(part, str) or not any("\ud800" <= letter <= "\udfff" for letter in part)


def _are_short_scalars(parts: Collection[object]) -> bool:
    kinds = set(map(type, parts))
    return kinds <= SCALAR_TYPES and not (str in kinds and any(map(_is_long, parts)))


def _is_long(part: object) -> bool:
    return isinstance(part, str) and len(part) >= _KEPT_TEXT_MIN


def _require_same(row: Form, value: object, decoded: object) -> None:
    """Raise UntrustedResultError if a value would arrive with another type or schema."""
    before, after = ((type(part), row.schema(part) if row.schema else None) for part in (value, decoded))
    if before != after:
        raise refusal(
            f"a {name_of(type(value))} that would change on its way: {str(before)[:400]} would become "
            f"{str(after)[:400]}"
        )


def _form_of(value: object) -> Form:
    """Return the form of a value. Raise UntrustedResultError if there is none."""
    kind = type(value)
    row = FORM_OF_TYPE.get(kind)
    if row is None:
        package = kind.__module__.partition(".")[0]
        load_forms_of(package)
        row = FORM_OF_TYPE.get(kind)
        if row is None and package in FORM_OF_PACKAGE:
            row = FORM_OF_PACKAGE[package](kind)
    return row or form_of_object(value)
