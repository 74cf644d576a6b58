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
from typing import Final, NamedTuple

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


class Entries(NamedTuple):
    """The waiting tasks of a round as entries that take turns: a gang that does not run yet is one entry."""

    waiting: Ints
    """(n,) rows of the tasks, ascending."""
    entry: Ints
    """(n,) the entry of each task."""
    demand: Floats
    """(W, R) slots and resources; those of a gang's tasks that still have to start together."""
    first: Ints
    """(W,) the row of the first task of each entry."""
    owner: Ints
    """(W,) principals."""


class TurnsTaken(NamedTuple):
    """The outcome of the turns of a round."""

    order: Ints
    """(W,) the entries by principal, in the order of the queues."""
    queues: Queues
    held: Floats
    """(P, R) what principals hold with the admitted entries."""
    free: Floats
    """(R,) what the admitted entries leave."""
    stopped: int
    """The place in ``order`` of the entry without room, which ended the turns; -1 for none."""


class TaskFairQueue:
    """Chooses the admitted tasks, round after round."""

    def __init__(self, ledger: PrincipalAccounts, *, preemption: bool) -> None:
        self.ledger: Final = ledger
        self.preemption = preemption
        self._admitted_since: dict[int, float] = {}
        """The tasks that were admitted last, by identifier, and since when."""
        self._blocking = -1
        """The identifier of the task that held up others in the last round, or -1."""
        self._blocking_since = 0.0
        self._overdue: set[int] = set()
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
            had_turns = state.tasks.id[admission.tasks if admission.in_turn else admission.tasks[:0]].tolist()
            # A task that was admitted without room has had no turn yet.
            unreserved = self._overdue - self._admitted_since.keys() - set(admission.with_room.tolist())
            self._admitted_since = {
                task: self._admitted_since.get(task, state.now)
                for task in had_turns
                if task not in unreserved
            }
            if first != self._blocking:
                self._blocking, self._blocking_since = first, state.now
            self._overdue &= set(state.tasks.id[waiting].tolist()) if self._overdue else set()
            if first >= 0 and state.now - self._blocking_since >= FAIR_QUEUE_TIMEOUT_S:
                self._overdue.add(first)
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
        overdue = np.array([table.find(task) for task in sorted(self._overdue)], np.int64)
        all_waiting = np.flatnonzero(table.alive & (table.status == WAITING))
        overdue = overdue[np.isin(overdue, all_waiting)]
        # The tasks of a gang start together.
        gangs = np.unique(table.job[overdue][jobs.gang[table.job[overdue]] > 0])
        overdue = np.union1d(overdue, all_waiting[np.isin(table.job[all_waiting], gangs)])
        waiting = np.union1d(waiting, overdue)
        if not len(waiting):
            return []
        entries = _entries(state, waiting)
        order = np.lexsort((table.id[entries.first], *_age_keys(state, entries.first)))
        who = entries.owner[order]
        if self.ledger.rule is FairnessRule.FIFO:
            who = np.zeros(len(order), np.int64)
        first = np.sort(np.unique(who, return_index=True)[1])
        return [_head(state, entries, at) for at in order[first[:RESERVATIONS_MAX]].tolist()]

    def why_not(self, state: ClusterState, admission: Admission, task: int) -> str:
        """Return why a waiting task was not admitted, without names of others; empty if it was."""
        if np.isin(task, admission.tasks):
            return ""
        beyond = why_beyond(state, task)
        if beyond:
            return beyond
        number = int(state.jobs.principal[state.tasks.job[task]])
        shares, commitments = self.ledger.shares(), self.ledger.commitments().max(axis=1, initial=0.0)
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
        own = f"its principal has {_standing(shares, commitments, number)}"
        if admission.next == number and self._is_next(state, admission, task):
            words = {"tasks": "slots", "cpus": "CPUs", "disk_io": "disk I/O"}
            lacking = " and ".join(words.get(name, name) for name in admission.lacking)
            return f"it is next, and too little is free in the whole cluster of {lacking}; {own}"
        if admission.next == number:
            return f"tasks of its principal come before it, and the first has no room; {own}"
        others = _standing(shares, commitments, admission.next)
        return f"it is not its turn: {own}, and the next principal has {others}"

    @staticmethod
    def _before_quota(state: ClusterState, admission: Admission, task: int, quota: Floats) -> str:
        """Return which tasks use up a quota (R,) before a task of their principal; empty if it exceeds it."""
        waiting = np.flatnonzero(state.tasks.alive & (state.tasks.status == WAITING))
        entries = _entries(state, waiting)
        wanted = entries.demand[entries.entry[np.searchsorted(waiting, task)]]
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
        return len(_entries(state, waiting).first) == 1

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

    def _chosen(self, state: ClusterState, waiting: Ints, entitled: Flags) -> tuple[Admission, int]:
        """Return the admission, and the identifier of the task that holds up others with room, or -1.

        ``entitled`` are the waiting tasks that E_j of their jobs needs.
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
        entries = _entries(state, waiting)
        exempt = self._exempt(state, entries, entitled, free)
        turns = self._take_turns(state, entries, entitled, exempt, self._left_for_turns(state, entries, free))
        return self._admission(state, entries, exempt, turns)

    def _left_for_turns(self, state: ClusterState, entries: Entries, free: Floats) -> Floats:
        """Return the free amounts (R,) without those of reservations that start now."""
        due = [task for task, reservation in self._reserved.items() if reservation.start <= state.now]
        if not due:
            return free
        reserved = entries.demand[np.isin(state.tasks.id[entries.first], due)].sum(axis=0)
        left: Floats = np.maximum(free - reserved, 0)
        return left

    def _take_turns(
        self, state: ClusterState, entries: Entries, entitled: Flags, exempt: Flags, free: Floats
    ) -> TurnsTaken:
        """Queue the entries of each principal, and admit them in turns while there is room in the sum."""
        ledger, quota = self.ledger, self.ledger.quota()
        first_entitled = entitled[np.searchsorted(entries.waiting, entries.first)]
        keys = state.tasks.id[entries.first], *_age_keys(state, entries.first), ~first_entitled, ~exempt
        order = np.lexsort((*keys, entries.owner))
        first = np.searchsorted(entries.owner[order], np.arange(len(quota) + 1)).astype(np.int64)
        taken, limited = np.zeros(len(order), np.bool_), np.zeros(len(quota), np.bool_)
        queues = Queues(first, entries.demand[order], exempt[order], taken, limited)
        held = state.held[: len(quota)].copy()
        free = np.full(len(free), np.inf) if ledger.rule is FairnessRule.FIFO else free.copy()
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
        return TurnsTaken(order, queues, held, free, stopped)

    def _admission(
        self, state: ClusterState, entries: Entries, exempt: Flags, turns: TurnsTaken
    ) -> tuple[Admission, int]:
        """Return the admission after the turns, and the task that holds up others with room, or -1."""
        ids, queues = state.tasks.id, turns.queues
        is_admitted = np.zeros(len(turns.order), np.bool_)
        is_admitted[turns.order] = queues.taken
        admitted = entries.waiting[is_admitted[entries.entry]]
        with_room = ids[entries.waiting[(is_admitted & ~exempt)[entries.entry]]]
        if turns.stopped < 0:
            return Admission(admitted, queues.limited, with_room=with_room), -1
        at = int(turns.order[turns.stopped])
        next_task = int(ids[entries.first[at]])
        short = entries.demand[at] > turns.free
        lacking = tuple(name for name, more in zip(RESOURCES, short, strict=True) if more)
        admission = Admission(admitted, queues.limited, int(entries.owner[at]), next_task, lacking, with_room)
        return admission, next_task if self._holds_up(entries, turns) else -1

    def _holds_up(self, entries: Entries, turns: TurnsTaken) -> bool:
        """Return True if any entry that was not admitted has room; the one that ended the turns has none."""
        others = np.flatnonzero(~turns.queues.taken)
        more, who = turns.queues.demand[others], entries.owner[turns.order[others]]
        within = turns.held[who] + more <= self.ledger.quota()[who]
        return bool(np.all((more <= turns.free) & within, axis=1).any())

    def _all_fit(self, state: ClusterState, waiting: Ints, free: Floats) -> bool:
        wanted = state.tasks.demand[waiting].sum(axis=0)
        return bool(len(waiting) <= free[0] and np.all(wanted <= free[1:]))

    def _order_is_no_matter(self, owner: Ints) -> bool:
        return self.ledger.rule is FairnessRule.FIFO or not len(owner) or bool((owner == owner[0]).all())

    def _exempt(self, state: ClusterState, entries: Entries, entitled: Flags, free: Floats) -> Flags:
        """Return the entries (W,) for which no room is reserved."""
        ids, demand = state.tasks.id[entries.waiting], entries.demand
        old = [
            task for task, since in self._admitted_since.items() if state.now - since >= FAIR_QUEUE_TIMEOUT_S
        ]
        before = np.isin(ids, [*old, *self._reserved])
        if self.preemption:
            before |= _replaces(state, entries.waiting, entitled)
        exempt, overdue = np.zeros((2, len(demand)), np.bool_)
        np.logical_or.at(exempt, entries.entry, before)
        if self._overdue:
            np.logical_or.at(overdue, entries.entry, np.isin(ids, sorted(self._overdue)))
            # A task that held up others for too long keeps its turn, as soon as there is room.
            exempt |= overdue & (demand > free).any(axis=1)
        # A task larger than the cluster would hold up all others for ever; an explanation reports it.
        return exempt | (demand > self.ledger.books.capacity * (1 + _ROUNDING)).any(axis=1)


def _age_keys(state: ClusterState, rows: Ints) -> tuple[Floats, Floats]:
    """Return keys for a sort of waiting tasks, the last the strongest: priority with age, then submission.

    The priority is one more for each PRIORITY_AGE_S that a task has waited.
    """
    submitted = state.tasks.submitted[rows]
    return submitted, -(state.tasks.priority[rows] + (state.now - submitted) // PRIORITY_AGE_S)


def _head(state: ClusterState, entries: Entries, at: int) -> Head:
    """Return the tasks of an entry that have to start together."""
    tasks = entries.waiting[entries.entry == at]
    job = int(state.tasks.job[tasks[0]])
    if len(tasks) > 1:
        need = int(needed(state, np.array([job]))[0]) - int(state.jobs.running[job])
        tasks = tasks[np.argsort(state.tasks.id[tasks])][: max(need, 1)]
    return Head(tasks, int(state.jobs.affinity[job]))


def _standing(shares: Floats, commitments: Floats, number: int) -> str:
    return f"a dominant share of {shares[number]:.3g} and a commitment of {commitments[number]:.3g}"


def _entries(state: ClusterState, waiting: Ints) -> Entries:
    """Return the entries of waiting tasks (n,), rows in ascending order."""
    table, job = state.tasks, state.tasks.job[waiting]
    gangs = np.flatnonzero(state.jobs.alive & (state.jobs.gang > 0))
    demand = np.ones((len(waiting), 1 + table.demand.shape[1]))
    demand[:, 1:] = table.demand[waiting]
    owner = state.jobs.principal[job]
    if not len(gangs):
        return Entries(waiting, np.arange(len(waiting)), demand, waiting, owner)
    together = np.zeros(len(state.jobs.alive), np.bool_)
    together[gangs] = needed(state, gangs) > state.jobs.running[gangs]
    entry: Ints = np.unique(np.where(together[job], -1 - job, waiting), return_inverse=True)[1]
    order = np.argsort(entry, kind="stable")
    starts = np.searchsorted(entry[order], np.arange(int(entry.max(initial=-1)) + 1))
    place = np.arange(len(order)) - starts[entry[order]]
    need = np.maximum(needed(state, job) - state.jobs.running[job], 1)
    counted = order[place < need[order]]
    sums = np.zeros((len(starts), demand.shape[1]))
    np.add.at(sums, entry[counted], demand[counted])
    return Entries(waiting, entry, sums, waiting[order[starts]], owner[order[starts]])


def _replaces(state: ClusterState, waiting: Ints, entitled: Flags) -> Flags:
    """Return which waiting tasks (n,) can replace a restartable task of their own principal.

    Those of higher priority can, and those that E_j of their jobs needs (``entitled``).
    """
    table, jobs = state.tasks, state.jobs
    weak = np.flatnonzero(table.alive & (table.status == RUNNING) & table.restartable)
    if not len(weak):
        return np.zeros(len(waiting), np.bool_)
    least = np.full(max(1, len(state.principals)), _NO_TASK)
    np.minimum.at(least, jobs.principal[table.job[weak]], table.priority[weak])
    weakest = least[jobs.principal[table.job[waiting]]]
    replaces: Flags = (table.priority[waiting] > weakest) | (entitled & (weakest < _NO_TASK))
    return replaces
