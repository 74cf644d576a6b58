"""What models that care for data have in common: whose options changed, and which arcs are worth having.

For: inheriting from (Quincy, delay scheduling, KMN, Apollo). Not for: sums of bytes (``locality``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import BadModelError, not_negative
from dios.firmament.models.locality import Holdings, Mentions, holdings, largest
from dios.firmament.models.protocol import Options


class DataCosts(NamedTuple):
    """What a model asks for its tasks' data; see ``Holdings`` for the shapes."""

    machine: Ints
    """One for each pair of task and machine."""
    rack: Ints
    """One for each pair of task and rack."""
    worst: Ints
    """One for each task: anywhere."""


class DataModel(BaseModel, ABC):
    """Preference arcs to the machines and racks that hold enough of a task's input.

    Args:
        threshold: the share of a task's input that a machine or rack must hold to get an arc.
        machine_arcs: at most so many machines for each task, those that hold the most.
        rack_arcs: the same for racks.

    Raises:
        BadModelError: a value is out of range.
    """

    def __init__(self, *, threshold: float, machine_arcs: int, rack_arcs: int) -> None:
        not_negative(self.name, threshold=threshold, machine_arcs=machine_arcs, rack_arcs=rack_arcs)
        if threshold > 1:
            raise BadModelError(f"model {self.name}: threshold is {threshold}; it is a share, from 0 to 1")
        self.threshold = threshold
        self.machine_arcs = machine_arcs
        self.rack_arcs = rack_arcs
        self._mentions = Mentions()
        self._stale: set[int] = set()

    @abstractmethod
    def data_costs(self, state: ClusterState, found: Holdings) -> DataCosts:
        """What each place costs."""

    # Who has changed --------------------------------------------------------------------------------

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """Its copies count from now on, and its rack's worst machine may be another."""
        self._changed(state, machine)

    def remove_machine(self, state: ClusterState, machine: int) -> None:
        """Its copies are far away from now on."""
        self._changed(state, machine)

    def add_tasks(self, state: ClusterState, tasks: Ints) -> None:
        """Note where their data lies."""
        self._mentions.add(state, tasks)

    def remove_task(self, state: ClusterState, task: int) -> None:
        """Forget it."""
        self._mentions.remove(task)
        self._stale.discard(task)

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Tasks with data on or beside a machine that came or went; until they were asked about."""
        return np.array(sorted(self._stale), np.int64)

    def _changed(self, state: ClusterState, machine: int) -> None:
        if not self._mentions:
            return
        rack = int(state.resources.rack[machine])
        beside = [row for row in state.resources.children[rack] if row in state.machine_ids]
        if len(beside) <= 1:
            # A rack is new or goes: the worst place of every task may be another.
            beside = list(state.machine_ids)
        identifiers = [state.machine_ids[row] for row in {*beside, machine}]
        self.changed_tasks(self._mentions.of(identifiers))

    def changed_tasks(self, tasks: Ints) -> None:
        """Their data costs are other ones now; subclasses that keep costs extend this."""
        self._stale.update(tasks.tolist())

    # Arcs -------------------------------------------------------------------------------------------

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Machines and racks that hold enough, where that is cheaper than anywhere; and anywhere."""
        found = holdings(state, tasks)
        costs = self.data_costs(state, found)
        self._stale.difference_update(tasks.tolist())
        machines = self._enough(found, found.machine_task, found.machine_bytes, self.machine_arcs)
        machines &= costs.machine < costs.worst[found.machine_task]
        racks = self._enough(found, found.rack_task, found.rack_bytes, self.rack_arcs)
        racks &= costs.rack < costs.worst[found.rack_task]
        every = np.arange(len(tasks))
        task = np.concatenate([found.machine_task[machines], found.rack_task[racks], every])
        anywhere = np.full(len(tasks), state.cluster)
        target = np.concatenate([found.machine[machines], found.rack[racks], anywhere])
        cost = np.concatenate([costs.machine[machines], costs.rack[racks], costs.worst])
        order = np.argsort(task, kind="stable")
        return Options(task[order], target[order], cost[order])

    def _enough(self, found: Holdings, task: Ints, held: Ints, most: int) -> Flags:
        enough: Flags = (held > 0) & (held >= self.threshold * found.total[task])
        enough[enough] = largest(task[enough], held[enough], most)
        return enough
