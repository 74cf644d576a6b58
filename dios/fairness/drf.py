"""Dominant resource fairness for divisible demands: DRF, and its stateful forms SMMF and SDRF.

SDRF for tasks that cannot be divided is in ``stateful/scheduler.py``; extended DRF for many tenants is in
``edrf.py``.

SMMF is SDRF with one resource, and DRF is EDRF with the demand as an upper bound. SDRF raises a water level:
a user's tank begins at its commitment and is as deep as its demand; with a smaller weight it is deeper. The
levels at which users start to rise and at which they have enough are sorted. Between two of these levels all
use grows linearly, so the level at which a resource is exhausted is computed directly and not searched.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dios.fairness.allocation import Allocation, Floats, Ints, checked_numbers, raise_first_invalid
from dios.fairness.edrf import edrf
from dios.fairness.stateful.input_checks import WEIGHT_MAX, WEIGHT_MIN
from dios.kernels import inlined_kernel, kernel

WaterTanks: TypeAlias = tuple[Floats, Floats, Floats]
"""Demands (n, m), the depth of each user's tank (n,), and each user's commitment (n,), where its tank begins.

The depth is the user's largest demand, times the factor of its weight. Levels are in the same unit.
"""


def drf(demands: npt.ArrayLike, *, weights: npt.ArrayLike | None = None) -> Allocation:
    """Divide resources by progressive filling: dominant shares rise together (SDRF paper, equation 5).

    ``demands`` (n, m) are fractions of each resource's total. ``weights`` (n,) must be more than 0; shares
    rise in proportion to them, and None means 1 for everybody. When a resource is exhausted, the users who
    demand it stop and the others continue. No user receives more than it demands, and a user without
    demands receives nothing. ``share`` is the dominant share.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for wrong
    shapes and for weights of zero.
    """
    asked = checked_numbers("demands", demands, (None, None))
    if weights is not None:
        weights = checked_numbers("weights", weights, (len(asked),))
    allocation = edrf(asked, weights=weights, cap=True)
    return Allocation(
        allocation.amounts,
        allocation.amounts.max(axis=1, initial=0.0),
        allocation.bottleneck,
        allocation.rounds,
    )


def smmf(
    demand: npt.ArrayLike, commitment: npt.ArrayLike, *, weights: npt.ArrayLike | None = None
) -> Allocation:
    """Divide one resource by stateful max-min fairness (SDRF paper, equation 8).

    ``demand`` (n,) and ``commitment`` (n,) are fractions of the resource. User i receives
    ``x - commitment_i`` for the highest feasible level x, but no less than 0 and no more than its demand.
    ``weights`` are those of ``sdrf``.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for wrong
    shapes and for weights outside of their bounds.
    """
    asked = checked_numbers("demand", demand, (None,))
    allocation = sdrf(asked[:, None], checked_numbers("commitment", commitment, asked.shape), weights=weights)
    return Allocation(
        allocation.amounts[:, 0].copy(), allocation.share, allocation.bottleneck, allocation.rounds
    )


def sdrf(
    demands: npt.ArrayLike, commitments: npt.ArrayLike, *, weights: npt.ArrayLike | None = None
) -> Allocation:
    """Divide resources by stateful dominant resource fairness at one moment, exactly (SDRF, equation 10).

    ``demands`` (n, m) are fractions of each resource's total. ``commitments`` are the dominant ones (n,), or
    (n, m), of which each user's largest counts (equation 9). A user's dominant share begins to rise when the
    level passes its commitment. When a resource is exhausted, every user who demands it stops. If all
    demands are positive, these are all users, as in equation 10. Users who do not need the resource
    continue: equation 10 taken literally would stop them although resources that they need are free.
    ``share`` is the dominant share.

    ``weights`` (n,) are from 1e-6 to 1e6; None means 1 for everybody. As in ``SdrfScheduler``, what a user
    has counts by a factor: the mean weight divided by the user's. The user stands at its commitment plus the
    factor times its share, and commitments are those of the scheduler, in which the factor is.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for wrong
    shapes and for weights outside of their bounds.
    """
    asked = checked_numbers("demands", demands, (None, None))
    if np.ndim(commitments) == 1:
        owed = checked_numbers("commitments", commitments, (len(asked),))
    else:
        owed = checked_numbers("commitments", commitments, asked.shape).max(axis=1, initial=0.0)
    largest = asked.max(axis=1, initial=0.0)
    factors = _factors(weights, len(asked))
    depth = largest * factors
    busy = np.flatnonzero(largest > 0.0)
    begin = busy[np.argsort(owed[busy], kind="stable")]
    enough = owed + depth
    end = busy[np.argsort(enough[busy], kind="stable")]
    filled, stopped = np.zeros(len(asked)), np.full(len(asked), -1, np.int64)
    rounds = _fill((asked, depth, owed), begin, end, enough[end], filled, stopped)
    share = np.where(stopped < 0, largest, np.minimum(largest, filled / factors))
    parts = np.divide(asked, largest[:, None], out=np.zeros_like(asked), where=largest[:, None] > 0.0)
    amounts = np.where((stopped < 0)[:, None], asked, np.minimum(asked, parts * share[:, None]))
    return Allocation(amounts, share, stopped, int(rounds))


def _factors(weights: npt.ArrayLike | None, users: int) -> Floats:
    """Return (n,) factors by which shares count: the mean weight divided by each user's."""
    if weights is None or users == 0:
        return np.ones(users)
    checked = checked_numbers("weights", weights, (users,))
    good = (checked >= WEIGHT_MIN) & (checked <= WEIGHT_MAX)
    if not good.all():
        raise_first_invalid("weights", checked, good, f"it must be from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}")
    return np.asarray(checked.mean() / checked)


@inlined_kernel
def _change_slopes(tanks: WaterTanks, i: int, sign: float, use: Floats) -> None:
    """Add (sign 1) or remove (sign -1) user i among those that rise, in the slopes of its resources."""
    demands, largest, _owed = tanks
    for r in range(demands.shape[1]):
        if demands[i, r] > 0.0:
            use[r, 3] += sign
            # Knuth's two-sum keeps the rounding error; the count shows when no user is left.
            v = sign * demands[i, r] / largest[i]
            after = use[r, 0] + v
            part = after - use[r, 0]
            use[r, 1] += (use[r, 0] - (after - part)) + (v - part)
            use[r, 0] = after
            if use[r, 3] == 0.0:
                use[r, 0], use[r, 1] = 0.0, 0.0


@inlined_kernel
def _next_exhausted(use: Floats, level: float) -> tuple[int, float]:
    """Return (resource, level) of the first exhaustion if no user starts or ends before it, or (-1, inf)."""
    which, at = -1, np.inf
    for r in range(len(use)):
        mu = use[r, 0] + use[r, 1]
        if use[r, 3] > 0.0 and mu > 0.0:
            dry = level + max(0.0, 1.0 - use[r, 2]) / mu
            if dry < at:
                which, at = r, dry
    return which, at


@kernel
def _fill(tanks: WaterTanks, begin: Ints, end: Ints, ends: Floats, share: Floats, stopped: Ints) -> int:
    """Raise the level from event to event; fill the dominant shares and the resource that stopped each user.

    ``begin`` and ``end`` are the users in the order in which they start to rise and have enough; ``ends``
    are the levels of the latter. ``use`` is (m, 4): slope, its rounding error, amount, users that rise.
    Return the number of times that an exhausted resource stopped some user.
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
        which, dry = _next_exhausted(use, level)
        until = min(event, dry)
        for r in range(len(use)):
            use[r, 2] += (use[r, 0] + use[r, 1]) * (until - level)
        level = until
        if dry < event:
            rounds += 1
            for i in range(len(demands)):
                if state[i] != done and demands[i, which] > 0.0:
                    if state[i] == rising:
                        _change_slopes(tanks, i, -1.0, use)
                        share[i] = min(largest[i], level - owed[i])
                    state[i], stopped[i] = done, which
            use[which, 2] = 1.0
        elif follows:
            state[begin[a]] = rising
            _change_slopes(tanks, begin[a], 1.0, use)
        else:
            i = end[b]
            if state[i] == rising:
                _change_slopes(tanks, i, -1.0, use)
            state[i], share[i] = done, largest[i]
