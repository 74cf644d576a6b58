"""Random first fit: the baseline of §8.2, a scheduler that puts each task on a random machine with room.

It serves comparisons only. The scheduler of the thesis was a queue. As a cost model it draws a few machines
with room for each waiting task and makes the first one the cheapest, so that the solver decides only which
task gets the last slot.
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
    """A random machine with room; no preemption, no migration; waiting costs as in the trivial model."""

    name = "random-fit"
    summary = "random first fit, the baseline of the thesis' experiments (section 8.2)"

    def __init__(self, *, seed: int = 0, choices: int = 4, waiting: int = 1000, per_second: int = 10) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, seed=seed, choices=choices)
        self.seed = seed
        self.choices = choices

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the waiting tasks: the machines with room change in every round."""
        return waiting_tasks(state)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return the drawn machines at costs 0, 1, 2, ..., and X at a higher cost in case they fill up."""
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
        """Return the seed and the cost of waiting; a random place has no other reason."""
        if running := unmoved(state, task):
            return f"drawn at random when it was placed; {running}"
        wait = int(self.task_to_unscheduled(state, np.array([task]))[0])
        return f"drawn at random from the machines with room (seed {self.seed}); waiting costs {wait}"


def _drawn_before(drawn: Ints) -> Flags:
    """Return True where a value occurs earlier in its row; the same shape."""
    again = np.zeros(drawn.shape, np.bool_)
    for at in range(1, drawn.shape[1]):
        again[:, at] = np.any(drawn[:, :at] == drawn[:, at : at + 1], axis=1)
    return again
