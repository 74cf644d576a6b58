"""Descriptions of the values of a session, as ``help`` has them, for people who write its code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final, TypeVar

from dios.lib.sandbox.bounds import DESCRIPTION_CHARS_MAX
from dios.lib.sandbox.failures import clean

T = TypeVar("T")

_SHOWN_CHARS_MAX: Final = 500


def described_value(name: str, value: object, *, source: bool) -> str:
    """Return the signature, type, value, documentation and, if asked for, the source of a value."""
    rows = [
        ("Signature", _known(lambda: f"{name}{inspect.signature(value)}") if callable(value) else None),
        ("Type", type(value).__qualname__),
        ("String form", None if callable(value) else _known(lambda: clean(repr(value), _SHOWN_CHARS_MAX))),
        ("File", _known(lambda: inspect.getsourcefile(value))),  # type: ignore[arg-type]  # or it raises
    ]
    parts = [f"{title}: {text}" for title, text in rows if text]
    code = _known(lambda: inspect.getsource(value)) if source else None  # type: ignore[arg-type]  # the same
    if code:
        parts.append(f"Source:\n{code.rstrip()}")
    else:
        parts.append(f"Docstring:\n{_known(lambda: inspect.getdoc(value)) or '<no docstring>'}")
    return clean("\n".join(parts), DESCRIPTION_CHARS_MAX)


def _known(read: Callable[[], T]) -> T | None:
    """Return what a function reads; None if there is none, or code of the value raises."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - the parts of a value are code of the session
        return None
