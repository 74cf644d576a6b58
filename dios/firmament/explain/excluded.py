"""The machines that a task cannot use, with reasons; each machine counts for the first reason that applies.

Machines that it could use but that are full are in ``explain_task``.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Level, Resources
from dios.firmament.explain.amounts import amount_text, needed_text
from dios.firmament.explain.explanation import ExcludedMachines
from dios.firmament.policies.restrictions import Restrictions, allowed_by_affinity
from dios.wire.types import Affinity

EXCLUDED_NAMES = 16
"""The number of machines that an explanation names for each reason."""

_SHOWN_FREE = 4

_APART = {
    Affinity.SPREAD_NODES: "the job runs there already, and its tasks must be on different machines",
    Affinity.SPREAD_RACKS: "the job runs in that rack already, and its tasks must be in different racks",
    Affinity.SAME_NODE: "not the machine on which all tasks of the job run",
    Affinity.SAME_RACK: "not in the rack in which all tasks of the job run",
}


def excluded_machines(
    state: ClusterState, restrictions: Restrictions, task: int, reachable: Flags
) -> tuple[list[ExcludedMachines], Flags]:
    """Return the reasons with their numbers of machines, and the machines that remain, by resource row.

    ``task`` is the task's row. ``reachable`` is True for resource rows to which a path leads. Of a running
    task, neither its own reservation nor its own place counts against its machine.
    """
    tree, tasks = state.resources, state.tasks
    left = np.zeros(len(tree.alive), np.bool_)
    left[tree.at(Level.MACHINE)] = True
    exclusions: list[ExcludedMachines] = []

    def out(which: Flags, reason: str, *, passes: bool = False) -> None:
        nonlocal left
        gone = np.flatnonzero(left & which)
        if len(gone):
            names = tuple(tree.names[row] for row in gone[:EXCLUDED_NAMES].tolist())
            exclusions.append(ExcludedMachines(len(gone), reason, names, passes))
            left = left & ~which

    described = tasks.descriptors[task]
    rows = np.arange(len(tree.alive))
    here = int(tasks.machine[task]) if tasks.status[task] == RUNNING else ABSENT
    if described.pinned is not None:
        out(rows != state.machine_row(described.pinned), f"the task is pinned to machine {described.pinned}")
    for constraint in described.constraints:
        if constraint.hard:
            out(~restrictions.labels.matches(constraint, len(rows)), constraint.unmet)
    demand, known = tasks.demand[task], tree.capacity > 0
    for at, name in enumerate(Resources._fields):
        out(
            known[:, at] & (tree.capacity[:, at] < demand[at]),
            f"too small: {needed_text(name, float(demand[at]))}",
        )
    out(tree.slots == 0, "without slots")
    out(~tree.usable, "drained: they take no new tasks", passes=True)
    job = int(tasks.job[task])
    affinity = Affinity(int(state.jobs.affinity[job]))
    if affinity != Affinity.NONE:
        apart = ~allowed_by_affinity(state, job, left) & (rows != here)
        out(apart, _APART[affinity], passes=True)
    refused = np.isin(rows, _rows(state, restrictions.refusals(task, state.now)))
    out(refused, "refused the task a short while ago", passes=True)
    free = state.available(rows)
    if here != ABSENT:
        free[here] += demand
    for at, name in enumerate(Resources._fields):
        short = free[:, at] < demand[at]
        has = _has(state, np.flatnonzero(left & short), free[:, at], name)
        out(short, f"not enough free: {needed_text(name, float(demand[at]))}{has}", passes=True)
    others = restrictions.reservations.left_to_others(len(rows))
    if here == ABSENT and others is not None:
        kept = (others[:, 0] < 1) | (others[:, 1:] < demand).any(axis=1)
        kept &= ~restrictions.reservations.may_fill(state, np.full(len(rows), task), rows)
        out(kept, "room is kept for a task that has waited longer", passes=True)
    out(~reachable, "the cost model offers no way there", passes=True)
    return exclusions, left


def _rows(state: ClusterState, machines: list[int]) -> Ints:
    rows = np.array([state.machine_row(machine) for machine in machines], np.int64)
    known: Ints = rows[rows != ABSENT]
    return known


def _has(state: ClusterState, machines: Ints, free: Floats, name: str) -> str:
    """Return what the machines with the most of a resource have free, in words; "" for no machine."""
    most = machines[np.argsort(-free[machines], kind="stable")][:_SHOWN_FREE]
    has = [
        f"{state.resources.names[row]} has {amount_text(name, max(float(free[row]), 0.0))}" for row in most
    ]
    return f" ({', '.join(has)})" if has else ""
