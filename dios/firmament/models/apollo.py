"""Apollo (§8.3, the example; Boutin et al., OSDI 2014): the place where a task will be done first.

For: tasks whose run time is known, on machines that differ, with data. Not for: work that nobody has
described or profiled; all of it takes ``unknown`` seconds then, and data alone decides.

E = I + W + R, in milliseconds: moving the input, waiting for the machine, and running there. W is the
wait-time matrix: when each machine has room for a task of a class, from what runs there. A machine with
room now (W = 0) has an arc from the class at E for one task a round, as Apollo itself has it. A machine
without room cannot have one, as flow is a place now; so the k-th oldest task of a class waits at the k-th
least E of the machines that are busy: it takes a place at once only where that is done no later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.cost_terms import (
    NEVER,
    class_members,
    class_numbers,
    joined,
    not_negative,
    open_machines,
    running_tasks,
    stay,
    stop_nobody,
    unmoved,
    waiting_tasks,
    whole,
)
from dios.firmament.models.data_model import DataCosts
from dios.firmament.models.locality import Holdings
from dios.firmament.models.protocol import ClassArcs, Options
from dios.firmament.models.quincy import QuincyModel
from dios.firmament.models.runtimes import Runtimes

_MS = 1000.0
_CLASS = 1


class _Plan(NamedTuple):
    """What one class may expect: all vectors by machine, rows ascending."""

    machines: Ints
    run: Floats
    """R in seconds."""
    wait: Floats
    """W in seconds; infinity where it never fits."""


class ApolloModel(QuincyModel):
    """Earliest completion.

    Args:
        psi: milliseconds for 1 GB from the same rack.
        xi: milliseconds for 1 GB from another rack.
        candidates: the most machines with room that a class has arcs to.
        unknown: seconds that a task of unknown length is taken to run.
        threshold: see ``DataModel``, as the next.
        machine_arcs: see there.

    Raises:
        BadModelError: a value is out of range.
    """

    name = "apollo"
    summary = "Apollo: the place with the earliest estimated completion, waiting included"

    def __init__(
        self,
        *,
        psi: int = 1_000,
        xi: int = 2_000,
        candidates: int = 500,
        unknown: float = 60.0,
        threshold: float = 0.14,
        machine_arcs: int = 7,
    ) -> None:
        super().__init__(psi=psi, xi=xi, threshold=threshold, machine_arcs=machine_arcs, rack_arcs=0)
        not_negative(self.name, candidates=candidates, unknown=unknown)
        self.candidates = candidates
        self.runtimes = Runtimes(unknown)
        self._plans: dict[int, _Plan] = {}
        self._waits: dict[bytes, Floats] = {}
        self._ends: tuple[Ints, Floats] | None = None
        self._worst = np.zeros(0, np.int64)
        self._asked_worst = np.zeros(0, np.int64)

    def begin(self, state: ClusterState) -> None:
        """The wait-time matrix is made anew."""
        self._plans, self._waits, self._ends = {}, {}, None

    def plan(self, state: ClusterState, number: int) -> _Plan:
        """R and W of a class (its number in ``ClusterState.equivalences``) on each machine."""
        if number not in self._plans:
            machines = open_machines(state)
            waiting = waiting_tasks(state)
            mine = waiting[state.tasks.equivalence[waiting] == number]
            demand = state.tasks.demand[mine].max(axis=0, initial=0.0)
            # Classes that ask for as much wait as long.
            wait = self._waits.get(demand.tobytes())
            if wait is None:
                wait = self._waits[demand.tobytes()] = _waits(state, machines, demand, self._releases(state))
            self._plans[number] = _Plan(machines, self._runs(state, number, mine, machines), wait)
        return self._plans[number]

    def _runs(self, state: ClusterState, number: int, tasks: Ints, machines: Ints) -> Floats:
        """R of a class by machine: its profile on the type, or the mean of what its tasks say."""
        expected = self.runtimes.expected(state, tasks) if len(tasks) else np.array([self.runtimes.unknown])
        found = np.full(len(machines), float(expected.mean()))
        kinds = state.resources.machine_type[machines]
        for kind in np.unique(kinds).tolist():
            name = state.machine_types.names[kind]
            profiled = float(self.runtimes.profiled(state, np.array([number]), name)[0])
            if not np.isnan(profiled):
                found[kinds == kind] = profiled
        return found

    def _releases(self, state: ClusterState) -> tuple[Ints, Floats]:
        """Running tasks in the order of their expected ends, and in how many seconds those are."""
        if self._ends is None:
            running = running_tasks(state)
            left = self.runtimes.expected(state, running) - (state.now - state.tasks.since[running])
            # One that should have ended is as good as at its end.
            left = np.maximum(left, 0.0)
            order = np.argsort(left, kind="stable")
            self._ends = running[order], left[order]
        return self._ends

    # Arcs -------------------------------------------------------------------------------------------

    def stale_tasks(self, state: ClusterState) -> Ints:
        """All that wait: W changes with every round."""
        return waiting_tasks(state)

    def data_costs(self, state: ClusterState, found: Holdings) -> DataCosts:
        """I; ``task_options`` adds the rest."""
        costs = super().data_costs(state, found)
        self._asked_worst = costs.worst
        return costs

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Machines with room that hold enough of the input, at I + R (and W = 0)."""
        found = super().task_options(state, tasks)
        self._worst_of(state, tasks)
        self._worst[tasks] = self._asked_worst
        cost = found.cost.copy()
        keep: Flags = np.zeros(len(cost), np.bool_)
        number = state.tasks.equivalence[tasks[found.task]]
        for each in np.unique(number).tolist():
            plan = self.plan(state, each)
            run = np.full(len(state.resources.alive), np.nan)
            ready = plan.wait == 0
            run[plan.machines[ready]] = plan.run[ready] * _MS
            mine = number == each
            here = run[found.target[mine]]
            keep[mine] = ~np.isnan(here)
            cost[mine] += whole(np.nan_to_num(here))
        return Options(found.task[keep], found.target[keep], cost[keep])

    def _worst_of(self, state: ClusterState, tasks: Ints) -> Ints:
        """I at the worst place, as it was when the options were asked for; 0 before; shape (n,)."""
        missing = len(state.tasks.alive) - len(self._worst)
        if missing > 0:
            self._worst = np.concatenate([self._worst, np.zeros(missing, np.int64)])
        return self._worst[tasks]

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """T -> its class, at I when all of the input comes from the worst place."""
        classes = class_numbers(_CLASS, state.tasks.equivalence[tasks])
        return Options(np.arange(len(tasks)), classes, self._worst_of(state, tasks))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Class -> the machines with room that are done first, at R, one task a round; for who waits."""
        parts: list[ClassArcs] = []
        wanted = state.tasks.equivalence[waiting_tasks(state)]
        for number in np.intersect1d(class_members(classes), wanted).tolist():
            plan = self.plan(state, number)
            ready = np.flatnonzero(plan.wait == 0)
            best = ready[np.argsort(plan.run[ready], kind="stable")][: self.candidates]
            source = np.full(len(best), class_numbers(_CLASS, np.array([number]))[0])
            ones = np.ones(len(best), np.int64)
            parts.append(ClassArcs(source, plan.machines[best], whole(plan.run[best] * _MS), ones))
        return joined(*parts)

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """I + W + R at the machine that a task would wait for; one more, so that a tie means now."""
        cost = np.full(len(tasks), NEVER)
        number = state.tasks.equivalence[tasks]
        for each in np.unique(number).tolist():
            plan = self.plan(state, each)
            busy = np.sort((plan.wait + plan.run)[(plan.wait > 0) & np.isfinite(plan.wait)])
            mine = np.flatnonzero(number == each)
            oldest = mine[np.lexsort((tasks[mine], state.tasks.submitted[tasks[mine]]))]
            some = oldest[: len(busy)]
            cost[some] = whole(busy[: len(some)] * _MS) + self._worst_of(state, tasks[some]) + 1
        return cost

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Nobody moves."""
        return stay(tasks)

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Nobody is stopped."""
        return stop_nobody(tasks)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """I, W and R at a machine."""
        if running := unmoved(state, task):
            return running
        # The task may have come after the last round.
        self.begin(state)
        plan = self.plan(state, int(state.tasks.equivalence[task]))
        data = self.explain_data(state, task, resource)
        place = np.flatnonzero(plan.machines == resource)
        if len(place) == 0:
            return f"I in ms: {data}"
        wait, run = float(plan.wait[place[0]]), float(plan.run[place[0]])
        ready = "now" if wait == 0 else f"in {wait:.1f} s" if np.isfinite(wait) else "never"
        return f"there is room {ready}, then it runs for {run:.1f} s; I in ms: {data}"


def _waits(state: ClusterState, machines: Ints, demand: Floats, releases: tuple[Ints, Floats]) -> Floats:
    """Seconds until each machine has a slot and room for ``demand``; infinity: never."""
    slots = (state.resources.slots - state.resources.running)[machines]
    free = state.available(machines)
    wait = np.where((slots > 0) & np.all(free >= demand, axis=1), 0.0, np.inf)
    place = np.full(len(state.resources.alive), -1)
    place[machines] = np.arange(len(machines))
    where = place[state.tasks.machine[releases[0]]]
    # What runs on drained machines frees nothing that anybody could use.
    busy = np.flatnonzero(where >= 0)
    busy = busy[np.isinf(wait[where[busy]])]
    for each in busy.tolist():
        task, at, left = int(releases[0][each]), int(where[each]), float(releases[1][each])
        if np.isfinite(wait[at]):
            continue
        slots[at] += 1
        free[at] += state.tasks.demand[task]
        if slots[at] > 0 and np.all(free[at] >= demand):
            # At once would be 0, which means room now.
            wait[at] = max(left, 1e-3)
    return wait
