"""A custom cost model: it fills the fullest machine first, so that the others stay idle.

Try it: dios sched check-model examples/own_cost_model.py
Use it: dios sched set-model examples/own_cost_model.py per_cpu=200
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.base import BaseModel, zeros
from dios.firmament.models.cost_terms import stay, stop_nobody, waiting_cost
from dios.firmament.models.protocol import ClassArcs, Options


class PackModel(BaseModel):
    """All tasks form one class, which has an arc to each machine: the more is free there, the dearer."""

    name = "pack"
    summary = "the fullest machine first; no preemption"

    def __init__(self, *, per_cpu: int = 100) -> None:
        self.per_cpu = per_cpu

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc at cost 0 from each task to class 1."""
        return Options(np.arange(len(tasks)), np.ones(len(tasks), np.int64), zeros(tasks))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return an arc from the class to each machine, for as many tasks as it has free processors."""
        machines = np.tile(state.resources.at(Level.MACHINE), len(classes))
        free = np.clip(state.available(machines)[:, 0], 0, state.resources.slots[machines])
        cost = (self.per_cpu * free).astype(np.int64)
        return ClassArcs(
            np.repeat(classes, len(machines) // max(len(classes), 1)),
            machines,
            cost,
            np.ceil(free).astype(np.int64),
        )

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a cost above that of any machine, which rises while a task waits."""
        return waiting_cost(state, tasks, 10, 10**6)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a cost at which no task is stopped."""
        return stop_nobody(tasks)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return a cost at which no task is moved."""
        return stay(tasks)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the free processors of the machine in words."""
        return f"{state.available(np.array([resource]))[0, 0]:g} processors are free there"
