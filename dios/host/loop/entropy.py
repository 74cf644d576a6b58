"""Unpredictable bytes for the core, drawn from the system in larger pieces.

Not for: anything deterministic, or processes that fork: what is kept here would be drawn twice.
"""

from __future__ import annotations

import os
from typing import Final

from dios import limits


class Entropy:
    """Call it for bytes. Each byte is given out once, and forgotten then."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: Final = bytearray()

    def __call__(self, size: int) -> bytes:
        """The next ``size`` bytes: one system call serves many names."""
        kept = self._kept
        if len(kept) < size:
            kept += os.urandom(max(limits.ENTROPY_BYTES, size))
        drawn = bytes(kept[-size:])
        del kept[-size:]
        return drawn
