"""Operations on payload bytes for redundancy elimination: keyed fingerprints, comparing, moving; compiled.

The cache of payloads is in ``redundancy.py``.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import peek8, peek64, poke8, uint64

PAYLOAD_BYTES_MAX: Final = 1472
"""A multiple of 8: the UDP payload of a packet of 1,500 bytes; that of TCP is a little smaller."""

_LOW: Final = uint64(0xFFFFFFFF)
_32: Final = uint64(32)
_29: Final = uint64(29)
_ODD: Final = uint64(0x9E3779B97F4A7C15)
_PARTS: Final = PAYLOAD_BYTES_MAX // 4 + 4


def key_numbers(key: str) -> npt.NDArray[np.uint64]:
    """Return (4 + parts,) secret numbers of a key: four for various uses, then those of fingerprints."""
    drawn = hashlib.shake_256(b"dios redundancy 1\0" + key.encode()).digest(8 * 4 + 4 * _PARTS)
    parts = np.frombuffer(drawn, "<u4", offset=32).astype(np.uint64)
    return np.concatenate([np.frombuffer(drawn, "<u8", 4).astype(np.uint64), parts])


@no_refcount_kernel
def fingerprint(address: int, size: int, parts: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Return 64 and 48 bits for at most ``PAYLOAD_BYTES_MAX`` bytes at an address; ``parts`` is from the key.

    The sums are those of UMAC (RFC 4418): without the key, two payloads have equal sums with a probability of
    2^-64, however they are chosen.
    """
    first = second = uint64(0)
    for at in range(0, size, 8):
        word = peek64(address + at) if at + 8 <= size else _rest(address + at, size - at)
        high, low = word >> _32, word & _LOW
        i = at // 4
        first += ((high + parts[i]) & _LOW) * ((low + parts[i + 1]) & _LOW)
        second += ((high + parts[i + 2]) & _LOW) * ((low + parts[i + 3]) & _LOW)
    return _mixed(first, size), _mixed(second, size) >> uint64(16)


@no_refcount_kernel
def _mixed(total: int, size: int) -> int:
    """Mix a number reversibly, because indices of tables need all of its bits."""
    mixed = uint64(total + uint64(size)) * _ODD
    mixed ^= mixed >> _29
    return uint64(mixed * _ODD)


@no_refcount_kernel
def _rest(address: int, count: int) -> int:
    """Return fewer than eight bytes as a number, filled up with zeros."""
    word = uint64(0)
    for at in range(8):
        word <<= uint64(8)
        if at < count:
            word |= uint64(peek8(address + at))
    return word


@no_refcount_kernel
def same_bytes(first: int, other: int, size: int) -> bool:
    """Return True if ``size`` bytes at two addresses are equal."""
    for at in range(0, size - 7, 8):
        if peek64(first + at) != peek64(other + at):
            return False
    rest = size % 8
    return _rest(first + size - rest, rest) == _rest(other + size - rest, rest)


@no_refcount_kernel
def move_up(address: int, size: int, by: int) -> None:
    """Move ``size`` bytes to higher addresses."""
    for at in range(size - 1, -1, -1):
        poke8(address + at + by, peek8(address + at))


@no_refcount_kernel
def move_down(address: int, size: int, by: int) -> None:
    """Move ``size`` bytes to lower addresses."""
    for at in range(size):
        poke8(address + at - by, peek8(address + at))
