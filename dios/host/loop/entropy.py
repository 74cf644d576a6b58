"""Random bytes for the core, drawn from the operating system in larger blocks.

Not for processes that fork: parent and child would draw the same buffered bytes.
"""

from __future__ import annotations

import os
from typing import Final

from dios import limits


class Entropy:
    """A callable that returns random bytes. Each byte is returned once and then erased."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: Final = bytearray()

    def __call__(self, size: int) -> bytes:
        """Return ``size`` random bytes. One system call serves many calls."""
        kept = self._kept
        if len(kept) < size:
            kept += os.urandom(max(limits.ENTROPY_BYTES, size))
        drawn = bytes(kept[-size:])
        del kept[-size:]
        return drawn
