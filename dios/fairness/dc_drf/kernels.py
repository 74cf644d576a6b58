"""The inner loops of DC-DRF: rows scaled, columns placed, rounds, tenants taken out of the sums.

Not for: demands that nobody has checked, deadlines, threads; `dios.fairness.dc_drf.allocator` has those.
Every
kernel works on one tile of tenants or on some rounds, and lets Python's lock go while it runs.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dios.compiled import compiled
from dios.fairness.allocation import Floats, Ints
from dios.fairness.sparse_demands import SCALE_MAX, SCALE_MIN, TOUCHED, Places, Reals, rho_of, touch_rows

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


@compiled
def scale_rows(
    offsets: Ints,
    resources: Places,
    values: Reals,
    weights: Floats,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    first: int,
    last: int,
    scaled: Reals,
    sums: Floats,
    counts: Ints,
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
            scaled[offsets[tenant] : offsets[tenant + 1]] = 0.0
            continue
        active += 1
        rho = rho_of(values, weights, per_entry, tenant, offsets[tenant], offsets[tenant + 1], peak)
        factor = rho / peak
        plain = SCALE_MIN < factor < SCALE_MAX
        for k in range(offsets[tenant], offsets[tenant + 1]):
            scaled[k] = values[k] * factor if plain else rho * (values[k] / peak)
            if scaled[k] > 0.0:
                sums[resources[k]] += scaled[k]
                counts[resources[k]] += 1
    return active


@compiled
def look_at_block(state: Floats, soonest: Floats, block: int, spared: float) -> tuple[float, int]:
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
    level: float, spared: float, state: Floats, soonest: Floats, dry: Places
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
    dry: Places,
    offsets: Ints,
    column_offsets: Ints,
    column_tenants: Places,
    active: Bytes,
    reached: Floats,
    bottleneck: Places,
    leaving: Places,
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
    level: float,
    offsets: Ints,
    resources: Places,
    scaled: Reals,
    leaving: Places,
    state: Floats,
    worn: Places,
) -> int:
    """Line 17: tenants leave mu for what is kept. Returns how many entries of ``worn`` it filled."""
    found, bounds, first = 0, np.empty(2 * TOUCHED, np.int64), 0
    while first < leaving.size:
        some = touch_rows(offsets, resources, scaled, leaving, first, leaving.size, bounds)
        for row in range(some):
            for k in range(bounds[2 * row], bounds[2 * row + 1]):
                if scaled[k] > 0.0:
                    r = resources[k]
                    mu, bound = state[r, MU], WORN * state[r, BEFORE]
                    state[r, MU] = mu - scaled[k]
                    state[r, KEPT] += scaled[k] * level
                    state[r, COUNT] -= 1.0
                    if mu >= bound and state[r, MU] < bound:
                        worn[found] = r
                        found += 1
        first += some
    return found


@compiled
def gather_rows(offsets: Ints, resources: Places, scaled: Reals, leaving: Places, taken: Floats) -> None:
    """What a tile of leaving tenants takes from mu and from the counts, added up apart."""
    taken[:] = 0.0
    bounds, first = np.empty(2 * TOUCHED, np.int64), 0
    while first < leaving.size:
        some = touch_rows(offsets, resources, scaled, leaving, first, leaving.size, bounds)
        for row in range(some):
            for k in range(bounds[2 * row], bounds[2 * row + 1]):
                if scaled[k] > 0.0:
                    taken[resources[k], MU] += scaled[k]
                    taken[resources[k], 1] += 1.0
        first += some


@compiled
def subtract_tiles(level: float, taken: Floats, state: Floats, worn: Places) -> int:
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
    offsets: Ints,
    resources: Places,
    scaled: Reals,
    column_offsets: Ints,
    column_tenants: Places,
    active: Bytes,
    worn: Places,
    state: Floats,
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
    offsets: Ints,
    resources: Places,
    scaled: Reals,
    column_offsets: Ints,
    column_tenants: Places,
    state: Floats,
    soonest: Floats,
    active: Bytes,
    reached: Floats,
    bottleneck: Places,
    dry: Places,
    leaving: Places,
    worn: Places,
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
    level: float,
    offsets: Ints,
    scaled: Reals,
    active: Bytes,
    reached: Floats,
    first: int,
    last: int,
    amounts: Floats,
) -> None:
    """Lines 21 and 23: A = v z of tenants ``first`` to ``last``; who still rises reached ``level``."""
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if active[tenant] and scaled[k] > 0.0:
                reached[tenant] = level
            amounts[k] = scaled[k] * reached[tenant]
