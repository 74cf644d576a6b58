"""Green, the energy-aware model (§7.4): the least energy that still meets deadlines and load.

For: clusters of unlike machines, some of them frugal; it needs an estimate of runtimes (``expected_runtime``
on a core of speed 1) and what types of machines draw (``green_power``).
Not for: interference or load; and a migrated task begins again, so that its costs elsewhere are whole ones.

Costs of batch tasks are tenths of joules, cut at ω; those of services are microjoules for each request,
cut at Ω. With ``objective="performance"`` the same network minimises time instead: the comparison (iii)
of §8.2.2.
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
from dios.firmament.models.green_power import PowerBook
from dios.firmament.models.protocol import NO_OPTIONS, ClassArcs, Options


@dataclass(frozen=True, slots=True)
class ServiceScaler:
    """Grows a service above 55 % of its estimated capacity, shrinks it below 15 % (§8.2.2).

    The distance of the two is the hysteresis; besides, no task is taken away whose absence would make the
    next look bring it back.
    """

    least: int = 1
    most: int = 4
    grow_above: float = 0.55
    shrink_below: float = 0.15

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise InvalidError(
                f"a service of {self.least} to {self.most} tasks; 0 <= least <= most is wanted"
            )
        if not 0 <= self.shrink_below < self.grow_above <= 1:
            raise InvalidError(
                f"shrink below {self.shrink_below}, grow above {self.grow_above}; 0 <= one < other <= 1"
            )

    def change(self, load: float, capacities: Sequence[float]) -> int:
        """How many tasks more (1), fewer (-1) or neither (0).

        Args:
            load: requests per second that come.
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
    """Which task to take away when one is too many: the one whose requests cost the most energy.

    Raises:
        ValueError: there is none.
    """
    return max(range(len(costs)), key=costs.__getitem__)


OMEGA_SERVICE: Final = 10**9
"""Ω, and Γ: a service task is always scheduled and never stopped."""
OMEGA_BATCH: Final = 10**7
"""ω, far below Ω: the most that a batch task costs; a megajoule."""
WAIT_SHARE: Final = 1.15
"""gamma beside the cheapest machine's cost: waiting for a frugal machine is worth this much."""
URGENT: Final = 20
"""gamma beside the best machine's cost when few machines are left that meet the deadline."""

GOOD: Final = 1
"""Class MA: the machines of a type, for those who meet their deadline there."""
LATE: Final = 2
"""The "unschedulable" aggregator of a type, for the others."""

_JOULE: Final = 10.0
_TYPES_MAX: Final = 62
"""Types of machines whose fitness for a task is one bit each; no arcs lead to machines of further types."""


class GreenModel(BaseModel):
    """Slow and frugal machines for what can wait, fast ones when the deadline comes near."""

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
        """A model.

        Args:
            objective: "energy", or "performance" for as fast as possible.
            few: ε, at how few machines a task that has a deadline becomes urgent.
            discount: the share by which staying is cheaper for a service (hysteresis), 0 to 1.
            margin: the share of a runtime that is kept in hand before a deadline.
            runtime: seconds of work of a task of which none are told.
            patient: a task that has a deadline waits for the most frugal type until its deadline takes
                that away, even if it is full (§7.4.1). For others, and without this, only types that have
                room count for what waiting costs, so that nobody waits for ever.

        Raises:
            BadModelError: a parameter that cannot be meant.
        """
        not_negative(self.name, few=few, margin=margin, runtime=runtime)
        not_negative(self.name, 1, discount=discount)
        if objective not in {"energy", "performance"}:
            raise BadModelError(f"model green: objective is {objective!r}; it must be energy or performance")
        self.objective, self.few = objective, few
        self.discount, self.margin, self.runtime, self.patient = discount, margin, runtime, patient
        self.power = PowerBook()
        self._known: Ints = np.zeros(0, np.int64)
        """By task row: the identifier of the task of which the two next columns tell."""
        self._asked: Ints = np.zeros(0, np.int64)
        """Bits of the types where it met its deadline when it was asked about; -1: never."""
        self._told: Floats = np.zeros(0)
        """Seconds of work on a core of speed 1."""
        self._version = 0
        self._stay: tuple[int, ...] = ()

    # Machines -------------------------------------------------------------------------------------

    def add_machine(self, state: ClusterState, machine: int) -> None:
        """Read what the machine says of its power."""
        kind = int(state.resources.machine_type[machine])
        self.power.read_labels(state.resources.labels.get(machine, {}), state.machine_types.names[kind])

    def kinds(self, state: ClusterState) -> list[int]:
        """Numbers of the types of which there is a machine that takes tasks, ascending."""
        kinds: list[int] = np.unique(state.resources.machine_type[open_machines(state)]).tolist()
        return kinds[:_TYPES_MAX]

    # What it costs -----------------------------------------------------------------------------------

    def costs(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Ints:
        """Delta and rho: the cost of each task on a machine of each type, shape (tasks, kinds)."""
        table = state.tasks
        powers = [self.power.of(state.machine_types.names[kind]) for kind in kinds]
        requests = np.array([power.requests for power in powers])
        cpus = np.maximum(table.demand[tasks, 0], 1e-3)
        if self.objective == "energy":
            watts = self.power.watts(state, kinds, table.equivalence[tasks].astype(np.float64), cpus)
        else:
            # As though every machine drew a watt: what is left of the energy is the time.
            watts = np.ones((len(tasks), len(kinds)))
        batch = np.minimum(watts * self._seconds(state, tasks, kinds) * _JOULE, OMEGA_BATCH - 1)
        service = np.minimum(1e6 * watts / (requests * cpus[:, None]), OMEGA_SERVICE - 1)
        found: Ints = np.rint(np.where(self._services(state, tasks)[:, None], service, batch)).astype(
            np.int64
        )
        return found

    def in_time(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Flags:
        """Where a task that starts now meets its deadline, shape (tasks, kinds); services do everywhere."""
        ends = state.now + self._seconds(state, tasks, kinds) * (1 + self.margin)
        found: Flags = (ends <= state.tasks.deadline[tasks][:, None]) | self._services(state, tasks)[:, None]
        return found

    def completion(self, state: ClusterState, tasks: Ints) -> Floats:
        """What share of its work a running task has done, 0 to 1, shape (n,); 0 of one that waits."""
        table = state.tasks
        runs = table.status[tasks] == RUNNING
        seconds = np.where(runs, state.now - table.since[tasks], 0.0)
        found: Floats = np.clip(seconds * self._speed_here(state, tasks) / self._work(state, tasks), 0.0, 1.0)
        return found

    # Tasks ----------------------------------------------------------------------------------------

    def begin(self, state: ClusterState) -> None:
        """Take in new tasks; their estimates do not change later."""
        table = state.tasks
        missing = len(table.id) - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, np.full(missing, ABSENT, np.int64)])
            self._asked = np.concatenate([self._asked, np.full(missing, -1, np.int64)])
            self._told = np.concatenate([self._told, np.zeros(missing)])
        rows = table.all()
        new = rows[self._known[rows] != table.id[rows]]
        for row in new.tolist():
            self._told[row] = max(table.descriptors[row].expected_runtime or self.runtime, 1e-3)
        self._known[new], self._asked[new] = table.id[new], -1

    def stale_tasks(self, state: ClusterState) -> Ints:
        """Those that time has taken a type from, and all when types came or measured power changed."""
        self.begin(state)
        rows = state.tasks.all()
        rows = rows[self._asked[rows] >= 0]
        kinds = self.kinds(state)
        if self._version != self.power.version or self._stay != tuple(kinds):
            return rows
        changed: Ints = rows[self._asked[rows] != self._bits(state, rows, kinds)]
        return changed

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """A batch task may go anywhere at ω, which is dearer than waiting unless it is late (§7.4.1)."""
        at = np.flatnonzero(~self._services(state, tasks))
        return Options(at, np.full(len(at), state.cluster), np.full(len(at), OMEGA_BATCH))

    def task_classes(self, state: ClusterState, tasks: Ints) -> Options:
        """Arcs to types of machines: at delta or rho where it is in time, else to the late aggregators."""
        self.begin(state)
        kinds = self.kinds(state)
        self._version, self._stay = self.power.version, tuple(kinds)
        self._asked[tasks] = self._bits(state, tasks, kinds)
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
        """Γ = Ω for services; gamma for batch tasks by how many machines still meet the deadline."""
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
        # Zero would let a task that costs nothing wait for ever.
        gamma = np.clip(gamma, 1, OMEGA_BATCH - 1)
        # The deadline will be missed: anywhere is better than to wait longer.
        gamma = np.where(in_time.any(axis=1), gamma, OMEGA_BATCH + 1)
        found: Ints = np.where(self._services(state, tasks), OMEGA_SERVICE, gamma).astype(np.int64)
        return found

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """phi: rho with a discount. theta: delta times what is left to do; ω where it will be late."""
        here = self._cost_here(state, tasks)
        done = self.completion(state, tasks)
        stay = np.where(self._services(state, tasks), here * (1 - self.discount), here * (1 - done))
        return np.where(self._endangered(state, tasks), OMEGA_BATCH, np.rint(stay).astype(np.int64))

    def task_preemption(self, state: ClusterState, tasks: Ints) -> Ints:
        """What waiting costs, and more than staying: nobody is stopped for nothing."""
        waits = self.task_to_unscheduled(state, tasks)
        return np.maximum(waits, self.task_continuation(state, tasks) + 1)

    # Aggregates -----------------------------------------------------------------------------------

    def class_to_resources(self, state: ClusterState, classes: Ints) -> ClassArcs:
        """From each aggregator to the machines of its type: for nothing, or at ω from the late ones."""
        table = state.resources
        machines = open_machines(state)
        found = []
        for each, kind, number in zip(classes, class_kinds(classes), class_members(classes), strict=True):
            to = machines[table.machine_type[machines] == number]
            cost = OMEGA_BATCH if kind == LATE else 0
            capacity = self._fitting(state, to)
            found.append(ClassArcs(np.full(len(to), each), to, np.full(len(to), cost, np.int64), capacity))
        return joined(*found)

    def explain(self, state: ClusterState, task: int, resource: int) -> str:
        """Energy or time there, and whether the deadline holds."""
        kind = int(state.resources.machine_type[resource])
        if kind < 0:
            return "machines of several types"
        tasks, kinds = np.array([task]), [kind]
        cost = int(self.costs(state, tasks, kinds)[0, 0])
        kind_name = state.machine_types.names[kind]
        if self._services(state, tasks)[0]:
            return f"{cost} microjoules a request on {kind_name or 'this type'}"
        unit = f"{cost / _JOULE:.0f} J" if self.objective == "energy" else f"{cost / _JOULE:.0f} s"
        late = "" if self.in_time(state, tasks, kinds)[0, 0] else "; it would miss its deadline there"
        return (
            f"{unit} on {kind_name or 'this type'}{late}; {100 * self.completion(state, tasks)[0]:.0f} % done"
        )

    # Inside ---------------------------------------------------------------------------------------

    def _services(self, state: ClusterState, tasks: Ints) -> Flags:
        found: Flags = state.jobs.kind[state.tasks.job[tasks]] == Kind.SERVICE
        return found

    def _work(self, state: ClusterState, tasks: Ints) -> Floats:
        """Seconds of work on a core of speed 1, shape (n,)."""
        self.begin(state)
        return self._told[tasks]

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
        """Where a task has its own cost: where it is in time, else where it is done soonest."""
        in_time = self.in_time(state, tasks, kinds)
        seconds = self._seconds(state, tasks, kinds)
        soonest = seconds <= seconds.min(axis=1, keepdims=True)
        return np.where(in_time.any(axis=1, keepdims=True), in_time, soonest)

    def _bits(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Ints:
        weights = 1 << np.arange(len(kinds), dtype=np.int64)
        found: Ints = self.in_time(state, tasks, kinds) @ weights
        return found

    def _machines_of(self, state: ClusterState, kinds: list[int]) -> Ints:
        table = state.resources
        machines = open_machines(state)
        return np.array([np.count_nonzero(table.machine_type[machines] == kind) for kind in kinds])

    def _room(self, state: ClusterState, tasks: Ints, kinds: list[int]) -> Flags:
        """Where there is a free slot and, in each dimension, enough on some machine; (tasks, kinds).

        Those that are patient count all types.
        """
        table = state.resources
        machines = roomy(state, table.at(Level.MACHINE))
        found = np.zeros((len(tasks), len(kinds)), np.bool_)
        for at, kind in enumerate(kinds):
            most = state.available(machines[table.machine_type[machines] == kind]).max(axis=0, initial=-1.0)
            found[:, at] = (state.tasks.demand[tasks] <= most).all(axis=1)
        waits = self.patient & np.isfinite(state.tasks.deadline[tasks])
        return found | waits[:, None]

    def _fitting(self, state: ClusterState, machines: Ints) -> Ints:
        """How many tasks more each machine takes at the most, by the smallest demands that there are.

        Without this the cheapest machine would be chosen again and again by tasks that it has slots for,
        and no cores.
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
        """Running batch tasks that will be late where they are, and not elsewhere."""
        kinds = self.kinds(state)
        if not kinds or not len(tasks):
            return np.zeros(len(tasks), np.bool_)
        left = self._work(state, tasks) * (1 - self.completion(state, tasks))
        late = state.now + left / self._speed_here(state, tasks) > state.tasks.deadline[tasks]
        elsewhere = self.in_time(state, tasks, kinds).any(axis=1)
        return late & elsewhere & ~self._services(state, tasks)
