"""Green, the energy-aware model (§7.4): the least energy that still meets deadlines and load.

Green suits clusters with unlike machines, some of them energy-efficient. It needs an estimate of runtimes
(``expected_runtime`` on a core of speed 1) and the power of the machine types (``green_power``). It ignores
interference. A migrated task starts again from the beginning, so its cost on another machine is that of the
whole task.

Costs of batch tasks are tenths of joules, limited to ω. Costs of services are microjoules for each request,
limited to Ω. With ``objective="performance"`` the same network minimises time instead, which is comparison
(iii) of §8.2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Kind, Level
from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import (
    BadModelError,
    class_kinds,
    class_members,
    class_numbers,
    joined,
    not_negative,
    open_machines,
    roomy,
)
from dios.firmament.models.green_power import PowerTable
from dios.firmament.models.protocol import NO_OPTIONS, ClassArcs, Options


@dataclass(frozen=True, slots=True)
class ServiceScaler:
    """A rule that grows a service above 55 % of its estimated capacity and shrinks it below 15 % (§8.2.2).

    The distance between the two limits is the hysteresis. In addition, the rule keeps a task if the next
    check would add it again.
    """

    least: int = 1
    most: int = 4
    grow_above: float = 0.55
    shrink_below: float = 0.15

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise InvalidError(
                f"least is {self.least} and most is {self.most}; use values with 0 <= least <= most"
            )
        if not 0 <= self.shrink_below < self.grow_above <= 1:
            raise InvalidError(
                f"shrink_below is {self.shrink_below} and grow_above is {self.grow_above}; "
                "use values with 0 <= shrink_below < grow_above <= 1"
            )

    def change(self, load: float, capacities: Sequence[float]) -> int:
        """Return the change of the number of tasks: 1, -1 or 0.

        Args:
            load: arriving requests per second.
            capacities: requests per second that each task can answer where it runs, or will run.
        """
        count, capacity = len(capacities), sum(capacities)
        if count < self.least or (count < self.most and load > self.grow_above * capacity):
            return 1
        if count > self.most:
            return -1
        without = capacity - min(capacities, default=0.0)
        if count > self.least and load < self.shrink_below * capacity and load <= self.grow_above * without:
            return -1
        return 0


def first_to_stop(costs: Sequence[float]) -> int:
    """Return the index of the task to stop first: the one with the highest energy cost per request.

    Raises:
        ValueError: ``costs`` is empty.
    """
    return max(range(len(costs)), key=costs.__getitem__)


OMEGA_SERVICE: Final = 10**9
"""Ω, and Γ: the cost of waiting for a service task, so high that services are always scheduled."""
OMEGA_BATCH: Final = 10**7
"""ω, far below Ω: the highest cost of a batch task; it equals a megajoule."""
WAIT_SHARE: Final = 1.15
"""gamma divided by the cost on the cheapest machine: how much more a task pays instead of waiting."""
URGENT: Final = 20
"""gamma divided by the cost on the best machine when few machines can still meet the deadline."""

GOOD: Final = 1
"""Class MA: the machines of a type, for tasks that meet their deadline there."""
LATE: Final = 2
"""The "unschedulable" aggregator of a type, for tasks that miss their deadline there."""

_JOULE: Final = 10.0
_TYPES_MAX: Final = 62
"""Machine types that are considered, one bit each in a task's bit set. Further types get no arcs."""


class GreenModel(BaseModel):
    """Slow, efficient machines for tasks that can wait; fast ones for tasks with a near deadline."""

    name = "green"
    summary = "least energy that still meets deadlines and load (thesis 7.4)"

    def __init__(
        self,
        *,
        objective: str = "energy",
        few: int = 2,
        discount: float = 0.1,
        margin: float = 0.1,
        runtime: float = 60.0,
        patient: bool = True,
    ) -> None:
        """Create a model.

        Args:
            objective: "energy", or "performance" for the shortest time.
            few: ε, the number of machines in time at or below which a task with a deadline becomes urgent.
            discount: the share by which staying is cheaper for a service (hysteresis), 0 to 1.
            margin: the share of a runtime that is added as a reserve before a deadline.
            runtime: seconds of work of a task without an estimate.
            patient: True if a task with a deadline waits for the most efficient type, even a full one, until
                its deadline excludes that type (§7.4.1). For other tasks, and if False, only types with room
                determine the cost of waiting, so that no task waits for ever.

        Raises:
            BadModelError: a parameter is out of range.
        """
        not_negative(self.name, few=few, margin=margin, runtime=runtime)
        not_negative(self.name, 1, discount=discount)
        if objective not in {"energy", "performance"}:
            raise BadModelError(f"model green: objective is {objective!r}; it must be energy or performance")
        self.objective, self.few = objective, few
        self.discount, self.margin, self.runtime, self.patient = discount, margin, runtime, patient
        self.power = PowerTable()
        self._identifiers: Ints = np.zeros(0, np.int64)
        """By task row: the identifier of the task that the two next columns describe."""
        self._asked_bits: Ints = np.zeros(0, np.int64)
        """Bit set of the types that met the deadline at the last request for arcs, or -1 before the first."""
        self._work_seconds: Floats = np.zeros(0)
        """Seconds of work on a core of speed 1."""
        self._asked_version = 0
        self._asked_kinds: tuple[int, ...] = ()

    # Machines -------------------------------------------------------------------------------------

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """Read the power label of the machine."""
        kind = int(state.resources.machine_type[machine])
        self.power.read_labels(state.resources.labels.get(machine, {}), state.machine_types.names[kind])

    def kinds(self, state: ClusterState) -> list[int]:
        """Return the numbers of the types with a machine that takes tasks, ascending."""
        kinds: list[int] = np.unique(state.resources.machine_type[open_machines(state)]).tolist()
        return kinds[:_TYPES_MAX]

    # Costs -------------------------------------------------------------------------------------------

    def costs(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Ints:
        """Return delta and rho: the cost of each task on a machine of each type, shape (tasks, kinds)."""
        table = state.tasks
        powers = [self.power.of(state.machine_types.names[kind]) for kind in kinds]
        requests = np.array([power.requests for power in powers])
        cpus = np.maximum(table.demand[tasks, 0], 1e-3)
        if self.objective == "energy":
            watts = self.power.watts(state, kinds, table.equivalence[tasks].astype(np.float64), cpus)
        else:
            # With one watt for every machine, the energy in joules equals the time in seconds.
            watts = np.ones((len(tasks), len(kinds)))
        batch = np.minimum(watts * self._seconds(state, tasks, kinds) * _JOULE, OMEGA_BATCH - 1)
        service = np.minimum(1e6 * watts / (requests * cpus[:, None]), OMEGA_SERVICE - 1)
        costs: Ints = np.rint(np.where(self._services(state, tasks)[:, None], service, batch)).astype(
            np.int64
        )
        return costs

    def in_time(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Flags:
        """Return True where a task that starts now meets its deadline, shape (tasks, kinds).

        Services meet it everywhere.
        """
        ends = state.now + self._seconds(state, tasks, kinds) * (1 + self.margin)
        timely: Flags = (ends <= state.tasks.deadline[tasks][:, None]) | self._services(state, tasks)[:, None]
        return timely

    def completion(self, state: ClusterState, tasks: Ints) -> Floats:
        """Return the share of its work that each task has done, 0 to 1, shape (n,); 0 for waiting tasks."""
        table = state.tasks
        runs = table.status[tasks] == RUNNING
        seconds = np.where(runs, state.now - table.since[tasks], 0.0)
        done: Floats = np.clip(seconds * self._speed_here(state, tasks) / self._work(state, tasks), 0.0, 1.0)
        return done

    # Tasks ----------------------------------------------------------------------------------------

    def begin(self, state: ClusterState) -> None:
        """Add new tasks. Their estimates do not change later."""
        table = state.tasks
        missing = len(table.id) - len(self._identifiers)
        if missing > 0:
            self._identifiers = np.concatenate([self._identifiers, np.full(missing, ABSENT, np.int64)])
            self._asked_bits = np.concatenate([self._asked_bits, np.full(missing, -1, np.int64)])
            self._work_seconds = np.concatenate([self._work_seconds, np.zeros(missing)])
        rows = table.all()
        new = rows[self._identifiers[rows] != table.id[rows]]
        for row in new.tolist():
            self._work_seconds[row] = max(table.descriptors[row].expected_runtime or self.runtime, 1e-3)
        self._identifiers[new], self._asked_bits[new] = table.id[new], -1

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Return tasks for which a type became too slow, or all tasks if types or measured power changed."""
        self.begin(state)
        rows = state.tasks.all()
        rows = rows[self._asked_bits[rows] >= 0]
        kinds = self.kinds(state)
        if self._asked_version != self.power.version or self._asked_kinds != tuple(kinds):
            return rows
        changed: Ints = rows[self._asked_bits[rows] != self._bits(state, rows, kinds)]
        return changed

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Return an arc at ω from each batch task to the cluster (§7.4.1).

        It costs more than waiting, unless the task will be late everywhere.
        """
        at = np.flatnonzero(~self._services(state, tasks))
        return Options(at, np.full(len(at), state.cluster), np.full(len(at), OMEGA_BATCH))

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Return arcs to types of machines: at delta or rho where in time, else to the late aggregators."""
        self.begin(state)
        kinds = self.kinds(state)
        self._asked_version, self._asked_kinds = self.power.version, tuple(kinds)
        self._asked_bits[tasks] = self._bits(state, tasks, kinds)
        if not kinds or not len(tasks):
            return NO_OPTIONS
        costs = self.costs(state, tasks, kinds)
        good = self._good(state, tasks, kinds)
        at = np.repeat(np.arange(len(tasks)), len(kinds))
        types = np.tile(np.array(kinds), len(tasks))
        flat = good.ravel()
        target = np.where(flat, class_numbers(GOOD, types), class_numbers(LATE, types))
        return Options(at, target, np.where(flat, costs.ravel(), 0))

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return Γ = Ω for services, and gamma by the number of machines in time for batch tasks."""
        kinds = self.kinds(state)
        if not kinds:
            return np.where(self._services(state, tasks), OMEGA_SERVICE, OMEGA_BATCH)
        costs = self.costs(state, tasks, kinds)
        in_time = self.in_time(state, tasks, kinds)
        meant = in_time & self._room(state, tasks, kinds)
        meant = np.where(meant.any(axis=1, keepdims=True), meant, in_time)
        cheapest = np.where(meant, costs, OMEGA_BATCH).min(axis=1)
        left = (in_time * self._machines_of(state, kinds)[None, :]).sum(axis=1)
        hurry = (left <= self.few) & np.isfinite(state.tasks.deadline[tasks])
        gamma = np.where(hurry, URGENT * cheapest, np.ceil(WAIT_SHARE * cheapest))
        # With 0, a task that costs nothing would wait for ever.
        gamma = np.clip(gamma, 1, OMEGA_BATCH - 1)
        # The task will miss its deadline, so any place is better than a longer wait.
        gamma = np.where(in_time.any(axis=1), gamma, OMEGA_BATCH + 1)
        waiting_costs: Ints = np.where(self._services(state, tasks), OMEGA_SERVICE, gamma).astype(np.int64)
        return waiting_costs

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return phi (services): rho with a discount, or theta (batch): delta times the remaining share.

        A task that will be late here and in time on another machine costs ω.
        """
        here = self._cost_here(state, tasks)
        done = self.completion(state, tasks)
        stay = np.where(self._services(state, tasks), here * (1 - self.discount), here * (1 - done))
        return np.where(self._endangered(state, tasks), OMEGA_BATCH, np.rint(stay).astype(np.int64))

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """Return the cost of waiting, but more than that of staying, so that no task stops needlessly."""
        waits = self.task_to_unscheduled(state, tasks)
        return np.maximum(waits, self.task_continuation(state, tasks) + 1)

    # Aggregates -----------------------------------------------------------------------------------

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """Return arcs from each aggregator to the machines of its type, at 0, or at ω from the late ones."""
        table = state.resources
        machines = open_machines(state)
        parts = []
        for class_number, kind, number in zip(
            classes, class_kinds(classes), class_members(classes), strict=True
        ):
            to = machines[table.machine_type[machines] == number]
            cost = OMEGA_BATCH if kind == LATE else 0
            capacity = self._fitting(state, to)
            parts.append(
                ClassArcs(np.full(len(to), class_number), to, np.full(len(to), cost, np.int64), capacity)
            )
        return joined(*parts)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Return the energy or time at the resource, and whether the deadline can be met."""
        kind = int(state.resources.machine_type[resource])
        if kind < 0:
            return "machines of several types"
        tasks, kinds = np.array([task]), [kind]
        cost = int(self.costs(state, tasks, kinds)[0, 0])
        kind_name = state.machine_types.names[kind]
        if self._services(state, tasks)[0]:
            return f"{cost} microjoules per request on {kind_name or 'this type'}"
        unit = f"{cost / _JOULE:.0f} J" if self.objective == "energy" else f"{cost / _JOULE:.0f} s"
        late = "" if self.in_time(state, tasks, kinds)[0, 0] else "; it would miss its deadline there"
        return (
            f"{unit} on {kind_name or 'this type'}{late}; {100 * self.completion(state, tasks)[0]:.0f} % done"
        )

    # Inside ---------------------------------------------------------------------------------------

    def _services(self, state: ClusterState, tasks: Ints) -> Flags:
        services: Flags = state.jobs.kind[state.tasks.job[tasks]] == Kind.SERVICE
        return services

    def _work(self, state: ClusterState, tasks: Ints) -> Floats:
        """Return the seconds of work on a core of speed 1, shape (n,)."""
        self.begin(state)
        return self._work_seconds[tasks]

    def _speeds(self, state: ClusterState, kinds: list[int]) -> Floats:
        return np.array([self.power.of(state.machine_types.names[kind]).speed for kind in kinds])

    def _seconds(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Floats:
        return self._work(state, tasks)[:, None] / self._speeds(state, kinds)[None, :]

    def _speed_here(self, state: ClusterState, tasks: Ints) -> Floats:
        every = self._speeds(state, list(range(len(state.machine_types.names))))
        kind = state.resources.machine_type[state.tasks.machine[tasks]]
        return np.append(every, 1.0)[np.where(state.tasks.status[tasks] == RUNNING, kind, -1)]

    def _cost_here(self, state: ClusterState, tasks: Ints) -> Ints:
        if not len(tasks):
            return np.zeros(0, np.int64)
        kinds = list(range(len(state.machine_types.names)))
        kind = np.maximum(state.resources.machine_type[state.tasks.machine[tasks]], 0)
        return self.costs(state, tasks, kinds)[np.arange(len(tasks)), kind]

    def _good(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Flags:
        """Return True for types in time, or for the fastest types if none is; shape (tasks, kinds)."""
        in_time = self.in_time(state, tasks, kinds)
        seconds = self._seconds(state, tasks, kinds)
        soonest = seconds <= seconds.min(axis=1, keepdims=True)
        return np.where(in_time.any(axis=1, keepdims=True), in_time, soonest)

    def _bits(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Ints:
        weights = 1 << np.arange(len(kinds), dtype=np.int64)
        bits: Ints = self.in_time(state, tasks, kinds) @ weights
        return bits

    def _machines_of(self, state: ClusterState, kinds: list[int]) -> Ints:
        table = state.resources
        machines = open_machines(state)
        return np.array([np.count_nonzero(table.machine_type[machines] == kind) for kind in kinds])

    def _room(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Flags:
        """Return True where some machine of the type has a free slot and enough resources; (tasks, kinds).

        Each resource is checked for itself. For tasks that wait patiently every type counts.
        """
        table = state.resources
        machines = roomy(state, table.at(Level.MACHINE))
        fits = np.zeros((len(tasks), len(kinds)), np.bool_)
        for at, kind in enumerate(kinds):
            most = state.available(machines[table.machine_type[machines] == kind]).max(axis=0, initial=-1.0)
            fits[:, at] = (state.tasks.demand[tasks] <= most).all(axis=1)
        waits = self.patient & np.isfinite(state.tasks.deadline[tasks])
        return fits | waits[:, None]

    def _fitting(self, state: ClusterState, machines: Ints) -> Ints:
        """Return the number of further tasks that each machine can hold, by the smallest demand of any task.

        Without this limit, tasks would choose the cheapest machine again and again while it has slots, though
        no cores.
        """
        demand = state.tasks.demand[state.tasks.all()]
        least = np.where(demand > 0, demand, np.inf).min(axis=0, initial=np.inf)
        slots = state.resources.slots[machines]
        meant = np.isfinite(least)
        available = np.maximum(state.available(machines)[:, meant], 0)
        fits = np.floor(available / least[meant] + 1e-9).min(axis=1, initial=np.inf)
        most = np.where(np.isfinite(fits), fits, slots)
        return np.minimum(most, slots).astype(np.int64)

    def _endangered(self, state: ClusterState, tasks: Ints) -> Flags:
        """Return True for running batch tasks that will be late here and in time on another machine."""
        kinds = self.kinds(state)
        if not kinds or not len(tasks):
            return np.zeros(len(tasks), np.bool_)
        left = self._work(state, tasks) * (1 - self.completion(state, tasks))
        late = state.now + left / self._speed_here(state, tasks) > state.tasks.deadline[tasks]
        elsewhere = self.in_time(state, tasks, kinds).any(axis=1)
        return late & elsewhere & ~self._services(state, tasks)
