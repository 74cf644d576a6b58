"""Bistro (Table 8.6; Goder et al., ATC 2015): batch work on the machines that hold the data, within limits.

It suits batch jobs over the data of live production machines. A task runs only where its data are. Each
machine has a limit, here a share of its slots, so that production keeps the rest. Jobs take turns: the next
slot goes to the job with the fewest tasks.

Bistro's resource forest has limits at each level. The arc of a task to the machine with its data passes no
rack, so a limit of racks cannot be expressed. Volumes of a machine are not modelled.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import (
    class_members,
    class_numbers,
    not_negative,
    unmoved,
    waiting_tasks,
)
from dios.firmament.models.data_model import DataCosts, DataModel
from dios.firmament.models.locality import Holdings, holdings
from dios.firmament.models.protocol import ClassArcs, Options

_AT = 1
"""The kind of class of the tasks with data on a machine."""
_TURN = 1_000_000
"""The advantage of the first task of a job over the later ones."""


class BistroModel(UnmovedModel, DataModel):
    """Tasks at their data, turns between jobs, and limits of machines.

    Args:
        machine_share: the share of each machine's slots that may be in use; running tasks always stay.
        machine_arcs: the most machines with its data that a task may go to.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "bistro"
    summary = "Bistro: batch tasks only at their data, within limits of machines, by turns"

    def __init__(self, *, machine_share: float = 1.0, machine_arcs: int = 7) -> None:
        super().__init__(threshold=0.0, machine_arcs=machine_arcs, rack_arcs=0)
        not_negative(self.name, 1, machine_share=machine_share)
        self.machine_share = machine_share
        self._turns: Ints = np.zeros(0, np.int64)

    def begin(self, state: ClusterState) -> None:
        """Number the waiting tasks of each job, after its running ones."""
        waiting = waiting_tasks(state)
        job = state.tasks.job[waiting]
        order = np.lexsort((waiting, state.tasks.submitted[waiting], job))
        ranks = np.arange(len(order)) - np.searchsorted(job[order], job[order])
        self._turns = np.zeros(len(state.tasks.alive), np.int64)
        self._turns[waiting[order]] = ranks + state.jobs.running[job[order]]

    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return 0 at the data; ``task_options`` removes all other places."""
        machine, rack = np.zeros_like(inputs.machine), np.zeros_like(inputs.rack)
        return DataCosts(machine, rack, np.where(inputs.total > 0, 1, 0))

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc to X for each task without data."""
        options = super().task_options(state, tasks)
        keep = (options.target == state.cluster) & (options.cost == 0)
        return Options(*(column[keep] for column in options))

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs to the classes of the machines with a task's data."""
        options = super().task_options(state, tasks)
        keep = options.target != state.cluster
        task, target, cost = (column[keep] for column in options)
        return Options(task, class_numbers(_AT, target), cost)

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return an arc from the class of each machine to the machine, for as many tasks as may come."""
        machines = class_members(classes)
        here = state.resources.alive[machines] & state.resources.usable[machines]
        classes, machines = classes[here], machines[here]
        room = self._limit(state, machines) - state.resources.running[machines]
        return ClassArcs(classes, machines, np.zeros(len(machines), np.int64), np.maximum(room, 0))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return more than any place costs, and the more the fewer tasks of the job run or come before."""
        missing = max(len(state.tasks.alive) - len(self._turns), 0)
        turns = np.concatenate([self._turns, np.zeros(missing, np.int64)])
        return 1_000 + _TURN // (1 + turns[tasks])

    def resource_capacity(self, state: ClusterState, parents: Ints, children: Ints) -> Ints:
        """Return the limit of each machine, at least the tasks that run there."""
        table = state.resources
        limit = np.maximum(self._limit(state, children), table.running[children])
        slots = table.slots[children]
        return np.where(table.level[children] == Level.MACHINE, np.minimum(limit, slots), slots)

    def _limit(self, state: ClusterState, machines: Ints) -> Ints:
        most: Ints = np.floor(self.machine_share * state.resources.slots[machines]).astype(np.int64)
        return most

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return if the task's data are there, and its turn."""
        if running := unmoved(state, task):
            return running
        inputs = holdings(state, np.array([task]))
        turn = int(self._turns[task]) if task < len(self._turns) else 0
        before = f"{turn} tasks of its job run or come before it"
        if not inputs.total[0]:
            return f"it has no data, so it may go anywhere; {before}"
        here = "are" if resource in inputs.machine[inputs.machine_bytes > 0].tolist() else "are not"
        return f"its data {here} there; {before}"
