"""Test data for a soak: cheap to create, and different each time. Not cryptographically random."""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Final

_POOL_BYTES: Final = 4_000_000
_NUMBER_BYTES: Final = 8


def digest(data: bytes | memoryview) -> bytes:
    """Return a digest for a later comparison; the program of the tasks uses the same."""
    return hashlib.blake2b(data, digest_size=16).digest()


def hex_digest(data: bytes | memoryview) -> str:
    """Return the digest as text."""
    return digest(data).hex()


class Data:
    """A stock of random bytes; each piece is marked with a unique number."""

    def __init__(self, source: random.Random) -> None:
        self._random: Final = source
        self._stock: Final = source.randbytes(_POOL_BYTES)
        self._numbers: Final = itertools.count(source.getrandbits(48))

    def of(self, size: int) -> bytes:
        """Return ``size`` bytes."""
        start = self._random.randrange(_POOL_BYTES - size + 1)
        mark = next(self._numbers).to_bytes(_NUMBER_BYTES, "little")
        return (mark + self._stock[start : start + max(0, size - _NUMBER_BYTES)])[:size]
