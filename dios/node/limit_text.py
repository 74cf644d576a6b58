"""Limits as text: ``objects=1000 bytes=1GiB cpu=10h memory=none``.

Settings files, the environment, options and commands all use this parser, so that a word means the same
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dios import limits
from dios.errors import InvalidError
from dios.wire.messages import Bound, Limits
from dios.wire.suggestions import suggestion
from dios.wire.types import Resource

WORDS: Final[Mapping[str, Resource]] = {
    "objects": Resource.OBJECTS,
    "bytes": Resource.BYTES,
    "references": Resource.REFERENCES,
    "requests": Resource.REQUESTS,
    "tasks": Resource.TASKS,
    "cpu": Resource.CPU_MS,
    "memory": Resource.MEMORY_BYTES,
    "volatile": Resource.VOLATILE_BYTES,
    "descriptors": Resource.DESCRIPTORS,
}
WORD_OF: Final = {resource: word for word, resource in WORDS.items()}
NONE: Final = "none"

_SIZES: Final = {"": 1, "b": 1, "kib": limits.KIB, "mib": limits.MIB, "gib": limits.GIB}
_TIMES_MS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER: Final = re.compile(r"\s*([0-9][0-9_]*)\s*([A-Za-z]*)\s*")
_BETWEEN: Final = re.compile(r"[\s,]+(?=[A-Za-z_]+\s*=)")
_MOST: Final = 2**62
_FIELDS: Final[Mapping[Resource, str]] = {
    Resource.CPU_MS: "total_cpu_ms",
    Resource.MEMORY_BYTES: "total_memory_bytes",
    Resource.VOLATILE_BYTES: "volatile_bytes",
}


def parse_size(text: str) -> int:
    """Read ``4 GiB``, ``512MiB`` or a plain number of bytes. Raise ValueError."""
    match = _NUMBER.fullmatch(text)
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError('bytes, or a size like "512 MiB"')
    return int(match[1]) * unit


def parse_time_ms(text: str) -> int:
    """Read ``90s``, ``5 min``, ``10h``, ``2d`` or ``250ms`` and return milliseconds. Raise ValueError."""
    match = _NUMBER.fullmatch(text)
    unit = _TIMES_MS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError("a time with its unit, like 90s, 5min or 10h")
    return int(match[1]) * unit


def _count(text: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2]:
        raise ValueError("a whole number, or none")
    return int(match[1])


_READERS: Final = {
    Resource.BYTES: parse_size,
    Resource.MEMORY_BYTES: parse_size,
    Resource.VOLATILE_BYTES: parse_size,
    Resource.CPU_MS: parse_time_ms,
}


def _value(resource: Resource, given: object) -> int | None:
    if isinstance(given, str) and given.strip().lower() == NONE:
        return None
    # A number in a file has no unit and needs none, except for a time.
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    try:
        amount = _READERS.get(resource, _count)(text)
    except ValueError as error:
        raise InvalidError(f"{WORD_OF[resource]} must be {error}, not {given!r}") from None
    if amount > _MOST:
        raise InvalidError(f"{WORD_OF[resource]} must be smaller than {given!r}; write none for no limit")
    return amount


def _resource(word: str) -> Resource:
    resource = WORDS.get(word.strip().lower())
    if resource is None:
        raise InvalidError(f"there is no limit called {word!r}; {suggestion(word, WORDS)}")
    return resource


def _pairs(given: object) -> Iterator[tuple[str, object]]:
    if isinstance(given, Mapping):
        yield from given.items()
        return
    if not isinstance(given, str):
        raise InvalidError(f'limits must be a table, or text like "objects=1000 bytes=1GiB", not {given!r}')
    for part in _BETWEEN.split(given.strip()) if given.strip() else ():
        word, equals, value = part.partition("=")
        if not equals:
            raise InvalidError(f"{part!r} is not a limit. Write it like objects=1000 or cpu=10h.")
        yield word, value


def read_bounds(given: object) -> tuple[Bound, ...]:
    """Read limits from a table or a text. Raise InvalidError for unknown, invalid or repeated limits."""
    bounds: dict[Resource, Bound] = {}
    for word, value in _pairs(given):
        resource = _resource(word)
        if resource in bounds:
            raise InvalidError(f"the limit {WORD_OF[resource]} is given twice; give it once")
        bounds[resource] = Bound(resource, _value(resource, value))
    return tuple(bounds.values())


def bounds_of(words: Iterable[str]) -> tuple[Bound, ...]:
    """Return the limits in the words of a command line. Raise InvalidError if there are none."""
    bounds = read_bounds(" ".join(words))
    if not bounds:
        raise InvalidError(f"give a limit, like objects=1000; known: {', '.join(WORDS)}")
    return bounds


def limits_of_run(words: Iterable[str], *, memory_bytes: int = 0, cpu_ms: int = 0) -> Limits:
    """Return the limits for a run: ``words`` for the task and all it starts, the rest for its own process."""
    fields: dict[str, int] = {}
    for bound in read_bounds(" ".join(words)):
        word = WORD_OF[bound.resource]
        if not bound.value:
            raise InvalidError(
                f"cannot start a task with {word}={bound.value if bound.value == 0 else NONE}. "
                "Leave the limit out, or give a number above 0."
            )
        fields[_FIELDS.get(bound.resource, word)] = bound.value
    return Limits(memory_bytes, cpu_ms, **fields)
