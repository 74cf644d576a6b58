"""Errors of our schemas in plain words, for values that users write."""

from __future__ import annotations

import re
from typing import Final

BOUND: Final = re.compile(r"Expected `(\w+)`(?: of length)? (<=|>=|<|>) (-?[\d.]+)")
KIND: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bytes": "bytes",
    "array": "a list",
    "object": "a table",
    "bool": "true or false",
    "null": "nothing",
}
_UNITS: Final = {"str": " characters", "bytes": " bytes", "array": " entries"}
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]+)`")
_VALUE: Final = re.compile(r"Invalid enum value (.+)")


def kind_in_words(kinds: str) -> str:
    """Return types as msgspec writes them, like ``int | null``, in words."""
    return " or ".join(_KINDS.get(kind.strip(), kind.strip()) for kind in kinds.split("|"))


def bound_in_words(sign: str, number: str) -> str:
    """Return a bound in words: at most 5."""
    words = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
    return f"{words[sign]} {number}"


def fault_in_words(error: Exception) -> str:
    """Return the message of a ``msgspec.ValidationError`` of a table in words, with the name of the entry."""
    problem, _, place = str(error).partition(" - at `$")
    name = place.removesuffix("`").lstrip(".")
    if (missing := _MISSING.match(problem)) is not None:
        return f"{_within(missing[1], name)} is missing"
    if (unknown := _UNKNOWN.match(problem)) is not None:
        return f"{_within(unknown[1], name)} is unknown"
    name = name or "it"
    if (bound := BOUND.match(problem)) is not None:
        verb = "have" if bound[1] in _UNITS else "be"
        return f"{name} must {verb} {bound_in_words(bound[2], bound[3])}{_UNITS.get(bound[1], '')}"
    if (kind := KIND.match(problem)) is not None:
        return f"{name} must be {kind_in_words(kind[1])}, not {kind_in_words(kind[2])}"
    if (value := _VALUE.match(problem)) is not None:
        return f"{name} cannot be {value[1]}"
    return f"{name} is invalid"


def _within(entry: str, table: str) -> str:
    return f"{table}.{entry}" if table else entry
