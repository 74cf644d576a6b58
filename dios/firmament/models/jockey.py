"""Jockey-like deadlines (Table 8.6; Ferguson et al., EuroSys 2012): run just enough tasks to be in time.

It suits batch jobs with deadlines that share a cluster with other jobs. All places are equal.

As in the table, a deadline determines the cost of waiting (v) and the number of a job's tasks that are needed
at once. A job needs the number of tasks that completes its remaining work in time. Their v rises along a
utility curve as the slack shrinks. Other tasks, and jobs without a deadline, run in the remaining slots.
Remaining work comes from ``expected_runtime`` and the profiles; a task with neither counts as ``unknown``
seconds long.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import BadModelError, not_negative, whole
from dios.firmament.models.protocol import Options
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.models.trivial import anywhere


class JockeyModel(BaseModel):
    """A model with a utility curve over slack.

    Args:
        idle: the cost of waiting of a task that is not needed yet; every place costs 0.
        utility: the amount added to the cost of waiting when no slack is left.
        steepness: the power of the curve; 1 is a straight line, a larger power rises later.
        margin: the share of the remaining time for which the model plans, in case runs take longer.
        lost: the cost of a second of work that is lost with a stopped task.
        unknown: the assumed run time in seconds of a task of unknown length.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "jockey"
    summary = "deadlines: as many tasks as a job needs to be in time, more urgent with less slack"

    def __init__(
        self,
        *,
        idle: int = 10,
        utility: int = 1_000_000,
        steepness: int = 2,
        margin: float = 0.8,
        lost: int = 100,
        unknown: float = 60.0,
    ) -> None:
        not_negative(
            self.name,
            idle=idle,
            utility=utility,
            steepness=steepness,
            margin=margin,
            lost=lost,
            unknown=unknown,
        )
        if not 0 < margin <= 1 or idle < 1 or steepness < 1:
            raise BadModelError(
                "model jockey: margin must be above 0 and at most 1; idle and steepness must be at least 1"
            )
        self.idle = idle
        self.utility = utility
        self.steepness = steepness
        self.margin = margin
        self.lost = lost
        self.runtimes = Runtimes(unknown)
        self._urgency: Floats = np.zeros(0)

    def begin(self, state: ClusterState) -> None:
        """Compute for all jobs which tasks are needed, and how urgently."""
        tasks = state.tasks.all()
        left = self._time_left(state, tasks)
        work = np.maximum(
            self.runtimes.expected(state, tasks) - state.tasks.running_time(tasks, state.now), 0
        )
        pressure = np.clip(work / np.maximum(left * self.margin, 1e-9), 0.0, 1.0)
        pressure[np.isinf(left)] = 0.0
        wanted = self._wanted(state, tasks, work, left)
        self._urgency = np.zeros(len(state.tasks.alive))
        self._urgency[tasks] = np.where(wanted, pressure**self.steepness, 0.0)

    def _time_left(self, state: ClusterState, tasks: Ints) -> Floats:
        """Return the seconds until each task's deadline, at least 0; infinity without a deadline."""
        left: Floats = np.maximum(state.tasks.deadline[tasks] - state.now, 0.0)
        return left

    def allocation(self, state: ClusterState, job: int) -> int:
        """Return the number of a job's tasks that must run at once to complete its work in time.

        ``job`` is a row.
        """
        tasks = state.tasks.all()
        tasks = tasks[state.tasks.job[tasks] == job]
        self.begin(state)
        left = self._time_left(state, tasks)
        work = np.maximum(
            self.runtimes.expected(state, tasks) - state.tasks.running_time(tasks, state.now), 0
        )
        return int(np.count_nonzero(self._wanted(state, tasks, work, left)))

    def _wanted(self, state: ClusterState, tasks: Ints, work: Floats, left: Floats) -> Flags:
        """Return True for each task that is needed now: of each job the running ones, then the oldest."""
        jobs = state.tasks.job[tasks]
        number = len(state.jobs.alive)
        dated = np.isfinite(left)
        sums = np.bincount(jobs[dated], work[dated], minlength=number)
        least = np.full(number, np.inf)
        np.minimum.at(least, jobs[dated], left[dated])
        count = np.ceil(sums / np.maximum(least * self.margin, 1e-9))
        waits = state.tasks.status[tasks] != RUNNING
        order = np.lexsort((tasks, state.tasks.submitted[tasks], waits, ~dated, jobs))
        first = np.searchsorted(jobs[order], jobs[order])
        rank = np.empty(len(tasks), np.int64)
        rank[order] = np.arange(len(tasks)) - first
        return dated & (rank < count[jobs])

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc to X at cost 0 for each task."""
        return anywhere(state, tasks, np.zeros(len(tasks), np.int64))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return ``idle``, plus ``utility`` times the curve for the tasks that are needed."""
        return self.idle + whole(self.utility * self._urgency[tasks])

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of waiting, plus that of the work that would be lost."""
        lost = self.lost * state.tasks.running_time(tasks, state.now)
        return self.task_to_unscheduled(state, tasks) + whole(lost)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the slack, and the number of the job's tasks that are needed."""
        # The task may have been submitted after the last round.
        self.begin(state)
        left = float(self._time_left(state, np.array([task]))[0])
        cost = int(self.task_to_unscheduled(state, np.array([task]))[0])
        if np.isinf(left):
            return f"it has no deadline; waiting costs {cost}"
        wanted = self.allocation(state, int(state.tasks.job[task]))
        return f"{left:.0f} s to its deadline; its job needs {wanted} tasks at once; waiting costs {cost}"
