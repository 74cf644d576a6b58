"""The texts of exceptions that come from a worker, bounded and without control characters."""

from __future__ import annotations

import types
from typing import Final, cast

from dios.client.plain_text import plain_lines
from dios.lib.executor.results.forms import KEY_TYPES

TEXT_CHARS_MAX: Final = 64 * 1024
NOTES_MAX: Final = 32

_SHOWN_MAX: Final = 256
"""The exceptions that a traceback may show, with their causes, their arguments and those of groups."""

_NUMBER_MAX: Final = 2**20
"""The lines and columns that a SyntaxError may name: a traceback has a mark for each column."""

_FIELDS: Final = vars(BaseException)
_NOT_SHOWN: Final = frozenset({"object", "value", "code", "obj", "exceptions", "__suppress_context__"})
"""The fields of built-in exceptions that make no part of their texts, or are exceptions."""
_NUMBERS: Final = ("lineno", "offset", "end_lineno", "end_offset")
_SHORT: Final = frozenset({int, float, bool, type(None)})


def make_harmless(error: BaseException) -> bool:
    """Escape and bound the texts of an exception, and of those that a traceback shows with it.

    Return False if there are too many of them, or if a text cannot be replaced.
    """
    waiting, seen = [error], {id(error)}
    while waiting:
        shown = waiting.pop()
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
    return True


def _clean(error: BaseException) -> list[BaseException] | None:
    """Replace the texts of an exception, past code of its class, and return the exceptions among its parts.

    Return None if a text cannot be replaced.
    """
    inner: list[BaseException] = []
    arguments = _FIELDS["args"]
    arguments.__set__(error, tuple(_clean_value(value, inner) for value in arguments.__get__(error)))
    for base in type.__dict__["__mro__"].__get__(type(error)):
        if base.__module__ == "builtins" and not _clean_fields(error, vars(base), inner):
            return None
    attributes = _FIELDS["__dict__"].__get__(error)
    notes = attributes.pop("__notes__", None)
    attributes.update({name: _clean_value(value, inner) for name, value in attributes.items()})
    if type(notes) is list:
        attributes["__notes__"] = [_clean_text(note) for note in notes[:NOTES_MAX] if type(note) is str]
    if issubclass(type(error), SyntaxError):
        _clean_place(cast("SyntaxError", error))
    return inner


def _clean_fields(
    error: BaseException, fields: types.MappingProxyType[str, object], inner: list[BaseException]
) -> bool:
    """Replace the fields that a built-in exception shows; return False if that is impossible."""
    for name, field in fields.items():
        if type(field) is not types.MemberDescriptorType or name in _NOT_SHOWN:
            continue
        value = field.__get__(error)
        cleaned = _clean_value(value, inner)
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


def _clean_value(value: object, inner: list[BaseException]) -> object:
    """Return a harmless text in the place of a value whose text is not; add an exception to ``inner``.

    Containers show the representation of their parts, which is escaped.
    """
    kind = type(value)
    if kind is str:
        return _clean_text(cast("str", value))
    if issubclass(kind, BaseException):
        inner.append(cast("BaseException", value))
    elif kind in KEY_TYPES and kind not in _SHORT:
        try:
            text = repr(value) if kind is bytes else str(value)
        except Exception:  # noqa: BLE001 - a value without a text shows none
            return value
        cleaned = _clean_text(text)
        return value if cleaned == text else cleaned
    return value


def _clean_text(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        half = TEXT_CHARS_MAX // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out]\n{text[-half:]}"
    return plain_lines(text)
