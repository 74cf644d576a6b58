"""How much room CoCo sees on machines: what is free for services, for batch work and for the important.

For: the CoCo model. Not for: what is then looked for in it (``coco_admission``).

Service tasks fit beside what is reserved, batch tasks beside what is used (§7.3.1). Where the measured
use outgrows a machine, batch tasks are stopped again.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import DIMENSIONS, Kind, Level
from dios.firmament.models.coco_admission import PLACES, ROOM
from dios.firmament.models.cost_terms import running_tasks


class Occupancy:
    """Who runs where in this round, as columns: made once and asked for each class."""

    def __init__(self, state: ClusterState, ranks: Ints) -> None:
        """``ranks``: the priority dimension of each row of the table of tasks."""
        tasks, table = state.tasks, state.resources
        self.state = state
        self.rows: Ints = running_tasks(state)
        self.machine: Ints = tasks.machine[self.rows]
        leaf = tasks.leaf[self.rows]
        self.leaf: Ints = np.where(leaf == ABSENT, self.machine, leaf)
        self.rank: Ints = ranks[self.rows]
        self.restartable = tasks.restartable[self.rows]
        self.at_leaf: Ints = np.bincount(self.leaf, minlength=len(table.id))
        usage, demand = tasks.usage[self.rows], tasks.demand[self.rows]
        # A task that was not measured yet will use about what it asked for.
        measured: Flags = np.any(usage > 0, axis=1)
        self.usage: Floats = np.where(measured[:, None], usage, demand)
        self.used: Floats = self._by_machine(self.usage)

    def _by_machine(self, values: Floats) -> Floats:
        rows = len(self.state.resources.id)
        sums = [
            np.bincount(self.machine, weights=values[:, each], minlength=rows) for each in range(DIMENSIONS)
        ]
        return np.column_stack(sums)

    def free(self, ends: Ints, kind: int) -> Floats:
        """Room at ``ends`` (leaves or machines) for tasks of a kind, shape (rows, ROOM).

        Machines that take nothing have no room at all; a capacity of 0 is not known, and holds anything.
        """
        table = self.state.resources
        machines = table.machine[ends]
        taken = table.reserved if kind == Kind.SERVICE else self.used
        capacity = table.capacity[machines]
        room = np.zeros((len(table.id), ROOM))
        room[ends, :DIMENSIONS] = np.where(capacity > 0, capacity - taken[machines], np.inf)
        below_machine = table.level[ends] > Level.MACHINE
        running = np.where(below_machine, self.at_leaf[ends], table.running[ends])
        room[ends, PLACES] = table.slots[ends] - running
        room[ends[~table.usable[machines]]] = -np.inf
        return room

    def preemptible(self, ends: Ints, rank: int) -> Floats:
        """What the least victim of a task of ``rank`` would give back at full ends, shape (rows, ROOM).

        A task that arrives where all places are taken pushes out one that is less important, which the
        solver chooses; so much room there is at any rate. Where places are free nobody is pushed out.
        """
        table = self.state.resources
        rows = len(table.id)
        victims = self.restartable & (self.rank > rank)
        at = self.leaf if (table.level[ends] > Level.MACHINE).any() else self.machine
        least = np.full((rows, DIMENSIONS), np.inf)
        demand = self.state.tasks.demand[self.rows]
        for each in range(DIMENSIONS):
            np.minimum.at(least[:, each], at[victims], demand[victims, each])
        taken = np.where(table.is_leaf, self.at_leaf, table.running)
        full = np.zeros(rows, np.bool_)
        full[ends] = (taken[ends] >= table.slots[ends]) & table.usable[table.machine[ends]]
        full &= np.isfinite(least[:, 0])
        given = np.zeros((rows, ROOM))
        given[full, :DIMENSIONS] = least[full]
        given[full, PLACES] = 1 + np.maximum(taken[full] - table.slots[full], 0)
        return given

    def surplus(self) -> Ints:
        """Rows of batch tasks to stop because their machines are used beyond what they have (§7.3.1).

        The least important first, of those the ones that started last, and no more than it takes.
        """
        table, tasks = self.state.resources, self.state.tasks
        machines = table.at(Level.MACHINE)
        capacity = table.capacity[machines]
        over = np.where(capacity > 0, self.used[machines] - capacity, 0.0)
        stopped: list[int] = []
        kinds = self.state.jobs.kind[tasks.job[self.rows]]
        may_stop = self.restartable & (kinds == Kind.BATCH)
        for machine, excess in zip(
            machines[(over > 0).any(axis=1)], over[(over > 0).any(axis=1)], strict=True
        ):
            here = np.flatnonzero(may_stop & (self.machine == machine))
            here = here[np.lexsort((-tasks.since[self.rows[here]], -self.rank[here]))]
            left = excess
            for one in here:
                if (left <= 0).all():
                    break
                if (self.usage[one][left > 0] > 0).any():
                    stopped.append(int(self.rows[one]))
                    left = left - self.usage[one]
        return np.array(sorted(stopped), np.int64)
