"""The texts of exceptions that come from a worker, bounded and without control characters."""

from __future__ import annotations

from typing import Final

from dios.client.plain_text import plain_lines

TEXT_CHARS_MAX: Final = 64 * 1024
NOTES_MAX: Final = 32

_SHOWN_MAX: Final = 256
"""The exceptions that a traceback may show, with their causes and those of groups."""

_FIELDS: Final = vars(BaseException)
_TEXTS: Final = ("msg", "strerror", "reason", "text", "filename")
"""The fields of built-in exceptions from which their texts are made, in addition to the arguments."""


def make_harmless(error: BaseException) -> bool:
    """Escape and bound the texts of an exception, and of those that a traceback shows with it.

    Return False if there are too many of them.
    """
    waiting, count = [error], 0
    while waiting:
        count += 1
        if count > _SHOWN_MAX:
            return False
        shown = waiting.pop()
        _clean(shown)
        cause = _FIELDS["__cause__"].__get__(shown)
        if cause is not None:
            waiting.append(cause)
        if issubclass(type(shown), BaseExceptionGroup):
            waiting += vars(BaseExceptionGroup)["exceptions"].__get__(shown)
    return True


def _clean(error: BaseException) -> None:
    """Replace the texts of an exception, past code of its class."""
    arguments = _FIELDS["args"]
    arguments.__set__(error, tuple(map(_clean_value, arguments.__get__(error))))
    for base in type.__dict__["__mro__"].__get__(type(error)):
        for name in _TEXTS if base.__module__ == "builtins" else ():
            field = vars(base).get(name)
            if field is not None and type(field.__get__(error)) is str:
                field.__set__(error, _clean_value(field.__get__(error)))
    attributes = _FIELDS["__dict__"].__get__(error)
    notes = attributes.pop("__notes__", None)
    attributes.update({name: _clean_value(value) for name, value in attributes.items()})
    if type(notes) is list:
        attributes["__notes__"] = [_clean_value(note) for note in notes[:NOTES_MAX] if type(note) is str]


def _clean_value(value: object) -> object:
    if type(value) is not str:
        return value
    if len(value) > TEXT_CHARS_MAX:
        half = TEXT_CHARS_MAX // 2
        value = f"{value[:half]}\n[{len(value) - 2 * half:,} characters are left out]\n{value[-half:]}"
    return plain_lines(value)
