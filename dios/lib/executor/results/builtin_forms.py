"""The forms of built-in containers, and of the types of the standard library that hold data."""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import fractions
import io
import ipaddress
import os
import pathlib
import re
import time
import types
import uuid
import zoneinfo
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, TypeVar, cast

from dios.lib.executor.results.class_forms import permitted_class
from dios.lib.executor.results.forms import (
    FORM_OF_TYPE,
    KEY_TYPES,
    Reading,
    form,
    load_forms_of,
    refusal,
    register,
    require_keys,
    require_names,
)

T = TypeVar("T")

LIST: Final = 8
TUPLE: Final = 9
DICT: Final = 10
RECORD: Final = 11
"""A dictionary as the tuple of its keys, which are text, and its values."""
TUPLE_ROWS: Final = 45
"""A list of tuples of the same length, as this length and the list of all their items."""
RECORD_ROWS: Final = 46
"""A list of dictionaries with the same text as keys, as the tuple of the keys and the list of all values."""
LARGE_INT: Final = 14
"""An integer of more than 64 bits."""
SURROGATES: Final = 15
"""Text that has no UTF-8."""
LARGE_BYTES: Final = 16
"""Bytes in a buffer."""

_FRACTION_BITS_MAX: Final = 65_536
"""Reducing a fraction takes time with the square of its size."""

_PATTERN_CHARS_MAX: Final = 65_536
_PATTERN_RANGES_MAX: Final = 1_024
"""The possible ranges of characters in a pattern; compiling one takes up to 0.3 ms."""
_WIDE_RANGES_MAX: Final = 64
"""The ranges that may end with a character of more than 8 bits; compiling one takes up to 20 ms."""
_WIDE_RANGE: Final = re.compile("-[\\\\\u0100-\U0010ffff]")

_PATTERN_FLAGS: Final = int(
    re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE | re.ASCII
)

_NONE: Final = type(None)
_PLAIN: Final = frozenset({int, float, str, bytes, bool, _NONE})


# -- containers -------------------------------------------------------------------------------------
def _dict(items: list[object], _reading: Reading) -> dict[object, object]:
    keys = items[::2]
    require_keys(keys)
    return dict(zip(keys, items[1::2], strict=True))


def _record(items: list[object], _reading: Reading) -> dict[object, object]:
    names = items[0]
    require_names(names)
    return dict(zip(cast("tuple[str]", names), items[1:], strict=True))


def _rows(width: int, items: list[object]) -> Iterable[tuple[object, ...]]:
    if width < 1 or len(items) % width:
        raise refusal("rows of different lengths")
    return zip(*[iter(items)] * width, strict=True)


def _record_rows(names: tuple[object, ...], items: list[object]) -> list[dict[object, object]]:
    require_names(names)
    return [dict(zip(names, row, strict=True)) for row in _rows(len(names), items)]


def _set(items: list[object], _reading: Reading) -> set[object]:
    require_keys(items)
    return set(items)


def _frozenset(items: list[object], _reading: Reading) -> frozenset[object]:
    require_keys(items)
    return frozenset(items)


_FACTORIES: Final = {kind.__name__: kind for kind in (int, float, str, bytes, bool, list, dict, set, tuple)}


def _factory_name(value: collections.defaultdict[object, object]) -> str | None:
    factory = value.default_factory
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise refusal(f"a defaultdict with the factory {factory!r}; return dict(value) instead")
    return str(name)


def _default_dict(name: str | None, items: dict[object, object]) -> object:
    return collections.defaultdict(None if name is None else _FACTORIES[name], items)


def _chain_map(maps: list[object], _reading: Reading) -> object:
    for part in maps:
        if type(part) not in {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}:
            raise refusal("a chain of other objects than dictionaries")
    return collections.ChainMap(*cast("list[dict[object, object]]", maps))


# -- numbers, text and times ------------------------------------------------------------------------
def _large_int(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _fraction(numerator: int, denominator: int) -> fractions.Fraction:
    if max(numerator.bit_length(), denominator.bit_length()) > _FRACTION_BITS_MAX:
        raise refusal(f"a fraction of integers over {_FRACTION_BITS_MAX:,} bits")
    return fractions.Fraction(numerator, denominator)


def _uuid(data: bytes, safety: int | None) -> uuid.UUID:
    return uuid.UUID(bytes=data, is_safe=uuid.SafeUUID(safety))


def _time_parts(value: dt.time | dt.datetime) -> Iterable[object]:
    date = (value.year, value.month, value.day) if isinstance(value, dt.datetime) else ()
    return (*date, value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold)


def _datetime(*parts: int) -> dt.datetime:
    return dt.datetime(*parts[:8], fold=parts[8])  # type: ignore[arg-type]  # noqa: DTZ001 - it has a zone if the value had


def _time(*parts: int) -> dt.time:
    return dt.time(*parts[:5], fold=parts[5])  # type: ignore[arg-type]


_ZONE_NAME: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")


def _zone(key: str) -> zoneinfo.ZoneInfo:
    if not _ZONE_NAME.fullmatch(key):
        raise refusal("a time zone of an impossible name")
    return zoneinfo.ZoneInfo(key)


def _zone_key(zone: zoneinfo.ZoneInfo) -> tuple[str]:
    if zone.key is None:
        raise refusal("a time zone without a name")
    return (zone.key,)


def _pattern(pattern: str | bytes, flags: int) -> object:
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    if flags & ~_PATTERN_FLAGS:
        raise refusal("a pattern with other flags")
    if len(text) > _PATTERN_CHARS_MAX:
        raise refusal(f"a pattern of more than {_PATTERN_CHARS_MAX:,} characters")
    if text.count("-") > _PATTERN_RANGES_MAX or len(_WIDE_RANGE.findall(text)) > _WIDE_RANGES_MAX:
        raise refusal("a pattern of too many ranges")
    return re.compile(pattern, flags)


# -- types ------------------------------------------------------------------------------------------
def _type(module: str, qualname: str) -> type:
    """Return a type that has a form of this format, or that the program has permitted."""
    permitted = permitted_class(module, qualname)
    if permitted is not None:
        return permitted
    load_forms_of(module.partition(".")[0])
    for cls in chain(KEY_TYPES, FORM_OF_TYPE):
        if (cls.__module__, cls.__qualname__) == (module, qualname):
            return cls
    raise refusal(f"the class {module}.{qualname}")


# -- others -----------------------------------------------------------------------------------------
_PATHS: Final = {kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}
if os.name == "posix":
    _PATHS["PosixPath"] = pathlib.PosixPath
_ADDRESSES: Final = {
    kind.__name__: kind
    for kind in (
        *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network),
        *(ipaddress.IPv4Interface, ipaddress.IPv6Interface),
    )
}
_SINGLETONS: Final = {repr(value): value for value in (Ellipsis, NotImplemented)}
_SEQUENCES: Final = {kind.__name__: kind for kind in (time.struct_time, os.stat_result)}


def _structure(name: str, values: tuple[object, ...], others: dict[object, object]) -> object:
    """Return a ``struct_time`` or a ``stat_result``."""
    if not _PLAIN.issuperset(map(type, chain(values, others.values()))):
        raise refusal(f"a {name} of other parts than numbers and text")
    return _SEQUENCES[name](values, others)  # type: ignore[arg-type]


def _structure_parts(value: tuple[object, ...]) -> Iterable[object]:
    return type(value).__name__, *cast("tuple[object, tuple[object, ...]]", value.__reduce__())[1]


def _file_parts(file: io.StringIO | io.BytesIO) -> Iterable[object]:
    state = cast("tuple[object, ...]", file.__getstate__())
    if state[-1]:
        raise refusal("a file in memory with attributes of its own")
    return state[:-1]


def _text_file(text: str, newline: str | None, place: int) -> io.StringIO:
    return _file(io.StringIO(), text, (text, newline, place, None), place)


def _bytes_file(content: bytes, place: int) -> io.BytesIO:
    return _file(io.BytesIO(), content, (content, place, None), place)


def _file(file: T, content: Sequence[object], state: tuple[object, ...], place: int) -> T:
    if place > len(content):
        raise refusal("a file in memory with a position beyond its end")
    file.__setstate__(state)  # type: ignore[attr-defined]
    return file


_ARRAY_TYPES: Final = "bBhHiIlLqQfd"


def _array_parts(value: array.array[int]) -> Iterable[object]:
    return value.typecode, memoryview(value).cast("B")


def _array(typecode: str, data: memoryview) -> array.array[int]:
    if typecode not in _ARRAY_TYPES:
        raise refusal(f"an array of the type {typecode!r}")
    numbers: array.array[int] = array.array(typecode)
    numbers.frombytes(data)
    return numbers


_ZONES: Final = (_NONE, dt.timezone, zoneinfo.ZoneInfo)

FORMS: Final = (
    form(LIST, list, iter, None, lambda items, _: items),
    form(TUPLE, tuple, iter, None, lambda items, _: tuple(items)),
    form(DICT, dict, lambda value: chain.from_iterable(value.items()), None, _dict),
    form(RECORD, (), iter, None, _record),
    form(12, set, iter, None, _set),
    form(13, frozenset, iter, None, _frozenset),
    form(TUPLE_ROWS, (), iter, (int, list), lambda width, items: list(_rows(width, items))),
    form(RECORD_ROWS, (), iter, (tuple, list), _record_rows),
    form(
        LARGE_INT,
        (),
        lambda value: (value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),),
        (bytes,),
        _large_int,
    ),
    form(
        SURROGATES,
        (),
        lambda value: (value.encode("utf-8", "surrogatepass"),),
        (bytes,),
        lambda data: data.decode("utf-8", "surrogatepass"),
    ),
    form(LARGE_BYTES, (), lambda value: (memoryview(value),), (memoryview,), bytes),
    form(17, bytearray, lambda value: (memoryview(value),), (memoryview,), bytearray),
    form(18, complex, lambda value: (value.real, value.imag), (float, float), complex, is_key=True),
    form(19, range, lambda value: (value.start, value.stop, value.step), (int, int, int), range, is_key=True),
    form(
        20, slice, lambda value: (value.start, value.stop, value.step), None, lambda items, _: slice(*items)
    ),
    form(
        21,
        (type(Ellipsis), type(NotImplemented)),
        lambda value: (repr(value),),
        (str,),
        _SINGLETONS.__getitem__,
        is_key=True,
    ),
    form(22, dt.date, lambda value: (value.year, value.month, value.day), (int,) * 3, dt.date, is_key=True),
    form(23, dt.time, _time_parts, (*(int,) * 4, _ZONES, int), _time, is_key=True),
    form(24, dt.datetime, _time_parts, (*(int,) * 7, _ZONES, int), _datetime, is_key=True),
    form(
        25,
        dt.timedelta,
        lambda value: (value.days, value.seconds, value.microseconds),
        (int,) * 3,
        dt.timedelta,
        is_key=True,
    ),
    form(
        26,
        dt.timezone,
        lambda value: (*value.__getinitargs__(), None)[:2],
        (dt.timedelta, (str, _NONE)),
        lambda offset, name: dt.timezone(offset) if name is None else dt.timezone(offset, name),
        is_key=True,
    ),
    form(27, zoneinfo.ZoneInfo, _zone_key, (str,), _zone, is_key=True),
    form(28, decimal.Decimal, lambda value: (str(value),), (str,), decimal.Decimal, is_key=True),
    form(
        29,
        fractions.Fraction,
        lambda value: (value.numerator, value.denominator),
        (int, int),
        _fraction,
        is_key=True,
    ),
    form(
        30,
        uuid.UUID,
        lambda value: (value.bytes, value.is_safe.value),
        (bytes, (int, _NONE)),
        _uuid,
        is_key=True,
    ),
    form(31, collections.Counter, lambda value: (dict(value),), (dict,), collections.Counter),
    form(32, collections.OrderedDict, lambda value: (dict(value),), (dict,), collections.OrderedDict),
    form(
        33,
        collections.defaultdict,
        lambda value: (_factory_name(value), dict(value)),
        ((str, _NONE), dict),
        _default_dict,
    ),
    form(
        34,
        collections.deque,
        lambda value: (list(value), value.maxlen),
        (list, (int, _NONE)),
        collections.deque,
    ),
    form(
        35,
        types.SimpleNamespace,
        lambda value: (dict(vars(value)),),
        (dict,),
        lambda values: types.SimpleNamespace(**values),
    ),
    form(36, collections.ChainMap, lambda value: value.maps, None, _chain_map),
    form(37, types.MappingProxyType, lambda value: (dict(value),), (dict,), types.MappingProxyType),
    form(
        38,
        tuple(_PATHS.values()),
        lambda value: (type(value).__name__, str(value)),
        (str, str),
        lambda name, text: _PATHS[name](text),
        is_key=True,
    ),
    form(
        39,
        tuple(_ADDRESSES.values()),
        lambda value: (type(value).__name__, str(value)),
        (str, str),
        lambda name, text: _ADDRESSES[name](text),
        is_key=True,
    ),
    form(
        40, re.Pattern, lambda value: (value.pattern, value.flags), ((str, bytes), int), _pattern, is_key=True
    ),
    form(41, io.StringIO, _file_parts, (str, (str, _NONE), int), _text_file),
    form(42, io.BytesIO, _file_parts, (bytes, int), _bytes_file),
    form(43, array.array, _array_parts, (str, memoryview), _array),
    form(47, type, lambda cls: (cls.__module__, cls.__qualname__), (str, str), _type, is_key=True),
    form(44, tuple(_SEQUENCES.values()), _structure_parts, (str, tuple, dict), _structure, is_key=True),
)

register(__name__, FORMS)
