"""LATE (Table 8.6; Zaharia et al., OSDI 2008): copies of the tasks that will end last, on fast machines.

It suits jobs whose slowest task decides their length. Tasks report their progress. A model cannot submit
tasks, so the program that runs the job asks which tasks to copy (:meth:`LateModel.candidates`), and submits
each copy as a task of the job that names its original (``TaskDescriptor.copy_of``).

In the network a copy has preference arcs to fast machines only. It has no arc to the machine of its original
or to X. Its cost of waiting (v) is low, so that every ordinary task goes before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.cost_terms import (
    BadModelError,
    not_negative,
    roomy,
    running_tasks,
    unmoved,
    waiting_tasks,
)
from dios.firmament.models.protocol import Options
from dios.firmament.models.trivial import TrivialModel

COPY = 200
"""The cost of a fast machine for a copy; every place costs an ordinary task 0."""
COPY_WAITING = 500
"""The cost of waiting of a copy: more than COPY, less than that of any ordinary task."""


class SpeculationCandidate(NamedTuple):
    """A task that is worth a copy."""

    task: int
    """Row of the task."""
    left: float
    """The seconds until its end at its average rate of progress so far."""


class LateModel(TrivialModel):
    """The model of the longest approximate time to end.

    Args:
        slow_task: a task is slow if its rate is below this quantile of its job.
        slow_node: a machine is slow if its tasks' mean relative rate is below this quantile of all machines.
        cap: the largest number of running and waiting copies, as a share of the cluster's slots.
        minimum_run: the number of seconds after which a task is judged.
        arcs: the largest number of arcs of each copy.
        waiting: the cost of waiting of an ordinary task at once; above 500.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "late"
    summary = "LATE: speculative copies of the tasks that would end last, on fast machines"

    def __init__(
        self,
        *,
        slow_task: float = 0.25,
        slow_node: float = 0.25,
        cap: float = 0.1,
        minimum_run: float = 60.0,
        arcs: int = 16,
        waiting: int = 1000,
        per_second: int = 10,
    ) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(
            self.name, slow_task=slow_task, slow_node=slow_node, cap=cap, minimum_run=minimum_run, arcs=arcs
        )
        if max(slow_task, slow_node, cap) > 1:
            raise BadModelError("model late: slow_task, slow_node and cap must be from 0 to 1")
        if waiting <= COPY_WAITING:
            raise BadModelError(f"model late: waiting is {waiting}; it must be above {COPY_WAITING}")
        self.slow_task, self.slow_node, self.cap = slow_task, slow_node, cap
        self.minimum_run = minimum_run
        self.arcs = arcs

    def candidates(self, state: ClusterState) -> list[SpeculationCandidate]:
        """Return the tasks to copy now, the one with the longest time to end first, within the cap.

        A copy is never copied, and no task has two copies at a time.
        """
        table = state.tasks
        known = table.all()
        copied = table.copy_of[known[table.copy_of[known] != ABSENT]]
        room = int(self.cap * state.resources.slots[state.cluster]) - len(copied)
        if room <= 0:
            return []
        tasks, rates = self._rates(state)
        eligible = (table.copy_of[tasks] == ABSENT) & ~np.isin(table.id[tasks], copied)
        candidates: list[SpeculationCandidate] = []
        for job in np.unique(table.job[tasks]).tolist():
            mine = np.flatnonzero(table.job[tasks] == job)
            slow = np.quantile(rates[mine], self.slow_task)
            for at in mine[(rates[mine] < slow) & eligible[mine]].tolist():
                left = (1 - float(table.progress[tasks[at]])) / max(float(rates[at]), 1e-9)
                candidates.append(SpeculationCandidate(int(tasks[at]), left))
        return sorted(candidates, key=lambda candidate: (-candidate.left, candidate.task))[:room]

    def _rates(self, state: ClusterState) -> tuple[Ints, Floats]:
        """Return the tasks that ran long enough and have a progress, and their progress per second."""
        running = running_tasks(state)
        ran = state.now - state.tasks.since[running]
        done = state.tasks.progress[running]
        judged = ~np.isnan(done) & (ran >= max(self.minimum_run, 1e-9))
        return running[judged], done[judged] / ran[judged]

    def fast_machines(self, state: ClusterState) -> Ints:
        """Return the rows of the machines that are not slow; a machine without judged tasks is not slow."""
        machines = state.resources.at(Level.MACHINE)
        tasks, rates = self._rates(state)
        jobs = state.tasks.job[tasks]
        totals = np.bincount(jobs, rates, minlength=1) / np.maximum(np.bincount(jobs, minlength=1), 1)
        relative = rates / np.maximum(totals[jobs], 1e-9)
        at = state.tasks.machine[tasks]
        size = len(state.resources.alive)
        counts = np.bincount(at, minlength=size)[machines]
        speed = np.bincount(at, relative, minlength=size)[machines] / np.maximum(counts, 1)
        if not counts.any():
            return machines
        bound = np.quantile(speed[counts > 0], self.slow_node)
        fast: Flags = (counts == 0) | (speed >= bound)
        return machines[fast]

    # Costs ------------------------------------------------------------------------------------------

    @staticmethod
    def _is_copy(state: ClusterState, tasks: Ints) -> Ints:
        return np.flatnonzero(state.tasks.copy_of[tasks] != ABSENT)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the waiting copies: the fast machines with room change."""
        waiting = waiting_tasks(state)
        return waiting[self._is_copy(state, waiting)]

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return X for ordinary tasks, and fast machines with room for copies."""
        copies = self._is_copy(state, tasks)
        ordinary = np.setdiff1d(np.arange(len(tasks)), copies)
        task, target = [ordinary], [np.full(len(ordinary), state.cluster)]
        fast = roomy(state, self.fast_machines(state)) if len(copies) else np.zeros(0, np.int64)
        for at in copies.tolist():
            original = state.tasks.find(int(state.tasks.copy_of[tasks[at]]))
            away = fast[fast != state.tasks.machine[original]] if original != ABSENT else fast
            task.append(np.full(len(away[: self.arcs]), at))
            target.append(away[: self.arcs])
        joined, targets = np.concatenate(task), np.concatenate(target)
        order = np.argsort(joined, kind="stable")
        cost = np.where(targets == state.cluster, 0, COPY)
        return Options(joined[order], targets[order], cost[order])

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a low constant for copies, and the trivial model's cost for ordinary tasks."""
        cost = super().task_to_unscheduled(state, tasks)
        cost[self._is_copy(state, tasks)] = COPY_WAITING
        return cost

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the original and the costs of a copy, or the trivial model's text for other tasks."""
        original = int(state.tasks.copy_of[task])
        if original == ABSENT:
            return super().explain(state, task, resource)
        costs = unmoved(state, task) or f"a fast machine costs {COPY}, waiting {COPY_WAITING}"
        return f"a copy of task {original}; {costs}"
