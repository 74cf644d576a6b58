"""The work of a step, measured in lines of the core's code: every loop counts, also a forgotten one.

Lines are counted instead of time, so that the same step costs the same on every machine. A loop inside the
interpreter, such as the copy of a dictionary, counts as one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias, TypeVar

import dios.core
from dios import limits
from dios.core.effects import Outcome
from dios.core.events import Event
from dios.core.machine import Core
from dios.errors import InvariantError

_CORE: Final = str(Path(dios.core.__file__).parent)
_Trace: TypeAlias = "Callable[[FrameType, str, object], _Trace | None]"
_R = TypeVar("_R")


def lines_of(run: Callable[[], _R], folder: str = _CORE) -> tuple[_R, int]:
    """Run a function. Return its result, and the number of lines of the code in a folder that it executed."""
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> _Trace | None:
        nonlocal lines
        del frame, event, argument
        lines += 1
        return count

    def enter(frame: FrameType, event: str, argument: object) -> _Trace | None:
        del event, argument
        return count if frame.f_code.co_filename.startswith(folder) else None

    former = sys.gettrace()
    sys.settrace(enter)
    try:
        result = run()
    finally:
        sys.settrace(former)
    return result, lines


def bounded(core: Core, event: Event) -> Outcome:
    """Make a step; raise InvariantError if it executes more lines than a step may."""
    outcome, lines = lines_of(lambda: core.step(event))
    if lines > limits.STEP_WORK_MAX:
        kind = type(event).__name__
        raise InvariantError(
            f"a step executed {lines:,} lines of the core, and the bound is {limits.STEP_WORK_MAX:,}: {kind}"
        )
    return outcome
