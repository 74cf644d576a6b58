"""The filter of each task: constraints, pinning, affinity, refusals and misfits combined, once each round.

``policies.filters`` applies filters to arcs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Constraint, Level, MachineDescriptor, TaskDescriptor
from dios.firmament.policies.filters import PlacementFilter
from dios.firmament.policies.fit import fitting_tasks
from dios.firmament.policies.job_bounds import needed_for_minimum
from dios.firmament.policies.labels import LabelIndex
from dios.firmament.policies.reservations import Reservations
from dios.firmament.settings import SchedulerSettings
from dios.limits import SCHED_KEPT_FILTERS_MAX, SCHED_MISFIT_FILTERS_MAX
from dios.wire.types import Affinity

_FIT_STEPS = 16
"""Demands of tasks that did not fit are rounded up to this part of the largest machine, to share filters."""


@dataclass(slots=True)
class _Refusal:
    """A machine that refused a task."""

    length: float
    until: float


@dataclass(frozen=True, slots=True)
class _FilterRules:
    """The rules that make a filter; tasks with equal rules share a filter."""

    constraints: tuple[Constraint, ...] = ()
    pinned: int | None = None
    job: int = ABSENT
    """The row of a job with affinity."""
    avoided: frozenset[int] = frozenset()
    """Identifiers of machines."""
    demand: tuple[float, ...] = ()
    """The free resources that tasks need which did not fit before."""
    priority: int = 0
    """The priority of those tasks: tasks of lower priority may be stopped for them."""
    bound: frozenset[int] = frozenset()
    """The machines, as resource rows, where those tasks have to leave room for reservations."""


_ABOVE_ALL = 2**62
"""A priority above that of any task: tasks that E_j of their job needs may stop all that are restartable."""

_NO_RULES = _FilterRules()


@dataclass
class _TaskRestrictions:
    """The restrictions that a single task has gained."""

    refusals: dict[int, _Refusal] = field(default_factory=dict)
    misfit: bool = False


class Restrictions:
    """Filters by number, and the tasks for which they hold."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.reservations: Final = Reservations()
        self.labels = LabelIndex()
        self._static: list[_FilterRules] = [_FilterRules()]
        """Constraints and pins of tasks, by number; 0 for none."""
        self._static_number: dict[_FilterRules, int] = {_FilterRules(): 0}
        self._static_of: Ints = np.zeros(16, np.int64)
        """By task row."""
        self._needed: Ints | None = None
        """By number of rules: that of the same rules without constraints that hold for all machines."""
        self._special: dict[int, _TaskRestrictions] = {}
        self._numbers: dict[_FilterRules, int] = {}
        """Of the filters of the last round."""
        self._next_number = 1
        self._kept: dict[_FilterRules, PlacementFilter] = {}
        """Filters that hold until a machine joins or leaves."""
        self.crowded_out: Ints = np.zeros(0, np.int64)
        """Tasks that did not fit and wait for a filter of their own, because there are too many kinds."""

    # Events -----------------------------------------------------------------------------------------

    def add_machine(self, row: int, machine: MachineDescriptor) -> None:
        """Add a machine."""
        self.labels.add(row, dict(machine.labels))
        self._kept.clear()
        self._needed = None

    def remove_machine(self, row: int) -> None:
        """Remove a machine."""
        self.labels.remove(row)
        self._kept.clear()
        self._needed = None

    def add_tasks(self, rows: Ints, tasks: list[TaskDescriptor]) -> None:
        """Add tasks."""
        if int(rows.max(initial=0)) >= len(self._static_of):
            longer = np.zeros(2 * int(rows.max()) + 1, np.int64)
            longer[: len(self._static_of)] = self._static_of
            self._static_of = longer
        for row, task in zip(rows.tolist(), tasks, strict=True):
            rules = _NO_RULES
            if task.constraints or task.pinned is not None:
                rules = _FilterRules(task.constraints, task.pinned)
            self._static_of[row] = self._static_number_of(rules)

    def _static_number_of(self, rules: _FilterRules) -> int:
        number = self._static_number.get(rules)
        if number is None:
            number = self._static_number[rules] = len(self._static)
            self._static.append(rules)
        return number

    def _needed_rules(self) -> Ints:
        """Return, by number of rules, that of the rules without constraints that hold for all machines."""
        needed = self._needed
        if needed is None or len(needed) < len(self._static):
            numbers = []
            for rules in self._static[:]:
                kept = tuple(
                    constraint for constraint in rules.constraints if not self.labels.always_holds(constraint)
                )
                numbers.append(self._static_number_of(replace(rules, constraints=kept)))
            # Rules that came into being here are in their final form.
            numbers.extend(range(len(numbers), len(self._static)))
            needed = self._needed = np.array(numbers, np.int64)
        return needed

    def forget_task(self, row: int) -> None:
        """Forget a task."""
        self._static_of[row] = 0
        self._special.pop(row, None)

    def refused(self, row: int, machine: int, now: float) -> None:
        """Let a task avoid a machine (its identifier) that refused it; the time doubles with each refusal."""
        known = self._special.setdefault(row, _TaskRestrictions()).refusals
        last = known.get(machine)
        length = self.settings.retry_first_s if last is None else 2 * last.length
        length = min(length, self.settings.retry_last_s)
        known[machine] = _Refusal(length, now + length)

    def misfits(self, rows: Ints) -> None:
        """Record that placements of tasks were held back: next time only machines with room count."""
        for row in rows.tolist():
            self._special.setdefault(row, _TaskRestrictions()).misfit = True

    def refusals(self, row: int, now: float) -> list[int]:
        """Return the identifiers of the machines that a task avoids at present."""
        special = self._special.get(row)
        return (
            []
            if special is None
            else [id_ for id_, refusal in special.refusals.items() if now < refusal.until]
        )

    def placed(self, rows: Ints) -> None:
        """Record that tasks run, so they had room."""
        if self._special:
            for row in rows.tolist():
                known = self._special.get(row)
                if known is not None:
                    known.misfit = False
                    if not known.refusals:
                        del self._special[row]

    # A round ----------------------------------------------------------------------------------------

    def choose(self, state: ClusterState, tasks: Ints, now: float) -> tuple[Ints, dict[int, PlacementFilter]]:
        """Return the number of each task's filter (0: none), and the filters."""
        static = self._needed_rules()[self._static_of[tasks]] if len(tasks) else np.zeros(0, np.int64)
        job = state.tasks.job[tasks]
        job = np.where(state.jobs.affinity[job] != Affinity.NONE, job, ABSENT)
        special = np.zeros(len(state.tasks.alive), np.bool_)
        special[list(self._special)] = True
        numbers = np.zeros(len(tasks), np.int64)
        round_filters = _RoundFilters(self, state)
        common = np.flatnonzero(((static != 0) | (job != ABSENT)) & ~special[tasks])
        kinds, which = np.unique(
            static[common] * (len(state.jobs.alive) + 1) + job[common] + 1, return_inverse=True
        )
        rules = [
            replace(
                self._static[kind // (len(state.jobs.alive) + 1)], job=kind % (len(state.jobs.alive) + 1) - 1
            )
            for kind in kinds.tolist()
        ]
        if len(common):
            numbers[common] = np.array([round_filters.number(rule_set) for rule_set in rules], np.int64)[
                which
            ]
        steps = self._steps(state)
        crowded: list[int] = []
        alone = np.flatnonzero(special[tasks])
        needed = needed_for_minimum(state, tasks[alone])
        for at, is_needed in zip(alone.tolist(), needed.tolist(), strict=True):
            row = int(tasks[at])
            shared = replace(self._static[int(static[at])], job=int(job[at]))
            own_rules = self._rules(state, row, shared, now, steps)
            if own_rules.demand and is_needed:
                own_rules = replace(own_rules, priority=_ABOVE_ALL)
            if (
                own_rules.demand
                and round_filters.misfits == SCHED_MISFIT_FILTERS_MAX
                and own_rules not in round_filters.numbers
            ):
                crowded.append(row)
            else:
                numbers[at] = round_filters.number(own_rules)
        self._numbers = round_filters.numbers
        self.crowded_out = np.array(crowded, np.int64)
        return numbers, round_filters.filters

    def _rules(
        self, state: ClusterState, row: int, rules: _FilterRules, now: float, steps: Floats
    ) -> _FilterRules:
        """Return a task's own restrictions added to the rules that it shares with others."""
        demand: tuple[float, ...] = ()
        priority = 0
        if self._special[row].misfit:
            priority = int(state.tasks.priority[row])
            demand = tuple(float(part) for part in np.ceil(state.tasks.demand[row] / steps) * steps)
        avoided = frozenset(self.refusals(row, now))
        bound = self.reservations.kept_from(state, row) if demand else frozenset[int]()
        return replace(rules, avoided=avoided, demand=demand, priority=priority, bound=bound)

    def machines_of(self, state: ClusterState, row: int) -> Flags:
        """Return the machines on which a task may run, full or not, by resource row."""
        job = int(state.tasks.job[row])
        together = state.jobs.affinity[job] != Affinity.NONE
        rules = replace(
            self._static[int(self._static_of[row])],
            job=job if together else ABSENT,
            avoided=frozenset(self.refusals(row, state.now)),
        )
        return self._filter(state, 0, rules).allowed

    def number(self, rules: _FilterRules) -> int:
        """Return the number that rules had in the last round, or a new one."""
        number = self._numbers.get(rules)
        if number is None:
            number = self._next_number
            self._next_number += 1
        return number

    def filter(self, state: ClusterState, number: int, rules: _FilterRules) -> PlacementFilter:
        """Return the filter of rules; with constraints alone it is kept until a machine joins or leaves."""
        lasting = rules == _FilterRules(rules.constraints)
        placement_filter = self._kept.get(rules) if lasting else None
        if placement_filter is None or placement_filter.number != number:
            placement_filter = self._filter(state, number, rules)
            if lasting and len(self._kept) < SCHED_KEPT_FILTERS_MAX:
                self._kept[rules] = placement_filter
        return placement_filter

    @staticmethod
    def _steps(state: ClusterState) -> Floats:
        machines = state.resources.at(Level.MACHINE)
        largest: Floats = state.resources.capacity[machines].max(axis=0, initial=0)
        return np.where(largest > 0, largest / _FIT_STEPS, 1.0)

    def _filter(self, state: ClusterState, number: int, rules: _FilterRules) -> PlacementFilter:
        tree = state.resources
        size = len(tree.alive)
        allowed = np.zeros(size, np.bool_)
        allowed[tree.at(Level.MACHINE)] = True
        penalty = np.zeros(size, np.int64)
        for constraint in rules.constraints:
            fits = self.labels.matches(constraint, size)
            if constraint.hard:
                allowed &= fits
            else:
                penalty += np.where(fits, 0, self.settings.soft_penalty)
        if rules.pinned is not None:
            only = state.machine_row(rules.pinned)
            allowed &= np.arange(size) == only
        for machine in rules.avoided:
            row = state.machine_row(machine)
            if row != ABSENT:
                allowed[row] = False
        limit: Ints | None = None
        if rules.demand:
            demand = np.array(rules.demand)
            left = self.reservations.left_to_others(size) if rules.bound else None
            if left is not None:
                left[~np.isin(np.arange(size), list(rules.bound))] = np.inf
            limit = fitting_tasks(
                state, demand, rules.priority, preemption=self.settings.preemption, left=left
            )
            allowed &= limit > 0
        if rules.job != ABSENT:
            allowed &= allowed_by_affinity(state, rules.job, allowed)
            if state.jobs.affinity[rules.job] == Affinity.SPREAD_NODES:
                limit = np.ones(size, np.int64)
        return PlacementFilter(number, allowed, penalty, limit)


class _RoundFilters:
    """The filters of a round while they are being collected."""

    def __init__(self, restrictions: Restrictions, state: ClusterState) -> None:
        self._restrictions = restrictions
        self._state = state
        self.numbers: dict[_FilterRules, int] = {}
        self.filters: dict[int, PlacementFilter] = {}
        self.misfits = 0

    def number(self, rules: _FilterRules) -> int:
        """Return the number of the filter of these rules; 0 for no rules."""
        if rules == _NO_RULES:
            return 0
        number = self.numbers.get(rules)
        if number is None:
            number = self.numbers[rules] = self._restrictions.number(rules)
            self.filters[number] = self._restrictions.filter(self._state, number, rules)
            self.misfits += bool(rules.demand)
        return number


def allowed_by_affinity(state: ClusterState, job: int, possible: Flags) -> Flags:
    """Return, by resource row, the machines where a further task of the job may go (thesis §6.3.1, C.4.1)."""
    tasks, tree = state.tasks, state.resources
    kind = state.jobs.affinity[job]
    mine = np.flatnonzero(tasks.alive & (tasks.job == job) & (tasks.status == RUNNING))
    on = np.unique(tasks.machine[mine])
    if kind == Affinity.SPREAD_NODES:
        return ~np.isin(np.arange(len(tree.alive)), on)
    if kind == Affinity.SPREAD_RACKS:
        return ~np.isin(tree.rack, tree.rack[on])
    together = tree.machine if kind == Affinity.SAME_NODE else tree.rack
    if not len(on):
        on = _roomiest(state, np.flatnonzero(possible), together)
    return np.isin(together, together[on])


def _roomiest(state: ClusterState, machines: Ints, together: Ints) -> Ints:
    """Return a machine, or one of the rack, with the most free slots, to start a job that stays together."""
    tree = state.resources
    usable = machines[tree.usable[machines]]
    if not len(usable):
        return usable
    free = np.bincount(
        together[usable], weights=tree.slots[usable] - tree.running[usable], minlength=len(tree.alive)
    )
    chosen: Ints = usable[together[usable] == int(np.argmax(free))]
    return chosen[:1]
