"""The choice of the call to make a second time: the rule of LATE (Zaharia et al., OSDI 2008) for calls.

A task of a job reports its progress, and a call does not. So the time that a call has taken so far stands for
its rate, compared with the calls of the same function that have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from dios.lib.executor import map_calls

if TYPE_CHECKING:
    from dios.lib.executor.frames import Function

_JUDGED_MIN: Final = 4
"""A call is compared with at least this number of ended calls."""

_KEPT: Final = 64
"""The number of ended calls of each function that count, the latest ones."""

_SLOW_FACTOR: Final = 2.0
"""A call is slow after this multiple of the usual time: a copy that begins now probably ends before it."""

_AFTER_S: Final = 0.5
"""A call is never slow before this time."""

_SLOW_PART: Final = 4
"""A call is slow if it is slower than all but this part of the ended calls."""

CAP_PART: Final = 10
"""At most this part of an executor's workers makes copies, and at least one."""


class RunningCall(NamedTuple):
    """A call that a worker makes now, and the seconds since it began."""

    number: int
    function: Function[object]
    args: tuple[object, ...]
    seconds: float


class SlowCalls:
    """The durations of the calls of some functions that may be made twice."""

    def __init__(self, functions: Iterable[Function[object]]) -> None:
        self._ended: Final = [(function, deque[float](maxlen=_KEPT)) for function in functions]

    def ended(self, function: Function[object], args: tuple[object, ...], seconds: float) -> None:
        """Count a call that has ended."""
        known, items = self._known(function, args)
        if known is not None:
            known.append(seconds / items)

    def slowest(self, running: Iterable[RunningCall]) -> int | None:
        """Return the number of the call that is slowest compared with its like, if it is slow; else None."""
        most, slowest = 1.0, None
        for call in running:
            ended, items = self._known(call.function, call.args)
            if ended is None or len(ended) < _JUDGED_MIN:
                continue
            known = sorted(ended)
            usual = max(_SLOW_FACTOR * median(known), known[-1 - len(known) // _SLOW_PART])
            ratio = call.seconds / max(usual * items, _AFTER_S)
            if ratio > most:
                most, slowest = ratio, call.number
        return slowest

    def _known(self, function: Function[object], args: tuple[object, ...]) -> tuple[deque[float] | None, int]:
        """Return the durations of a function's calls, and the number of calls in one: ``map`` has chunks."""
        items = 1
        if function is map_calls.with_items or function is map_calls.with_tuples:
            function, part, *_ = cast("tuple[Function[object], list[object], bool]", args)
            items = max(1, len(part))
        for known, ended in self._ended:
            # A bound method is a new object each time.
            if known is function or (
                isinstance(function, MethodType | BuiltinMethodType) and known == function
            ):
                return ended, items
        return None, items
