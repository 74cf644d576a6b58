"""Max-min fair shares: the tasks of each job that may run while the cluster is short (thesis §6.3.2).

They give F_j, and in the strict form E_j, of a round. Shares are first divided between principals, then each
principal's share between its jobs. If machines report their capacities, a share counts in all dimensions: all
dominant shares grow equally, and each task counts with its principal's largest demand in every dimension,
because any of the principal's tasks may be the one that runs. Jobs that run as a whole and reserve nothing,
such as coordinators, keep their slots and take nothing from the others where others reserve something.

Preferred machines are not divided fairly, which a flow cannot do (§6.3.2). Priorities do not count here.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.policies.fit import room_of

_HALVINGS = 60
"""Steps of the search for the common share; each step halves the interval."""

_NO_SLOT = 1e-9
"""The room for no task. Of a dimension with 0 the capacity is not known."""


def fair_shares(state: ClusterState, tasks: Ints, most: Ints) -> Ints:
    """Return A_j by job row: the tasks of each job that may run. ``tasks`` take part; ``most`` is F_j."""
    job = state.tasks.job[tasks]
    whole = np.minimum(np.bincount(job, minlength=len(most)), most)
    apart = _settled(state, tasks, len(most))
    wanted = np.where(apart, 0, whole)
    tasks, job = tasks[~apart[job]], job[~apart[job]]
    principal = state.jobs.principal
    count = max(1, len(state.principals))
    demand = np.zeros(count, np.int64)
    np.add.at(demand, principal, np.where(state.jobs.alive, wanted, 0))
    largest = np.ones((count, 1 + state.tasks.demand.shape[1]))
    largest[:, 1:] = 0
    np.maximum.at(largest[:, 1:], principal[job], state.tasks.demand[tasks])
    room = _room(state)
    if apart.any() and room[0] > 0:
        room[0] = max(room[0] - float(whole[apart].sum()), _NO_SLOT)
    granted = divide(demand, largest, room)
    shares = np.where(apart, whole, 0)
    short = granted < demand
    of_whole = state.jobs.alive & ~short[principal] & ~apart
    shares[of_whole] = wanted[of_whole]
    for principal_row in np.flatnonzero(short).tolist():
        rows = np.flatnonzero(state.jobs.alive & (principal == principal_row) & ~apart)
        shares[rows] = divide(
            wanted[rows], np.ones((len(rows), 1)), np.array([float(granted[principal_row])])
        )
    return shares


def _settled(state: ClusterState, tasks: Ints, jobs: int) -> Flags:
    """Return by job row whether all its tasks run and reserve nothing, while tasks of others do reserve."""
    job = state.tasks.job[tasks]
    reserves = state.tasks.demand[tasks].any(axis=1)
    if not reserves.any():
        return np.zeros(jobs, np.bool_)
    others = np.bincount(job[reserves | (state.tasks.status[tasks] != RUNNING)], minlength=jobs)
    settled: Flags = (np.bincount(job, minlength=jobs) > 0) & (others == 0)
    return settled


def divide(wanted: Ints, demand: Floats, room: Floats) -> Ints:
    """Return the number of tasks of each (n,): equal dominant shares, or all wanted tasks where that is less.

    ``wanted`` (n,) in tasks, ``demand`` (n, dimensions) the demand of one task, ``room`` (dimensions,).
    """
    counted = room > 0
    demand, room = demand[:, counted], room[counted]
    if not counted.any() or not len(wanted):
        return np.zeros(len(wanted), np.int64) if not counted.any() else wanted
    dominant = np.max(demand / room, axis=1, initial=0)

    def at(share: float) -> Ints:
        with np.errstate(divide="ignore", invalid="ignore"):
            tasks = np.floor(share / dominant * (1 + 1e-12))
        capped: Ints = np.where(dominant > 0, np.minimum(tasks, wanted), wanted).astype(np.int64)
        return capped

    def fits(some: Ints) -> bool:
        return bool(np.all(some @ demand <= room * (1 + 1e-12)))

    low, high = 0.0, float(np.max(wanted * dominant, initial=0)) + 1.0
    if fits(at(high)):
        return at(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    granted = at(low)
    # The remainder is given task by task, to the smallest share first.
    for row in np.lexsort((np.arange(len(wanted)), (granted + 1) * dominant)).tolist():
        granted[row] += granted[row] < wanted[row]
        if not fits(granted):
            granted[row] -= 1
    return granted


def _room(state: ClusterState) -> Floats:
    """Return the slots, then the dimensions of resources; 0 if some machine does not report its capacity."""
    tree = state.resources
    machines = tree.at(Level.MACHINE)
    machines = machines[tree.usable[machines]]
    total = room_of(state, machines)
    return np.where(np.isfinite(total), total, 0.0)
