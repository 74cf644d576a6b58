"""The job of ``make demo``: count words, ignoring case."""

from __future__ import annotations

import re

WORD = re.compile(rb"[a-z]+(?:'[a-z]+)?")


def map_keys(line: bytes) -> list[bytes]:
    """Return the words of a line, each counted once."""
    return WORD.findall(line.lower())


reduce = sum
