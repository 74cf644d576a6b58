"""Division of a link's bandwidth among a server's tasks: guarantees, then weights (Packer paper, II-C)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dios.kernels import kernel
from dios.limits import PACKER_ROUNDS_MAX
from dios.packer.job.ti_mra import Floats, Ints

_ROUNDING = 1e-9
"""The fraction of the capacity by which guarantees may exceed it, as sums of rounded numbers do."""


def share_bandwidth(
    capacity: float, guarantees: npt.ArrayLike, demands: npt.ArrayLike, weights: npt.ArrayLike
) -> Floats:
    """Return the rates (n,) of n tasks that send over one link (Packer paper, Algorithm 2).

    ``capacity``, ``guarantees`` (n,) and ``demands`` (n,) have the same unit; ``weights`` (n,) are in [0, 1].
    Each task gets the smaller of its guarantee and its demand. The rest is shared among the hungry tasks
    (those that demand more) in proportion to their weights, until nothing is left or no task is hungry. Tasks
    of weight 0 share equally what is left after all tasks with a weight.

    The printed algorithm reduces the rest while it shares it, so that equal tasks get unequal shares. This
    function computes the exact level instead (water-filling).

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for weights
    outside [0, 1], for unequal lengths, and if the guarantees in use exceed the capacity.
    """
    if not (math.isfinite(capacity) and capacity >= 0.0):
        raise ValueError(f"capacity is {capacity}; it must be finite and at least 0")
    promised = _checked_vector("guarantees", guarantees, None)
    asked = _checked_vector("demands", demands, promised.size)
    weight = _checked_vector("weights", weights, promised.size, highest=1.0)
    rates = np.minimum(promised, asked)
    certain = float(rates.sum())
    if certain > capacity:
        if certain > capacity * (1.0 + _ROUNDING):
            raise ValueError(
                f"the guarantees in use are {certain:g}, more than the capacity {capacity:g}; lower them"
            )
        return np.asarray(rates * (capacity / certain))
    left = capacity - certain
    hungry = np.empty(rates.size, np.int64)
    if weight.max(initial=0.0) > 0.0:
        # Only proportions count. The largest weight becomes 1, so that no level overflows with small weights.
        left = _share_rest(left, asked, weight / weight.max(), rates, hungry)
    if left > 0.0:
        _share_rest(left, asked, (weight == 0.0).astype(np.float64), rates, hungry)
    return rates


def _share_rest(left: float, asked: Floats, weight: Floats, rates: Floats, hungry: Ints) -> float:
    """Raise the rates of hungry tasks with a weight; return the rest of the bandwidth."""
    count, level = find_level(left, asked, weight, rates, hungry, PACKER_ROUNDS_MAX)
    if count > 0 and level < 0.0:
        level = _level_by_sorting(-level, asked, weight, rates, hungry[:count])
    return raise_rates(left, level, asked, weight, rates)


def _level_by_sorting(left: float, asked: Floats, weight: Floats, rates: Floats, hungry: Ints) -> float:
    """Return the level by sorting the tasks' own levels, for cases that rounds do not solve soon."""
    need, share = asked[hungry] - rates[hungry], weight[hungry]
    order = np.argsort(need / share, kind="stable")
    need, share = need[order], share[order]
    before = np.cumsum(need) - need
    rest = np.cumsum(share[::-1])[::-1]
    # The bandwidth that raises all tasks to the level at which this task has enough.
    takes = before + (need / share) * rest
    at = int(np.searchsorted(takes, left))
    if at == need.size:
        return math.inf
    return float((left - before[at]) / rest[at])


@kernel
def find_level(
    left: float, asked: Floats, weight: Floats, rates: Floats, hungry: Ints, rounds_max: int
) -> tuple[int, float]:
    """Return (number of tasks that stay hungry, level): the level is the rate gained per weight.

    The indices of the hungry tasks are the first entries of ``hungry``. The level is infinite if there is
    enough for all. A level is never too high, so tasks that it satisfies have enough in the end: they leave,
    and the rest gives a higher level for the others, until no task leaves. After ``rounds_max`` rounds the
    level is returned as minus the bandwidth that is left.
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


@kernel
def raise_rates(left: float, level: float, asked: Floats, weight: Floats, rates: Floats) -> float:
    """Raise each rate to the level, at most to its demand; return the rest, 0 if a task stays hungry."""
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


def _checked_vector(name: str, given: npt.ArrayLike, size: int | None, highest: float = math.inf) -> Floats:
    """Return ``given`` as a vector of finite doubles from 0 to ``highest``; else raise ``ValueError``."""
    try:
        vector = np.require(np.asarray(given), np.float64, ["C", "W"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a list of numbers: {error}") from error
    if vector.ndim != 1 or size not in (None, vector.size):
        need = "any" if size is None else f"{size}"
        raise ValueError(f"{name} has the shape {vector.shape}; it must be ({need},)")
    if vector.size and not (vector.min() >= 0.0 and vector.max() <= highest and vector.max() < math.inf):
        at = int(np.argmin((vector >= 0.0) & (vector <= highest) & (vector < math.inf)))
        need = "finite and at least 0" if highest == math.inf else f"in [0, {highest:g}]"
        raise ValueError(f"{name}[{at}] is {vector[at]}; it must be {need}")
    return vector
