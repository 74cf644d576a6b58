"""The options of tasks by the cost model's last answers, as rows in one pool.

``task_rows`` makes the rows of a round from them, with constraints, hysteresis and the arcs that every task
has.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints


def ranges(start: Ints, count: Ints) -> Ints:
    """Return the numbers start[i] .. start[i] + count[i] - 1 for all i, one range after the other."""
    total = int(count.sum())
    ends = np.cumsum(count)
    return np.repeat(start - (ends - count), count) + np.arange(total)


class OptionPool:
    """Rows of (target vertex, cost) by task row; a row is replaced as a whole."""

    def __init__(self) -> None:
        self.start: Ints = np.zeros(16, np.int64)
        self.count: Ints = np.zeros(16, np.int64)
        self.target: Ints = np.zeros(64, np.int64)
        self.cost: Ints = np.zeros(64, np.int64)
        self._used = 0

    def replace(self, tasks: Ints, count: Ints, target: Ints, cost: Ints) -> None:
        """Set the options of distinct tasks, in their order: ``count[i]`` entries for the i-th."""
        if not len(tasks):
            return
        self._make_room(int(tasks.max()), len(target))
        self.count[tasks] = count
        self.start[tasks] = self._used + np.cumsum(count) - count
        self.target[self._used : self._used + len(target)] = target
        self.cost[self._used : self._used + len(target)] = cost
        self._used += len(target)

    def forget(self, task: int) -> None:
        """Drop the options of a task."""
        if task < len(self.count):
            self.count[task] = 0

    def gather(self, tasks: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the options of tasks: index within ``tasks`` (ascending), target vertex, cost."""
        if len(tasks) and int(tasks.max()) >= len(self.count):
            self._make_room(int(tasks.max()), 0)
        count = self.count[tasks]
        at = ranges(self.start[tasks], count)
        return np.repeat(np.arange(len(tasks)), count), self.target[at], self.cost[at]

    def targets(self) -> Ints:
        """Return every vertex that an option leads to, once."""
        rows = np.flatnonzero(self.count)
        return np.unique(self.gather(rows)[1])

    def remove_targets(self, gone: Flags) -> Ints:
        """Remove the options that lead to flagged vertices; return the task rows that lost some."""
        rows = np.flatnonzero(self.count)
        at, target, cost = self.gather(rows)
        lost = gone[target]
        if not lost.any():
            return np.zeros(0, np.int64)
        hit = np.zeros(len(rows), np.bool_)
        hit[at[lost]] = True
        keep = ~lost & hit[at]
        self.replace(rows[hit], np.bincount(at[keep], minlength=len(rows))[hit], target[keep], cost[keep])
        return rows[hit]

    def _make_room(self, row: int, entries: int) -> None:
        if row >= len(self.count):
            more = max(len(self.count), row + 1 - len(self.count))
            self.start = np.concatenate([self.start, np.zeros(more, np.int64)])
            self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
        if self._used + entries <= len(self.target):
            return
        # Entries without references go now, so that the pool stays within twice the size in use.
        rows = np.flatnonzero(self.count)
        _, target, cost = self.gather(rows)
        self.start[rows] = np.cumsum(self.count[rows]) - self.count[rows]
        self._used = len(target)
        size = max(64, 2 * (self._used + entries))
        self.target = np.zeros(size, np.int64)
        self.cost = np.zeros(size, np.int64)
        self.target[: self._used], self.cost[: self._used] = target, cost
