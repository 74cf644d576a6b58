"""A link's bandwidth among the tasks of a server: guarantees first, the rest by weight (Packer paper, II-C).

Not for: the enforcement of rates, or how demands are measured.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dios.compiled import compiled
from dios.limits import PACKER_ROUNDS_MAX
from dios.packer.job.ti_mra import Floats, Ints

_ROUNDING = 1e-9
"""Guarantees may exceed the link by this part, as sums of rounded numbers do."""


def share_bandwidth(
    capacity: float, guarantees: npt.ArrayLike, demands: npt.ArrayLike, weights: npt.ArrayLike
) -> Floats:
    """Rates (n,) of n tasks that send over one link (Packer paper, Algorithm 2, as exact water filling).

    ``capacity``, ``guarantees`` (n,) and ``demands`` (n,) are in one unit of your choice; ``weights`` (n,)
    are in [0, 1]. Each task gets the smaller of its guarantee and its demand. What is left is shared among
    the hungry, those who demand more, in proportion to their weights, until nothing is left or nobody is
    hungry. Tasks of weight 0 share equally what is left when nobody with a weight is hungry.

    As printed, the algorithm takes from the rest while it shares it out, so that equals get unequal shares;
    here the level is solved for.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for weights
    outside [0, 1], for unequal lengths, and when what is guaranteed and demanded exceeds the capacity.
    """
    if not (math.isfinite(capacity) and capacity >= 0.0):
        raise ValueError(f"capacity is {capacity}: a finite number of at least 0 is needed")
    promised = _vector("guarantees", guarantees, None)
    asked = _vector("demands", demands, promised.size)
    weight = _vector("weights", weights, promised.size, highest=1.0)
    rates = np.minimum(promised, asked)
    certain = float(rates.sum())
    if certain > capacity:
        if certain > capacity * (1.0 + _ROUNDING):
            raise ValueError(
                f"guarantees in use come to {certain:g}, but capacity is {capacity:g}: lower them"
            )
        return np.asarray(rates * (capacity / certain))
    left = capacity - certain
    hungry = np.empty(rates.size, np.int64)
    if weight.max(initial=0.0) > 0.0:
        # Only proportions count; the largest is made 1, so that no level overflows however small they are.
        left = _shared(left, asked, weight / weight.max(), rates, hungry)
    if left > 0.0:
        _shared(left, asked, (weight == 0.0).astype(np.float64), rates, hungry)
    return rates


def _shared(left: float, asked: Floats, weight: Floats, rates: Floats, hungry: Ints) -> float:
    """Raise the rates of the hungry with a weight; what is left over."""
    count, level = pour(left, asked, weight, rates, hungry, PACKER_ROUNDS_MAX)
    if count > 0 and level < 0.0:
        level = _level_by_sorting(-level, asked, weight, rates, hungry[:count])
    return spread(left, level, asked, weight, rates)


def _level_by_sorting(left: float, asked: Floats, weight: Floats, rates: Floats, hungry: Ints) -> float:
    """The level when rounds do not find it soon: breakpoints in order, the first whose water suffices."""
    need, share = asked[hungry] - rates[hungry], weight[hungry]
    order = np.argsort(need / share, kind="stable")
    need, share = need[order], share[order]
    before = np.cumsum(need) - need
    rest = np.cumsum(share[::-1])[::-1]
    # The water that it takes to bring everybody to the level at which this one has enough.
    takes = before + (need / share) * rest
    at = int(np.searchsorted(takes, left))
    if at == need.size:
        return math.inf
    return float((left - before[at]) / rest[at])


@compiled
def pour(
    left: float, asked: Floats, weight: Floats, rates: Floats, hungry: Ints, rounds_max: int
) -> tuple[int, float]:
    """How many stay hungry (their indices first in ``hungry``), and at which level: rate gained per weight.

    The level is infinite if there is enough for all. It is never too high, so whoever it satisfies has
    enough in the end: they leave, and the rest of the water gives a higher level, until nobody leaves.
    After so many rounds the level is given as minus the water that is left.
    """
    count = 0
    total = 0.0
    for at in range(asked.size):
        if weight[at] > 0.0 and asked[at] > rates[at]:
            hungry[count] = at
            count += 1
            total += weight[at]
    for _ in range(rounds_max):
        if count == 0:
            return 0, math.inf
        level = left / total
        kept = 0
        rest = 0.0
        for place in range(count):
            at = hungry[place]
            need = asked[at] - rates[at]
            if need <= level * weight[at]:
                left -= need
            else:
                hungry[kept] = at
                kept += 1
                rest += weight[at]
        if kept == count:
            return count, level
        count, total, left = kept, rest, max(left, 0.0)
    return count, -left


@compiled
def spread(left: float, level: float, asked: Floats, weight: Floats, rates: Floats) -> float:
    """Raise each rate to its level, no higher than its demand; what is left over, 0 if one is hungry."""
    someone = False
    for at in range(asked.size):
        if weight[at] > 0.0 and asked[at] > rates[at]:
            need = asked[at] - rates[at]
            if need <= level * weight[at]:
                rates[at] = asked[at]
                left -= need
            else:
                rates[at] += level * weight[at]
                someone = True
    return 0.0 if someone else max(left, 0.0)


def _vector(name: str, given: npt.ArrayLike, size: int | None, highest: float = math.inf) -> Floats:
    """``given`` as doubles in a row: finite, not negative, none above ``highest``; else ``ValueError``."""
    try:
        found = np.require(np.asarray(given), np.float64, ["C", "W"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no row of numbers: {error}") from error
    if found.ndim != 1 or size not in (None, found.size):
        need = "any" if size is None else f"{size}"
        raise ValueError(f"{name} has the shape {found.shape}: ({need},) is needed")
    if found.size and not (found.min() >= 0.0 and found.max() <= highest and found.max() < math.inf):
        at = int(np.argmin((found >= 0.0) & (found <= highest) & (found < math.inf)))
        need = "a finite number of at least 0" if highest == math.inf else f"a number in [0, {highest:g}]"
        raise ValueError(f"{name}[{at}] is {found[at]}: {need} is needed")
    return found
