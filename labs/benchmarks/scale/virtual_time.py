"""The virtual time of a simulation as trio's clock, so that a real coordinator runs inside the simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, TypeVar

import trio
import trio.testing

from labs.sim.event_queue import EventQueue

T = TypeVar("T")
_NEVER_S: Final = 1e9


class VirtualClock(trio.abc.Clock):
    """A clock that shows the time of an event queue."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue: Final = queue

    def start_clock(self) -> None:
        """Do nothing, because the queue has a time already."""

    def current_time(self) -> float:
        """Return the virtual time in seconds."""
        return self._queue.now / 1e9

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return 0 for a deadline that has passed, and otherwise a long time: the driver moves the clock."""
        return 0.0 if deadline <= self.current_time() else _NEVER_S


class Driver:
    """Runs the events of a queue, and trio's tasks whenever one of them may go on.

    ``woken`` is set by whoever wakes a task. ``busy_ns`` is the processor time that the tasks took.
    """

    def __init__(self, queue: EventQueue) -> None:
        self._queue: Final = queue
        self.woken = True
        self.busy_ns = 0

    async def run(self, span_ns: int, until: Callable[[], bool] = lambda: False) -> None:
        """Advance the virtual time, at the most by ``span_ns``, and stop when ``until`` is true."""
        queue = self._queue
        end = queue.now + span_ns
        deadline = await self._run_tasks()
        while True:
            if self.woken or deadline <= queue.now:
                deadline = await self._run_tasks()
                if until():
                    return
                continue
            at = queue.next_at()
            due = min(end, deadline, end if at is None else at)
            if at is not None and at <= due:
                queue.run_next()
            elif due >= end:
                queue.now = end
                return
            else:
                queue.now = due

    async def _run_tasks(self) -> int:
        """Let all tasks go on until they wait; return the time of their next deadline in nanoseconds."""
        began = time.process_time_ns()
        self.woken = False
        await trio.testing.wait_all_tasks_blocked()
        self.busy_ns += time.process_time_ns() - began
        seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if math.isinf(seconds) or seconds > _NEVER_S:
            return self._queue.now + int(_NEVER_S * 1e9)
        # At least a nanosecond, so that a deadline that is rounded down is not met again and again.
        return self._queue.now + max(1, math.ceil(seconds * 1e9))
