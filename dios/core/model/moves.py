"""The tasks that have to leave the node, ordered by the ends of their grace periods.

``dios.core.calls.moves`` asks and ends them.
"""

from __future__ import annotations

import heapq

from dios import limits
from dios.ids import TaskId


class MoveTable:
    """The tasks that have to leave, and when the node ends those that have not left."""

    __slots__ = ("_due", "_moments")

    def __init__(self) -> None:
        self._due: dict[TaskId, int] = {}
        self._moments: list[tuple[int, TaskId]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add(self, task: TaskId, due_ns: int) -> None:
        """Add a task that has to leave before ``due_ns``."""
        self._due[task] = due_ns
        heapq.heappush(self._moments, (due_ns, task))
        if len(self._moments) > 2 * len(self._due) + limits.STALE_TIMERS_MAX:
            self._moments = [entry for entry in self._moments if entry[1] in self._due]
            heapq.heapify(self._moments)

    def forget(self, task: TaskId) -> None:
        """Remove a task, which is ending; one that was not asked to leave is ignored."""
        self._due.pop(task, None)

    def next(self) -> int | None:
        """Return the time at which the next task is ended, or None."""
        while self._moments and self._moments[0][1] not in self._due:
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
