"""The inner loops of DC-DRF: rows scaled, columns placed, rounds, tenants taken out of the sums.

Not for: demands that nobody has checked, deadlines, threads; `dios.fairness.dc_drf` has those. Every
kernel works on one tile of tenants or on some rounds, and lets Python's lock go while it runs.
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

MU, KEPT, COUNT, BEFORE = 0, 1, 2, 3
"""A resource's state, side by side in memory: mu, what those who left keep, how many are active, and mu when
it was last added up. What is left of it at level y is 1 - kept - mu y (line 15)."""

BLOCK: Final = 128
"""Resources that share a lower bound for when the first of them runs dry."""

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
def look_at_block(state: Doubles, soonest: Doubles, block: int, spared: float) -> tuple[float, int]:
    """The level at which the first resource of a block has nothing left, and that resource; -1 for none.

    ``soonest`` of the block becomes the level at which one of them has no more than ``spared`` left.
    """
    level, resource, soft = np.inf, -1, np.inf
    for r in range(block * BLOCK, min(state.shape[0], (block + 1) * BLOCK)):
        if state[r, COUNT] > 0.0:
            empty = (1.0 - state[r, KEPT]) / state[r, MU]
            soft = min(soft, (1.0 - spared - state[r, KEPT]) / state[r, MU])
            if empty < level:
                level, resource = empty, r
    soonest[block] = soft
    return level, resource


@compiled
def dry_resources(
    level: float, spared: float, state: Doubles, soonest: Doubles, dry: Ints
) -> tuple[int, float]:
    """Lines 13 to 16: how many resources the next round ends (into ``dry``), and its y; -1 for none left.

    The resource that sets the round comes first, and is dry by decree: every round ends at least one,
    whatever the rounding. A level of ``soonest`` may be too low, for tenants left since; it is never too
    high, so that a block whose level was not reached need not be looked at.
    """
    start = int(np.argmin(soonest))
    best, first = look_at_block(state, soonest, start, spared)
    for block in range(soonest.size):
        if soonest[block] <= best and block != start:
            empty, r = look_at_block(state, soonest, block, spared)
            if empty < best:
                best, first = empty, r
    if first < 0:
        return -1, level
    level = max(level, best)
    dry[0] = first
    dried = 1
    for block in range(soonest.size):
        if soonest[block] <= level:
            for r in range(block * BLOCK, min(state.shape[0], (block + 1) * BLOCK)):
                if (
                    r != first
                    and state[r, COUNT] > 0.0
                    and 1.0 - state[r, KEPT] - state[r, MU] * level <= spared
                ):
                    dry[dried] = r
                    dried += 1
    return dried, level


@compiled
def send_away(
    level: float,
    dry: Ints,
    offsets: Longs,
    column_offsets: Longs,
    column_tenants: Ints,
    active: Bytes,
    reached: Doubles,
    bottleneck: Ints,
    leaving: Ints,
) -> tuple[int, int]:
    """Lines 16 and 18: how many tenants leave (into ``leaving``), and how many entries their rows have."""
    gone, entries = 0, 0
    for k in range(dry.size):
        for place in range(column_offsets[dry[k]], column_offsets[dry[k] + 1]):
            tenant = column_tenants[place]
            if active[tenant]:
                active[tenant] = 0
                reached[tenant] = level
                bottleneck[tenant] = dry[k]
                leaving[gone] = tenant
                gone += 1
                entries += offsets[tenant + 1] - offsets[tenant]
    return gone, entries


@compiled
def subtract_rows(
    level: float, offsets: Longs, resources: Ints, scaled: Reals, leaving: Ints, state: Doubles, worn: Ints
) -> int:
    """Line 17: tenants leave mu for what is kept. Returns how many entries of ``worn`` it filled."""
    found = 0
    for at in range(leaving.size):
        tenant = leaving[at]
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if scaled[k] > 0.0:
                r = resources[k]
                mu, bound = state[r, MU], WORN * state[r, BEFORE]
                state[r, MU] = mu - scaled[k]
                state[r, KEPT] += scaled[k] * level
                state[r, COUNT] -= 1.0
                if mu >= bound and state[r, MU] < bound:
                    worn[found] = r
                    found += 1
    return found


@compiled
def gather_rows(offsets: Longs, resources: Ints, scaled: Reals, leaving: Ints, taken: Doubles) -> None:
    """What a tile of leaving tenants takes from mu and from the counts, added up apart."""
    for at in range(leaving.size):
        tenant = leaving[at]
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if scaled[k] > 0.0:
                taken[resources[k], MU] += scaled[k]
                taken[resources[k], 1] += 1.0


@compiled
def subtract_tiles(level: float, taken: Doubles, state: Doubles, worn: Ints) -> int:
    """Line 17, from what the tiles have gathered. Returns as :func:`subtract_rows`."""
    found = 0
    for r in range(state.shape[0]):
        for tile in range(taken.shape[0]):
            state[r, MU] -= taken[tile, r, MU]
            state[r, KEPT] += taken[tile, r, MU] * level
            state[r, COUNT] -= taken[tile, r, 1]
        if state[r, MU] < WORN * state[r, BEFORE]:
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
    state: Doubles,
) -> None:
    """Add up mu of the worn resources anew, over the tenants that are still active."""
    for at in range(worn.size):
        r = worn[at]
        total = 0.0
        if state[r, COUNT] > 0.0:
            for place in range(column_offsets[r], column_offsets[r + 1]):
                tenant = column_tenants[place]
                if active[tenant]:
                    for k in range(offsets[tenant], offsets[tenant + 1]):
                        if resources[k] == r:
                            total += scaled[k]
        state[r, MU] = total
        state[r, BEFORE] = total


@compiled
def some_rounds(
    level: float,
    epsilon: float,
    still: int,
    offsets: Longs,
    resources: Ints,
    scaled: Reals,
    column_offsets: Longs,
    column_tenants: Ints,
    state: Doubles,
    soonest: Doubles,
    active: Bytes,
    reached: Doubles,
    bottleneck: Ints,
    dry: Ints,
    leaving: Ints,
    worn: Ints,
    work: int,
    large: int,
) -> tuple[int, float, int, int]:
    """Rounds of Algorithm 2, until they cost ``work`` or none is left of the ``still`` active tenants.

    Returns how many rounds, y, how many tenants are active, and how many of ``leaving`` the caller has yet
    to subtract: those of a last round whose rows have ``large`` entries or more.
    """
    rounds, done = 0, 0
    while still > 0 and done < work:
        dried, level = dry_resources(level, max(epsilon, ROUNDING), state, soonest, dry)
        if dried < 0:
            return -1, level, still, 0
        gone, entries = send_away(
            level, dry[:dried], offsets, column_offsets, column_tenants, active, reached, bottleneck, leaving
        )
        rounds += 1
        still -= gone
        if entries >= large:
            return rounds, level, still, gone
        found = subtract_rows(level, offsets, resources, scaled, leaving[:gone], state, worn)
        if found > 0:
            mend_sums(offsets, resources, scaled, column_offsets, column_tenants, active, worn[:found], state)
        done += entries + soonest.size + BLOCK
    return rounds, level, still, 0


@compiled
def allocate_rows(
    offsets: Longs, scaled: Reals, reached: Doubles, first: int, last: int, amounts: Reals
) -> None:
    """Line 23: A = v z of tenants ``first`` to ``last``."""
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            amounts[k] = scaled[k] * reached[tenant]
