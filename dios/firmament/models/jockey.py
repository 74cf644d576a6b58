"""Jockey-like deadlines (Table 8.6; Ferguson et al., EuroSys 2012): just enough tasks, in time.

For: batch jobs with deadlines beside others without. Not for: places, which are all alike here.

As the table says, deadlines are in the cost of U and in how many of a job's tasks are wanted: a job gets
as many at once as its remaining work needs to be done in time, and v of those rises along a utility
curve as their slack goes. The others, and jobs without a deadline, run in what is left over.
Remaining work is what ``expected_runtime`` and the profiles say; a class of which neither is known is
taken for ``unknown`` seconds.
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
    """A utility curve over slack.

    Args:
        idle: v of a task that is not needed yet; more than any place's cost, which is 0.
        utility: what is added to v when no slack is left.
        steepness: the power of the curve; 1 is a straight line, more rises later.
        margin: plans are made for this share of the time that is left, for runs that take longer.
        lost: cost of a second of work that is lost with a stopped task.
        unknown: seconds that a task of unknown length is taken to run.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "jockey"
    summary = "deadlines: as many tasks as a job needs to be in time, more urgent as slack goes"

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
            raise BadModelError("model jockey: margin is a share above 0; idle and steepness are at least 1")
        self.idle = idle
        self.utility = utility
        self.steepness = steepness
        self.margin = margin
        self.lost = lost
        self.runtimes = Runtimes(unknown)
        self._urgency: Floats = np.zeros(0)

    def begin(self, state: ClusterState) -> None:
        """Which tasks are needed, and how urgently, for all jobs at once."""
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
        """Seconds until each task's deadline, at least 0; infinity without one."""
        left: Floats = np.maximum(state.tasks.deadline[tasks] - state.now, 0.0)
        return left

    def allocation(self, state: ClusterState, job: int) -> int:
        """How many tasks of a job (row) are to run at once, so that all its work is done in time."""
        tasks = state.tasks.all()
        tasks = tasks[state.tasks.job[tasks] == job]
        self.begin(state)
        left = self._time_left(state, tasks)
        work = np.maximum(
            self.runtimes.expected(state, tasks) - state.tasks.running_time(tasks, state.now), 0
        )
        return int(np.count_nonzero(self._wanted(state, tasks, work, left)))

    def _wanted(self, state: ClusterState, tasks: Ints, work: Floats, left: Floats) -> Flags:
        """Which tasks are needed at once: running ones first, then the oldest, of each job in turn."""
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
        """Anywhere, for nothing."""
        return anywhere(state, tasks, np.zeros(len(tasks), np.int64))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """``idle``, and of those needed ``utility`` times the curve."""
        return self.idle + whole(self.utility * self._urgency[tasks])

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """The same, and the work that would be lost."""
        lost = self.lost * state.tasks.running_time(tasks, state.now)
        return self.task_to_unscheduled(state, tasks) + whole(lost)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """The slack and how many of the job are needed."""
        # The task may have come after the last round.
        self.begin(state)
        left = float(self._time_left(state, np.array([task]))[0])
        cost = int(self.task_to_unscheduled(state, np.array([task]))[0])
        if np.isinf(left):
            return f"it has no deadline; waiting costs {cost}"
        wanted = self.allocation(state, int(state.tasks.job[task]))
        return f"{left:.0f} s to its deadline; its job needs {wanted} tasks at once; waiting costs {cost}"
