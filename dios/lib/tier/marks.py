"""The names of a file's packs, which follow from a random mark.

So the packs of a file can be removed without the key, also after a run that broke off. A mark is used for one
attempt to store one file, so no pack is ever written twice under a name.
"""

from __future__ import annotations

import secrets
from itertools import count
from typing import Final

from blake3 import blake3

from dios import limits
from dios.lib.backup.records import PACK_BYTES
from dios.lib.backup.sealing import SALT_BYTES

_MARK_BYTES: Final = 32
_CONTEXT: Final = "dios tier 1 pack"
_NUMBER_BYTES: Final = 8
_FIXED_BYTES: Final = 1 * limits.MIB
_FILE_BYTES_MAX: Final = limits.BLOB_BYTES_MAX * limits.FILE_PARTS_MAX
_OVERHEAD: Final = 4096
"""Heads, tags and the manifest add less than one byte for each 4,096, and 1 MiB for the ends of parts."""


def new_mark() -> bytes:
    """Return a mark for one attempt to store a file."""
    return secrets.token_bytes(_MARK_BYTES)


def pack_of(mark: bytes, number: int) -> bytes:
    """Return the id of the pack of a file with this number, from 0 on."""
    hashed = blake3(mark + number.to_bytes(_NUMBER_BYTES, "big"), derive_key_context=_CONTEXT)
    return hashed.digest(SALT_BYTES)


def packs_of(mark: bytes, size: int) -> list[bytes]:
    """Return the ids of all packs that a file of ``size`` bytes can have; some of them may not exist."""
    size = min(size, _FILE_BYTES_MAX)
    stored = size + size // _OVERHEAD + _FIXED_BYTES
    return [pack_of(mark, number) for number in range(stored // PACK_BYTES + 2)]


class PackNames:
    """A ``PackWriter`` takes the ids of the packs of one file from here, one after the other."""

    def __init__(self, mark: bytes) -> None:
        self._mark: Final = mark
        self._numbers: Final = count()

    def __call__(self, size: int) -> bytes:
        """Return the next id, of ``size`` bytes."""
        return pack_of(self._mark, next(self._numbers))[:size]
