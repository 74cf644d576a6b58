"""The tasks that the node ends at a time: those that have to leave it, and those with a bound of their time.

``dios.core.calls.moves`` asks and ends them.
"""

from __future__ import annotations

import heapq

from dios import limits
from dios.ids import TaskId


class MoveTable:
    """The tasks that have to end by a time, and when the node ends those that have not ended."""

    __slots__ = ("_due", "_moments")

    def __init__(self) -> None:
        self._due: dict[TaskId, int] = {}
        self._moments: list[tuple[int, TaskId]] = []

    def add(self, task: TaskId, due_ns: int) -> None:
        """Add a task that has to end before ``due_ns``. One that has to end earlier stays as it is."""
        if self._due.get(task, due_ns) < due_ns:
            return
        self._due[task] = due_ns
        heapq.heappush(self._moments, (due_ns, task))
        if len(self._moments) > 2 * len(self._due) + limits.STALE_TIMERS_MAX:
            self._moments = [entry for entry in self._moments if self._is_due(*entry)]
            heapq.heapify(self._moments)

    def forget(self, task: TaskId) -> None:
        """Remove a task, which is ending; one that has to end at no time is ignored."""
        self._due.pop(task, None)

    def _is_due(self, due_ns: int, task: TaskId) -> bool:
        """Return True unless the task has ended, or has to end earlier."""
        return self._due.get(task) == due_ns

    def next(self) -> int | None:
        """Return the time at which the next task is ended, or None."""
        while self._moments and not self._is_due(*self._moments[0]):
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def take_due(self, now: int) -> TaskId | None:
        """Remove and return a task whose time is over, or return None."""
        moment = self.next()
        if moment is None or moment > now:
            return None
        _, task = heapq.heappop(self._moments)
        del self._due[task]
        return task
