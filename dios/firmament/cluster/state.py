"""The cluster as cost models and the flow network see it: tables of tasks, jobs and resources.

Cost models read the tables as vectors; only the scheduler changes them (``changes``). The solvers work on a
flow network that is made from them (``network``).

All row numbers are those of the tables here; ABSENT (-1) means none. Times are in seconds of the scheduler's
clock. The units of resources are in ``descriptors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dios.firmament.cluster.columns import ABSENT, FIRST_ROWS, Flags, Floats, Ints, NameTable, Rows
from dios.firmament.descriptors import (
    DIMENSIONS,
    Inner,
    JobDescriptor,
    Level,
    MachineDescriptor,
    TaskDescriptor,
)

if TYPE_CHECKING:
    from dios.firmament.knowledge.knowledge_base import KnowledgeBase

WAITING = 0
RUNNING = 1


class TaskTable(Rows):
    """All tasks that wait or run."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        """Row in the job table."""
        self.status: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.machine: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        """Row of the machine on which it runs, in the resource table; ABSENT while it waits."""
        self.leaf: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        """Row of the leaf (a core, a thread, or the machine itself) through which its flow goes."""
        self.submitted: Floats = np.zeros(FIRST_ROWS)
        self.waited: Floats = np.zeros(FIRST_ROWS)
        """Seconds spent waiting before the present status began."""
        self.since: Floats = np.zeros(FIRST_ROWS)
        """The time at which the present status began."""
        self.ran: Floats = np.zeros(FIRST_ROWS)
        """Seconds spent running before the present status began, in earlier placements."""
        self.demand: Floats = np.zeros((FIRST_ROWS, DIMENSIONS))
        self.usage: Floats = np.zeros((FIRST_ROWS, DIMENSIONS))
        """The last measured usage; 0 if there is none."""
        self.priority: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.deadline: Floats = np.zeros(FIRST_ROWS)
        """Infinity if there is none."""
        self.equivalence: Ints = np.zeros(FIRST_ROWS, np.int64)
        """Number in ``ClusterState.equivalences``."""
        self.interference: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.restartable: Flags = np.zeros(FIRST_ROWS, np.bool_)
        self.takes_part: Flags = np.zeros(FIRST_ROWS, np.bool_)
        """False for a waiting task that the round leaves out: it is not its turn, or its gang has no room."""
        self.progress: Floats = np.zeros(FIRST_ROWS)
        """The share of its work that it has done in this placement, from 0 to 1; no number if unknown."""
        self.copy_of: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        """Identifier of the task of which it is a speculative copy; ABSENT for all others."""
        self.descriptors: dict[int, TaskDescriptor] = {}
        """By row: the descriptions, for what does not fit a column (blocks, constraints)."""

    def waiting_time(self, rows: Ints, now: float) -> Floats:
        """Return the total seconds of waiting, shape (len(rows),)."""
        present = np.where(self.status[rows] == WAITING, now - self.since[rows], 0.0)
        return self.waited[rows] + present

    def running_time(self, rows: Ints, now: float) -> Floats:
        """Return the total seconds of running, earlier placements included, shape (len(rows),)."""
        present = np.where(self.status[rows] == RUNNING, now - self.since[rows], 0.0)
        return self.ran[rows] + present


class JobTable(Rows):
    """All jobs that have a task, or may get more."""

    def __init__(self) -> None:
        super().__init__()
        self.principal: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.kind: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.tasks: Ints = np.zeros(FIRST_ROWS, np.int64)
        """N_j: the number of tasks that wait or run."""
        self.running: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.finished: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.minimum: Ints = np.zeros(FIRST_ROWS, np.int64)
        """E_j as submitted; the network uses at most N_j."""
        self.maximum: Ints = np.zeros(FIRST_ROWS, np.int64)
        """F_j as submitted; ``COUNT_MAX`` if there is no limit."""
        self.gang: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.affinity: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.submitted: Floats = np.zeros(FIRST_ROWS)
        self.descriptors: dict[int, JobDescriptor] = {}


class ResourceTable(Rows):
    """The tree of resources: the cluster, racks, machines and their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parent: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        self.level: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.is_leaf: Flags = np.zeros(FIRST_ROWS, np.bool_)
        self.machine: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        """Row of the machine that it belongs to (itself for a machine); ABSENT above machines."""
        self.rack: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        """Row of the rack above; ABSENT for the cluster."""
        self.slots: Ints = np.zeros(FIRST_ROWS, np.int64)
        """K at machines; a share of K at leaves; the sum of the machines' at racks and the cluster."""
        self.running: Ints = np.zeros(FIRST_ROWS, np.int64)
        """The number of tasks that run at it or below it."""
        self.capacity: Floats = np.zeros((FIRST_ROWS, DIMENSIONS))
        """At machines, and summed at racks and the cluster; a share at leaves. 0: not known."""
        self.reserved: Floats = np.zeros((FIRST_ROWS, DIMENSIONS))
        """The demands of the tasks that run there, plus the withheld amounts."""
        self.withheld: Floats = np.zeros((FIRST_ROWS, DIMENSIONS))
        """Reserved for jobs that were admitted over time (Packer), at machines and summed above them."""
        self.outside: Floats = np.zeros(FIRST_ROWS)
        """At machines: the processors that programs other than tasks use, 0 if few or unknown."""
        self.machine_type: Ints = np.full(FIRST_ROWS, ABSENT, np.int64)
        self.usable: Flags = np.zeros(FIRST_ROWS, np.bool_)
        """False while a machine is drained: its tasks stay, and it takes no new ones."""
        self.names: dict[int, str] = {}
        self.labels: dict[int, dict[str, str]] = {}
        """By a machine's row."""
        self.children: dict[int, list[int]] = {}

    def at(self, level: Level) -> Ints:
        """Return the rows of one level, ascending."""
        return np.flatnonzero(self.alive & (self.level == level))

    def leaves(self) -> Ints:
        """Return the rows from which flow leaves to the sink."""
        return np.flatnonzero(self.alive & self.is_leaf)


@dataclass
class ClusterState:
    """Everything that a cost model may read."""

    now: float = 0.0
    tasks: TaskTable = field(default_factory=TaskTable)
    jobs: JobTable = field(default_factory=JobTable)
    resources: ResourceTable = field(default_factory=ResourceTable)
    equivalences: NameTable = field(default_factory=NameTable)
    principals: NameTable = field(default_factory=NameTable)
    held: Floats = field(default_factory=lambda: np.zeros((FIRST_ROWS, 1 + DIMENSIONS)))
    """By principal, with at least as many rows as principals: the number of its running tasks and the sums of
    their demands, each plus those of its jobs that were admitted over time."""
    promised: Floats = field(default_factory=lambda: np.zeros((FIRST_ROWS, 1 + DIMENSIONS)))
    """The same of its jobs that were admitted over time alone."""
    waiting_principals: Mapping[str, object] = field(default_factory=dict)
    """The names of principals that may have waiting tasks outside the tables (``policies.backlog``)."""
    machine_types: NameTable = field(default_factory=NameTable)
    knowledge: KnowledgeBase | None = None
    """The profiles measured so far; None if nothing is measured."""
    cluster: int = field(init=False)
    """Row of the cluster vertex X."""
    machine_ids: dict[int, int] = field(default_factory=dict)
    """The identifiers of machines by row."""
    _machine_rows: dict[int, int] = field(default_factory=dict)
    _rack_rows: dict[str, int] = field(default_factory=dict)
    _next_resource: int = 0

    def __post_init__(self) -> None:
        self.cluster = self._resource(ABSENT, Level.CLUSTER, "cluster")

    # The tree -------------------------------------------------------------------------------------

    def add_machine(self, machine: MachineDescriptor) -> int:
        """Add a machine, its parts, and its rack if it is new; return the machine's row.

        Raises:
            ValueError: the identifier is in use.
        """
        if machine.machine in self._machine_rows:
            raise ValueError(f"machine {machine.name} ({machine.machine}) exists already")
        rack = self._rack_rows.get(machine.rack)
        if rack is None:
            rack = self._resource(self.cluster, Level.RACK, machine.rack or "rack")
            self._rack_rows[machine.rack] = rack
            self.resources.rack[rack] = rack
        row = self._resource(rack, Level.MACHINE, machine.name)
        table = self.resources
        self._machine_rows[machine.machine] = row
        self.machine_ids[row] = machine.machine
        table.rack[row], table.machine[row], table.usable[row] = rack, row, True
        table.machine_type[row] = self.machine_types.number(machine.machine_type)
        table.labels[row] = dict(machine.labels)
        leaves: list[int] = []
        self._add_inner(row, row, machine.inner, leaves)
        _share_out(table, row, leaves or [row], machine)
        for above in (rack, self.cluster):
            table.slots[above] += machine.slots
            table.capacity[above] += machine.capacity
        return row

    def remove_machine(self, machine: int) -> list[int]:
        """Remove a machine, on which no task runs; return the freed rows, the machine's own last.

        An empty rack stays.
        """
        row = self._machine_rows.pop(machine)
        del self.machine_ids[row]
        table = self.resources
        for above in (int(table.parent[row]), self.cluster):
            table.slots[above] -= table.slots[row]
            table.capacity[above] -= table.capacity[row]
        table.children[int(table.parent[row])].remove(row)
        freed = self.below(row)
        for freed_row in freed:
            table.children.pop(freed_row, None)
            table.names.pop(freed_row, None)
            table.labels.pop(freed_row, None)
            table.remove(int(table.id[freed_row]))
        return freed

    def principal(self, name: str) -> int:
        """Return the number of a principal; a new principal gets the next number."""
        number = self.principals.number(name)
        if number >= len(self.held):
            self.held = np.concatenate([self.held, np.zeros_like(self.held)])
            self.promised = np.concatenate([self.promised, np.zeros_like(self.promised)])
        return number

    def machine_row(self, machine: int) -> int:
        """Return the row of the machine with this identifier, or ABSENT."""
        return self._machine_rows.get(machine, ABSENT)

    def set_machines(self, identifiers: dict[int, int]) -> None:
        """Replace the identifiers of machines by row, in a copy whose columns were replaced."""
        self.machine_ids = identifiers
        self._machine_rows = {identifier: row for row, identifier in identifiers.items()}

    def below(self, row: int) -> list[int]:
        """Return the rows of the subtree, children before parents, ``row`` itself last."""
        rows = [
            descendant for child in self.resources.children.get(row, ()) for descendant in self.below(child)
        ]
        return [*rows, row]

    def _add_inner(self, parent: int, machine: int, inner: tuple[Inner, ...], leaves: list[int]) -> None:
        for part in inner:
            row = self._resource(parent, part.level, part.name)
            self.resources.machine[row] = machine
            self.resources.rack[row] = self.resources.rack[machine]
            self.resources.machine_type[row] = self.resources.machine_type[machine]
            if part.children:
                self._add_inner(row, machine, part.children, leaves)
            else:
                leaves.append(row)

    def _resource(self, parent: int, level: Level, name: str) -> int:
        table = self.resources
        row = table.add(self._next_resource)
        self._next_resource += 1
        for column in (
            table.slots,
            table.running,
            table.capacity,
            table.reserved,
            table.withheld,
            table.outside,
        ):
            column[row] = 0
        table.parent[row], table.level[row], table.is_leaf[row] = parent, level, False
        table.machine[row] = table.rack[row] = table.machine_type[row] = ABSENT
        table.usable[row] = True
        table.names[row] = name
        table.children[row] = []
        if parent != ABSENT:
            table.children[parent].append(row)
        return row

    def available(self, rows: Ints) -> Floats:
        """Return the unreserved resources, (n, DIMENSIONS); infinity where the capacity is unknown."""
        table = self.resources
        capacity = table.capacity[rows]
        return np.where(capacity > 0, capacity - table.reserved[rows], np.inf)


def _share_out(table: ResourceTable, machine: int, leaves: list[int], given: MachineDescriptor) -> None:
    """Divide a machine's slots and resources evenly between its leaves, and sum them for the parts above."""
    table.slots[machine] = given.slots
    table.capacity[machine] = given.capacity
    for number, leaf in enumerate(leaves):
        table.is_leaf[leaf] = True
        if leaf == machine:
            continue
        slots = given.slots // len(leaves) + (number < given.slots % len(leaves))
        share = np.array(given.capacity) / len(leaves)
        above = leaf
        while above != machine:
            table.slots[above] += slots
            table.capacity[above] += share
            above = int(table.parent[above])
