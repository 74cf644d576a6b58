"""A module of a template that maps a file so that forks share it."""

from __future__ import annotations

import mmap
from pathlib import Path

PLACE = Path("shared")
PLACE.write_bytes(bytes(mmap.PAGESIZE))
with PLACE.open("r+b") as file:
    HELD = mmap.mmap(file.fileno(), mmap.PAGESIZE)
