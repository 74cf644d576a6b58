"""Which lines of the product run during a call: to see that two calls take the very same path.

Not for: how long they take (``capability_timing``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
PRODUCT: Final = str(Path(__file__).parents[3] / "dios") + "/"
Line: TypeAlias = tuple[str, int]


@contextmanager
def _traced(tracer: Callable[[FrameType, str, object], object]) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(tracer)  # type: ignore[arg-type] # the type of what it gives back names itself
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(work: Callable[[], T]) -> tuple[T, list[Line]]:
    """What ``work`` gives, and each line of the product that ran, in order and as often as it did."""
    lines: list[Line] = []

    def trace(frame: FrameType, event: str, _: object) -> object:
        if not frame.f_code.co_filename.startswith(PRODUCT):
            return None
        if event == "line":
            lines.append((frame.f_code.co_filename.removeprefix(PRODUCT), frame.f_lineno))
        return trace

    with _traced(trace):
        result = work()
    return result, lines
