"""Apollo (§8.3, the example; Boutin et al., OSDI 2014): place each task where it should end first.

The model estimates the completion time of a task in each place as E = I + W + R, in milliseconds: moving the
input, waiting for the machine, and running there. It needs run times from profiles or descriptions. A task
with neither counts as ``unknown`` seconds long; if all tasks do, the data alone decides.

W is the wait-time matrix: the time until each machine has room for a task of a class, computed from the tasks
that run there. If a machine has room now (W = 0), the path to it through the class costs E and admits one
task a round, as in Apollo. A machine without room cannot have an arc, because flow to it would place the task
now. Instead, waiting costs the k-th oldest task of a class the k-th least E of the busy machines. So the task
takes a free place only if it should end there no later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dios.firmament.cluster.columns import Flags, Floats, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.base import UnmovedModel
from dios.firmament.models.cost_terms import (
    NEVER,
    class_members,
    class_numbers,
    joined,
    not_negative,
    open_machines,
    running_tasks,
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
    """The estimates for one class; all vectors are indexed by machine, rows ascending."""

    machines: Ints
    run: Floats
    """R in seconds."""
    wait: Floats
    """W in seconds; infinity for a machine on which the class never fits."""


class ApolloModel(UnmovedModel, QuincyModel):
    """The model of the earliest completion.

    Args:
        psi: milliseconds for 1 GB from the same rack.
        xi: milliseconds for 1 GB from another rack.
        candidates: the largest number of machines with room that a class has arcs to.
        unknown: the assumed run time in seconds of a task of unknown length.
        threshold: see ``DataModel``.
        machine_arcs: see ``DataModel``.

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
        self._latest_worst = np.zeros(0, np.int64)

    def begin(self, state: ClusterState) -> None:
        """Drop the estimates of the last round."""
        self._plans, self._waits, self._ends = {}, {}, None

    def plan(self, state: ClusterState, number: int) -> _Plan:
        """Return R and W of a class (its number in ``ClusterState.equivalences``) on each machine."""
        if number not in self._plans:
            machines = open_machines(state)
            waiting = waiting_tasks(state)
            mine = waiting[state.tasks.equivalence[waiting] == number]
            demand = state.tasks.demand[mine].max(axis=0, initial=0.0)
            # Classes with equal demands have equal wait times.
            wait = self._waits.get(demand.tobytes())
            if wait is None:
                wait = self._waits[demand.tobytes()] = _waits(state, machines, demand, self._releases(state))
            self._plans[number] = _Plan(machines, self._runs(state, number, mine, machines), wait)
        return self._plans[number]

    def _runs(self, state: ClusterState, number: int, tasks: Ints, machines: Ints) -> Floats:
        """Return R of a class by machine: its profile on the type, or the mean of its tasks' run times."""
        expected = self.runtimes.expected(state, tasks) if len(tasks) else np.array([self.runtimes.unknown])
        run_times = np.full(len(machines), float(expected.mean()))
        kinds = state.resources.machine_type[machines]
        for kind in np.unique(kinds).tolist():
            name = state.machine_types.names[kind]
            profiled = float(self.runtimes.profiled(state, np.array([number]), name)[0])
            if not np.isnan(profiled):
                run_times[kinds == kind] = profiled
        return run_times

    def _releases(self, state: ClusterState) -> tuple[Ints, Floats]:
        """Return the running tasks in the order of their expected ends, and the seconds until those."""
        if self._ends is None:
            running = running_tasks(state)
            left = self.runtimes.expected(state, running) - (state.now - state.tasks.since[running])
            # A task that exceeds its expected run time counts as ending now.
            left = np.maximum(left, 0.0)
            order = np.argsort(left, kind="stable")
            self._ends = running[order], left[order]
        return self._ends

    # Arcs -------------------------------------------------------------------------------------------

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return the waiting tasks: W changes in every round."""
        return waiting_tasks(state)

    def data_costs(self, state: ClusterState, inputs: Holdings) -> DataCosts:
        """Return I; ``task_options`` adds the rest."""
        costs = super().data_costs(state, inputs)
        self._latest_worst = costs.worst
        return costs

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return the machines with room that hold enough of the input, at I + R (and W = 0)."""
        options = super().task_options(state, tasks)
        self._worst_cost(state, tasks)
        self._worst[tasks] = self._latest_worst
        cost = options.cost.copy()
        keep: Flags = np.zeros(len(cost), np.bool_)
        number = state.tasks.equivalence[tasks[options.task]]
        for class_number in np.unique(number).tolist():
            plan = self.plan(state, class_number)
            run = np.full(len(state.resources.alive), np.nan)
            ready = plan.wait == 0
            run[plan.machines[ready]] = plan.run[ready] * _MS
            mine = number == class_number
            here = run[options.target[mine]]
            keep[mine] = ~np.isnan(here)
            cost[mine] += whole(np.nan_to_num(here))
        return Options(options.task[keep], options.target[keep], cost[keep])

    def _worst_cost(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return I at the worst place when the options were last requested, or 0 before; shape (n,)."""
        missing = len(state.tasks.alive) - len(self._worst)
        if missing > 0:
            self._worst = np.concatenate([self._worst, np.zeros(missing, np.int64)])
        return self._worst[tasks]

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs T -> its class, at I when all of the input comes from the worst place."""
        classes = class_numbers(_CLASS, state.tasks.equivalence[tasks])
        return Options(np.arange(len(tasks)), classes, self._worst_cost(state, tasks))

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return arcs from classes with waiting tasks to the machines with room and the least R.

        Each arc costs R and admits one task a round.
        """
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
        """Return I + W + R at the machine for which a task would wait, plus 1: in a tie it starts now."""
        cost = np.full(len(tasks), NEVER)
        number = state.tasks.equivalence[tasks]
        for class_number in np.unique(number).tolist():
            plan = self.plan(state, class_number)
            busy = np.sort((plan.wait + plan.run)[(plan.wait > 0) & np.isfinite(plan.wait)])
            mine = np.flatnonzero(number == class_number)
            oldest = mine[np.lexsort((tasks[mine], state.tasks.submitted[tasks[mine]]))]
            some = oldest[: len(busy)]
            cost[some] = whole(busy[: len(some)] * _MS) + self._worst_cost(state, tasks[some]) + 1
        return cost

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return I, W and R at a machine."""
        if running := unmoved(state, task):
            return running
        # The task may have been submitted after the last round.
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
    """Return the seconds until each machine has a slot and room for ``demand``; infinity: never."""
    slots = (state.resources.slots - state.resources.running)[machines]
    free = state.available(machines)
    wait = np.where((slots > 0) & np.all(free >= demand, axis=1), 0.0, np.inf)
    place = np.full(len(state.resources.alive), -1)
    place[machines] = np.arange(len(machines))
    places = place[state.tasks.machine[releases[0]]]
    # The room that ends of tasks free on a drained machine cannot be used.
    busy = np.flatnonzero(places >= 0)
    busy = busy[np.isinf(wait[places[busy]])]
    for index in busy.tolist():
        task, at, left = int(releases[0][index]), int(places[index]), float(releases[1][index])
        if np.isfinite(wait[at]):
            continue
        slots[at] += 1
        free[at] += state.tasks.demand[task]
        if slots[at] > 0 and np.all(free[at] >= demand):
            # A wait of 0 means that the machine has room now.
            wait[at] = max(left, 1e-3)
    return wait
