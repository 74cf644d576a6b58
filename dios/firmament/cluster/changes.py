"""Changes to the cluster's tables: adding, starting, stopping and removing tasks, with all sums kept right.

Only the scheduler calls these functions; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Floats, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import COUNT_MAX, JobDescriptor, TaskDescriptor


def add_job(state: ClusterState, job: JobDescriptor) -> int:
    """Add a job without tasks and return its row."""
    jobs = state.jobs
    row = jobs.add(job.job)
    jobs.principal[row] = state.principal(job.principal)
    jobs.kind[row] = job.kind
    jobs.tasks[row] = jobs.running[row] = jobs.finished[row] = 0
    jobs.submitted[row] = state.now
    describe_job(state, row, job)
    return row


def describe_job(state: ClusterState, row: int, job: JobDescriptor) -> None:
    """Give a job the bounds on its running tasks, the gang and the affinity of this description."""
    jobs = state.jobs
    jobs.affinity[row], jobs.gang[row] = job.affinity, job.gang
    jobs.minimum[row] = job.minimum_running
    jobs.maximum[row] = COUNT_MAX if job.maximum_running is None else job.maximum_running
    jobs.descriptors[row] = job


def remove_job(state: ClusterState, row: int) -> None:
    """Remove a job that has no tasks."""
    del state.jobs.descriptors[row]
    state.jobs.remove(int(state.jobs.id[row]))


def add_tasks(state: ClusterState, job: int, tasks: Sequence[TaskDescriptor]) -> Ints:
    """Add waiting tasks to the job at row ``job`` and return their rows."""
    table = state.tasks
    rows = table.add_many([descriptor.task for descriptor in tasks])
    table.job[rows], table.status[rows] = job, WAITING
    table.machine[rows] = table.leaf[rows] = ABSENT
    table.submitted[rows] = table.since[rows] = state.now
    table.waited[rows] = table.ran[rows] = 0
    table.usage[rows], table.progress[rows] = 0, np.nan
    table.takes_part[rows] = True
    describe_tasks(state, rows, tasks)
    state.jobs.tasks[job] += len(rows)
    return rows


def describe_tasks(state: ClusterState, rows: Ints, tasks: Sequence[TaskDescriptor]) -> None:
    """Fill the columns of waiting tasks of one job that follow from their descriptions."""
    table, name = state.tasks, state.jobs.descriptors[int(state.tasks.job[rows[0]])].name
    table.demand[rows] = [descriptor.demand for descriptor in tasks]
    table.priority[rows] = [descriptor.priority for descriptor in tasks]
    table.deadline[rows] = [
        np.inf if descriptor.deadline is None else descriptor.deadline for descriptor in tasks
    ]
    named = [state.equivalences.number(descriptor.equivalence or name) for descriptor in tasks]
    table.equivalence[rows] = named
    table.interference[rows] = [descriptor.interference for descriptor in tasks]
    table.restartable[rows] = [descriptor.restartable for descriptor in tasks]
    table.copy_of[rows] = [
        ABSENT if descriptor.copy_of is None else descriptor.copy_of for descriptor in tasks
    ]
    table.descriptors.update(zip(rows.tolist(), tasks, strict=True))


def remove_task(state: ClusterState, row: int, *, completed: bool) -> None:
    """Remove a waiting task; a running one must be stopped first."""
    table = state.tasks
    job = int(table.job[row])
    state.jobs.tasks[job] -= 1
    state.jobs.finished[job] += completed
    del table.descriptors[row]
    table.remove(int(table.id[row]))


def start(state: ClusterState, rows: Ints, leaves: Ints) -> None:
    """Start waiting tasks, each at its leaf."""
    table = state.tasks
    table.waited[rows] += state.now - table.since[rows]
    table.status[rows], table.since[rows] = RUNNING, state.now
    table.leaf[rows], table.machine[rows] = leaves, state.resources.machine[leaves]
    np.add.at(state.jobs.running, table.job[rows], 1)
    _hold(state, rows, 1)
    _count(state, rows, leaves, 1)


def stop(state: ClusterState, rows: Ints) -> None:
    """Stop running tasks, which wait from now on."""
    table = state.tasks
    leaves = table.leaf[rows].copy()
    table.ran[rows] += state.now - table.since[rows]
    table.status[rows], table.since[rows] = WAITING, state.now
    table.leaf[rows] = table.machine[rows] = ABSENT
    table.usage[rows], table.progress[rows] = 0, np.nan
    np.add.at(state.jobs.running, table.job[rows], -1)
    _hold(state, rows, -1)
    _count(state, rows, leaves, -1)


def stop_one(state: ClusterState, row: int) -> None:
    """Stop one running task. Events concern one task, and columns of one entry are slow."""
    table, tree = state.tasks, state.resources
    table.ran[row] += state.now - table.since[row]
    table.status[row], table.since[row] = WAITING, state.now
    at = int(table.leaf[row])
    table.leaf[row] = table.machine[row] = ABSENT
    table.usage[row], table.progress[row] = 0, np.nan
    state.jobs.running[table.job[row]] -= 1
    demand = table.demand[row]
    owner = state.jobs.principal[table.job[row]]
    held, promised = state.held[owner], state.promised[owner]
    held[0] -= 1
    held[1:] -= demand
    if held[0] == promised[0]:
        held[:] = promised
    while at != ABSENT:
        tree.running[at] -= 1
        tree.reserved[at] -= demand
        if tree.running[at] == 0:
            tree.reserved[at] = tree.withheld[at]
        at = int(tree.parent[at])


def shift(state: ClusterState, rows: Ints, leaves: Ints) -> None:
    """Move running tasks to other leaves of their machines without stopping them."""
    _count(state, rows, state.tasks.leaf[rows], -1)
    state.tasks.leaf[rows] = leaves
    _count(state, rows, leaves, 1)


def assign_leaves(state: ClusterState, machine: Ints, leaf: Ints) -> Ints:
    """Return leaves for tasks that are to run on machines (n,): the wanted ones where there is room.

    A task that was held back needs its old leaf again, which the solution may have given to another task.
    """
    tree = state.resources
    assigned = leaf.copy()
    inside = np.flatnonzero((leaf != ABSENT) & (leaf != machine))
    crowded = np.bincount(leaf[inside], minlength=len(tree.alive)) > tree.slots
    for place in np.unique(tree.machine[np.flatnonzero(crowded)]).tolist():
        leaves = np.flatnonzero(tree.alive & tree.is_leaf & (tree.machine == place))
        left = dict(zip(leaves.tolist(), tree.slots[leaves].tolist(), strict=True))
        waiting = []
        for at in inside[machine[inside] == place].tolist():
            if left[int(leaf[at])] > 0:
                left[int(leaf[at])] -= 1
            else:
                waiting.append(at)
        for at in waiting:
            roomiest = max(left, key=left.__getitem__)
            left[roomiest] -= 1
            assigned[at] = roomiest
    return assigned


def _hold(state: ClusterState, rows: Ints, sign: int) -> None:
    """Add tasks to the amounts that their principals hold, or subtract them (``sign``)."""
    owner = state.jobs.principal[state.tasks.job[rows]]
    np.add.at(state.held[:, 0], owner, sign)
    np.add.at(state.held[:, 1:], owner, sign * state.tasks.demand[rows])
    # Sums of floating-point numbers drift, as below.
    idle = owner[state.held[owner, 0] == state.promised[owner, 0]]
    state.held[idle] = state.promised[idle]


def _count(state: ClusterState, rows: Ints, leaves: Ints, sign: int) -> None:
    tree = state.resources
    demand = state.tasks.demand[rows]
    at = leaves
    while len(at):
        np.add.at(tree.running, at, sign)
        np.add.at(tree.reserved, at, sign * demand)
        # Sums of floating-point numbers drift; where no task runs, only the withheld amounts are reserved.
        idle = at[tree.running[at] == 0]
        tree.reserved[idle] = tree.withheld[idle]
        above = tree.parent[at]
        demand, at = demand[above != ABSENT], above[above != ABSENT]


def withhold(state: ClusterState, machine: int, amounts: Floats) -> None:
    """Reserve amounts of a machine (DIMENSIONS,) for other uses than tasks, instead of those before."""
    tree = state.resources
    more = amounts - tree.withheld[machine]
    at = machine
    while at != ABSENT:
        tree.withheld[at] += more
        tree.reserved[at] += more
        at = int(tree.parent[at])
    tree.withheld[machine] = amounts


def add_slot(state: ClusterState, leaf: int) -> None:
    """Add one slot to a leaf and to all that is above it."""
    at = leaf
    while at != ABSENT:
        state.resources.slots[at] += 1
        at = int(state.resources.parent[at])


def promise(state: ClusterState, principal: int, amounts: Floats) -> None:
    """Count amounts (1 + DIMENSIONS,) that a principal holds beyond its tasks, instead of those before."""
    state.held[principal] += amounts - state.promised[principal]
    state.promised[principal] = amounts


def emptiest_leaf(state: ClusterState, machine: int) -> int:
    """Return the leaf with the most free slots, where a task that runs on the machine is counted."""
    tree = state.resources
    leaves = np.flatnonzero(tree.alive & tree.is_leaf & (tree.machine == machine))
    free = tree.slots[leaves] - tree.running[leaves]
    return int(leaves[np.argmax(free)])
