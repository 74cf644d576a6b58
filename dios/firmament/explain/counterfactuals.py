"""Changes that would start a waiting task, each solved: made in a copy of the scheduler, which plays rounds.

The rounds are the scheduler's own, with its turns, reservations and checks, so nothing is decided here. Each
change is an event that a cluster can see: another description of the task, the end of tasks, another quota.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Final, Protocol, TypeAlias

import numpy as np

from dios.firmament.cluster import changes as tables
from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import JobDescriptor, Level, Resources, TaskDescriptor
from dios.firmament.explain.amounts import LEAST, STEPS, amount_text, exact_text, in_steps
from dios.firmament.explain.explanation import Counterfactual, CounterfactualKind
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.policies.reservations import Reservations
from dios.firmament.policies.room_in_time import known_ends
from dios.firmament.policies.stored_shares import RESOURCES
from dios.firmament.rounds.model_guard import ModelError
from dios.firmament.rounds.results import Round
from dios.limits import EXPLAIN_ENDS, EXPLAIN_PAIRS, EXPLAIN_ROUNDS
from dios.wire.types import Affinity

_Amounts: TypeAlias = dict[str, float]


class TrialScheduler(Protocol):
    """A scheduler in which changes can be tried: the part of ``FlowScheduler`` that this module uses."""

    state: ClusterState

    @property
    def ledger(self) -> PrincipalAccounts | None:
        """The accounts of principals, if they take turns."""

    @property
    def reservations(self) -> Reservations:
        """The machines that are kept for tasks."""

    def copy(self) -> TrialScheduler:
        """Return an independent copy."""

    def described(self, task: int) -> tuple[JobDescriptor, TaskDescriptor]:
        """Return the descriptions of a task and its job."""

    def waiting(self) -> dict[int, str]:
        """Return the principals of all waiting tasks."""

    def redescribe(self, described: TaskDescriptor) -> None:
        """Change a waiting task."""

    def redescribe_job(self, described: JobDescriptor) -> None:
        """Change a job."""

    def finished(self, task: int, now: float) -> None:
        """Remove a task."""

    def round(self, now: float) -> Round:
        """Solve a round and change the state."""

    def is_running(self, task: int) -> bool:
        """Return True if a task was placed."""


_Change: TypeAlias = Callable[[TrialScheduler], None]


def start_within(scheduler: TrialScheduler, task: int, now: float) -> tuple[int, int]:
    """Play up to EXPLAIN_ROUNDS rounds until a task starts; return its machine and the number of rounds.

    The machine is an identifier, or ABSENT if it does not start.

    Raises:
        ModelError: a round failed, so the answer is unknown.
    """
    state = scheduler.state
    for number in range(1, EXPLAIN_ROUNDS + 1):
        played = scheduler.round(now)
        if not played.stands:
            raise ModelError("; ".join(f"{fault.where}: {fault.what}" for fault in played.faults))
        if scheduler.is_running(task):
            return state.machine_ids[int(state.tasks.machine[state.tasks.row(task)])], number
    return ABSENT, EXPLAIN_ROUNDS


class _TimeIsUpError(Exception):
    """The time for the search is used up."""


@dataclass(slots=True)
class _Solved:
    """Amounts with which the task starts, and where; ``least`` if every larger amount was found too large."""

    amounts: _Amounts
    machine: int
    least: bool = False


class CounterfactualSearch:
    """The search for changes that would start one waiting task. The scheduler that it gets stays as it is."""

    def __init__(self, scheduler: TrialScheduler, task: int, budget_s: float) -> None:
        self._scheduler: Final = scheduler
        self._task: Final = task
        self._budget_s: Final = budget_s
        self._until: Final = time.perf_counter() + budget_s
        self._now: Final = scheduler.state.now
        self._job, self._described = scheduler.described(task)
        self._group: Final = self._gang() if self._job.gang else [self._described]
        self._found: list[Counterfactual] = []

    def solve(self) -> tuple[list[Counterfactual], str]:
        """Return sufficient changes, the smallest first, and a sentence about those that were not solved."""
        remark = ""
        try:
            singles = [self._demand(name) for name in self._demanded()]
            self._constraints()
            self._bounds_of_job()
            self._ends()
            self._others()
            if not any(singles):
                self._pairs()
        except _TimeIsUpError:
            remark = f"further changes were not tried: the {self._budget_s:.2g} s for that are used up"
        except ModelError as error:
            remark = f"further changes were not tried: a round failed: {error}"
        if not remark and not self._found:
            remark = "no single change, and no smaller amounts of two resources, would start it now"
        return sorted(self._found, key=lambda one: (one.kind.rank, one.size)), remark

    def starts_with_slot(self, machine: int) -> bool:
        """Return True if the task starts with one more slot on a machine; False also if the time is up."""
        try:
            return self._place(partial(_add_slot, machine=machine)) != ABSENT
        except (_TimeIsUpError, ModelError):
            return False

    # Trials -----------------------------------------------------------------------------------------

    def _place(self, change: _Change, at: float | None = None) -> int:
        """Return the machine on which the task starts after a change, or ABSENT."""
        if time.perf_counter() >= self._until:
            raise _TimeIsUpError
        trial = self._scheduler.copy()
        change(trial)
        return start_within(trial, self._task, self._now if at is None else at)[0]

    def _gang(self) -> list[TaskDescriptor]:
        """Return the waiting tasks of the task's gang, which start together."""
        state = self._scheduler.state
        job = state.jobs.row(self._job.job)
        rows = np.flatnonzero(state.tasks.alive & (state.tasks.job == job) & (state.tasks.status == WAITING))
        return [state.tasks.descriptors[row] for row in rows.tolist()]

    def _name(self, machine: int) -> str:
        state = self._scheduler.state
        return state.resources.names[state.machine_row(machine)]

    def _note(
        self,
        kind: CounterfactualKind,
        text: str,
        machine: int,
        size: float,
        *,
        amounts: _Amounts | None = None,
        value: str = "",
        freed: int | None = None,
        ended: int = 0,
        least: bool = True,
    ) -> None:
        where = f"it would start on {self._name(machine)}"
        if not least:
            where += "; a smaller change may do"
        text = f"sufficient: {text} ({where})"
        self._found.append(
            Counterfactual(kind, text, machine, size, amounts or {}, value, freed, ended, least)
        )

    # Demands ----------------------------------------------------------------------------------------

    def _demanded(self) -> list[str]:
        """Return the resources of which the task demands more than the least amount."""
        demand, names = self._described.demand, Resources._fields
        return [name for name, amount, least in zip(names, demand, LEAST, strict=True) if amount > least]

    def _place_with(self, amounts: _Amounts) -> int:
        group = [replace(one, demand=one.demand._replace(**amounts)) for one in self._group]
        return self._place(_redescribing(group))

    def _demand(self, name: str) -> bool:
        """Find the largest amount of one resource with which the task starts; return True if any does."""
        least = float(getattr(LEAST, name))
        machine = self._place_with({name: least})
        if machine == ABSENT:
            return False
        solved = _Solved({name: least}, machine)
        try:
            self._raise(solved, name)
            solved.least = True
        finally:
            self._note_amounts(solved)
        return True

    def _raise(self, solved: _Solved, name: str) -> None:
        """Raise one of the solved amounts until one step more would be too much."""
        demand = float(getattr(self._described.demand, name))
        below, above = solved.amounts[name], demand
        candidates = [amount for amount in self._candidates(name) if below < amount < above]
        while candidates:
            middle = len(candidates) // 2
            if self._is_enough(solved, name, candidates[middle]):
                candidates = candidates[middle + 1 :]
            else:
                above = candidates[middle]
                candidates = candidates[:middle]
        step = float(getattr(STEPS, name))
        amount = in_steps(name, solved.amounts[name] + step)
        while solved.amounts[name] < amount < above:
            if self._is_enough(solved, name, amount):
                amount = max(in_steps(name, (amount + above) / 2), in_steps(name, amount + step))
            else:
                above = amount
                amount = in_steps(name, (solved.amounts[name] + above) / 2)

    def _is_enough(self, solved: _Solved, name: str, amount: float) -> bool:
        """Return True if the task starts with another amount, which is then the solved one."""
        amounts = {**solved.amounts, name: amount}
        machine = self._place_with(amounts)
        if machine != ABSENT:
            solved.amounts, solved.machine = amounts, machine
        return machine != ABSENT

    def _candidates(self, name: str) -> list[float]:
        """Return amounts at which the answer may change, ascending: what is free, kept or within a quota."""
        scheduler = self._scheduler
        state, at = scheduler.state, Resources._fields.index(name)
        machines = state.resources.at(Level.MACHINE)
        amounts = [
            *state.available(machines)[:, at].tolist(),
            *state.resources.capacity[machines, at].tolist(),
        ]
        left = scheduler.reservations.left_to_others(len(state.resources.alive))
        if left is not None:
            amounts += left[machines, 1 + at].tolist()
        if scheduler.ledger is not None:
            number = state.principal(self._job.principal)
            quota = scheduler.ledger.quota()
            if number < len(quota):
                amounts.append(float(quota[number, 1 + at] - state.held[number, 1 + at]))
        return sorted({in_steps(name, one) for one in amounts if math.isfinite(one) and one > 0})

    def _pairs(self) -> None:
        """Find the smallest changes of two amounts, when none of one is sufficient."""
        for pair in combinations(self._demanded(), 2):
            least = {name: float(getattr(LEAST, name)) for name in pair}
            machine = self._place_with(least)
            if machine == ABSENT:
                continue
            solved = _Solved(least, machine)
            try:
                self._begin_with_machine(solved, pair)
                for name in pair:
                    self._raise(solved, name)
                solved.least = True
            finally:
                self._note_amounts(solved)

    def _begin_with_machine(self, solved: _Solved, pair: tuple[str, ...]) -> None:
        """Try what single machines have free of both resources, the smallest change first."""
        state = self._scheduler.state
        free = state.available(state.resources.at(Level.MACHINE))
        columns = [Resources._fields.index(name) for name in pair]
        several: list[_Amounts] = []
        for row in free[:, columns].tolist():
            amounts = {
                name: in_steps(name, min(has, getattr(self._described.demand, name)))
                for name, has in zip(pair, row, strict=True)
            }
            if all(amounts[name] > solved.amounts[name] for name in pair) and amounts not in several:
                several.append(amounts)
        several.sort(key=self._reduction)
        for amounts in several[:EXPLAIN_PAIRS]:
            machine = self._place_with(amounts)
            if machine != ABSENT:
                solved.amounts, solved.machine = amounts, machine
                return

    def _reduction(self, amounts: _Amounts) -> float:
        """Return the sum of the parts by which amounts are smaller than the demands."""
        demand = self._described.demand
        return sum(1 - amount / float(getattr(demand, name)) for name, amount in amounts.items())

    def _note_amounts(self, solved: _Solved) -> None:
        demand = self._described.demand
        parts = [
            f"{exact_text(name, amount)} instead of {amount_text(name, getattr(demand, name))}"
            for name, amount in solved.amounts.items()
        ]
        each = " for each task of its gang" if len(self._group) > 1 else ""
        self._note(
            CounterfactualKind.DEMAND,
            " and ".join(parts) + each,
            solved.machine,
            self._reduction(solved.amounts),
            amounts=solved.amounts,
            least=solved.least,
        )

    # Constraints and bounds --------------------------------------------------------------------------

    def _constraints(self) -> None:
        """Try to leave out each hard constraint, and the machine to which the task is pinned."""
        for constraint in self._described.constraints:
            if constraint.hard:
                group = [
                    replace(one, constraints=tuple(kept for kept in one.constraints if kept != constraint))
                    for one in self._group
                ]
                text = f"without its constraint against machines that {constraint.unmet}"
                self._try(CounterfactualKind.CONSTRAINT, text, _redescribing(group), value=constraint.key)
        if self._described.pinned is not None:
            group = [replace(one, pinned=None) for one in self._group]
            self._try(CounterfactualKind.PIN, "on any machine", _redescribing(group))

    def _try(self, kind: CounterfactualKind, text: str, change: _Change, *, value: str = "") -> None:
        machine = self._place(change)
        if machine != ABSENT:
            self._note(kind, text, machine, float(len(self._found)), value=value)

    def _bounds_of_job(self) -> None:
        """Try the job without its affinity, without its bound on running tasks, and with a smaller gang."""
        job = self._job
        if job.affinity != Affinity.NONE:
            apart = replace(job, affinity=Affinity.NONE)
            text = "without the rule about which machines the tasks of its job share"
            self._try(CounterfactualKind.AFFINITY, text, partial(_redescribe_job, job=apart))
        if job.maximum_running is not None:
            endless = replace(job, maximum_running=None)
            text = f"without the bound of its series on tasks that run at once ({job.maximum_running})"
            self._try(CounterfactualKind.SERIES, text, partial(_redescribe_job, job=endless))
        if job.gang > 1:
            self._smaller_gang()

    def _smaller_gang(self) -> None:
        """Find the largest gang that starts."""
        job, below, above, machine = self._job, 0, self._job.gang, ABSENT
        size = 1
        while below < size < above:
            smaller = replace(job, gang=size)
            place = self._place(partial(_redescribe_job, job=smaller))
            if place == ABSENT:
                above = size
            else:
                below, machine = size, place
            size = (below + above) // 2
        if machine != ABSENT:
            self._note(
                CounterfactualKind.GANG,
                f"a gang of {below} instead of {job.gang}",
                machine,
                1 - below / job.gang,
                value=str(below),
            )

    # Time -------------------------------------------------------------------------------------------

    def _ends(self) -> None:
        """Try the next known ends of tasks on each machine, until the task starts."""
        state = self._scheduler.state
        table = state.tasks
        running = np.flatnonzero(table.alive & (table.status == RUNNING))
        ends = known_ends(state, running, Runtimes(math.nan))
        running, ends = running[~np.isnan(ends)], ends[~np.isnan(ends)]
        order = np.lexsort((table.id[running], ends))
        running, ends = running[order], ends[order]
        first = np.sort(np.unique(table.machine[running], return_index=True)[1])
        several = [
            self._ends_of(row, table.id[running[here]], ends[here].tolist())
            for row in table.machine[running[first[:EXPLAIN_ENDS]]].tolist()
            for here in [table.machine[running] == row]
        ]
        if len(running) and not any(several):
            self._ends_of(ABSENT, table.id[running], ends.tolist())

    def _ends_of(self, row: int, tasks: Ints, ends: list[float]) -> bool:
        """Find the least number of these ends after which the task starts; return False if there is none.

        ``row`` is the resource row of their machine, ABSENT for the ends on all machines.
        """

        def place(count: int) -> int:
            at = ends[count - 1]
            return self._place(partial(_finish, tasks=tasks[:count].tolist(), at=at), at)

        below, above, machine = 0, len(ends) + 1, ABSENT
        count = 1
        while below < count < above:
            started = place(count)
            if started == ABSENT:
                below = count
            else:
                above, machine = count, started
            # After the first end, all of them decide if any number is enough.
            count = len(ends) if below == 1 and above > len(ends) else (below + above) // 2
        if machine == ABSENT:
            return False
        seconds, names = ends[above - 1] - self._now, self._scheduler.state.resources.names
        where = "" if row == ABSENT else f" on {names[row]}"
        which = f"the next task{where} ends" if above == 1 else f"the next {above} tasks{where} end"
        self._note(
            CounterfactualKind.END,
            f"when {which}, expected in {seconds:.3g} s",
            machine,
            seconds,
            freed=self._scheduler.state.machine_ids.get(row),
            ended=above,
        )
        return True

    # Others -----------------------------------------------------------------------------------------

    def _others(self) -> None:
        """Try it without a quota, without other tasks that wait, and without the room kept for them."""
        scheduler, principal = self._scheduler, self._job.principal
        ledger = scheduler.ledger
        if ledger is None:
            return
        number = scheduler.state.principal(principal)
        quota = ledger.quota()
        if number < len(quota) and np.isfinite(quota[number]).any():
            text = "without the quota of its principal"
            self._try(CounterfactualKind.QUOTA, text, partial(_lift_quota, principal=principal))
        mine = {one.task for one in self._group}
        waiting = scheduler.waiting()
        kept = [task for task in scheduler.reservations.present if task in waiting and task not in mine]
        if kept:
            text = "without the tasks for which room is kept"
            self._try(CounterfactualKind.KEPT_ROOM, text, partial(_finish, tasks=kept, at=self._now))
        others = [task for task, who in waiting.items() if who != principal]
        if others:
            text = "without the waiting tasks of other principals, whose turn comes first"
            self._try(CounterfactualKind.TURN, text, partial(_finish, tasks=others, at=self._now))
        own = [task for task, who in waiting.items() if who == principal and task not in mine]
        if own:
            text = "without the other waiting tasks of its principal"
            self._try(CounterfactualKind.OWN_TASKS, text, partial(_finish, tasks=own, at=self._now))


def _add_slot(trial: TrialScheduler, machine: int) -> None:
    tables.add_slot(trial.state, tables.emptiest_leaf(trial.state, trial.state.machine_row(machine)))


def _redescribing(group: Sequence[TaskDescriptor]) -> _Change:
    def change(trial: TrialScheduler) -> None:
        for one in group:
            trial.redescribe(one)

    return change


def _redescribe_job(trial: TrialScheduler, job: JobDescriptor) -> None:
    trial.redescribe_job(job)


def _finish(trial: TrialScheduler, tasks: list[int], at: float) -> None:
    for task in tasks:
        trial.finished(task, at)


def _lift_quota(trial: TrialScheduler, principal: str) -> None:
    if trial.ledger is not None:
        trial.ledger.set_terms(trial.state, principal, None, dict.fromkeys(RESOURCES))
