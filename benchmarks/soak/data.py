"""Bytes for a soak: cheap to make, and different each time.

Not for: secrets, or for data that compress like real ones.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Final

_POOL_BYTES: Final = 4_000_000
_NUMBER_BYTES: Final = 8


def digest(data: bytes | memoryview) -> bytes:
    """What stands for bytes that are compared later; the tasks' program has the same."""
    return hashlib.blake2b(data, digest_size=16).digest()


def hex_digest(data: bytes | memoryview) -> str:
    """The same, to be shown."""
    return digest(data).hex()


class Data:
    """A stock of random bytes, of which each piece is marked with a number of its own."""

    def __init__(self, source: random.Random) -> None:
        self._random: Final = source
        self._stock: Final = source.randbytes(_POOL_BYTES)
        self._numbers: Final = itertools.count(source.getrandbits(48))

    def of(self, size: int) -> bytes:
        """``size`` bytes."""
        start = self._random.randrange(_POOL_BYTES - size + 1)
        mark = next(self._numbers).to_bytes(_NUMBER_BYTES, "little")
        return (mark + self._stock[start : start + max(0, size - _NUMBER_BYTES)])[:size]
