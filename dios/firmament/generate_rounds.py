"""Rounds of a drawn cluster: some tasks leave, as many come, all costs drift; and a warm start so told.

Not for: simulated time or placements that follow from it (``dios.firmament.simulate``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dios.firmament.generate import WAITING_COST, Workload, rows
from dios.firmament.solvers.columns import Ints, spans
from dios.firmament.solvers.warm import WarmSolver

RUNNING_GAIN: Final = 1
"""So much cheaper a round is it to leave a running task where it is (theta of Table C.3)."""


@dataclass(frozen=True, eq=False)
class Round:
    """What changes from one round to the next; tasks are positions in the workload before.

    ``departed`` leave. Option ``index[i]`` of task ``drifted[i]`` has the new ``cost[i]``. The rows
    ``start``, ``target``, ``arrived_cost`` are those of new tasks, of jobs ``arrived_job``. ``after`` is the
    workload then: who stays, in order, and then who came.
    """

    departed: Ints
    drifted: Ints
    index: Ints
    cost: Ints
    start: Ints
    target: Ints
    arrived_cost: Ints
    arrived_job: Ints
    after: Workload


def next_round(workload: Workload, choice: Ints, rng: np.random.Generator, share: float = 0.01) -> Round:
    """A round in which ``share`` of the tasks is replaced; ``choice`` (T,) is the option that each takes now.

    Waiting becomes dearer for those who wait, and staying cheaper for those who run.
    """
    count = max(1, round(share * workload.tasks))
    departed = np.sort(rng.choice(workload.tasks, count, replace=False)).astype(np.int64)
    stays = np.ones(workload.tasks, np.bool_)
    stays[departed] = False
    drifted = np.flatnonzero(stays)
    length = np.diff(workload.start)
    waits = choice[drifted] == length[drifted] - 1
    places = workload.start[drifted] + choice[drifted]
    cost = workload.cost[places] + np.where(waits, WAITING_COST, -RUNNING_GAIN)
    costs = workload.cost.copy()
    costs[places] = cost
    job = rng.integers(0, len(workload.least), count)
    start, target, arrived = rows(workload, job, rng)
    kept = spans(workload.start[drifted], length[drifted])
    jobs = np.concatenate([workload.job[drifted], job])
    bounds = np.concatenate([[0], np.cumsum(np.concatenate([length[drifted], np.diff(start)]))])
    after = replace(
        workload,
        start=bounds.astype(np.int64),
        target=np.concatenate([workload.target[kept], target]),
        cost=np.concatenate([costs[kept], arrived]),
        job=jobs,
        most=np.bincount(jobs, minlength=len(workload.least)).astype(np.int64),
    )
    return Round(departed, drifted, choice[drifted], cost, start, target, arrived, job, after)


class WarmCluster:
    """A workload in a warm solver: ``ids`` (T,) are its tasks' ids; vertices are one higher, the sink 0."""

    def __init__(self, workload: Workload) -> None:
        self.warm: Final = WarmSolver()
        self._sink: Final = workload.sink
        self._jobs: Final = workload.cluster + 1 + np.arange(len(workload.least))
        self.warm.add_vertices(workload.sink)
        upper = workload.upper_arcs()
        arcs = self.warm.add_arcs(
            self._vertex(upper.tail), self._vertex(upper.head), upper.capacity, upper.cost
        )
        self._job_arcs: Final = arcs[np.isin(upper.tail, self._jobs)]
        self.warm.set_supply(self._jobs + 1, workload.upper_supply()[self._jobs])
        self.ids = self.warm.add_tasks(workload.start, self._vertex(workload.target), workload.cost)

    def _vertex(self, upper: Ints) -> Ints:
        return np.where(upper == self._sink, 0, upper + 1)

    def tell(self, change: Round) -> None:
        """Tell the warm solver all that changed."""
        self.warm.change_costs(self.ids[change.drifted], change.index, change.cost)
        self.warm.remove_tasks(self.ids[change.departed])
        came = self.warm.add_tasks(change.start, self._vertex(change.target), change.arrived_cost)
        self.ids = np.concatenate([self.ids[change.drifted], came])
        waiting = change.after.sizes() - change.after.least
        self.warm.change_arcs(self._job_arcs, capacity=np.maximum(waiting, 0))
        self.warm.set_supply(self._jobs + 1, change.after.upper_supply()[self._jobs])
