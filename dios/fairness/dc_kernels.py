"""The inner loops of DC-DRF: rows scaled, columns placed, one round, tenants taken out of the sums.

Not for: demands that nobody has checked, deadlines, threads; `dios.fairness.dc_drf` has those. Every
kernel works on one tile of tenants or on one round, and lets Python's lock go while it runs.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dios.compiled import compiled

Reals: TypeAlias = NDArray[np.float32 | np.float64]
Doubles: TypeAlias = NDArray[np.float64]
Longs: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]

ROUNDING: Final = 1e-14
"""A resource with less than this left is dry: so much the residuals lose over the rounds of a large case."""

WORN: Final = 1e-4
"""A sum that fell below this part of what it was has lost digits to its subtractions and is made anew."""

FINE, BAD_RESOURCE, BAD_VALUE, TWICE = 0, 1, 2, 3
"""What :func:`faulty_entry` says of an entry."""


@compiled
def faulty_entry(
    offsets: Longs, resources: Longs, values: Reals, count: int, first: int, last: int
) -> tuple[int, int]:
    """The first entry at fault of tenants ``first`` to ``last``, and what it is; (-1, FINE) for none."""
    seen = np.full(count, -1, np.int64)
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if resources[k] < 0 or resources[k] >= count:
                return k, BAD_RESOURCE
            if not (values[k] >= 0.0 and values[k] < np.inf):
                return k, BAD_VALUE
            if seen[resources[k]] == tenant:
                return k, TWICE
            seen[resources[k]] = tenant
    return -1, FINE


@compiled
def scale_rows(
    offsets: Longs,
    resources: Ints,
    values: Reals,
    weights: Doubles,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    first: int,
    last: int,
    scaled: Reals,
    sums: Doubles,
    counts: Longs,
) -> int:
    """Scale to v = rho d tenants ``first`` to ``last``, and what they add to mu and to the resources' counts.

    The paper's d, rho and line 8 of Algorithm 2. Returns how many of the tenants demand something.
    """
    active = 0
    for tenant in range(first, last):
        peak = 0.0
        for k in range(offsets[tenant], offsets[tenant + 1]):
            peak = max(peak, float(values[k]))
        if peak == 0.0:
            continue
        active += 1
        rho = np.inf
        for k in range(offsets[tenant], offsets[tenant + 1]):
            share = values[k] / peak
            if share > 0.0:
                rho = min(rho, (weights[k] if per_entry else weights[tenant]) / share)
        for k in range(offsets[tenant], offsets[tenant + 1]):
            scaled[k] = rho * (values[k] / peak)
            if scaled[k] > 0.0:
                sums[resources[k]] += scaled[k]
                counts[resources[k]] += 1
    return active


@compiled
def place_columns(
    offsets: Longs, resources: Ints, scaled: Reals, first: int, last: int, places: Longs, tenants: Ints
) -> None:
    """Write tenants ``first`` to ``last`` into the columns of what they demand; ``places`` are moved on."""
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if scaled[k] > 0.0:
                resource = resources[k]
                tenants[places[resource]] = tenant
                places[resource] += 1


@compiled
def next_round(
    level: float,
    epsilon: float,
    left: Doubles,
    sums: Doubles,
    column_offsets: Longs,
    column_tenants: Ints,
    active: Bytes,
    reached: Doubles,
    bottleneck: Ints,
    dry: Ints,
    leaving: Ints,
) -> tuple[int, float]:
    """One round of Algorithm 2 but for line 17: how many tenants leave (into ``leaving``), and the new y.

    A resource without active tenants has a sum of exactly 0 and takes no part. The resource that set the
    round is dry by decree, so that every round ends at least one, whatever the rounding.
    """
    # Two quotients are compared without dividing: s/mu < best_s/best_mu.
    first = -1
    best_left, best_sum = 1.0, 0.0
    for r in range(left.size):
        if left[r] * best_sum < best_left * sums[r]:
            best_left, best_sum, first = left[r], sums[r], r
    if first < 0:
        return -1, level
    rise = best_left / best_sum
    level += rise
    bound = max(epsilon, ROUNDING)
    dried = 0
    for r in range(left.size):
        rest = max(0.0, left[r] - rise * sums[r])
        left[r] = rest
        if rest <= bound and sums[r] > 0.0 and r != first:
            dry[dried] = r
            dried += 1
    # The resource that set the round comes first: it is the bottleneck of all its tenants.
    dry[dried] = dry[0]
    dry[0] = first
    dried += 1
    gone = 0
    for k in range(dried):
        r = dry[k]
        for place in range(column_offsets[r], column_offsets[r + 1]):
            tenant = column_tenants[place]
            if active[tenant]:
                active[tenant] = 0
                reached[tenant] = level
                bottleneck[tenant] = r
                leaving[gone] = tenant
                gone += 1
    return gone, level


@compiled
def subtract_rows(
    offsets: Longs,
    resources: Ints,
    scaled: Reals,
    leaving: Ints,
    sums: Doubles,
    counts: Longs,
    before: Doubles,
    worn: Ints,
) -> int:
    """Line 17: take the tenants out of mu and the counts. Returns how many entries of ``worn`` it filled."""
    found = 0
    for at in range(leaving.size):
        tenant = leaving[at]
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if scaled[k] > 0.0:
                r = resources[k]
                counts[r] -= 1
                rest = sums[r] - scaled[k]
                if counts[r] == 0:
                    rest = 0.0
                elif rest < WORN * before[r] and sums[r] >= WORN * before[r]:
                    worn[found] = r
                    found += 1
                sums[r] = rest
    return found


@compiled
def gather_rows(
    offsets: Longs, resources: Ints, scaled: Reals, leaving: Ints, sums: Doubles, counts: Longs
) -> None:
    """What a tile of leaving tenants takes from mu and the counts, added up apart."""
    for at in range(leaving.size):
        tenant = leaving[at]
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if scaled[k] > 0.0:
                sums[resources[k]] += scaled[k]
                counts[resources[k]] += 1


@compiled
def subtract_tiles(
    tile_sums: Doubles,
    tile_counts: Longs,
    sums: Doubles,
    counts: Longs,
    before: Doubles,
    worn: Ints,
) -> int:
    """Take the tiles' sums out of mu and the counts, tile by tile. Returns as :func:`subtract_rows`."""
    found = 0
    for r in range(sums.size):
        for tile in range(tile_sums.shape[0]):
            sums[r] -= tile_sums[tile, r]
            counts[r] -= tile_counts[tile, r]
        if counts[r] == 0:
            sums[r] = 0.0
        elif sums[r] < WORN * before[r]:
            worn[found] = r
            found += 1
    return found


@compiled
def mend_sums(
    offsets: Longs,
    resources: Ints,
    scaled: Reals,
    column_offsets: Longs,
    column_tenants: Ints,
    active: Bytes,
    worn: Ints,
    sums: Doubles,
    before: Doubles,
) -> None:
    """Add up mu of the worn resources anew, over the tenants that are still active."""
    for at in range(worn.size):
        r = worn[at]
        total = 0.0
        for place in range(column_offsets[r], column_offsets[r + 1]):
            tenant = column_tenants[place]
            if active[tenant]:
                for k in range(offsets[tenant], offsets[tenant + 1]):
                    if resources[k] == r:
                        total += scaled[k]
        sums[r] = total
        before[r] = total


@compiled
def allocate_rows(
    offsets: Longs, scaled: Reals, reached: Doubles, first: int, last: int, amounts: Reals
) -> None:
    """Line 23: A = v z of tenants ``first`` to ``last``."""
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            amounts[k] = scaled[k] * reached[tenant]
