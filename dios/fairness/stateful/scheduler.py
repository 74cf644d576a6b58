"""SDRF for indivisible tasks, event by event: queues, tags and commitments of every user.

Not for: placing tasks on machines, nor whole traces (``dios.fairness.simulate``, which decides alike).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.allocation import Floats
from dios.fairness.stateful.input_checks import (
    checked_capacity,
    checked_demand,
    checked_population,
    checked_rule,
)
from dios.fairness.stateful.kernels import (
    PLAIN,
    decay,
    empty_books,
    give_back,
    grown_books,
    join,
    leave,
    settle_everybody,
    start_next,
)

ROOM: Final = 16
"""Users to make room for at first; it doubles."""


class SdrfScheduler:
    """SDRF paper, Algorithm 1 with commitments in continuous time (equation 12).

    ``capacity`` (m,) and each demand (m,) are in units of your own: integers and binary fractions are
    summed exactly. ``users`` is the population that shares, 1/n each: how many, or who; None is everyone
    seen so far. ``delta`` is the discount factor for each ``interval_s`` seconds, None plain DRF.
    ``priority`` "dominant" is dominant share plus dominant commitment (equation 10), "sum" the largest sum
    of a share and its commitment (Algorithm 1). Times ``t`` are in seconds and never run back.

    Each user's tasks start in the order of their submission. The user with the lowest priority is next; if
    its first task does not fit, everybody waits. Ties go by (priority, its derivative, order of first
    submission). At one instant: first ``finish``, then ``submit``, then ``schedule``.
    ``ValueError`` names what is at fault, and nothing has changed then.
    """

    def __init__(
        self,
        capacity: ArrayLike,
        *,
        users: int | Collection[Hashable] | None = None,
        delta: float | None = 1 - 1e-6,
        interval_s: float = 1.0,
        priority: str = "dominant",
    ) -> None:
        self._capacity = checked_capacity(capacity)
        self._mode, self._tau = checked_rule(delta, interval_s, priority)
        self._population, self._named = checked_population(users)
        self._books = empty_books(self._capacity, ROOM)
        self._index: dict[Hashable, int] = {}
        self._queues: list[deque[tuple[Hashable, Floats]]] = []
        self._waiting: dict[Hashable, int] = {}
        self._running: dict[Hashable, tuple[int, Floats]] = {}
        self._active = 0
        self._now = -math.inf
        self._clock: Floats = np.array([0.0, 1.0])

    def submit(self, user: Hashable, demand: ArrayLike, tag: Hashable, t: float) -> None:
        """Queue a task of ``demand`` (m,) for ``user``; its ``tag`` is unlike those that wait or run.

        A demand beyond the capacity waits forever, and with it everybody, once its user is next.
        """
        made = checked_demand(demand, self._capacity.size)
        if tag in self._waiting or tag in self._running:
            message = f"tag {tag!r} is in use; give each task its own"
            raise ValueError(message)
        index = self._index.get(user, -1)
        if index < 0:
            self._check_newcomer(user)
        self._advance(t)
        if index < 0:
            index = self._welcome(user)
        queue = self._queues[index]
        queue.append((tag, made))
        self._waiting[tag] = index
        if len(queue) == 1:
            self._active = join(self._books, self._active, index, made, float(self._clock[1]))

    def finish(self, tag: Hashable, t: float) -> None:
        """End a running task; ``ValueError`` where none has this tag."""
        if tag not in self._running:
            state = "waits; withdraw it" if tag in self._waiting else "is unknown"
            message = f"tag {tag!r} does not run: it {state}"
            raise ValueError(message)
        self._advance(t)
        index, demand = self._running.pop(tag)
        give_back(self._books, index, demand, self._fair(), float(self._clock[1]), self._mode)

    def withdraw(self, tag: Hashable, t: float) -> None:
        """Forget a task that waits; ``ValueError`` where none has this tag. Takes a pass over its queue."""
        if tag not in self._waiting:
            message = f"tag {tag!r} does not wait"
            raise ValueError(message)
        self._advance(t)
        index = self._waiting.pop(tag)
        self._queues[index] = deque(entry for entry in self._queues[index] if entry[0] != tag)
        self._bring_forward(index)

    def schedule(self, t: float) -> list[Hashable]:
        """Start whatever fits by Algorithm 1; the tags that were started, in order."""
        self._advance(t)
        started: list[Hashable] = []
        while self._active:
            index = start_next(self._books, self._active, self._fair(), float(self._clock[1]), self._mode)
            if index < 0:
                break
            tag, demand = self._queues[index].popleft()
            self._bring_forward(index)
            del self._waiting[tag]
            self._running[tag] = (index, demand)
            started.append(tag)
        return started

    def commitments(self, t: float) -> dict[Hashable, Floats]:
        """Every user's commitment (m,) at ``t``, as fractions (equation 12); the time stays where it is."""
        self._check_time(t)
        past = 0.0 if self._mode == PLAIN else (t - self._clock[0]) / self._tau
        g = math.exp(-past) if self._index else 1.0
        books = self._books
        return {
            user: np.maximum(books.over[index] + g * books.slope[index], 0.0)
            for user, index in self._index.items()
        }

    def _fair(self) -> float:
        return 1.0 / (self._population or len(self._index) or 1)

    def _check_time(self, t: float) -> None:
        if not (math.isfinite(t) and t >= self._now):
            message = f"time runs on: t is {t} after {self._now}"
            raise ValueError(message)

    def _advance(self, t: float) -> None:
        """Move on to ``t``, which is the reference where nothing happened before."""
        self._check_time(t)
        if self._now == -math.inf:
            self._clock[0] = t
        self._now = t
        if self._mode != PLAIN:
            decay(self._books, len(self._index), self._clock, float(t), self._tau)

    def _check_newcomer(self, user: Hashable) -> None:
        if self._named is not None and user not in self._named:
            message = f"user {user!r} is none of those who share"
            raise ValueError(message)
        if self._population and len(self._index) >= self._population:
            message = f"user {user!r} is one more than the {self._population} who share"
            raise ValueError(message)

    def _welcome(self, user: Hashable) -> int:
        """Give a newcomer its index; where everyone seen shares, 1/n falls for all."""
        index = len(self._index)
        if index == self._books.lead.size:
            self._books = grown_books(self._books, 2 * index, float(self._clock[1]))
        self._index[user] = index
        self._queues.append(deque())
        if not self._population:
            settle_everybody(self._books, index, self._fair(), float(self._clock[1]), self._mode)
        return index

    def _bring_forward(self, index: int) -> None:
        """Put the first of a queue into the books, or its user out of those who are active."""
        queue = self._queues[index]
        if queue:
            self._books.head[index] = queue[0][1]
        else:
            self._active = leave(self._books, self._active, index, float(self._clock[1]))
