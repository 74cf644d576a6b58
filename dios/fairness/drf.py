"""Dominant resource fairness: of the moment (DRF), of one resource with a past (SMMF), of many (SDRF).

Not for: tasks that cannot be divided (``sdrf_scheduler.py``), or clouds of tenants (``edrf.py``).

SMMF is SDRF of one resource, and DRF is EDRF with a bound at the demand (``edrf.py``). SDRF raises a water
level: a user's tank stands on what it committed itself to give back, and is as deep as its demand. Levels
at which a user begins or has enough are sorted, and between two of them all use grows linearly, so that the
level at which a resource runs dry is solved for, not searched.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dios.compiled import compiled, inlined
from dios.fairness.allocation import Allocation, Floats, Ints, numbers
from dios.fairness.edrf import edrf

Tanks: TypeAlias = tuple[Floats, Floats, Floats]
"""Demands (n, m), each user's largest, and its commitment."""


def drf(demands: npt.ArrayLike, *, weights: npt.ArrayLike | None = None) -> Allocation:
    """Progressive filling: dominant shares rise together, in proportion to ``weights`` (SDRF paper, eq. 5).

    ``demands`` (n, m) are fractions of each resource's total; ``weights`` (n,) are more than 0, None: all 1.
    When a resource runs dry its users stop and the others go on. Nobody gets more than it demands, and
    whoever demands nothing gets nothing. ``share`` is the dominant share.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for wrong
    shapes and for weights of zero.
    """
    asked = numbers("demands", demands, (None, None))
    if weights is not None:
        weights = numbers("weights", weights, (len(asked),))
    found = edrf(asked, weights=weights, cap=True)
    return Allocation(found.amounts, found.amounts.max(axis=1, initial=0.0), found.bottleneck, found.rounds)


def smmf(demand: npt.ArrayLike, commitment: npt.ArrayLike) -> Allocation:
    """Stateful max-min fairness of one resource (SDRF paper, equation 8).

    ``demand`` (n,) and ``commitment`` (n,) are fractions of the resource. User i gets ``x - commitment_i``
    with the highest level x for which there is enough, but no less than 0 and no more than its demand.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite and for wrong
    shapes.
    """
    asked = numbers("demand", demand, (None,))
    found = sdrf(asked[:, None], numbers("commitment", commitment, asked.shape))
    return Allocation(found.amounts[:, 0].copy(), found.share, found.bottleneck, found.rounds)


def sdrf(demands: npt.ArrayLike, commitments: npt.ArrayLike) -> Allocation:
    """Stateful dominant resource fairness of one moment (SDRF paper, equation 10), exact.

    ``demands`` (n, m) are fractions of each resource's total; ``commitments`` are (n,), the dominant ones, or
    (n, m), of which each user's largest counts (equation 9). A user's dominant share rises from where the
    level passes its commitment. When a resource runs dry, everybody who demands it stops: where all demands
    are positive these are all users, as in equation 10; users who do not need it go on, because equation 10
    taken literally would leave them hungry beside what is free. ``share`` is the dominant share.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite and for wrong
    shapes.
    """
    asked = numbers("demands", demands, (None, None))
    if np.ndim(commitments) == 1:
        owed = numbers("commitments", commitments, (len(asked),))
    else:
        owed = numbers("commitments", commitments, asked.shape).max(axis=1, initial=0.0)
    largest = asked.max(axis=1, initial=0.0)
    busy = np.flatnonzero(largest > 0.0)
    begin = busy[np.argsort(owed[busy], kind="stable")]
    enough = owed + largest
    end = busy[np.argsort(enough[busy], kind="stable")]
    share, stopped = np.zeros(len(asked)), np.full(len(asked), -1, np.int64)
    rounds = _fill((asked, largest, owed), begin, end, enough[end], share, stopped)
    parts = np.divide(asked, largest[:, None], out=np.zeros_like(asked), where=largest[:, None] > 0.0)
    amounts = np.where((stopped < 0)[:, None], asked, np.minimum(asked, parts * share[:, None]))
    return Allocation(amounts, share, stopped, int(rounds))


@inlined
def _count(tanks: Tanks, i: int, sign: float, use: Floats) -> None:
    """User i begins (sign 1) or ends (sign -1) to rise: the slopes of its resources change."""
    demands, largest, _owed = tanks
    for r in range(demands.shape[1]):
        if demands[i, r] > 0.0:
            use[r, 3] += sign
            # Knuth's two-sum keeps what rounding takes; nobody left is known by the count.
            v = sign * demands[i, r] / largest[i]
            after = use[r, 0] + v
            part = after - use[r, 0]
            use[r, 1] += (use[r, 0] - (after - part)) + (v - part)
            use[r, 0] = after
            if use[r, 3] == 0.0:
                use[r, 0], use[r, 1] = 0.0, 0.0


@inlined
def _next_dry(use: Floats, level: float) -> tuple[int, float]:
    """Which resource runs dry first if nobody begins or ends before, and at what level; or -1."""
    which, at = -1, np.inf
    for r in range(len(use)):
        mu = use[r, 0] + use[r, 1]
        if use[r, 3] > 0.0 and mu > 0.0:
            dry = level + max(0.0, 1.0 - use[r, 2]) / mu
            if dry < at:
                which, at = r, dry
    return which, at


@compiled
def _fill(tanks: Tanks, begin: Ints, end: Ints, ends: Floats, share: Floats, stopped: Ints) -> int:
    """Raise the level from event to event; fills dominant shares and who was stopped by what.

    ``begin`` and ``end`` are the users in the order in which they begin and have enough, ``ends`` the
    levels of the latter. ``use`` is (m, 4): slope, what rounding took from it, amount, users that rise.
    """
    demands, largest, owed = tanks
    waiting, rising, done = 0, 1, 2
    state, use = np.zeros(len(demands), np.int8), np.zeros((demands.shape[1], 4))
    a, b, level, rounds = 0, 0, 0.0, 0
    while True:
        while a < len(begin) and state[begin[a]] != waiting:
            a += 1
        while b < len(end) and state[end[b]] == done:
            b += 1
        if b == len(end):
            return rounds
        follows = a < len(begin) and owed[begin[a]] < ends[b]
        event = owed[begin[a]] if follows else ends[b]
        which, dry = _next_dry(use, level)
        until = min(event, dry)
        for r in range(len(use)):
            use[r, 2] += (use[r, 0] + use[r, 1]) * (until - level)
        level = until
        if dry < event:
            rounds += 1
            for i in range(len(demands)):
                if state[i] != done and demands[i, which] > 0.0:
                    if state[i] == rising:
                        _count(tanks, i, -1.0, use)
                        share[i] = min(largest[i], level - owed[i])
                    state[i], stopped[i] = done, which
            use[which, 2] = 1.0
        elif follows:
            state[begin[a]] = rising
            _count(tanks, begin[a], 1.0, use)
        else:
            i = end[b]
            if state[i] == rising:
                _count(tanks, i, -1.0, use)
            state[i], share[i] = done, largest[i]
