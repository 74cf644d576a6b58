"""Algorithm 1 of the DC-DRF paper as printed, which sums all demands again in every round.

The evaluation times it as a baseline and stops it early. ``dios.fairness.edrf`` computes the same shares
faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.fairness.allocation import Floats
from dios.kernels import kernel
from labs.simulate.fairness.generate_demands import Csr

EXHAUSTED: Final = 1e-12
"""A resource with at most this much left is exhausted; the rest is rounding."""


@kernel
def one_round(
    offsets: npt.NDArray[np.int64],
    resources: npt.NDArray[np.int32],
    values: Floats,
    active: npt.NDArray[np.uint8],
    left: Floats,
    amounts: Floats,
) -> tuple[float, int]:
    """Run lines 5 to 10; ``values`` are rho d. Return x and the number of tenants that are still active."""
    sums = np.zeros(left.size)
    for tenant in range(active.size):
        if active[tenant]:
            for at in range(offsets[tenant], offsets[tenant + 1]):
                sums[resources[at]] += values[at]
    x = np.inf
    for r in range(left.size):
        if sums[r] > 0.0:
            x = min(x, left[r] / sums[r])
    for r in range(left.size):
        left[r] -= x * sums[r]
    remain = 0
    for tenant in range(active.size):
        if active[tenant]:
            stays = True
            for at in range(offsets[tenant], offsets[tenant + 1]):
                amounts[at] += x * values[at]
                stays &= left[resources[at]] > EXHAUSTED
            active[tenant] = stays
            remain += stays
    return x, remain


@dataclass(frozen=True, eq=False)
class RoundTimes:
    """The progress of Algorithm 1, round by round."""

    levels: Floats
    """The sum of x after each round: z of a tenant that leaves in that round."""
    seconds: Floats
    """CPU time at the end of each round."""
    entries: npt.NDArray[np.int64]
    """Demands of the tenants that were active in each round."""
    finished: bool
    idle_s: float
    """CPU seconds of a round with one active tenant: the time to skip all others."""


def run(demands: Csr, timeout_s: float) -> RoundTimes:
    """Run rounds until all tenants have left, or for ``timeout_s`` CPU seconds; at least two rounds."""
    offsets, resources, given, size = demands
    lengths = np.diff(offsets)
    peaks = np.maximum.reduceat(given, offsets[:-1]).astype(np.float64)
    values = given / np.repeat(peaks, lengths)
    active = np.ones(lengths.size, np.uint8)
    left, amounts = np.ones(size), np.zeros(values.size)
    # Compile before timing.
    one_round(np.array([0, 1]), resources[:1], values[:1], active[:1].copy(), left.copy(), amounts[:1].copy())
    level, remain = 0.0, active.size
    levels: list[float] = []
    seconds: list[float] = []
    entries: list[int] = []
    began = time.process_time()
    while remain and (len(levels) < 2 or seconds[-1] < timeout_s):
        entries.append(int(lengths[active > 0].sum()))
        x, remain = one_round(offsets, resources, values, active, left, amounts)
        level += x
        levels.append(level)
        seconds.append(time.process_time() - began)
    active[:] = 0
    active[0], left[:] = 1, 1.0
    began = time.process_time()
    one_round(offsets, resources, values, active, left, amounts)
    idle_s = time.process_time() - began
    return RoundTimes(np.array(levels), np.array(seconds), np.array(entries), remain == 0, idle_s)


class Extrapolation(NamedTuple):
    """The whole of Algorithm 1, extrapolated from some timed rounds and the exact result."""

    levels: Floats
    """The level at the end of each round."""
    seconds: Floats
    """CPU time at the end of each round."""


def extrapolate(demands: Csr, z: Floats, timed_rounds: RoundTimes) -> Extrapolation:
    """Extrapolate ``timed_rounds`` to the end of the algorithm; ``z`` (n,) are the exact levels.

    A round takes time in proportion to the demands of the active tenants, which follow from the exact
    levels, plus the time to look at every tenant and resource. Levels that differ only by rounding count as
    one.
    """
    lengths = np.diff(demands[0])
    order = np.argsort(z, kind="stable")
    ordered = z[order]
    new = np.flatnonzero(np.diff(ordered) > EXHAUSTED * np.maximum(ordered[1:], 1e-300)) + 1
    gone = np.concatenate([[0], np.cumsum(lengths[order])[new - 1]])
    entries = lengths.sum() - gone
    summing = max(0.0, float(timed_rounds.seconds[-1]) - timed_rounds.seconds.size * timed_rounds.idle_s)
    round_s = timed_rounds.idle_s + entries * (summing / timed_rounds.entries.sum())
    return Extrapolation(ordered[np.concatenate([[0], new])], np.cumsum(round_s))
