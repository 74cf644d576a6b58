"""Random first fit: the baseline of §8.2, a scheduler that puts each task on some machine with room.

For: comparisons. The thesis ran it as a queue; as a cost model it draws a few machines with room for
each waiting task and makes the first drawn the cheapest, so that the solver only settles who gets the
last slot. Not for: use.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.cost_terms import draws, not_negative, roomy, unmoved, waiting_tasks
from dios.firmament.models.protocol import Options
from dios.firmament.models.trivial import TrivialModel


class RandomFitModel(TrivialModel):
    """A random machine that has room; no preemption, no migration; waiting as in the trivial model."""

    name = "random-fit"
    summary = "random first fit, the baseline of the thesis' experiments (section 8.2)"

    def __init__(self, *, seed: int = 0, choices: int = 4, waiting: int = 1000, per_second: int = 10) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, seed=seed, choices=choices)
        self.seed = seed
        self.choices = choices

    def stale_tasks(self, state: ClusterState) -> Ints:
        """All that wait: which machines have room changes with every round."""
        return waiting_tasks(state)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """The machines drawn at 0, 1, 2, ...; anywhere at the end, for when all of those filled up."""
        every = np.arange(len(tasks))
        parts = [(every, np.full(len(tasks), state.cluster), np.full(len(tasks), self.choices))]
        machines = roomy(state, state.resources.at(Level.MACHINE))
        free = state.available(machines)
        demands, which = np.unique(state.tasks.demand[tasks], axis=0, return_inverse=True)
        for number, demand in enumerate(demands if self.choices else demands[:0]):
            fitting = machines[np.all(free >= demand, axis=1)]
            alike = np.flatnonzero(which.ravel() == number)
            if len(fitting):
                drawn = fitting[draws(self.seed, state.tasks.id[tasks[alike]], self.choices, len(fitting))]
                at, rank = np.nonzero(~_drawn_before(drawn))
                parts.append((alike[at], drawn[at, rank], rank))
        task, target, cost = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((cost, task))
        return Options(task[order], target[order], cost[order])

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """That there is no reason."""
        if running := unmoved(state, task):
            return f"drawn at random when it was placed; {running}"
        wait = int(self.task_to_unscheduled(state, np.array([task]))[0])
        return f"drawn at random from the machines with room (seed {self.seed}); waiting costs {wait}"


def _drawn_before(drawn: Ints) -> Flags:
    """Where a row of draws repeats itself; the same shape."""
    again = np.zeros(drawn.shape, np.bool_)
    for at in range(1, drawn.shape[1]):
        again[:, at] = np.any(drawn[:, :at] == drawn[:, at : at + 1], axis=1)
    return again
