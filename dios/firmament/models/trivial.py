"""The trivial model: all places are equal, and running is better than waiting.

It suits clusters without special requirements, and it is the first example of how to write a model. It
ignores machines, data and load.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import not_negative, unmoved, waiting_cost
from dios.firmament.models.protocol import Options


def anywhere(state: ClusterState, tasks: Ints, cost: Ints) -> Options:
    """Return one arc T -> X for each task, with its cost (shape (n,))."""
    return Options(np.arange(len(tasks)), np.full(len(tasks), state.cluster), cost)


class TrivialModel(UnmovedModel):
    """A model that lets each task go anywhere, serves the longest waiting first and stops no task."""

    name = "trivial"
    summary = "any free slot; the longest waiting first; no preemption"

    def __init__(self, *, waiting: int = 1000, per_second: int = 10) -> None:
        not_negative(self.name, waiting=waiting, per_second=per_second)
        self.waiting = waiting
        self.per_second = per_second

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc to X at cost 0 for each task."""
        return anywhere(state, tasks, np.zeros(len(tasks), np.int64))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a cost above that of any place, which rises with each second of waiting."""
        return waiting_cost(state, tasks, self.per_second, self.waiting)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the costs of a place and of waiting."""
        if running := unmoved(state, task):
            return running
        wait = int(self.task_to_unscheduled(state, np.array([task]))[0])
        return f"every place costs 0, waiting {wait} ({self.waiting} and {self.per_second} a second)"
