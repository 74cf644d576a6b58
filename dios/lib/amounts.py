"""Amounts of memory and of time, as the arguments of sandboxes and executors give them."""

from __future__ import annotations

import re
from typing import Final

from dios.errors import InvalidError
from dios.limits import GIB, KIB, MIB, TASK_MEMORY_BYTES_MAX, TASK_MEMORY_BYTES_MIN

SECONDS_MOST: Final = 100_000_000
"""The largest limit of time; a larger one is no time that the operating system can wait."""

_SIZE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(B|KiB|MiB|GiB)?")
_UNITS: Final = {None: 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


def memory_of(given: int | str) -> int:
    """Return the memory of a task in bytes, given as a number or as text such as ``512 MiB``.

    Raises InvalidError for anything else, and for a size that no task can have.
    """
    size = given if type(given) is int else 0
    match = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match:
        size = int(float(match[1]) * _UNITS[match[2]])
    if not TASK_MEMORY_BYTES_MIN <= size <= TASK_MEMORY_BYTES_MAX:
        least, most = TASK_MEMORY_BYTES_MIN // MIB, TASK_MEMORY_BYTES_MAX // GIB
        raise InvalidError(
            f'memory must be a number of bytes, or a size like "512 MiB", from {least} MiB to {most} GiB,'
            f" not {given!r}"
        )
    return size


def seconds_of(given: float, name: str) -> float:
    """Return a number of seconds. Raise InvalidError for one that is not positive, or is years."""
    try:
        is_in_range = 0 < given <= SECONDS_MOST
    except TypeError:  # it is no number
        is_in_range = False
    if not is_in_range:
        raise InvalidError(f"{name} must be more than 0 and at most {SECONDS_MOST:,} seconds, not {given!r}")
    return float(given)
