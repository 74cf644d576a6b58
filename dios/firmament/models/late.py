"""LATE (Table 8.6; Zaharia et al., OSDI 2008): copies of the tasks that will end last, on fast machines.

For: jobs whose slowest task decides. Not for: making the copies; a model cannot submit tasks.

How speculation is modelled: whoever runs the job tells how far its tasks are (:meth:`LateModel.progressed`),
asks whom to copy (:meth:`LateModel.candidates`), submits the copy as a task of the job, and says of what it
is one (:meth:`LateModel.copied`). In the network a copy has preference arcs to fast machines alone, none to
the machine of its original and none to X; its v is small, so that every ordinary task goes before it.
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
"""The cost of a fast machine for a copy; below it stands nothing but ordinary tasks' 0."""
COPY_WAITING = 500
"""What waiting costs a copy: more than COPY, less than any ordinary task's waiting."""


class SpeculationCandidate(NamedTuple):
    """A task that is worth a copy."""

    task: int
    """Row of the task."""
    left: float
    """Seconds until its end, as its progress so far tells."""


class LateModel(TrivialModel):
    """Longest approximate time to end.

    Args:
        slow_task: a task is slow whose rate is below this quantile of its job.
        slow_node: a machine is slow whose tasks' mean relative rate is below this quantile of all machines.
        cap: running and waiting copies are at most this share of the cluster's slots.
        minimum_run: a task is judged after so many seconds.
        arcs: the most arcs for each copy.
        waiting: what waiting costs an ordinary task at once; above 500.
        per_second: and for each second.

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
            raise BadModelError("model late: slow_task, slow_node and cap are shares, from 0 to 1")
        if waiting <= COPY_WAITING:
            raise BadModelError(f"model late: waiting is {waiting}; it must be above {COPY_WAITING}")
        self.slow_task, self.slow_node, self.cap = slow_task, slow_node, cap
        self.minimum_run = minimum_run
        self.arcs = arcs
        self._progress: dict[int, float] = {}
        self._original: dict[int, int] = {}

    def progressed(self, task: int, share: float) -> None:
        """A running task (identifier) has done ``share`` (0 to 1) of its work."""
        if not 0 <= share <= 1:
            raise BadModelError(f"model late: progress of task {task} is {share}; it is a share, from 0 to 1")
        self._progress[task] = share

    def copied(self, copy: int, original: int) -> None:
        """A task (identifier) that is or will be submitted is a copy of another one."""
        self._original[copy] = original

    def begin(self, state: ClusterState) -> None:
        """What was told of tasks that there are not, and are not copied, is forgotten."""
        known = state.tasks
        self._progress = {task: share for task, share in self._progress.items() if task in known}
        self._original = {
            copy: original for copy, original in self._original.items() if copy in known or original in known
        }

    def remove_task(self, state: ClusterState, task: int) -> None:
        """Forget how far it was and what it was a copy of."""
        self._progress.pop(int(state.tasks.id[task]), None)
        self._original.pop(int(state.tasks.id[task]), None)

    def candidates(self, state: ClusterState) -> list[SpeculationCandidate]:
        """Whom to copy now, the most urgent first; no more than the cap leaves room for."""
        room = int(self.cap * state.resources.slots[state.cluster]) - len(self._original)
        tasks, rates = self._rates(state)
        tried = set(self._original.values())
        found: list[SpeculationCandidate] = []
        for job in np.unique(state.tasks.job[tasks]).tolist():
            mine = np.flatnonzero(state.tasks.job[tasks] == job)
            slow = np.quantile(rates[mine], self.slow_task)
            for at in mine[rates[mine] < slow].tolist():
                identifier = int(state.tasks.id[tasks[at]])
                if identifier not in tried and identifier not in self._original:
                    left = (1 - self._progress[identifier]) / max(float(rates[at]), 1e-9)
                    found.append(SpeculationCandidate(int(tasks[at]), left))
        return sorted(found, key=lambda each: (-each.left, each.task))[: max(room, 0)]

    def _rates(self, state: ClusterState) -> tuple[Ints, Floats]:
        """Tasks that ran long enough and told how far they are, and their progress for each second."""
        running = running_tasks(state)
        ran = state.now - state.tasks.since[running]
        told = [int(each) in self._progress for each in state.tasks.id[running]]
        judged = np.array(told, np.bool_) & (ran >= max(self.minimum_run, 1e-9))
        tasks = running[judged]
        done = np.array([self._progress[int(each)] for each in state.tasks.id[tasks]], np.float64)
        return tasks, done / ran[judged]

    def fast_machines(self, state: ClusterState) -> Ints:
        """Rows of the machines that are not slow; one of which nothing is known is not."""
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

    def _is_copy(self, state: ClusterState, tasks: Ints) -> Ints:
        if not self._original:
            return np.zeros(0, np.int64)
        return np.flatnonzero([int(each) in self._original for each in state.tasks.id[tasks]])

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Copies that wait: which machines are fast and have room changes."""
        waiting = waiting_tasks(state)
        return waiting[self._is_copy(state, waiting)]

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """X for ordinary tasks; fast machines with room for copies."""
        copies = self._is_copy(state, tasks)
        ordinary = np.setdiff1d(np.arange(len(tasks)), copies)
        task, target = [ordinary], [np.full(len(ordinary), state.cluster)]
        fast = roomy(state, self.fast_machines(state)) if len(copies) else np.zeros(0, np.int64)
        for at in copies.tolist():
            original = state.tasks.find(self._original[int(state.tasks.id[tasks[at]])])
            away = fast[fast != state.tasks.machine[original]] if original != ABSENT else fast
            task.append(np.full(len(away[: self.arcs]), at))
            target.append(away[: self.arcs])
        joined, targets = np.concatenate(task), np.concatenate(target)
        order = np.argsort(joined, kind="stable")
        cost = np.where(targets == state.cluster, 0, COPY)
        return Options(joined[order], targets[order], cost[order])

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Little for copies, whatever they waited."""
        cost = super().task_to_unscheduled(state, tasks)
        cost[self._is_copy(state, tasks)] = COPY_WAITING
        return cost

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Whether it is a copy, and of what."""
        original = self._original.get(int(state.tasks.id[task]))
        if original is None:
            return super().explain(state, task, resource)
        costs = unmoved(state, task) or f"a fast machine costs {COPY}, waiting {COPY_WAITING}"
        return f"a copy of task {original}; {costs}"
