"""Parameters of cost models and settings of the scheduler, as an operator writes them."""

from __future__ import annotations

from typing import Final, TypeAlias

Value: TypeAlias = int | float | str | bool

_KINDS: Final = {int: "a whole number", float: "a number", bool: "true or false"}
_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}


def converted(value: Value, default: Value) -> Value:
    """Return a value, often a word of a command line, in the type of the parameter's default.

    Raises:
        ValueError: the value is of another type; the message says what it must be.
    """
    wanted = type(default)
    try:
        if wanted is bool:
            return _TRUTHS[str(value).lower()]
        return int(str(value)) if wanted is int else wanted(value)
    except (ValueError, KeyError):
        raise ValueError(f"it must be {_KINDS[wanted]}") from None


def text_of(value: Value) -> str:
    """Return a value as an operator writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
