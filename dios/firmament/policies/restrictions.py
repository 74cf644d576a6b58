"""Which filter holds for which task: constraints, pinning, affinity, refusals and misfits put together.

For: the scheduler, once each round. Not for: applying filters to arcs (``policies.filters``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dios.firmament.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.descriptors import Affinity, Constraint, Level, MachineDescriptor, TaskDescriptor
from dios.firmament.policies.filters import Filter
from dios.firmament.policies.fit import fitting_machines
from dios.firmament.policies.labels import LabelIndex
from dios.firmament.settings import SchedulerSettings
from dios.firmament.state import RUNNING, ClusterState
from dios.limits import SCHED_MISFIT_FILTERS_MAX

_FIT_STEPS = 16
"""Demands of tasks that did not fit are rounded up to such parts of the largest machine, to share filters."""


@dataclass(slots=True)
class _Refusal:
    """A machine that refused a task."""

    length: float
    until: float


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a filter is made of; equal rules share a filter."""

    constraints: tuple[Constraint, ...] = ()
    pinned: int | None = None
    job: int = ABSENT
    """Of a job with affinity, its row."""
    avoided: frozenset[int] = frozenset()
    """Identifiers of machines."""
    demand: tuple[float, ...] = ()
    """What has to be free, for tasks that did not fit before."""


@dataclass
class _Special:
    """What a single task has learned."""

    refusals: dict[int, _Refusal] = field(default_factory=dict)
    misfit: bool = False


class Restrictions:
    """Filters by number, and the tasks that they hold for."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.labels = LabelIndex()
        self._static: dict[int, _Rules] = {}
        """By task row: tasks with constraints or a pin."""
        self._special: dict[int, _Special] = {}
        self._numbers: dict[_Rules, int] = {}
        self.crowded_out: Ints = np.zeros(0, np.int64)
        """Tasks that did not fit and wait for a filter of their own: there are too many kinds of them."""

    # Events -----------------------------------------------------------------------------------------

    def add_machine(self, row: int, machine: MachineDescriptor) -> None:
        """A machine came."""
        self.labels.add(row, dict(machine.labels))

    def add_tasks(self, rows: Ints, tasks: list[TaskDescriptor]) -> None:
        """Tasks came."""
        for row, task in zip(rows.tolist(), tasks, strict=True):
            if task.constraints or task.pinned is not None:
                self._static[row] = _Rules(task.constraints, task.pinned)

    def forget_task(self, row: int) -> None:
        """A task is gone."""
        self._static.pop(row, None)
        self._special.pop(row, None)

    def refused(self, row: int, machine: int, now: float) -> None:
        """A machine (its identifier) refused a task; it is avoided for a while, twice as long each time."""
        known = self._special.setdefault(row, _Special()).refusals
        last = known.get(machine)
        length = self._settings.retry_first_s if last is None else 2 * last.length
        length = min(length, self._settings.retry_last_s)
        known[machine] = _Refusal(length, now + length)

    def misfits(self, rows: Ints) -> None:
        """Tasks whose placement was held back: next time only machines with room count."""
        for row in rows.tolist():
            self._special.setdefault(row, _Special()).misfit = True

    def refusals(self, row: int, now: float) -> list[int]:
        """Identifiers of the machines that a task avoids at present."""
        special = self._special.get(row)
        return [] if special is None else [id_ for id_, one in special.refusals.items() if now < one.until]

    def placed(self, rows: Ints) -> None:
        """Tasks that run have room."""
        if self._special:
            for row in rows.tolist():
                known = self._special.get(row)
                if known is not None:
                    known.misfit = False
                    if not known.refusals:
                        del self._special[row]

    # A round ----------------------------------------------------------------------------------------

    def choose(self, state: ClusterState, tasks: Ints, now: float) -> tuple[Ints, dict[int, Filter]]:
        """The filter's number for each task (0: none), and the filters."""
        self.crowded_out = np.zeros(0, np.int64)
        affinity = state.jobs.affinity[state.tasks.job[tasks]]
        marked = np.zeros(len(state.tasks.alive), np.bool_)
        marked[list(self._static)] = True
        marked[list(self._special)] = True
        concerned = np.flatnonzero(marked[tasks] | (affinity != Affinity.NONE))
        numbers = np.zeros(len(tasks), np.int64)
        filters: dict[int, Filter] = {}
        kept: dict[_Rules, int] = {}
        steps = self._steps(state)
        crowded: list[int] = []
        misfit_kinds = 0
        for at in concerned.tolist():
            rules = self._rules(state, int(tasks[at]), now, steps)
            if rules is None:
                continue
            number = kept.get(rules)
            if number is None:
                if rules.demand and misfit_kinds == SCHED_MISFIT_FILTERS_MAX:
                    crowded.append(int(tasks[at]))
                    continue
                misfit_kinds += bool(rules.demand)
                number = kept[rules] = (
                    self._numbers.get(rules) or max([0, *self._numbers.values(), *kept.values()]) + 1
                )
                filters[number] = self._filter(state, number, rules)
            numbers[at] = number
        self._numbers = kept
        self.crowded_out = np.array(crowded, np.int64)
        return numbers, filters

    def _rules(self, state: ClusterState, row: int, now: float, steps: Floats) -> _Rules | None:
        static = self._static.get(row, _Rules())
        special = self._special.get(row)
        avoided: frozenset[int] = frozenset()
        demand: tuple[float, ...] = ()
        if special is not None:
            avoided = frozenset(self.refusals(row, now))
            if special.misfit:
                given = state.tasks.demand[row]
                demand = tuple(float(part) for part in np.ceil(given / steps) * steps)
        job = int(state.tasks.job[row])
        if state.jobs.affinity[job] == Affinity.NONE:
            job = ABSENT
        rules = _Rules(static.constraints, static.pinned, job, avoided, demand)
        return None if rules == _Rules() else rules

    @staticmethod
    def _steps(state: ClusterState) -> Floats:
        machines = state.resources.at(Level.MACHINE)
        largest: Floats = state.resources.capacity[machines].max(axis=0, initial=0)
        return np.where(largest > 0, largest / _FIT_STEPS, 1.0)

    def _filter(self, state: ClusterState, number: int, rules: _Rules) -> Filter:
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
                penalty += np.where(fits, 0, self._settings.soft_penalty)
        if rules.pinned is not None:
            only = state.machine_row(rules.pinned)
            allowed &= np.arange(size) == only
        for machine in rules.avoided:
            row = state.machine_row(machine)
            if row != ABSENT:
                allowed[row] = False
        if rules.demand:
            allowed &= fitting_machines(state, np.array(rules.demand))
        single = False
        if rules.job != ABSENT:
            allowed &= allowed_by_affinity(state, rules.job, allowed)
            single = state.jobs.affinity[rules.job] == Affinity.SPREAD_MACHINES
        return Filter(number, allowed, penalty, bool(single))


def allowed_by_affinity(state: ClusterState, job: int, possible: Flags) -> Flags:
    """By resource row: machines where a further task of the job may go (thesis §6.3.1, C.4.1)."""
    tasks, tree = state.tasks, state.resources
    kind = state.jobs.affinity[job]
    mine = np.flatnonzero(tasks.alive & (tasks.job == job) & (tasks.status == RUNNING))
    on = np.unique(tasks.machine[mine])
    if kind == Affinity.SPREAD_MACHINES:
        return ~np.isin(np.arange(len(tree.alive)), on)
    if kind == Affinity.SPREAD_RACKS:
        return ~np.isin(tree.rack, tree.rack[on])
    together = tree.machine if kind == Affinity.SAME_MACHINE else tree.rack
    if not len(on):
        on = _roomiest(state, np.flatnonzero(possible), together)
    return np.isin(together, together[on])


def _roomiest(state: ClusterState, machines: Ints, together: Ints) -> Ints:
    """A machine (one of the rack) that has the most free slots, to start a job that stays together."""
    tree = state.resources
    usable = machines[tree.usable[machines]]
    if not len(usable):
        return usable
    free = np.bincount(
        together[usable], weights=tree.slots[usable] - tree.running[usable], minlength=len(tree.alive)
    )
    chosen: Ints = usable[together[usable] == int(np.argmax(free))]
    return chosen[:1]
