"""The texts of exceptions that come from a worker, bounded and without control characters."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, cast

from dios.client.plain_text import plain_lines
from dios.lib.executor.results.forms import KEY_TYPES, name_of, owner_of

if TYPE_CHECKING:
    from dios.lib.executor.results.array_forms import Array

TEXT_CHARS_MAX: Final = 64 * 1024
NOTES_MAX: Final = 32

_SHOWN_MAX: Final = 256
"""The exceptions that a traceback may show, with their causes, their arguments and those of groups."""

_ERROR_CHARS_MAX: Final = 4 * TEXT_CHARS_MAX
"""The text of an exception with several arguments."""
_PARTS_MAX: Final = 500_000
_PARTS_CHARS_MAX: Final = 16 * 1024 * 1024
"""The parts of a value, and the characters in them, of which a text is made to look at it."""

_NUMBER_MAX: Final = 2**20
"""The lines and columns that a SyntaxError may name: a traceback has a mark for each column."""

_FIELDS: Final = vars(BaseException)
_NOT_SHOWN: Final = frozenset({"object", "value", "code", "obj", "exceptions", "__suppress_context__"})
"""The fields of built-in exceptions that make no part of their texts, or are exceptions."""
_NUMBERS: Final = ("lineno", "offset", "end_lineno", "end_offset")
_NOTES: Final = "__notes__"
_CODE: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_SHORT: Final = frozenset({int, float, bool, type(None)})


def make_harmless(error: BaseException) -> bool:
    """Escape and bound the texts of an exception, and of those that a traceback shows with it.

    An argument or a field that shows anything else becomes its text, whatever its type. An attribute does if
    the class shows it, and otherwise if it is a text or a key. Return False if there are too many exceptions,
    or if one still shows anything else.
    """
    waiting, seen = [error], {id(error)}
    cleaned: list[BaseException] = []
    while waiting:
        shown = waiting.pop()
        cleaned.append(shown)
        inner = _clean(shown)
        if inner is None:
            return False
        cause = _FIELDS["__cause__"].__get__(shown)
        if cause is not None:
            inner.append(cause)
        if issubclass(type(shown), BaseExceptionGroup):
            inner += vars(BaseExceptionGroup)["exceptions"].__get__(shown)
        waiting += [part for part in inner if id(part) not in seen]
        seen.update(map(id, inner))
        if len(seen) > _SHOWN_MAX:
            return False
    return all(map(_clean_attributes, cleaned))


def _clean(error: BaseException) -> list[BaseException] | None:
    """Replace the texts of an exception, past code of its class, and return the exceptions among its parts.

    Return None if a text cannot be replaced.
    """
    inner: list[BaseException] = []
    arguments = _FIELDS["args"]
    arguments.__set__(error, tuple(_shown(value, inner) for value in arguments.__get__(error)))
    for base in type.__dict__["__mro__"].__get__(type(error)):
        if base.__module__ == "builtins" and not _clean_fields(error, vars(base), inner):
            return None
    attributes = _FIELDS["__dict__"].__get__(error)
    notes = attributes.pop(_NOTES, None)
    attributes.update({name: _clean_value(value, inner) for name, value in attributes.items()})
    if type(notes) is list:
        attributes[_NOTES] = [_clean_text(note) for note in notes[:NOTES_MAX] if type(note) is str]
    if issubclass(type(error), SyntaxError):
        _clean_place(cast("SyntaxError", error))
    return inner


def _clean_attributes(error: BaseException) -> bool:
    """Replace the attributes of an exception if its text is not harmless; return False if it still is not."""
    if _has_clean_text(error):
        return True
    attributes = _FIELDS["__dict__"].__get__(error)
    attributes.update({name: _shown(value, []) for name, value in attributes.items() if name != _NOTES})
    return _has_clean_text(error)


def _has_clean_text(error: BaseException) -> bool:
    """Return True if an exception shows no control characters, and has a short text or none."""
    methods = {owner_of(type(error), name) for name in ("__str__", "__repr__")}
    parts = list(_FIELDS["args"].__get__(error))
    if any(owner is not None and owner.__module__ != "builtins" for owner in methods):
        parts += _FIELDS["__dict__"].__get__(error).values()
    if not _is_bounded(parts):
        return False
    return all(
        len(text) <= _ERROR_CHARS_MAX and plain_lines(text) == text for text in _texts(error, str, repr)
    )


def _clean_fields(
    error: BaseException, fields: types.MappingProxyType[str, object], inner: list[BaseException]
) -> bool:
    """Replace the fields that a built-in exception shows; return False if that is impossible."""
    for name, field in fields.items():
        if type(field) is not types.MemberDescriptorType or name in _NOT_SHOWN:
            continue
        value = field.__get__(error)
        cleaned = _shown(value, inner)
        if cleaned is not value:
            try:
                field.__set__(error, cleaned)
            except (AttributeError, TypeError):
                return False
    return True


def _clean_place(error: SyntaxError) -> None:
    """Remove what a traceback cannot show as a line of a program and the marks under it."""
    fields = vars(SyntaxError)
    for name in _NUMBERS:
        number = fields[name].__get__(error)
        if type(number) is not int or abs(number) > _NUMBER_MAX:
            fields[name].__set__(error, None)
    if type(fields["text"].__get__(error)) is not str:
        fields["text"].__set__(error, None)


def _shown(value: object, inner: list[BaseException]) -> object:
    """Return a harmless text in the place of a value of any type whose text is not."""
    cleaned = _clean_value(value, inner)
    kind = type(cleaned)
    if cleaned is not value or kind in KEY_TYPES or issubclass(kind, BaseException):
        return cleaned
    return _replaced(value, str, repr) if _is_bounded([value]) else f"<a large {name_of(kind)}>"


def _clean_value(value: object, inner: list[BaseException]) -> object:
    """Return a harmless text in the place of a text or a key whose text is not.

    Add an exception to ``inner``.
    """
    kind = type(value)
    if kind is str:
        return _clean_text(cast("str", value))
    if issubclass(kind, BaseException):
        inner.append(cast("BaseException", value))
    elif kind in KEY_TYPES and kind not in _SHORT:
        return _replaced(value, repr if kind is bytes else str)
    return value


def _replaced(value: object, *forms: Callable[[object], str]) -> object:
    """Return a value, or its harmless text if it shows another one in one of some forms."""
    cleaned = ((text, _clean_text(text)) for text in _texts(value, *forms))
    return next((harmless for text, harmless in cleaned if harmless != text), value)


def _texts(value: object, *forms: Callable[[object], str]) -> Iterator[str]:
    """Yield what a value shows in some forms."""
    for text_of in forms:
        # A value without a text shows none.
        with contextlib.suppress(Exception):
            yield text_of(value)


def _is_bounded(values: Iterable[object]) -> bool:
    """Return False for values that show so many parts, some perhaps often, that no text is made of them."""
    numpy = sys.modules.get("numpy")
    waiting = list(values)
    parts = size = 0
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if issubclass(kind, _CODE):
            continue
        if kind is str or kind is bytes:
            size += len(cast("str", value))
        elif numpy is not None and issubclass(kind, numpy.ndarray):
            array = cast("Array", value)
            waiting += array.ravel()[:_PARTS_MAX].tolist() if array.dtype.kind == "O" else ()
        else:
            waiting += gc.get_referents(value)
        parts += 1
        if max(parts, len(waiting)) > _PARTS_MAX or size > _PARTS_CHARS_MAX:
            return False
    return True


def _clean_text(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        half = TEXT_CHARS_MAX // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out]\n{text[-half:]}"
    return plain_lines(text)
