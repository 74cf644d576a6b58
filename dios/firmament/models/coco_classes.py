"""The task equivalence classes of CoCo: tasks that ask for the same and disturb alike (§7.3.1).

For: the CoCo model. Not for: the profile's classes, which are names that users give. Tasks of several jobs
share a class where nothing that the model looks at tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.coco_vectors import priority_dimension
from dios.firmament.models.cost_terms import waiting_tasks


@dataclass(slots=True)
class TaskClass:
    """What all tasks of a class have in common, and how many of them wait."""

    number: int
    demand: Floats
    """Shape (DIMENSIONS,)."""
    kind: int
    rank: int
    """The priority dimension; the lower the more important."""
    interference: int
    waiting: int = 0
    longest: float = 0.0
    """Seconds that the longest waiting of them has waited."""


class TaskClasses:
    """Which class each task is of; classes come with their first task and go with their last."""

    def __init__(self) -> None:
        self.of_task: Ints = np.zeros(0, np.int64)
        """By row of the table of tasks; good for rows whose identifier is in ``_known``."""
        self._known: Ints = np.zeros(0, np.int64)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._classes: dict[int, tuple[tuple[object, ...], TaskClass]] = {}
        self._next = 0

    def find(self, number: int) -> TaskClass | None:
        """A class by its number, if it is there."""
        found = self._classes.get(number)
        return None if found is None else found[1]

    def refresh(self, state: ClusterState) -> None:
        """Take in new tasks, forget empty classes, and count who waits."""
        tasks = state.tasks
        self._grow(len(tasks.id))
        rows = tasks.all()
        # A row may hold another task than the last time; identifiers do not come again.
        self.assign(state, rows[self._known[rows] != tasks.id[rows]])
        for gone in set(self._classes) - set(np.unique(self.of_task[rows]).tolist()):
            key, _ = self._classes.pop(gone)
            del self._numbers[key]
        for _, each in self._classes.values():
            each.waiting, each.longest = 0, 0.0
        waiting = waiting_tasks(state)
        numbers, at, counts = np.unique(self.of_task[waiting], return_inverse=True, return_counts=True)
        longest = np.zeros(len(numbers))
        np.maximum.at(longest, at, tasks.waiting_time(waiting, state.now))
        for number, count, seconds in zip(numbers, counts, longest, strict=True):
            one = self._classes[int(number)][1]
            one.waiting, one.longest = int(count), float(seconds)

    def assign(self, state: ClusterState, rows: Ints) -> None:
        """Find or make the classes of tasks, in one step for all that are alike."""
        if not len(rows):
            return
        tasks = state.tasks
        self._grow(len(tasks.id))
        kinds = state.jobs.kind[tasks.job[rows]]
        ranks = priority_dimension(kinds, tasks.priority[rows])
        whole = [kinds, ranks, tasks.interference[rows]]
        table = np.column_stack([*whole, tasks.demand[rows]])
        alike, first, at = np.unique(table, axis=0, return_index=True, return_inverse=True)
        numbers = np.array(
            [
                self._number(tuple(key.tolist()), tasks.demand[rows[one]], *(int(c[one]) for c in whole))
                for key, one in zip(alike, first, strict=True)
            ]
        )
        self.of_task[rows] = numbers[at.reshape(-1)]
        self._known[rows] = tasks.id[rows]

    def _number(self, key: tuple[object, ...], demand: Floats, kind: int, rank: int, mild: int) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._next
            self._next += 1
            self._classes[found] = (key, TaskClass(found, demand.copy(), kind, rank, mild))
        return found

    def _grow(self, length: int) -> None:
        missing = length - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, np.full(missing, ABSENT, np.int64)])
            self.of_task = np.concatenate([self.of_task, np.full(missing, ABSENT, np.int64)])
