"""alsched (Table 8.6; Tumanov et al., SoCC 2012): soft preferences about places, alone and in combination.

alsched gives utility to sets of places: "any of these", "all k in one rack, which one does not matter". Soft
and hard constraints about single machines are the scheduler's own, under every model. This model adds the
combination "all tasks of a job in one rack", which no arc of a single task can express: before each round
it chooses racks where the job's tasks fit into what the last round left (multi-round scheduling, §6.3.4).
Utility as an expression of sums, minima and maxima over arbitrary sets of machines cannot be expressed.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import (
    class_members,
    class_numbers,
    joined,
    not_negative,
    open_machines,
    permitted,
    place_rules,
    running_tasks,
    unmoved,
    waiting_tasks,
)
from dios.firmament.models.protocol import NO_OPTIONS, ClassArcs, Options
from dios.firmament.models.trivial import TrivialModel
from dios.firmament.policies.room_in_time import amounts, fitting, free_amounts

_JOB = 1


class AlschedModel(TrivialModel):
    """The tasks of a job in one rack, if that is worth the wait.

    Args:
        apart: the cost of a place in another rack than the one that was chosen for the job.
        patience: the number of seconds for which a job waits for a rack with room for all of its tasks.
        waiting: the cost of waiting after that; it must be above ``apart`` for tasks to start at all.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "alsched"
    summary = "alsched: all tasks of a job in one rack, chosen again before each round"

    def __init__(
        self, *, apart: int = 1_000, patience: float = 20.0, waiting: int = 2_000, per_second: int = 10
    ) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, apart=apart, patience=patience)
        self.apart = apart
        self.patience = patience
        self._racks: dict[int, tuple[int, int]] = {}
        """By the row of a job: its rack, and the number of tasks that the rack takes in this round."""

    def begin(self, state: ClusterState) -> None:
        """Choose a rack for each job with waiting tasks, the oldest jobs first."""
        self._racks = {}
        table = state.resources
        machines = open_machines(state)
        racks = table.rack[machines]
        free = free_amounts(state, machines)
        waiting = waiting_tasks(state)
        running = running_tasks(state)
        jobs, first = np.unique(state.tasks.job[waiting], return_index=True)
        order = np.lexsort((jobs, state.tasks.submitted[waiting[first]]))
        may = permitted(
            state, machines, [place_rules(state, task) for task in waiting[first[order]].tolist()]
        )
        for number, job in enumerate(jobs[order].tolist()):
            tasks = waiting[state.tasks.job[waiting] == job]
            there = table.rack[state.tasks.machine[running[state.tasks.job[running] == job]]]
            demand = amounts(state, tasks[:1])[0]
            room = fitting(free, demand, may[:, number])
            rack = _choose(np.bincount(racks, room, len(table.alive)).astype(np.int64), there, len(tasks))
            if rack != ABSENT:
                room = np.where(racks == rack, room, 0)
                taken = np.clip(len(tasks) - (np.cumsum(room) - room), 0, room)
                self._racks[job] = rack, int(taken.sum())
                free -= taken[:, None] * demand

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return no arcs: tasks have only the arcs to their jobs' classes."""
        return NO_OPTIONS

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc T -> its job's class for each task."""
        jobs = class_numbers(_JOB, state.tasks.job[tasks])
        return Options(np.arange(len(tasks)), jobs, np.zeros(len(tasks), np.int64))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return arcs from each job to its rack at 0, and to X at ``apart``."""
        jobs = class_members(classes)
        chosen = [(job, *self._racks[job]) for job in jobs.tolist() if job in self._racks]
        job, rack, most = np.array(chosen, np.int64).reshape(-1, 3).T
        together = ClassArcs(class_numbers(_JOB, job), rack, np.zeros(len(job), np.int64), most)
        slots = np.full(len(classes), state.resources.slots[state.cluster])
        cluster = np.full(len(classes), state.cluster)
        return joined(together, ClassArcs(classes, cluster, np.full(len(classes), self.apart), slots))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return half of ``apart`` while a job waits for a rack, then the cost of the trivial model."""
        waited = state.tasks.waiting_time(tasks, state.now)
        after = super().task_to_unscheduled(state, tasks)
        return np.where(waited < self.patience, self.apart // 2 + 1, after)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the rack that was chosen for the task's job."""
        if running := unmoved(state, task):
            return running
        rack = self._racks.get(int(state.tasks.job[task]), (ABSENT, 0))[0]
        place = f"rack {state.resources.names[rack]!r}" if rack in state.resources.names else "no rack"
        return f"its job was given {place}; another place costs {self.apart}"


def _choose(free: Ints, there: Ints, wanted: int) -> int:
    """Return the rack for ``wanted`` tasks, or ABSENT: the job's own, or the fullest with room for all."""
    if len(there):
        own = int(np.bincount(there).argmax())
        return own if free[own] > 0 else ABSENT
    enough = np.flatnonzero(free >= wanted)
    return int(enough[np.argmin(free[enough])]) if len(enough) else ABSENT
