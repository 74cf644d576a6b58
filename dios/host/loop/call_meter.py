"""Counts calls by kind and outcome, and their latency, while somebody reads the node's metrics.

Without readers the meter is off and costs one comparison for each call and each reply.
``dios.node.metrics`` shows the counts.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

from dios import limits
from dios.errors import Code
from dios.ids import TaskId
from dios.wire.messages import AnyResult, Failure

LATENCY_BOUNDS_NS: Final = tuple(
    round(seconds * 1e9)
    for seconds in (
        *(50e-6, 100e-6, 250e-6, 500e-6),
        *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3),
        *(1.0, 2.5, 10.0),
    )
)
"""The upper bounds of the buckets of a latency; one bucket more is for everything above."""

_CODES: Final = {int(code): code.name for code in Code}


class LatencyHistogram:
    """The number of calls in each bucket of ``LATENCY_BOUNDS_NS``, and the sum of their latencies."""

    __slots__ = ("buckets", "sum_ns")

    def __init__(self) -> None:
        self.buckets: Final = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        self.sum_ns = 0

    def add(self, latency_ns: int) -> None:
        """Count one latency."""
        self.buckets[bisect_left(LATENCY_BOUNDS_NS, latency_ns)] += 1
        self.sum_ns += latency_ns


class CallMeter:
    """The calls of this node's tasks and sessions since the first reader of the metrics.

    ``is_on`` is True while there were readers within ``METER_READER_MS``. Counts stay when it is off.
    """

    __slots__ = ("_now", "_open", "_until", "is_on", "latencies", "outcomes", "untimed")

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now: Final = now
        self.is_on = False
        self.outcomes: Final[Counter[tuple[str, str]]] = Counter()
        """The number of answered calls by kind and outcome: ``ok``, or the name of an error code."""
        self.latencies: Final[dict[str, LatencyHistogram]] = {}
        self.untimed = 0
        """The number of calls whose start was forgotten, because METER_CALLS_MAX others waited."""
        self._open: Final[dict[tuple[TaskId, int], tuple[str, int]]] = {}
        self._until = 0

    def note_reader(self) -> None:
        """Switch the meter on, or keep it on, because somebody reads the metrics."""
        self.is_on = True
        self._until = self._now() + limits.METER_READER_MS * 1_000_000

    def begin(self, task: TaskId, seq: int, kind: str) -> None:
        """Note that a call has arrived. Switch the meter off if nobody has read the metrics lately."""
        now = self._now()
        if now > self._until:
            self.is_on = False
            self._open.clear()
            return
        if len(self._open) >= limits.METER_CALLS_MAX:
            # The oldest call waits for long, or its caller has ended.
            del self._open[next(iter(self._open))]
            self.untimed += 1
        self._open[task, seq] = kind, now

    def end(self, task: TaskId, seq: int, result: AnyResult) -> None:
        """Count the answer to a call. Ignore events, which answer no call, and calls from before."""
        begun = self._open.pop((task, seq), None)
        if begun is None:
            return
        kind, since = begun
        outcome = _CODES.get(result.code, "other") if isinstance(result, Failure) else "ok"
        self.outcomes[kind, outcome] += 1
        histogram = self.latencies.get(kind)
        if histogram is None:
            histogram = self.latencies[kind] = LatencyHistogram()
        histogram.add(self._now() - since)
