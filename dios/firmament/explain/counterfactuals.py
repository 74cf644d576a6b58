"""Changes that would start a waiting task, each solved: made in a copy of the scheduler, which plays rounds.

The rounds are the scheduler's own, with its turns, reservations and checks, so nothing is decided here. The
changes are those of ``trial_changes``; this module chooses which are tried.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Ints
from dios.firmament.cluster.state import RUNNING, WAITING
from dios.firmament.descriptors import Level, Resources
from dios.firmament.explain.amounts import LEAST, STEPS, amount_text, exact_text, in_steps
from dios.firmament.explain.explanation import Counterfactual, CounterfactualKind
from dios.firmament.explain.trial_changes import (
    Change,
    Group,
    LiftedRule,
    TrialScheduler,
    end_tasks,
    lifted_rules,
    with_amounts,
    with_gang,
    with_slot,
)
from dios.firmament.models.runtimes import Runtimes
from dios.firmament.policies.room_in_time import known_ends
from dios.firmament.rounds.model_guard import ModelError
from dios.limits import EXPLAIN_ENDS, EXPLAIN_PAIRS, EXPLAIN_ROUNDS

_Amounts: TypeAlias = dict[str, float]


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
            raise ModelError("; ".join(f"{fault.source}: {fault.reason}" for fault in played.faults))
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
        self._group: Final = self._gang() if self._job.gang else (task,)
        self._beside: tuple[LiftedRule, ...] = ()
        """Rules that do not hold in the present trials."""
        self._found: list[Counterfactual] = []
        self.remark = ""
        """A sentence about changes that were not tried, or an empty string."""

    def solve(self) -> list[Counterfactual]:
        """Return sufficient changes, the smallest first."""
        with self._remarking():
            rules = lifted_rules(self._scheduler, self._task, self._group)
            singles = [self._demand(name) for name in self._demanded()]
            for rule in rules:
                self._lift(rule)
            if self._job.gang > 1:
                self._smaller_gang()
            self._ends()
            if not any(singles):
                self._pairs()
            if not self._found:
                self._together(rules)
        return sorted(self._found, key=lambda change: (change.kind.rank, change.size))

    def starts_with_slot(self, machine: int) -> bool:
        """Return True if the task starts with one more slot on a machine, False also if that is unknown."""
        place = ABSENT
        with self._remarking():
            place = self._place(partial(with_slot, machine=machine))
        return place != ABSENT

    @contextlib.contextmanager
    def _remarking(self) -> Iterator[None]:
        """End a part of the search when the time is up or a round fails, and record the reason."""
        try:
            yield
        except _TimeIsUpError:
            why = f"the {self._budget_s:.2g} s for that are used up"
        except ModelError as error:
            why = f"a round failed: {error}"
        else:
            return
        self.remark = self.remark or f"further changes were not tried: {why}"

    # Trials -----------------------------------------------------------------------------------------

    def _place(self, change: Change, at: float | None = None) -> int:
        """Return the machine on which the task starts after a change, or ABSENT."""
        if time.perf_counter() >= self._until:
            raise _TimeIsUpError
        trial = self._scheduler.copy()
        _make_all(trial, self._beside)
        change(trial)
        return start_within(trial, self._task, self._now if at is None else at)[0]

    def _gang(self) -> Group:
        """Return the waiting tasks of the task's gang, which start together."""
        state = self._scheduler.state
        job = state.jobs.row(self._job.job)
        rows = np.flatnonzero(state.tasks.alive & (state.tasks.job == job) & (state.tasks.status == WAITING))
        return tuple(state.tasks.id[rows].tolist())

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
        also: Sequence[LiftedRule] = (),
    ) -> None:
        also = (*self._beside, *also)
        text = " and ".join([text, *(rule.text for rule in self._beside)])
        effect = f"it would start on {self._name(machine)}"
        if not least:
            effect += "; a smaller change may do"
        text = f"sufficient: {text} ({effect})"
        self._found.append(
            Counterfactual(
                kind,
                text,
                machine,
                size,
                amounts or {},
                value,
                freed,
                ended,
                least,
                also[0].kind if also else None,
                also[0].value if also else "",
            )
        )

    # Demands ----------------------------------------------------------------------------------------

    def _demanded(self) -> list[str]:
        """Return the resources of which the task demands more than the least amount."""
        demand, names = self._described.demand, Resources._fields
        return [name for name, amount, least in zip(names, demand, LEAST, strict=True) if amount > least]

    def _place_with(self, amounts: _Amounts) -> int:
        return self._place(partial(with_amounts, group=self._group, amounts=amounts))

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
        return sorted({in_steps(name, amount) for amount in amounts if math.isfinite(amount) and amount > 0})

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
        prefix, suffix = ("at most ", " for each task of its gang") if len(self._group) > 1 else ("", "")
        parts = [
            f"{prefix}{exact_text(name, amount)} instead of {amount_text(name, getattr(demand, name))}"
            for name, amount in solved.amounts.items()
        ]
        self._note(
            CounterfactualKind.DEMAND,
            " and ".join(parts) + suffix,
            solved.machine,
            self._reduction(solved.amounts),
            amounts=solved.amounts,
            least=solved.least,
        )

    # Constraints and bounds --------------------------------------------------------------------------

    def _lift(self, *rules: LiftedRule) -> None:
        """Try rules that do not hold, one or two."""
        machine = self._place(lambda trial: _make_all(trial, rules))
        if machine != ABSENT:
            self._note(
                rules[0].kind,
                " and ".join(rule.text for rule in rules),
                machine,
                float(len(self._found)),
                value=rules[0].value,
                also=rules[1:],
            )

    def _together(self, rules: Sequence[LiftedRule]) -> None:
        """Try two rules that do not hold, and one with a smaller demand, until any two are sufficient."""
        for pair in combinations(rules, 2):
            self._lift(*pair)
        try:
            for rule in rules:
                if not self._found:
                    self._beside = (rule,)
                    for name in self._demanded():
                        self._demand(name)
        finally:
            self._beside = ()

    def _smaller_gang(self) -> None:
        """Find the largest gang that starts."""
        job, below, above, machine = self._job, 0, self._job.gang, ABSENT
        size = 1
        while below < size < above:
            place = self._place(partial(with_gang, task=self._task, size=size))
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
            return self._place(partial(end_tasks, tasks=tasks[:count].tolist(), at=at), at)

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
        location = "" if row == ABSENT else f" on {names[row]}"
        which = f"the next task{location} ends" if above == 1 else f"the next {above} tasks{location} end"
        self._note(
            CounterfactualKind.END,
            f"when {which}, expected in {seconds:.3g} s",
            machine,
            seconds,
            freed=self._scheduler.state.machine_ids.get(row),
            ended=above,
        )
        return True


def _make_all(trial: TrialScheduler, rules: Iterable[LiftedRule]) -> None:
    for rule in rules:
        rule.change(trial)
