"""Counts the calls of built-in methods, such as those of sockets, each of which is a system call."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def counted_c_calls() -> Iterator[Counter[str]]:
    """Count the calls of built-in functions and methods of this thread, by their names."""
    counts = Counter[str]()

    def note(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call":
            counts[getattr(called, "__name__", "")] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(before)
