"""The trivial model: everywhere is as good, and running is better than waiting.

For: clusters without special wishes, and the first example of how a model is written.
Not for: anything that looks at machines, data or load.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import not_negative, stay, stop_nobody, unmoved, waiting_cost
from dios.firmament.models.protocol import Options


def anywhere(state: ClusterState, tasks: Ints, cost: Ints) -> Options:
    """One arc T -> X for each task, with its cost (shape (n,))."""
    return Options(np.arange(len(tasks)), np.full(len(tasks), state.cluster), cost)


class TrivialModel(BaseModel):
    """All tasks may go anywhere; who has waited longest goes first; nobody is stopped for another."""

    name = "trivial"
    summary = "any free slot; the longest waiting first; no preemption"

    def __init__(self, *, waiting: int = 1000, per_second: int = 10) -> None:
        not_negative(self.name, waiting=waiting, per_second=per_second)
        self.waiting = waiting
        self.per_second = per_second

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Anywhere, for nothing."""
        return anywhere(state, tasks, np.zeros(len(tasks), np.int64))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Dearer than any place, and dearer each second."""
        return waiting_cost(state, tasks, self.per_second, self.waiting)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Dearer than any waiting."""
        return stop_nobody(tasks)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Nobody moves."""
        return stay(tasks)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """The two costs."""
        if running := unmoved(state, task):
            return running
        wait = int(self.task_to_unscheduled(state, np.array([task]))[0])
        return f"every place costs 0, waiting {wait} ({self.waiting} and {self.per_second} a second)"
