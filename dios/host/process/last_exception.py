"""What the end of a console tells of the exception that ended its program.

Not for: judging a task by it. It may print what it likes, and its exit status is what counts.
"""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = re.compile(r"( {2}\+ Exception Group )?Traceback \(most recent call last\):")
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_GROUP_MARGIN: Final = "  | "


def exception_told(text: str) -> str:
    """The line that names the exception of the last traceback in ``text``; empty when there is none.

    A message of several lines, notes, and the members of a group follow that line and are no part of it.
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
