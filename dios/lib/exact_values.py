"""Values in MessagePack that arrive with their types: tuples, sets, dates, decimals as extension values.

``dios.lib.spawn`` sends its arguments and results so. MessagePack alone would make a list of a tuple, and
text of a date. Records, enumerations and other types arrive as the annotation of the receiving function says;
``require_same`` refuses those that would change.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from dios.errors import InvalidError, ProtocolError

T = TypeVar("T")

Hook: TypeAlias = Callable[[object], object]

_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
_KEYS: Final = frozenset({int, str, bytes})

_TUPLE: Final = 16
_SET: Final = 17
_FROZENSET: Final = 18
_PAIRS: Final = 19
_TEXTS: Final[dict[type, int]] = {
    dt.datetime: 20,
    dt.date: 21,
    dt.time: 22,
    dt.timedelta: 23,
    decimal.Decimal: 24,
    uuid.UUID: 25,
}
_KIND_OF: Final = {code: kind for kind, code in _TEXTS.items()}
_GROUPS: Final[dict[type, int]] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}


def encode_exact(value: object, hook: Hook | None = None) -> bytes:
    """Return a value in MessagePack. ``hook`` returns the form of objects that MessagePack does not have.

    Raises what the encoder raises: TypeError, OverflowError, RecursionError.
    """
    return msgspec.msgpack.encode(exact(value, hook), enc_hook=hook)


def exact(value: object, hook: Hook | None = None) -> object:
    """Return a value with extension values in the place of parts whose type MessagePack would change."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [exact(part, hook) for part in cast("list[object]", value)]
    if kind is dict:
        pairs = cast("dict[object, object]", value).items()
        if all(type(key) in _KEYS for key, _ in pairs):
            return {key: exact(part, hook) for key, part in pairs}
        return msgspec.msgpack.Ext(_PAIRS, encode_exact([list(pair) for pair in pairs], hook))
    if kind in _GROUPS:
        return msgspec.msgpack.Ext(_GROUPS[kind], encode_exact(list(cast("set[object]", value)), hook))
    if kind in _TEXTS:
        # A time zone with a name would arrive as its present offset; require_same refuses that.
        text = str(msgspec.to_builtins(value))
        return msgspec.msgpack.Ext(_TEXTS[kind], text.encode())
    return value


def decode_exact(data: bytes | memoryview, hook: Callable[[int, memoryview], object] | None = None) -> object:
    """Return a value that ``encode_exact`` wrote, or that a hostile task made up.

    ``hook`` returns the objects of other extension values. Raises ProtocolError.
    """

    def decode_extension(code: int, inner: memoryview) -> object:
        return built(code, inner, decode_extension) if hook is None or code >= _TUPLE else hook(code, inner)

    try:
        return msgspec.msgpack.decode(data, ext_hook=decode_extension)
    except (msgspec.DecodeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ProtocolError(f"the received bytes are no value: {error}") from None


def built(code: int, data: memoryview, hook: Callable[[int, memoryview], object]) -> object:
    """Return the value of an extension value of this module. Raises ValueError for others."""
    if code in _KIND_OF:
        return msgspec.convert(str(data, "utf-8"), _KIND_OF[code])
    if not _TUPLE <= code <= _PAIRS:
        raise ValueError(f"there is no extension value {code}")
    items = msgspec.msgpack.decode(data, type=list[object], ext_hook=hook)
    if code == _PAIRS:
        return dict(cast("list[tuple[object, object]]", items))
    return {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[code](items)


def as_annotated(value: object, hint: type[T]) -> T:
    """Return a decoded value as the type of an annotation. Raises ProtocolError if it is none."""
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, RecursionError) as error:
        name = getattr(hint, "__name__", str(hint))
        raise ProtocolError(f"the received bytes are not a {name}: {error}") from None


# -- before sending -----------------------------------------------------------------------------------
def require_same(value: object, hint: type[T], subject: str) -> None:
    """Raise InvalidError if a value would arrive with another type than it has, in a place with ``hint``."""
    if _is_kept(value):
        return
    try:
        decoded = msgspec.convert(decode_exact(encode_exact(value)), hint)
    except (ProtocolError, TypeError, OverflowError, RecursionError, msgspec.ValidationError):
        return  # the encoder or the receiver refuses it with a reason
    if not _same(value, decoded):
        raise InvalidError(
            f"{subject} has a part that would change its type on the way ({type(value).__name__}). "
            "Annotate it with its type, or send lists, tuples, sets, dicts, text, numbers, dates and decimals"
        )


def _is_kept(value: object) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        return all(
            _is_kept(key) and _is_kept(part) for key, part in cast("dict[object, object]", value).items()
        )
    if kind is list or kind in _GROUPS:
        return all(map(_is_kept, cast("list[object]", value)))
    if kind is dt.datetime or kind is dt.time:
        return cast("dt.datetime", value).tzinfo in {None, dt.UTC}
    return kind in _TEXTS


def _same(value: object, other: object) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, dict) and isinstance(other, dict):
        return len(value) == len(other) and all(
            _same(*pair) for pair in zip(value.items(), other.items(), strict=True)
        )
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(_same(*pair) for pair in zip(value, other, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return all(_same(getattr(value, name), getattr(other, name)) for name in names)
    if isinstance(value, msgspec.Struct):
        return all(_same(getattr(value, name), getattr(other, name)) for name in value.__struct_fields__)
    if isinstance(value, dt.datetime | dt.time) and isinstance(other, dt.datetime | dt.time):
        return value == other and repr(value.tzinfo) == repr(other.tzinfo)
    return bool(value == other)
