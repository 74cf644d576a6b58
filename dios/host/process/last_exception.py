"""Finds the exception that ended a program in the last lines of its console.

This is a hint for people. A task may print anything; its exit status decides how it ended.
"""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = re.compile(r"( {2}\+ Exception Group )?Traceback \(most recent call last\):")
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_GROUP_MARGIN: Final = "  | "


def exception_line(text: str) -> str:
    """Return the line that names the exception of the last traceback in ``text``, or "" without a traceback.

    Further lines of the message, notes, and the members of a group are left out.
    """
    lines = text.splitlines()
    heads = (number for number in range(len(lines) - 1, -1, -1) if _HEAD.fullmatch(lines[number]))
    first = next(heads, None)
    if first is None:
        return ""
    for line in lines[first + 1 :]:
        told = line.removeprefix(_GROUP_MARGIN)
        if not told.startswith(" "):
            return told if _EXCEPTION.fullmatch(told) else ""
    return ""
