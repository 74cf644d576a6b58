"""The bytes of the files of kept rounds. They follow from a number, which is written only once."""

from __future__ import annotations

import random
from typing import Final

ABSENT: Final = 0
"""The value of a path without a file."""
_DIGITS: Final = 20
_SIZES: Final = (0, 40, 400, 5_000, 20_000, 60_000)


def content(value: int) -> bytes:
    """Return the bytes of a file with this value."""
    rng = random.Random(value)  # noqa: S311 - it guards nothing
    return f"{value:0{_DIGITS}d}\n".encode() + rng.randbytes(rng.choice(_SIZES))


def value_of(data: bytes) -> int | None:
    """Return the value of a file's bytes, or None if no value has them."""
    text = data[:_DIGITS]
    if not text.isdigit():
        return None
    value = int(text)
    return value if value and content(value) == data else None
