"""The order in which waiting tasks are admitted while there is not room for all (SDRF paper, Algorithm 1).

This is the admission to the flow network. A job is admitted up to F_j of Table C.1, minus its running tasks;
the network decides where the tasks go. Nothing is stopped here. The accounts are in
``policies.principal_accounts``.

Each principal's tasks are ordered by priority, which grows with their age, then by submission. The principal
with the lowest priority of SDRF is next. If its first task has no room in the whole cluster, all others wait,
so that large tasks get their turn. Room in the whole cluster may not be room on one machine, and tasks may
have constraints. Therefore a task that was admitted and found no place for FAIR_QUEUE_TIMEOUT_S stays
admitted without room in the sum. The same holds for a first task that has held up others with room for as
long. Machines are kept for both (``policies.reservations``). Until then the room is reserved in the sum: in
the network, a task of another principal that waits longer would otherwise take the place each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Floats, Ints
from dios.firmament.cluster.state import RUNNING, WAITING, ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.policies.fair_queue_kernels import Queues, take_turns
from dios.firmament.policies.fit import room_of
from dios.firmament.policies.gangs import needed
from dios.firmament.policies.job_bounds import job_places, why_beyond
from dios.firmament.policies.principal_accounts import FairnessRule, PrincipalAccounts
from dios.firmament.policies.reservations import Head, Reservation
from dios.firmament.policies.stored_shares import RESOURCES
from dios.limits import FAIR_QUEUE_EXEMPT_MAX, FAIR_QUEUE_TIMEOUT_S, PRIORITY_AGE_S, RESERVATIONS_MAX

_NO_TASK: Final = 2**62
"""A priority above all, of no task."""
_ROUNDING: Final = 1e-9
"""Sums of fractions of processors have rounding errors, which refuse no task."""


@dataclass(frozen=True, eq=False)
class Admission:
    """The waiting tasks that take part in a round."""

    tasks: Ints
    """Rows of the admitted tasks, ascending."""
    limited: Flags
    """(P,): principals that stopped at their quota."""
    next: int = -1
    """The principal whose task is next and has no room; -1 for none."""
    next_task: int = ABSENT
    """The identifier of that task, or of the first of its gang; ABSENT for none."""
    lacking: tuple[str, ...] = ()
    """The resources of which the admitted tasks leave it too little in the whole cluster."""
    with_room: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Identifiers of tasks that are admitted because room was reserved for them."""
    in_turn: bool = True
    """False if no other principal waits, so that an admission counts as no turn."""


class TaskFairQueue:
    """Chooses the admitted tasks, round after round."""

    def __init__(self, ledger: PrincipalAccounts, *, preemption: bool) -> None:
        self.ledger: Final = ledger
        self.preemption = preemption
        self._in_before: dict[int, float] = {}
        """The tasks that were admitted last, by identifier, and since when."""
        self._first = -1
        """The identifier of the task that held up others in the last round, or -1."""
        self._since = 0.0
        self._passed: set[int] = set()
        """Identifiers of tasks that held up others for too long."""
        self._reserved: Mapping[int, Reservation] = {}
        self._latest: dict[int, float] = {}
        """When the latest task was submitted that was placed, by principal."""

    def note_placed(self, state: ClusterState, tasks: Ints) -> None:
        """Note the tasks that a round has placed: earlier ones that still wait were overtaken."""
        submitted = state.tasks.submitted[tasks].tolist()
        for owner, when in zip(state.jobs.principal[state.tasks.job[tasks]].tolist(), submitted, strict=True):
            self._latest[owner] = max(self._latest.get(owner, when), when)

    def choose(
        self, state: ClusterState, *, record: bool, reserved: Mapping[int, Reservation] | None = None
    ) -> Admission:
        """Return the admission of this round; without ``record`` it is a trial round and does not count.

        ``reserved`` are the reservations by the identifiers of their tasks: no other room is kept for them.
        """
        self.ledger.sync(state)
        self._reserved = reserved or {}
        waiting = np.flatnonzero(state.tasks.alive & (state.tasks.status == WAITING))
        places = job_places(state, waiting)
        admission, first = self._chosen(state, waiting[places.allowed], places.needed[places.allowed])
        if record:
            had_turns = state.tasks.id[admission.tasks if admission.in_turn else admission.tasks[:0]]
            # A task that was admitted without room has had no turn yet.
            waved = np.isin(had_turns, sorted(self._passed)) & ~np.isin(had_turns, list(self._in_before))
            waved &= ~np.isin(had_turns, admission.with_room)
            self._in_before = {
                task: self._in_before.get(task, state.now) for task in had_turns[~waved].tolist()
            }
            if first != self._first:
                self._first, self._since = first, state.now
            self._passed &= set(state.tasks.id[waiting].tolist()) if self._passed else set()
            if first >= 0 and state.now - self._since >= FAIR_QUEUE_TIMEOUT_S:
                self._passed.add(first)
        return admission

    def heads(self, state: ClusterState, admission: Admission, left_over: Ints) -> list[Head]:
        """Return the first admitted tasks, or gangs, of principals, and one that held up others too long.

        Of the admitted ones those count that were ``left_over`` by the last round, as rows. If they fit on no
        machine, ``Reservations`` keeps machines for them. Without turns the cost model chooses the order, so
        that only tasks count which a later one has overtaken.
        """
        table, jobs = state.tasks, state.jobs
        waiting = np.intersect1d(admission.tasks, left_over)
        waiting = waiting[table.copy_of[waiting] == ABSENT]
        if not admission.in_turn:
            owner = jobs.principal[table.job[waiting]]
            latest = np.array([self._latest.get(principal, -np.inf) for principal in owner.tolist()])
            waiting = waiting[table.submitted[waiting] < latest]
        passed = np.array([table.find(task) for task in sorted(self._passed)], np.int64)
        all_waiting = np.flatnonzero(table.alive & (table.status == WAITING))
        passed = passed[np.isin(passed, all_waiting)]
        # The tasks of a gang start together.
        gangs = np.unique(table.job[passed][jobs.gang[table.job[passed]] > 0])
        passed = np.union1d(passed, all_waiting[np.isin(table.job[all_waiting], gangs)])
        waiting = np.union1d(waiting, passed)
        if not len(waiting):
            return []
        entry = _entries(state, waiting)
        _, head = _demands(state, waiting, entry)
        rows = waiting[head]
        order = np.lexsort((table.id[rows], table.submitted[rows], -_aged(state, rows)))
        who = jobs.principal[table.job[rows[order]]]
        if self.ledger.rule is FairnessRule.FIFO:
            who = np.zeros(len(order), np.int64)
        first = np.sort(np.unique(who, return_index=True)[1])
        return [_head(state, waiting, entry, at) for at in order[first[:RESERVATIONS_MAX]].tolist()]

    def why_not(self, state: ClusterState, admission: Admission, task: int) -> str:
        """Return why a waiting task was not admitted, without names of others; empty if it was."""
        if np.isin(task, admission.tasks):
            return ""
        beyond = why_beyond(state, task)
        if beyond:
            return beyond
        number = int(state.jobs.principal[state.tasks.job[task]])
        shares, owed = self.ledger.shares(), self.ledger.commitments().max(axis=1, initial=0.0)
        if admission.limited[number]:
            quota = self.ledger.quota()[number]
            parts = [
                f"{state.held[number, r]:g} of {quota[r]:g} {RESOURCES[r]}"
                for r in np.flatnonzero(np.isfinite(quota)).tolist()
            ]
            if parts:
                holds = f"its principal may hold no more at once; it holds {', '.join(parts)}"
                return holds + self._before_quota(state, admission, task, quota)
            most = FAIR_QUEUE_EXEMPT_MAX
            return f"{most} tasks of its principal had their turn, found no place and go before it"
        own = f"its principal has {_standing(shares, owed, number)}"
        if admission.next == number and self._is_next(state, admission, task):
            words = {"tasks": "slots", "cpus": "CPUs", "disk_io": "disk I/O"}
            lacking = " and ".join(words.get(name, name) for name in admission.lacking)
            return f"it is next, and too little is free in the whole cluster of {lacking}; {own}"
        if admission.next == number:
            return f"tasks of its principal come before it, and the first has no room; {own}"
        return (
            f"it is not its turn: {own}, and the next principal has {_standing(shares, owed, admission.next)}"
        )

    @staticmethod
    def _before_quota(state: ClusterState, admission: Admission, task: int, quota: Floats) -> str:
        """Return which tasks use up a quota (R,) before a task of their principal; empty if it exceeds it."""
        waiting = np.flatnonzero(state.tasks.alive & (state.tasks.status == WAITING))
        entry = _entries(state, waiting)
        wanted = _demands(state, waiting, entry)[0][entry[np.searchsorted(waiting, task)]]
        number = state.jobs.principal[state.tasks.job[task]]
        if (state.held[number] + wanted > quota * (1 + _ROUNDING)).any():
            return ""
        first = np.count_nonzero(state.jobs.principal[state.tasks.job[admission.tasks]] == number)
        count = f"{first} of its waiting tasks come" if first else "a larger one of its waiting tasks comes"
        return f", and {count} first"

    @staticmethod
    def _is_next(state: ClusterState, admission: Admission, task: int) -> bool:
        """Return True if a task, or the gang to which it belongs, is the next one."""
        waiting = np.union1d(task, state.tasks.row(admission.next_task))
        return len(np.unique(_entries(state, waiting))) == 1

    def protected(self, state: ClusterState, tasks: Ints) -> Flags:
        """Return which of these running tasks (n,) other principals may not stop: within 1/n.

        A principal's own tasks of higher priority may still stop its lower ones.
        """
        if self.ledger.rule is FairnessRule.FIFO or np.count_nonzero(self.ledger.shares() > 0) < 2:
            return np.zeros(len(tasks), np.bool_)
        owner = state.jobs.principal[state.tasks.job[tasks]]
        safe = self.ledger.shares() <= self.ledger.fair * (1 + _ROUNDING)
        wants = np.full(len(safe), -(2**62), np.int64)
        waiting = np.flatnonzero(state.tasks.alive & (state.tasks.status == WAITING))
        np.maximum.at(wants, state.jobs.principal[state.tasks.job[waiting]], state.tasks.priority[waiting])
        kept: Flags = safe[owner] & (state.tasks.priority[tasks] >= wants[owner])
        return kept

    def _chosen(self, state: ClusterState, waiting: Ints, owed: Flags) -> tuple[Admission, int]:
        """Return the admission, and the identifier of the task that holds up others with room, or -1.

        ``owed`` are the waiting tasks that E_j of their jobs needs.
        """
        quota = self.ledger.quota()
        nobody = np.zeros(len(quota), np.bool_)
        owner = state.jobs.principal[state.tasks.job[waiting]]
        bound = np.isfinite(quota[owner]).any() if len(waiting) else False
        machines = state.resources.at(Level.MACHINE)
        free = room_of(state, machines[state.resources.usable[machines]], left=True)
        if not bound and self._all_fit(state, waiting, free):
            return Admission(waiting, nobody), -1
        if not bound and self._order_is_no_matter(owner):
            return Admission(waiting, nobody, in_turn=False), -1
        entry = _entries(state, waiting)
        demand, head = _demands(state, waiting, entry)
        who, exempt = owner[head], self._exempt(state, waiting, owed, entry, demand, free)
        table = state.tasks
        due = [task for task, reservation in self._reserved.items() if reservation.start <= state.now]
        if due:
            # These start now, so that less is left for turns.
            free = np.maximum(free - demand[np.isin(table.id[waiting[head]], due)].sum(axis=0), 0)
        order = np.lexsort(
            (
                table.id[waiting[head]],
                table.submitted[waiting[head]],
                -_aged(state, waiting[head]),
                ~owed[head],
                ~exempt,
                who,
            )
        )
        first = np.searchsorted(who[order], np.arange(len(quota) + 1)).astype(np.int64)
        queues = Queues(first, demand[order], exempt[order], np.zeros(len(order), np.bool_), nobody)
        ledger = self.ledger
        held = state.held[: len(quota)].copy()
        if ledger.rule is FairnessRule.FIFO:
            free = np.full(len(free), np.inf)
        stopped = take_turns(
            ledger.trial(),
            queues,
            first[:-1].copy(),
            held,
            quota * (1 + _ROUNDING),
            free,
            ledger.scale,
            ledger.fair,
            ledger.g,
            ledger.mode,
            FAIR_QUEUE_EXEMPT_MAX,
        )
        let_in = np.zeros(len(order), np.bool_)
        let_in[order] = queues.taken
        admitted = waiting[let_in[entry]]
        with_room = table.id[waiting[(let_in & ~exempt)[entry]]]
        if stopped < 0:
            return Admission(admitted, queues.limited, with_room=with_room), -1
        at = int(order[stopped])
        admission = Admission(
            admitted,
            queues.limited,
            int(who[at]),
            int(table.id[waiting[head[at]]]),
            tuple(name for name, more in zip(RESOURCES, demand[at] > free, strict=True) if more),
            with_room,
        )
        # If no task has room, none is held up, however long that takes.
        others = np.flatnonzero(~queues.taken)
        others = others[others != stopped]
        more, holds = queues.demand[others], held[who[order[others]]]
        held_up = np.all((more <= free) & (holds + more <= quota[who[order[others]]]), axis=1).any()
        return admission, int(table.id[waiting[head[at]]]) if held_up else -1

    def _all_fit(self, state: ClusterState, waiting: Ints, free: Floats) -> bool:
        wanted = state.tasks.demand[waiting].sum(axis=0)
        return bool(len(waiting) <= free[0] and np.all(wanted <= free[1:]))

    def _order_is_no_matter(self, owner: Ints) -> bool:
        return self.ledger.rule is FairnessRule.FIFO or not len(owner) or bool((owner == owner[0]).all())

    def _exempt(
        self, state: ClusterState, waiting: Ints, owed: Flags, entry: Ints, demand: Floats, free: Floats
    ) -> Flags:
        """Return the entries (W,) for which no room is reserved."""
        table = state.tasks
        old = [task for task, since in self._in_before.items() if state.now - since >= FAIR_QUEUE_TIMEOUT_S]
        before = np.isin(table.id[waiting], [*old, *self._reserved])
        if self.preemption:
            before |= _replaces(state, waiting, owed)
        exempt, passed = np.zeros((2, len(demand)), np.bool_)
        np.logical_or.at(exempt, entry, before)
        if self._passed:
            np.logical_or.at(passed, entry, np.isin(table.id[waiting], sorted(self._passed)))
            # A task that held up others for too long keeps its turn, as soon as there is room.
            exempt |= passed & (demand > free).any(axis=1)
        # A task larger than the cluster would hold up all others for ever; an explanation reports it.
        return exempt | (demand > self.ledger.books.capacity * (1 + _ROUNDING)).any(axis=1)


def _aged(state: ClusterState, waiting: Ints) -> Floats:
    """Return the priorities of waiting tasks, one more for each PRIORITY_AGE_S that they have waited."""
    table = state.tasks
    return table.priority[waiting] + (state.now - table.submitted[waiting]) // PRIORITY_AGE_S


def _head(state: ClusterState, waiting: Ints, entry: Ints, at: int) -> Head:
    """Return the tasks of an entry that have to start together."""
    tasks = waiting[entry == at]
    job = int(state.tasks.job[tasks[0]])
    if len(tasks) > 1:
        need = int(needed(state, np.array([job]))[0]) - int(state.jobs.running[job])
        tasks = tasks[np.argsort(state.tasks.id[tasks])][: max(need, 1)]
    return Head(tasks, int(state.jobs.affinity[job]))


def _standing(shares: Floats, owed: Floats, number: int) -> str:
    return f"a dominant share of {shares[number]:.3g} and a commitment of {owed[number]:.3g}"


def _entries(state: ClusterState, waiting: Ints) -> Ints:
    """Return the entry (n,) of each waiting task: a gang that does not run yet is one entry."""
    job = state.tasks.job[waiting]
    gangs = np.flatnonzero(state.jobs.alive & (state.jobs.gang > 0))
    if not len(gangs):
        return np.arange(len(waiting))
    together = np.zeros(len(state.jobs.alive), np.bool_)
    together[gangs] = needed(state, gangs) > state.jobs.running[gangs]
    key = np.where(together[job], -1 - job, waiting)
    entry: Ints = np.unique(key, return_inverse=True)[1]
    return entry


def _demands(state: ClusterState, waiting: Ints, entry: Ints) -> tuple[Floats, Ints]:
    """Return the demand of each entry (W, R), and the first of its tasks (W,) as an index of ``waiting``.

    A gang counts with the number of its first tasks that still have to start together.
    """
    table = state.tasks
    per_task = np.ones((len(waiting), 1 + table.demand.shape[1]))
    per_task[:, 1:] = table.demand[waiting]
    order = np.argsort(entry, kind="stable")
    if int(entry.max(initial=-1)) + 1 == len(entry):
        return per_task[order], order
    starts = np.searchsorted(entry[order], np.arange(int(entry.max(initial=-1)) + 1))
    place = np.arange(len(order)) - starts[entry[order]]
    jobs = table.job[waiting]
    need = np.maximum(needed(state, jobs) - state.jobs.running[jobs], 1)
    counted = place < need[order]
    demand = np.zeros((len(starts), per_task.shape[1]))
    np.add.at(demand, entry[order[counted]], per_task[order[counted]])
    return demand, order[starts]


def _replaces(state: ClusterState, waiting: Ints, owed: Flags) -> Flags:
    """Return which waiting tasks (n,) can replace a restartable task of their own principal.

    Those of higher priority can, and those that E_j of their jobs needs (``owed``).
    """
    table, jobs = state.tasks, state.jobs
    weak = np.flatnonzero(table.alive & (table.status == RUNNING) & table.restartable)
    if not len(weak):
        return np.zeros(len(waiting), np.bool_)
    least = np.full(max(1, len(state.principals)), _NO_TASK)
    np.minimum.at(least, jobs.principal[table.job[weak]], table.priority[weak])
    weakest = least[jobs.principal[table.job[waiting]]]
    replaces: Flags = (table.priority[waiting] > weakest) | (owed & (weakest < _NO_TASK))
    return replaces
