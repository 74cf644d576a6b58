"""Replay of a simulated trace through the live tree, to count its events and to measure its cost.

Used for equation 14 as printed and for the claim that the tree is cheap; ``simulate_by_tree`` counts events
faster. The decisions come from ``simulate``. Each is compared with the tree's minimum, and the tree keeps all
waiting users in order as in the paper.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dios.errors import InvariantError
from dios.fairness.allocation import Floats, Ints
from dios.fairness.live_tree import LiveTree
from dios.fairness.stateful.priority import Commitment, intersection, priority
from labs.simulate.fairness.trace import MICRO, FairTrace
from labs.simulate.fairness.trace_report import MechanismResult

NEAR: Final = 1e-9
"""Priorities nearer than this may be in either order, because sums are rounded differently here."""
PROGRESS_EVERY: Final = 20_000
"""The number of decisions between two progress reports."""
_CHUNK: Final = 100_000
"""The number of events that are converted to Python numbers at a time."""

DecisionCallback = Callable[[int], None]
"""Receives the number of decisions so far."""


class TreeReplay(NamedTuple):
    """The work of the live tree in a replay."""

    decisions: int
    events: int
    """Events handled, including false ones."""
    waiting: float
    """The number of users in the tree, averaged over decisions."""
    tree_s: float
    """CPU seconds of the tree's whole work, including events and changed allocations."""
    sorted_s: float
    """CPU seconds of one decision with a new heap of all waiting users; 0 if none was timed."""

    @property
    def per_thousand(self) -> float:
        """Events per thousand decisions."""
        return 1000.0 * self.events / max(self.decisions, 1)


class _TreeMirror:
    """The paper's kappa of all users, and the tree of those who wait."""

    def __init__(self, trace: FairTrace, capacity: Floats, tau: float, rule: str) -> None:
        self.tree: LiveTree[int, Commitment] = LiveTree(priority, intersection)
        self.waiting = [0] * trace.users
        self._capacity = capacity.tolist()
        self._fair = 1.0 / trace.users
        self._dominant = rule == "dominant"
        self._held = [[0.0] * capacity.size for _ in range(trace.users)]
        nothing = (0.0,) * capacity.size
        self.kappa: list[Commitment] = [Commitment(0.0, tau, nothing, nothing, nothing)] * trace.users

    def arrive(self, user: int) -> None:
        """Add a waiting task."""
        self.waiting[user] += 1
        if self.waiting[user] == 1:
            self.tree.insert(user, self.kappa[user])

    def change(self, user: int, demand: list[float], sign: float, t: float) -> None:
        """Start (sign 1) or end (-1) a task at ``t``: update its user's holdings and place in the tree."""
        if self.waiting[user] or sign > 0:
            self.tree.delete(user)
        held, old = self._held[user], self.kappa[user]
        for r, asked in enumerate(demand):
            held[r] += sign * asked
        fade = math.exp(-(t - old.t) / old.tau)
        owed = tuple(over + (was - over) * fade for over, was in zip(old.over, old.owed, strict=True))
        share = tuple(amount / whole for amount, whole in zip(held, self._capacity, strict=True))
        over = tuple(max(0.0, part - self._fair) for part in share)
        if self._dominant:
            # Largest commitment plus largest share: equation 13 for a user whose shares are equal.
            share = (max(share),) * len(share)
        self.kappa[user] = Commitment(t, old.tau, share, over, owed)
        if sign > 0:
            self.waiting[user] -= 1
        if self.waiting[user]:
            self.tree.insert(user, self.kappa[user])

    def check(self, user: int, t: float) -> None:
        """Raise ``InvariantError`` unless the chosen user has the lowest priority of all who wait."""
        first = self.tree.minimum()
        if first == user:
            return
        lowest, chosen = priority(t, self.kappa[first]), priority(t, self.kappa[user])
        if chosen - lowest > NEAR * (1.0 + abs(lowest)):
            raise InvariantError(
                f"at {t} s user {user} with priority {chosen} was chosen, but user {first} has {lowest}"
            )

    def resort(self, t: float) -> int:
        """Return the next user without a tree: compute all priorities and build a heap."""
        heap = [(priority(t, self.kappa[user]), user) for user in self.tree]
        heapq.heapify(heap)
        return heap[0][1]


def replay(
    trace: FairTrace,
    capacity: ArrayLike,
    result: MechanismResult,
    rule: str = "dominant",
    progress: DecisionCallback | None = None,
    *,
    resort_every: int = 0,
) -> TreeReplay:
    """Replay the decisions of SDRF through a live tree, with the ``capacity`` and ``rule`` of the simulation.

    Tasks must last at least a microsecond. ``resort_every`` times a new heap of all waiting users at every
    n-th decision; 0 is never. Raises ``InvariantError`` if a decision was not for the lowest priority.
    """
    if result.delta is None:
        raise ValueError(
            "the result is of plain DRF, which has no events: priorities do not change with time"
        )
    mirror = _TreeMirror(trace, np.asarray(capacity, np.float64), -1.0 / math.log(result.delta), rule)
    decisions = waited = timed = 0
    apart = sorted_s = 0.0
    began = time.process_time()
    for micros, kind, user, demand in _events_of(trace, result.start_us, result.order):
        now = micros / MICRO
        mirror.tree.update(now)
        if kind == _ARRIVE:
            mirror.arrive(user)
            continue
        if kind == _END:
            mirror.change(user, demand, -1.0, now)
            continue
        waited += len(mirror.tree)
        mirror.check(user, now)
        if resort_every and decisions % resort_every == 0:
            paused = time.process_time()
            mirror.resort(now)
            sorted_s += time.process_time() - paused
            apart += time.process_time() - paused
            timed += 1
        mirror.change(user, demand, 1.0, now)
        decisions += 1
        if progress and decisions % PROGRESS_EVERY == 0:
            progress(decisions)
    total = time.process_time() - began - apart
    return TreeReplay(
        decisions, mirror.tree.events, waited / max(decisions, 1), total, sorted_s / max(timed, 1)
    )


_END, _ARRIVE, _START = range(3)
"""At the same time, tasks end first, then others arrive, then some start."""


def _events_of(trace: FairTrace, start: Ints, order: Ints) -> Iterator[tuple[int, int, int, list[float]]]:
    """Yield (microseconds, kind, user, demand) up to the last start, in the order of ``simulate``."""
    count = start.size
    turn = np.empty(count, np.int64)
    turn[order] = np.arange(count)
    times = np.concatenate([start + trace.duration_us, trace.submit_us, start])
    kinds = np.repeat(np.arange(3), count)
    ranked = np.lexsort((np.concatenate([turn, np.arange(count), turn]), kinds, times))
    last = int(np.flatnonzero(ranked >= 2 * count)[-1]) + 1 if count else 0
    for first in range(0, last, _CHUNK):
        part = ranked[first : min(first + _CHUNK, last)]
        rows = part % count
        yield from zip(
            times[part].tolist(),
            kinds[part].tolist(),
            trace.user[rows].tolist(),
            trace.demands[rows].tolist(),
            strict=True,
        )
