"""Small clusters for tests of cost models: tables that are filled without a scheduler.

For: asking a model one question whose answer can be worked out on paper.
Not for: rounds; those tests have a ``FlowScheduler``.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster import changes as tables
from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import (
    Block,
    Inner,
    JobDescriptor,
    Level,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)

GB = 10**9
MACHINE = Resources(cpus=8, memory=32 * GB, disk_io=GB, network=GB)
TWO_CORES = (Inner(Level.CORE, "core 0"), Inner(Level.CORE, "core 1"))


def cluster(*racks: int, slots: int = 2, capacity: Resources = MACHINE) -> ClusterState:
    """Racks of so many machines each; machine m of rack r has the identifier 100 * r + m, both from 0."""
    state = ClusterState()
    for rack, machines in enumerate(racks):
        for machine in range(machines):
            add_machine(state, 100 * rack + machine, rack=f"r{rack}", slots=slots, capacity=capacity)
    return state


def add_machine(
    state: ClusterState,
    identifier: int,
    *,
    rack: str = "r0",
    slots: int = 2,
    capacity: Resources = MACHINE,
    machine_type: str = "plain",
    labels: tuple[tuple[str, str], ...] = (),
    inner: tuple[Inner, ...] = (),
) -> int:
    """One machine; returns its row."""
    return state.add_machine(
        MachineDescriptor(
            identifier, f"m{identifier}", rack, capacity, slots, machine_type, labels=labels, inner=inner
        )
    )


def machine(state: ClusterState, identifier: int) -> int:
    """A machine's row."""
    row = state.machine_row(identifier)
    assert row != ABSENT
    return row


def rack(state: ClusterState, number: int) -> int:
    """The row of rack ``number``."""
    return next(row for row, name in state.resources.names.items() if name == f"r{number}")


def add_job(state: ClusterState, job: JobDescriptor) -> int:
    """One job; returns its row."""
    return tables.add_job(state, job)


def add_task(state: ClusterState, task: TaskDescriptor, job: int = 1, *, waited: float = 0.0) -> int:
    """One waiting task of job ``job`` (made when unknown) that has waited so long; returns its row."""
    owner = state.jobs.find(job)
    if owner == ABSENT:
        # A task's class is its job's name when it has none of its own.
        owner = add_job(state, JobDescriptor(job, name=f"job {job}"))
    row = int(tables.add_tasks(state, owner, [task])[0])
    state.tasks.submitted[row] = state.tasks.since[row] = state.now - waited
    return row


def run(state: ClusterState, task: int, identifier: int, *, since: float | None = None) -> None:
    """Let the task at row ``task`` run on a machine, from ``since`` on (default: now)."""
    leaf = tables.emptiest_leaf(state, machine(state, identifier))
    tables.start(state, np.array([task]), np.array([leaf]))
    if since is not None:
        state.tasks.waited[task] -= min(state.now - since, float(state.tasks.waited[task]))
        state.tasks.since[task] = since


def rows(*numbers: int) -> Ints:
    """Row numbers as a vector."""
    return np.array(numbers, np.int64)


def block(gigabytes: float, *machines: int) -> Block:
    """A block with copies on these machines."""
    return Block(int(gigabytes * GB), machines)
