"""``DataModel``, the base class of cost models with data locality (Quincy, delay scheduling, KMN, Apollo).

It finds the tasks whose data costs changed and chooses preference arcs. ``locality`` counts the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import BadModelError, not_negative
from dios.firmament.models.locality import Holdings, TaskDataIndex, holdings, largest
from dios.firmament.models.protocol import Options


class DataCosts(NamedTuple):
    """The costs of a model for its tasks' data; see ``Holdings`` for the shapes."""

    machine: Ints
    """The cost for each pair of task and machine."""
    rack: Ints
    """The cost for each pair of task and rack."""
    worst: Ints
    """The cost of the worst place in the cluster for each task."""


class DataModel(BaseModel, ABC):
    """Preference arcs to the machines and racks that hold enough of a task's input.

    Args:
        threshold: the share of a task's input that a machine or rack must hold to get an arc.
        machine_arcs: the most arcs to machines for each task; machines with the most input come first.
        rack_arcs: the same for racks.

    Raises:
        BadModelError: a value is out of range.
    """

    def __init__(self, *, threshold: float, machine_arcs: int, rack_arcs: int) -> None:
        not_negative(self.name, threshold=threshold, machine_arcs=machine_arcs, rack_arcs=rack_arcs)
        if threshold > 1:
            raise BadModelError(
                f"model {self.name}: threshold is {threshold}; it is a share and must be from 0 to 1"
            )
        self.threshold = threshold
        self.machine_arcs = machine_arcs
        self.rack_arcs = rack_arcs
        self._data_index = TaskDataIndex()
        self._stale: set[int] = set()

    @abstractmethod
    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return the data cost of each place in ``inputs``."""

    # Changed tasks ----------------------------------------------------------------------------------

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """Mark tasks whose input has copies on the machine or in its rack: their costs may have changed."""
        self._changed(state, machine)

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """Mark tasks whose input has copies on the machine or in its rack; its own copies are now remote."""
        self._changed(state, machine)

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """Record the machines that hold the tasks' data."""
        self._data_index.add(state, tasks)

    def remove_task(self, state: ClusterState, task: int) -> None:
        """Drop the records of a task."""
        self._data_index.remove(task)
        self._stale.discard(task)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return tasks with data on or near a machine that came or went and no new options since."""
        return np.array(sorted(self._stale), np.int64)

    def _changed(self, state: ClusterState, machine: int) -> None:
        if not self._data_index:
            return
        rack = int(state.resources.rack[machine])
        nearby = [row for row in state.resources.children[rack] if row in state.machine_ids]
        if len(nearby) <= 1:
            # A rack appears or disappears, so the worst place of every task may change.
            nearby = list(state.machine_ids)
        identifiers = [state.machine_ids[row] for row in {*nearby, machine}]
        self.changed_tasks(self._data_index.of(identifiers))

    def changed_tasks(self, tasks: Ints) -> None:
        """Mark tasks whose data costs changed. Subclasses that cache costs extend this method."""
        self._stale.update(tasks.tolist())

    # Arcs -------------------------------------------------------------------------------------------

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs to the cluster, and to machines and racks that hold enough input and cost less."""
        inputs = holdings(state, tasks)
        costs = self.data_costs(state, inputs)
        self._stale.difference_update(tasks.tolist())
        machines = self._enough(inputs, inputs.machine_task, inputs.machine_bytes, self.machine_arcs)
        machines &= costs.machine < costs.worst[inputs.machine_task]
        racks = self._enough(inputs, inputs.rack_task, inputs.rack_bytes, self.rack_arcs)
        racks &= costs.rack < costs.worst[inputs.rack_task]
        every = np.arange(len(tasks))
        task = np.concatenate([inputs.machine_task[machines], inputs.rack_task[racks], every])
        anywhere = np.full(len(tasks), state.cluster)
        target = np.concatenate([inputs.machine[machines], inputs.rack[racks], anywhere])
        cost = np.concatenate([costs.machine[machines], costs.rack[racks], costs.worst])
        order = np.argsort(task, kind="stable")
        return Options(task[order], target[order], cost[order])

    def _enough(self, inputs: Holdings, task: Ints, held: Ints, most: int) -> Flags:
        enough: Flags = (held > 0) & (held >= self.threshold * inputs.total[task])
        enough[enough] = largest(task[enough], held[enough], most)
        return enough
