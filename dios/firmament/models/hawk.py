"""Hawk and Mercury (Table 8.6; Delgado et al. and Karanasos et al., ATC 2015): central and sampled placement.

Both suit clusters with many short tasks next to a few long ones. Hawk places long tasks centrally, outside of
a small part of the cluster that is reserved for short ones, and short tasks by probes. A machine that has
nothing to do steals short tasks. The machines of a flow network have no queues to steal from: a short task
that found its probes full has further, more expensive arcs to random machines with room (Table 8.6).

Mercury has two kinds of containers. Guaranteed ones (services, and priorities from ``guaranteed``) are placed
centrally and never stopped. Queueable ones are probed, and stopped if a guaranteed one needs the slot.
"""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Kind
from dios.firmament.models.cost_terms import (
    NEVER,
    BadModelError,
    class_kinds,
    class_members,
    class_numbers,
    draws,
    joined,
    not_negative,
    open_machines,
    roomy,
    running_tasks,
    unmoved,
    waiting_tasks,
    whole,
)
from dios.firmament.models.protocol import NO_OPTIONS, ClassArcs, Options
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.models.trivial import TrivialModel

LOAD = 10
"""The cost of each task that a machine already has."""
STEAL = 1_000
"""The cost of a place by stealing, above that of any probe."""
_CENTRAL, _SAMPLED = 1, 2
_STEPS_MAX = 99


class HawkModel(TrivialModel):
    """Long tasks by load outside of the reserved part, short ones by probes and stealing.

    Args:
        seed: of the probes; use a different one for each scheduler.
        cutoff: a task with a longer expected run time in seconds is long; services are, too.
        reserved: the share of the machines that takes only short tasks.
        probes: the number of machines that are probed for each short task.
        steals: the number of machines with room that a job's short tasks may go to by stealing.
        unknown: the assumed run time in seconds of a task of unknown length.
        waiting: the cost of waiting at once.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "hawk"
    summary = "Hawk: long tasks centrally, short ones by probes and stealing, in a part of their own"

    def __init__(
        self,
        *,
        seed: int = 0,
        cutoff: float = 300.0,
        reserved: float = 0.17,
        probes: int = 2,
        steals: int = 10,
        unknown: float = 60.0,
        waiting: int = 100_000,
        per_second: int = 10,
    ) -> None:
        super().__init__(waiting=waiting, per_second=per_second)
        not_negative(self.name, seed=seed, cutoff=cutoff, unknown=unknown)
        not_negative(self.name, 1, reserved=reserved)
        not_negative(self.name, 1_000, probes=probes, steals=steals)
        if probes == 0:
            raise BadModelError(f"model {self.name}: probes must be above 0")
        self.seed = seed
        self.cutoff = cutoff
        self.reserved = reserved
        self.probes = probes
        self.steals = steals
        self.runtimes = Runtimes(unknown)

    def central(self, state: ClusterState, tasks: Ints) -> Flags:
        """Return True for the tasks that are placed centrally, shape (n,)."""
        services = state.jobs.kind[state.tasks.job[tasks]] == Kind.SERVICE
        central: Flags = services | (self.runtimes.expected(state, tasks) > self.cutoff)
        return central

    def central_machines(self, state: ClusterState) -> Ints:
        """Return the rows of the machines that take centrally placed tasks: all but the reserved ones."""
        machines = open_machines(state)
        shared: Ints = machines[: len(machines) - int(self.reserved * len(machines))]
        return shared

    # Arcs -------------------------------------------------------------------------------------------

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return no arcs: tasks have only arcs to classes."""
        return NO_OPTIONS

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc to the class of central tasks, or to the class of the probes of the task's job."""
        jobs = state.tasks.job[tasks]
        central = self.central(state, tasks)
        target = np.where(
            central, class_numbers(_CENTRAL, np.zeros_like(jobs)), class_numbers(_SAMPLED, jobs)
        )
        return Options(np.arange(len(tasks)), target, np.zeros(len(tasks), np.int64))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return the arcs of central tasks by load, and those of sampled tasks: probes, then stealing."""
        kinds, members = class_kinds(classes), class_members(classes)
        parts = [self._by_load(state, class_number) for class_number in classes[kinds == _CENTRAL].tolist()]
        jobs = members[kinds == _SAMPLED]
        waiting = waiting_tasks(state)
        mine = waiting[np.isin(state.tasks.job[waiting], jobs)]
        mine = mine[~self.central(state, mine)]
        return joined(*parts, self._sampled(state, mine))

    def _by_load(self, state: ClusterState, number: int) -> ClassArcs:
        table = state.resources
        machines = self.central_machines(state)
        room = self.central_room(state, machines)
        machines, room = machines[room > 0], room[room > 0]
        cost = LOAD * table.running[machines]
        return ClassArcs(np.full(len(machines), number), machines, cost, room)

    def central_room(self, state: ClusterState, machines: Ints) -> Ints:
        """Return the slots of machines that central tasks may take, shape (n,)."""
        table = state.resources
        room: Ints = np.maximum(table.slots[machines] - table.running[machines], 0)
        return room

    def _sampled(self, state: ClusterState, tasks: Ints) -> ClassArcs:
        machines = open_machines(state)
        if not len(machines) or not len(tasks):
            return joined()
        table = state.resources
        width = len(table.alive)
        job = state.tasks.job[tasks]
        # A task probes again after each second.
        key = state.tasks.id[tasks] + whole(state.tasks.waiting_time(tasks, state.now)) * (2**40 + 1)
        probed = machines[draws(self.seed, key, self.probes, len(machines))]
        pairs, times = np.unique(np.repeat(job, self.probes) * width + probed.ravel(), return_counts=True)
        source, target = pairs // width, pairs % width
        probes = ClassArcs(class_numbers(_SAMPLED, source), target, LOAD * table.running[target], times)
        free = roomy(state, machines)
        if not len(free) or not self.steals:
            return probes
        jobs, first = np.unique(job, return_index=True)
        stolen = free[draws(self.seed + 1, key[first], self.steals, len(free))]
        more = np.unique(np.repeat(jobs, self.steals) * width + stolen.ravel())
        more = more[~np.isin(more, pairs)]
        source, target = more // width, more % width
        room = table.slots[target] - table.running[target]
        steals = ClassArcs(
            class_numbers(_SAMPLED, source),
            target,
            STEAL + np.minimum(table.running[target], _STEPS_MAX),
            room,
        )
        return joined(probes, steals)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return how the task is placed, and the load of the machine."""
        if running := unmoved(state, task):
            return running
        return self.explain_place(state, task, resource)

    def explain_place(self, state: ClusterState, task: int, resource: int) -> str:
        """Return how the task is placed, and the load of the machine, also for a running task."""
        running = int(state.resources.running[resource])
        if self.central(state, np.array([task]))[0]:
            return f"placed centrally, by load; {running} tasks run there"
        return f"placed by {self.probes} probes, then by stealing; {running} tasks run there"


class MercuryModel(HawkModel):
    """Guaranteed containers stop queueable ones.

    Args:
        guaranteed: the least priority of a guaranteed task; services always are.
        lost: the cost of a second of work that is lost with a stopped task.
        seed: see ``HawkModel``.
        probes: see ``HawkModel``.
        steals: see ``HawkModel``.
        waiting: the cost of waiting of a queueable task at once.
        per_second: the additional cost of each second of waiting.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "mercury"
    summary = "Mercury: guaranteed tasks centrally, queueable ones by probes, stopped if needed"

    URGENT = 2**31
    """The cost of waiting of a guaranteed task, above that of stopping any queueable one."""
    LOST_MAX = 2**29

    def __init__(
        self,
        *,
        guaranteed: int = 1,
        lost: int = 100,
        seed: int = 0,
        probes: int = 2,
        steals: int = 10,
        waiting: int = 100_000,
        per_second: int = 10,
    ) -> None:
        super().__init__(
            seed=seed,
            reserved=0.0,
            probes=probes,
            steals=steals,
            waiting=waiting,
            per_second=per_second,
        )
        not_negative(self.name, lost=lost)
        self.guaranteed = guaranteed
        self.lost = lost

    def central(self, state: ClusterState, tasks: Ints) -> Flags:
        """Return True for guaranteed tasks."""
        services = state.jobs.kind[state.tasks.job[tasks]] == Kind.SERVICE
        central: Flags = services | (state.tasks.priority[tasks] >= self.guaranteed)
        return central

    def central_room(self, state: ClusterState, machines: Ints) -> Ints:
        """Return the slots without a guaranteed task."""
        running = running_tasks(state)
        kept = state.tasks.machine[running[self.central(state, running) | ~state.tasks.restartable[running]]]
        taken = np.bincount(kept, minlength=len(state.resources.alive))
        room: Ints = np.maximum(state.resources.slots[machines] - taken[machines], 0)
        return room

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return more for guaranteed tasks than stopping any queueable one costs."""
        usual = super().task_to_unscheduled(state, tasks)
        limited = np.minimum(usual, self.LOST_MAX)
        waited = np.minimum(whole(state.tasks.waiting_time(tasks, state.now)), self.LOST_MAX)
        return np.where(self.central(state, tasks), self.URGENT + waited, limited)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of staying: guaranteed tasks stay, queueable ones may give way, but do not move."""
        return np.where(self.central(state, tasks), -NEVER, 0)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of waiting and of the lost work of queueable tasks; guaranteed ones never stop."""
        ran = state.tasks.running_time(tasks, state.now)
        lost = whole(np.minimum(self.waiting + self.lost * ran, float(self.LOST_MAX)))
        return np.where(self.central(state, tasks), NEVER, lost)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the kind of the task, and how it is placed."""
        if state.tasks.status[task] == RUNNING and self.central(state, np.array([task]))[0]:
            return "it is guaranteed and runs, so it stays"
        kind = "guaranteed" if self.central(state, np.array([task]))[0] else "queueable"
        return f"{kind}: {self.explain_place(state, task, resource)}"
