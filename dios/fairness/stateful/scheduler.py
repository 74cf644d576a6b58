"""SDRF for tasks that cannot be divided, event by event: queues, tags and commitments of every user.

Tasks are not placed on machines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.allocation import Floats
from dios.fairness.stateful.exact_order import ExactOrder
from dios.fairness.stateful.input_checks import (
    User,
    checked_capacity,
    checked_demand,
    checked_population,
    checked_rule,
)
from dios.fairness.stateful.kernels import (
    LN2,
    PLAIN,
    SUM,
    activate,
    advance_clock,
    deactivate,
    empty_user_table,
    finish_task,
    grown_user_table,
    new_clock,
    start_next_or_ask,
    try_start,
    update_all_lines,
)

INITIAL_ROOM: Final = 16
"""The initial number of users with room; it doubles when needed."""


class SdrfScheduler:
    """A scheduler by the SDRF paper's Algorithm 1, with commitments in continuous time (equation 12).

    - ``capacity`` (m,), like each demand (m,), is in units of the caller's choice; integers and binary
      fractions are summed exactly.
    - ``users`` is the population that shares the capacity, 1/n each: a number or the users themselves; None
      means all users seen so far.
    - ``weights`` gives a user of twice the weight a right to twice as much: its holdings count half. Users
      without one have 1. Without ``users`` the population are those with a weight.
    - ``delta`` is the discount factor for each ``interval_s`` seconds; None is plain DRF.
    - ``priority`` "dominant" is the dominant share plus the dominant commitment (equation 10), "sum" the
      largest sum of a share and its commitment (Algorithm 1).

    Times ``t`` are in seconds and never run backwards. Each user's tasks start in the order of their
    submission. The user with the lowest priority is next; if its first task does not fit, all users wait.
    Equal priorities have the order that follows shortly afterwards: the priority that falls faster is first.
    Priorities that stay equal have the order of the users' first submission. Priorities that are too near
    to each other for floats are compared exactly, however little is left of a commitment; there ``delta``,
    ``interval_s`` and times are the decimal numbers as which they are written. At the same time, call first
    ``finish``, then ``submit``, then ``schedule``. Raises ``ValueError`` with the argument at fault; the
    scheduler is then unchanged.
    """

    def __init__(
        self,
        capacity: ArrayLike,
        *,
        users: int | Collection[Hashable] | None = None,
        weights: Mapping[User, float] | None = None,
        delta: float | None = 1 - 1e-6,
        interval_s: float = 1.0,
        priority: str = "dominant",
    ) -> None:
        self._capacity = checked_capacity(capacity)
        self._mode, self._tau = checked_rule(delta, interval_s, priority)
        self._population = checked_population(users, weights)
        self._table = empty_user_table(self._capacity, INITIAL_ROOM)
        self._index: dict[Hashable, int] = {}
        self._queues: list[deque[tuple[Hashable, Floats]]] = []
        self._waiting: dict[Hashable, int] = {}
        self._running: dict[Hashable, tuple[int, Floats]] = {}
        self._active = 0
        self._now = -math.inf
        self._clock: Floats = new_clock(0.0)
        self._rivals = np.zeros(INITIAL_ROOM, np.int64)
        self._exact: ExactOrder | None = None
        if delta is not None:
            self._exact = ExactOrder(self._capacity, delta, interval_s, dominant=self._mode != SUM)

    def submit(self, user: Hashable, demand: ArrayLike, tag: Hashable, t: float) -> None:
        """Queue a task of ``demand`` (m,) for ``user``; its ``tag`` must differ from all tasks in the system.

        A task that exceeds the capacity waits forever, and all users wait once it is next.
        """
        checked = checked_demand(demand, self._capacity.size)
        if tag in self._waiting or tag in self._running:
            message = f"tag {tag!r} is already used by a task that waits or runs; give each task its own"
            raise ValueError(message)
        index = self._index.get(user, -1)
        if index < 0:
            self._check_new_user(user)
        self._advance(t)
        if index < 0:
            index = self._add_user(user)
        queue = self._queues[index]
        queue.append((tag, checked))
        self._waiting[tag] = index
        if len(queue) == 1:
            self._active = activate(self._table, self._active, index, checked, float(self._clock[1]))

    def finish(self, tag: Hashable, t: float) -> None:
        """End a running task; ``ValueError`` if no running task has this tag."""
        if tag not in self._running:
            state = "waits; call withdraw() instead" if tag in self._waiting else "is unknown"
            message = f"the task with the tag {tag!r} does not run: it {state}"
            raise ValueError(message)
        self._advance(t)
        index, demand = self._running.pop(tag)
        if self._exact:
            self._exact.finish(index, demand, t)
        finish_task(self._table, index, demand, self._fair(), float(self._clock[1]), self._mode)

    def withdraw(self, tag: Hashable, t: float) -> None:
        """Remove a waiting task; ``ValueError`` if no waiting task has this tag. Takes time O(its queue)."""
        if tag not in self._waiting:
            message = f"no task with the tag {tag!r} waits"
            raise ValueError(message)
        self._advance(t)
        index = self._waiting.pop(tag)
        self._queues[index] = deque(entry for entry in self._queues[index] if entry[0] != tag)
        self._set_first_task(index)

    def schedule(self, t: float) -> list[Hashable]:
        """Start all tasks that Algorithm 1 allows; return their tags, in order."""
        self._advance(t)
        started: list[Hashable] = []
        while self._active:
            index = self._start_next(t)
            if index < 0:
                break
            tag, demand = self._queues[index].popleft()
            if self._exact:
                self._exact.start(index, demand, t)
            self._set_first_task(index)
            del self._waiting[tag]
            self._running[tag] = (index, demand)
            started.append(tag)
        return started

    def _start_next(self, t: float) -> int:
        """Allocate the first task of the next user; return the user, or -1 if the task does not fit."""
        rule = self._fair(), float(self._clock[1]), self._mode
        index, rivals = start_next_or_ask(self._table, self._active, *rule, self._rivals)
        if not rivals or not self._exact:
            return index
        index = self._exact.first(self._rivals[:rivals].tolist(), t)
        return index if try_start(self._table, index, *rule) else -1

    def commitments(self, t: float) -> dict[Hashable, Floats]:
        """Return each user's commitment (m,) at ``t``, without advancing time (equation 12).

        They are fractions of the capacity, weighted if there are weights: the right of each user is 1/n.
        """
        self._check_time(t)
        g = 1.0
        if self._index and self._mode != PLAIN:
            g = math.exp(self._clock[2] * LN2 - (t - self._clock[0]) / self._tau)
        table = self._table
        return {
            user: np.maximum(table.over[index] + g * table.slope[index], 0.0)
            for user, index in self._index.items()
        }

    def _fair(self) -> float:
        return 1.0 / (self._population.size or len(self._index) or 1)

    def _check_time(self, t: float) -> None:
        if not (math.isfinite(t) and t >= self._now):
            message = f"t is {t}; it must be finite and not before {self._now}"
            raise ValueError(message)

    def _advance(self, t: float) -> None:
        """Advance to ``t``; the first event sets the reference time."""
        self._check_time(t)
        if self._now == -math.inf:
            self._clock[0] = t
        self._now = t
        if self._mode != PLAIN:
            advance_clock(self._table, len(self._index), self._clock, float(t), self._tau)

    def _check_new_user(self, user: Hashable) -> None:
        names, size = self._population.names, self._population.size
        if names is not None and user not in names:
            message = f"user {user!r} is not in users"
            raise ValueError(message)
        if size and len(self._index) >= size:
            message = f"user {user!r} is new, but users allows only {size}"
            raise ValueError(message)

    def _add_user(self, user: Hashable) -> int:
        """Return the index of a new user; if all users seen so far share, 1/n falls for everybody."""
        index = len(self._index)
        if index == self._table.lead.size:
            self._table = grown_user_table(self._table, 2 * index, float(self._clock[1]))
            self._rivals = np.zeros(2 * index, np.int64)
        self._index[user] = index
        self._queues.append(deque())
        self._table.scale[index] = self._population.scale(user)
        if self._exact:
            if not self._population.size:
                self._exact.change_population(index + 1, self._now)
            self._exact.add_user(self._population.exact_scale(user), self._population.size or index + 1)
        if not self._population.size:
            update_all_lines(self._table, index, self._fair(), float(self._clock[1]), self._mode)
        return index

    def _set_first_task(self, index: int) -> None:
        """Set the first task of a queue in the table, or deactivate its user if the queue is empty."""
        queue = self._queues[index]
        if queue:
            self._table.head[index] = queue[0][1]
        else:
            self._active = deactivate(self._table, self._active, index, float(self._clock[1]))
