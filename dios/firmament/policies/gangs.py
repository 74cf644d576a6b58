"""Gangs: at least k of a job's n tasks run, or none (thesis §6.3.3).

The thesis sends all n units through one vertex with a lower bound of k behind it. Each unit passes either
that vertex or the job's unscheduled aggregator, so an upper bound of n - k behind the aggregator is
equivalent. That bound exists already: it is E_j of Table C.1. A gang that is admitted is a job with E_j = k
in this round. Its tasks keep their own preferences, and the network keeps the shape on which solvers are
fast.

A gang that is not admitted is not in the network. The solver finds out if a gang has room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.settings import SchedulerSettings


@dataclass(slots=True)
class _Pause:
    """The pause of a gang that found no room, before it is tried again."""

    length: float
    until: float


def needed(state: ClusterState, jobs: Ints) -> Ints:
    """Return the tasks of each job that have to run together; 0 if it is no gang. Ended tasks count."""
    table = state.jobs
    need: Ints = np.minimum(table.gang[jobs] - table.finished[jobs], table.tasks[jobs])
    return np.maximum(need, 0)


@dataclass(frozen=True, eq=False)
class GangChoice:
    """The gangs of a round, as job rows."""

    complete: Ints
    """Gangs that run, and continue together."""
    tried: Ints
    """Gangs that are tried in this round, the most urgent first."""
    left_out: Ints
    """Gangs that wait; tasks of theirs that still run after a loss have to stop."""


class GangTable:
    """Gangs that found no room, and the pause of each."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._pauses: dict[int, _Pause] = {}

    def choose(self, state: ClusterState, now: float) -> GangChoice:
        """Choose gangs by priority, then by age, up to the number of slots."""
        jobs = state.jobs
        rows = np.flatnonzero(jobs.alive & (jobs.gang > 0) & (jobs.tasks > 0))
        need = needed(state, rows)
        complete = jobs.running[rows] >= np.maximum(need, 1)
        free_of_need = need == 0
        room = self._room(state) - int(need[complete].sum())
        tried: list[int] = []
        candidates = np.flatnonzero(~complete & ~free_of_need)
        urgency = [self._urgency(state, int(rows[at])) for at in candidates]
        for _, at in sorted(zip(urgency, candidates.tolist(), strict=True)):
            row = int(rows[at])
            if self.paused_until(row) <= now and int(need[at]) <= room:
                tried.append(row)
                room -= int(need[at])
        chosen = np.array(tried, np.int64)
        return GangChoice(rows[complete], chosen, np.setdiff1d(rows[~complete & ~free_of_need], chosen))

    def failed(self, job: int, now: float) -> None:
        """Record that no room was found; each pause is twice as long as the one before."""
        last = self._pauses.get(job)
        length = self.settings.retry_first_s if last is None else 2 * last.length
        length = min(length, self.settings.retry_last_s)
        self._pauses[job] = _Pause(length, now + length)

    def paused_until(self, job: int) -> float:
        """Return when a gang is tried again; a time in the past if it is not paused."""
        pause = self._pauses.get(job)
        return float("-inf") if pause is None else pause.until

    def forget(self, job: int) -> None:
        """Forget a gang that runs or is gone."""
        self._pauses.pop(job, None)

    def room_appeared(self) -> None:
        """Allow every gang to be tried again at once, because a machine joined or a task ended."""
        for pause in self._pauses.values():
            pause.until = 0.0

    def _room(self, state: ClusterState) -> int:
        machines = np.unique(state.resources.machine[state.resources.leaves()])
        usable = machines[state.resources.usable[machines]]
        slots = int(state.resources.slots[usable].sum())
        if self.settings.gang_preempts:
            return slots
        return slots - int(state.resources.running[usable].sum())

    def _urgency(self, state: ClusterState, job: int) -> tuple[int, float, int]:
        tasks = state.tasks
        rows = np.flatnonzero(tasks.alive & (tasks.job == job))
        return -int(tasks.priority[rows].max(initial=-(2**62))), float(state.jobs.submitted[job]), job
