"""Sparrow (Table 8.6; Ousterhout et al., SOSP 2013): probe a few machines, take the least loaded.

It suits very short tasks and many independent schedulers: each coordinator runs its own model with its own
seed, and conflicts come back as rejected placements. Only the number of tasks on a machine is considered.

Batch sampling: the probes of all waiting tasks of a job form one class of the network. The class has an arc
to each probed machine. The arc's cost rises with the number of tasks on the machine, and its capacity is the
number of probes of the machine. The solver binds tasks to probes, which is the latest possible moment. There
is no arc to X: if all machines that its job probed are full, a task waits for one of them. It is probed again
after ``patience`` seconds.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import (
    BadModelError,
    class_members,
    class_numbers,
    draws,
    not_negative,
    open_machines,
    unmoved,
    waiting_tasks,
)
from dios.firmament.models.protocol import NO_CLASS_ARCS, NO_OPTIONS, ClassArcs, Options
from dios.firmament.models.trivial import TrivialModel

LOAD = 10
"""The cost of each task that a probed machine already has."""
_JOBS = 1


class SparrowModel(TrivialModel):
    """The power of two choices, over whole batches.

    Args:
        seed: of the probes; use a different one for each scheduler.
        probes: the number of machines that are probed for each task.
        patience: the number of seconds after which a waiting task is probed again.
        waiting: the cost of waiting at once.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "sparrow"
    summary = "Sparrow: batch sampling, the least loaded of a few probed machines"

    def __init__(
        self,
        *,
        seed: int = 0,
        probes: int = 2,
        patience: float = 2.0,
        waiting: int = 100_000,
        per_second: int = 10,
    ) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, seed=seed, probes=probes, patience=patience)
        if probes == 0 or patience == 0:
            raise BadModelError("model sparrow: probes and patience must be above 0")
        self.seed = seed
        self.probes = probes
        self.patience = patience

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return no arcs: tasks have only the arcs to their jobs' classes."""
        return NO_OPTIONS

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc T -> its job's class for each task."""
        jobs = class_numbers(_JOBS, state.tasks.job[tasks])
        return Options(np.arange(len(tasks)), jobs, np.zeros(len(tasks), np.int64))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return the probes of each job's waiting tasks; a machine probed twice may take two tasks."""
        machines = open_machines(state)
        waiting = waiting_tasks(state)
        waiting = waiting[np.isin(state.tasks.job[waiting], class_members(classes))]
        if len(machines) == 0 or len(waiting) == 0:
            return NO_CLASS_ARCS
        again = state.tasks.waiting_time(waiting, state.now) // self.patience
        key = state.tasks.id[waiting] + again.astype(np.int64) * (2**40 + 1)
        probed = machines[draws(self.seed, key, self.probes, len(machines))]
        jobs = np.repeat(state.tasks.job[waiting], self.probes)
        width = len(state.resources.alive)
        pairs, times = np.unique(jobs * width + probed.ravel(), return_counts=True)
        target = pairs % width
        cost = LOAD * state.resources.running[target]
        return ClassArcs(class_numbers(_JOBS, pairs // width), target, cost, times.astype(np.int64))

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the number of tasks on the probed machine, and its cost."""
        if stays := unmoved(state, task):
            return stays
        running = int(state.resources.running[resource])
        return f"one of {self.probes} probes for each task; {running} tasks there cost {LOAD * running}"
