"""The places of waiting tasks within the bounds of their jobs, E_j and F_j (thesis §6.3, Table C.1).

The network keeps the bounds of all tasks that take part in a round. This module says which of the waiting
ones may take part, so that a job that runs F_j tasks takes no turns from others, and which are needed for
E_j, so that they come first where room is divided outside the network.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import WAITING, ClusterState
from dios.firmament.descriptors import COUNT_MAX


class JobPlaces(NamedTuple):
    """Of each waiting task (n,): may it start within F_j of its job, and does E_j of its job need it."""

    allowed: Flags
    needed: Flags


def job_places(state: ClusterState, waiting: Ints) -> JobPlaces:
    """Return the places of waiting tasks, as rows (n,); in each job by priority, then by submission."""
    table, jobs = state.tasks, state.jobs
    job = table.job[waiting]
    bounded = np.flatnonzero((jobs.minimum[job] > 0) | (jobs.maximum[job] < COUNT_MAX))
    allowed, needed = np.ones(len(waiting), np.bool_), np.zeros(len(waiting), np.bool_)
    if len(bounded):
        rows, job = waiting[bounded], job[bounded]
        order = np.lexsort((table.id[rows], table.submitted[rows], -table.priority[rows], job))
        first = np.searchsorted(job[order], job[order])
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows)) - first
        place += jobs.running[job]
        allowed[bounded] = place < jobs.maximum[job]
        needed[bounded] = place < jobs.minimum[job]
    return JobPlaces(allowed, needed)


def needed_for_minimum(state: ClusterState, tasks: Ints) -> Flags:
    """Return which of these tasks (n,) wait and are needed for E_j of their jobs."""
    waits = state.tasks.status[tasks] == WAITING
    needed = np.zeros(len(tasks), np.bool_)
    needed[waits] = job_places(state, tasks[waits]).needed
    return needed


def why_beyond(state: ClusterState, task: int) -> str:
    """Return why a waiting task does not start if F_j of its job leaves it no place; empty if it does."""
    job = int(state.tasks.job[task])
    table = state.tasks
    waiting = np.flatnonzero(table.alive & (table.status == WAITING) & (table.job == job))
    if job_places(state, waiting).allowed[np.searchsorted(waiting, task)]:
        return ""
    most, running = int(state.jobs.maximum[job]), int(state.jobs.running[job])
    if running < most:
        return f"its series runs at most {most} tasks at once, and others of the series come first"
    return f"its series runs as many tasks as it may at once: {running} of {most}"
