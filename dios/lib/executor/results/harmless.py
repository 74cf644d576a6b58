"""The texts of exceptions that come from a worker, bounded and without control characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dios.client.plain_text import plain_lines

TRACEBACK_CHARS_MAX: Final = 64 * 1024
MESSAGE_CHARS_MAX: Final = 64 * 1024
NOTES_MAX: Final = 64

_SHOWN_MAX: Final = 256
"""The exceptions that a traceback may show, with their causes and those of groups."""

_FIELDS: Final = vars(BaseException)
_TEXTS: Final = ("msg", "strerror", "reason", "text", "filename")
"""The fields of built-in exceptions from which their texts are made, in addition to the arguments."""

_BUILT_IN: Final = {
    f"builtins.{cls.__name__}": cls
    for cls in (
        *(ArithmeticError, AssertionError, AttributeError, BufferError, ConnectionError, EOFError, Exception),
        *(ImportError, IndexError, LookupError, MemoryError, NameError, NotImplementedError, OSError),
        *(
            OverflowError,
            RecursionError,
            RuntimeError,
            TimeoutError,
            TypeError,
            ValueError,
            ZeroDivisionError,
        ),
    )
}
"""The exceptions that stand for those of unknown classes. Each is made from a text, and shows it as it is."""


def clean_text(text: str, chars_max: int) -> str:
    """Return a text with its control characters escaped; leave out the middle of a long one."""
    if len(text) > chars_max:
        half = chars_max // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out]\n{text[-half:]}"
    return text if text.isprintable() else plain_lines(text.expandtabs())


def message_of(error: BaseException) -> str:
    """Return the text of an exception, in its worker."""
    try:
        return clean_text(str(error), MESSAGE_CHARS_MAX)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - the text is made by code of the exception
        return f"<its text raised {type(failure).__name__}>"


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an exception, in its worker."""
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list | tuple):
        return []
    return [clean_text(note, MESSAGE_CHARS_MAX) for note in notes[:NOTES_MAX] if isinstance(note, str)]


def substitute(bases: Sequence[str], message: str, notes: Sequence[str]) -> Exception:
    """Return the nearest built-in exception for one that cannot be made here: its class is in the text."""
    cls = next((_BUILT_IN[name] for name in bases if name in _BUILT_IN), RuntimeError)
    name = bases[0].removeprefix("builtins.") if bases else "an exception"
    error = cls(f"{name}: {message}" if message else name)
    for note in notes[:NOTES_MAX]:
        error.add_note(note)
    return error


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
    return clean_text(value, MESSAGE_CHARS_MAX) if type(value) is str else value
