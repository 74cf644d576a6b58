"""Gangs: at least k of a job's n tasks run, or none (thesis §6.3.3).

The thesis sends all n units through one vertex with a lower bound of k behind it. Each unit passes either
that vertex or the job's unscheduled aggregator, so an upper bound of n - k behind the aggregator says the
same. That bound exists already: it is E_j of Table C.1. A gang that is let in is a job with E_j = k in this
round; its tasks keep their own preferences, and the network keeps the shape that solvers are fast on.

A gang that is not let in is not in the network.
Not for: finding out whether a gang has room; the solver does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.settings import SchedulerSettings


@dataclass(slots=True)
class _Pause:
    """How a gang that found no room waits before it is tried again."""

    length: float
    until: float


def needed(state: ClusterState, jobs: Ints) -> Ints:
    """How many tasks of each job have to run together; 0 for jobs that are no gangs. Ended tasks count."""
    table = state.jobs
    need: Ints = np.minimum(table.gang[jobs] - table.finished[jobs], table.tasks[jobs])
    return np.maximum(need, 0)


@dataclass(frozen=True, eq=False)
class GangChoice:
    """Which gangs take part in a round; all are job rows."""

    complete: Ints
    """They run, and go on together."""
    tried: Ints
    """They are let in for this round, the most urgent first."""
    left_out: Ints
    """They wait; what still runs of them after a loss has to stop."""


class GangBook:
    """Remembers which gangs found no room, and for how long they are left alone."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._pauses: dict[int, _Pause] = {}

    def choose(self, state: ClusterState, now: float) -> GangChoice:
        """By priority, then by age, as many as there are slots for."""
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
        """No room was found; the next try comes later, twice as late each time."""
        last = self._pauses.get(job)
        length = self._settings.retry_first_s if last is None else 2 * last.length
        length = min(length, self._settings.retry_last_s)
        self._pauses[job] = _Pause(length, now + length)

    def paused_until(self, job: int) -> float:
        """When a gang is tried again; in the past when it is not paused."""
        pause = self._pauses.get(job)
        return float("-inf") if pause is None else pause.until

    def forget(self, job: int) -> None:
        """It runs, or it is gone."""
        self._pauses.pop(job, None)

    def room_appeared(self) -> None:
        """A machine came or a task ended: every gang may be tried again at once."""
        for pause in self._pauses.values():
            pause.until = 0.0

    def _room(self, state: ClusterState) -> int:
        machines = np.unique(state.resources.machine[state.resources.leaves()])
        usable = machines[state.resources.usable[machines]]
        slots = int(state.resources.slots[usable].sum())
        if self._settings.gang_preempts:
            return slots
        return slots - int(state.resources.running[usable].sum())

    def _urgency(self, state: ClusterState, job: int) -> tuple[int, float, int]:
        tasks = state.tasks
        rows = np.flatnonzero(tasks.alive & (tasks.job == job))
        return -int(tasks.priority[rows].max(initial=-(2**62))), float(state.jobs.submitted[job]), job
