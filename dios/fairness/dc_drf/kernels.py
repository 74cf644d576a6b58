"""The inner loops of DC-DRF: scaling rows, running rounds, removing tenants from the sums, writing amounts.

Arguments must have been checked before; deadlines and threads are in ``dios.fairness.dc_drf.allocator``.
Every kernel works on one tile of tenants or on some rounds and releases Python's lock while it runs.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dios.fairness.allocation import Floats, Ints
from dios.fairness.sparse_demands import (
    PREFETCH_ROWS,
    SCALE_MAX,
    SCALE_MIN,
    Int32s,
    Reals,
    prefetch_rows,
    rho_of,
)
from dios.kernels import kernel

Bytes: TypeAlias = NDArray[np.uint8]

ROUNDING: Final = 1e-14
"""A resource with less than this left counts as exhausted: residuals lose this much in a large case."""

RECOMPUTE_BELOW: Final = 1e-4
"""A sum below this fraction of its last computed value has lost precision and is computed again."""

MU, KEPT, COUNT, BEFORE = 0, 1, 2, 3
"""Columns of a resource's state: mu, the amount kept by tenants that stopped, the number of active tenants,
and the last mu computed from scratch. At level y, the rest is 1 - kept - mu y (line 15)."""

BLOCK: Final = 128
"""The number of resources that share a lower bound for the level at which the first of them is exhausted."""


@kernel
def scale_rows(
    offsets: Ints,
    resources: Int32s,
    values: Reals,
    weights: Floats,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    first: int,
    last: int,
    scaled: Reals,
    sums: Floats,
    counts: Ints,
) -> int:
    """Scale tenants ``first`` to ``last`` to v = rho d, and add them to mu and to the resources' counts.

    The paper's d and rho, and line 8 of Algorithm 2. Return the number of tenants that demand something.
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


@kernel
def scan_block(state: Floats, soonest: Floats, block: int, spared: float) -> tuple[float, int]:
    """Return (level, resource) of the first exhaustion in a block, with resource -1 if there is none.

    Set ``soonest`` of the block to the level at which one of its resources has at most ``spared`` left.
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


@kernel
def exhausted_resources(
    level: float, spared: float, state: Floats, soonest: Floats, dry: Int32s
) -> tuple[int, float]:
    """Fill ``dry`` with the resources that the next round exhausts (lines 13-16); return their number and y.

    The number is -1 if no resource is left. The resource that determines the round comes first and always
    counts as exhausted, so every round ends at least one despite rounding. A level of ``soonest`` may be too
    low because of tenants that left since, but is never too high; blocks above the level can be skipped.
    """
    start = int(np.argmin(soonest))
    best, first = scan_block(state, soonest, start, spared)
    for block in range(soonest.size):
        if soonest[block] <= best and block != start:
            empty, r = scan_block(state, soonest, block, spared)
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


@kernel
def stop_tenants(
    level: float,
    dry: Int32s,
    offsets: Ints,
    column_offsets: Ints,
    column_tenants: Int32s,
    active: Bytes,
    reached: Floats,
    bottleneck: Int32s,
    leaving: Int32s,
) -> tuple[int, int]:
    """Stop tenants of exhausted resources (lines 16, 18); return the numbers of tenants and row entries."""
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


@kernel
def subtract_rows(
    level: float,
    offsets: Ints,
    resources: Int32s,
    scaled: Reals,
    leaving: Int32s,
    state: Floats,
    worn: Int32s,
) -> int:
    """Move leaving tenants from mu to the kept amounts (line 17); return the number of ``worn`` resources."""
    count, bounds, first = 0, np.empty(2 * PREFETCH_ROWS, np.int64), 0
    while first < leaving.size:
        some = prefetch_rows(offsets, resources, scaled, leaving, first, leaving.size, bounds)
        for row in range(some):
            for k in range(bounds[2 * row], bounds[2 * row + 1]):
                if scaled[k] > 0.0:
                    r = resources[k]
                    mu, bound = state[r, MU], RECOMPUTE_BELOW * state[r, BEFORE]
                    state[r, MU] = mu - scaled[k]
                    state[r, KEPT] += scaled[k] * level
                    state[r, COUNT] -= 1.0
                    if mu >= bound and state[r, MU] < bound:
                        worn[count] = r
                        count += 1
        first += some
    return count


@kernel
def gather_rows(offsets: Ints, resources: Int32s, scaled: Reals, leaving: Int32s, taken: Floats) -> None:
    """Sum separately what a tile of leaving tenants takes from mu and from the counts."""
    taken[:] = 0.0
    bounds, first = np.empty(2 * PREFETCH_ROWS, np.int64), 0
    while first < leaving.size:
        some = prefetch_rows(offsets, resources, scaled, leaving, first, leaving.size, bounds)
        for row in range(some):
            for k in range(bounds[2 * row], bounds[2 * row + 1]):
                if scaled[k] > 0.0:
                    taken[resources[k], MU] += scaled[k]
                    taken[resources[k], 1] += 1.0
        first += some


@kernel
def subtract_tiles(level: float, taken: Floats, state: Floats, worn: Int32s) -> int:
    """Subtract the sums of all tiles (line 17). Return the same as :func:`subtract_rows`."""
    count = 0
    for r in range(state.shape[0]):
        for tile in range(taken.shape[0]):
            state[r, MU] -= taken[tile, r, MU]
            state[r, KEPT] += taken[tile, r, MU] * level
            state[r, COUNT] -= taken[tile, r, 1]
        if state[r, MU] < RECOMPUTE_BELOW * state[r, BEFORE]:
            worn[count] = r
            count += 1
    return count


@kernel
def recompute_sums(
    offsets: Ints,
    resources: Int32s,
    scaled: Reals,
    column_offsets: Ints,
    column_tenants: Int32s,
    active: Bytes,
    worn: Int32s,
    state: Floats,
) -> None:
    """Compute mu of the worn resources again, over the tenants that are still active."""
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


@kernel
def run_rounds(
    level: float,
    epsilon: float,
    still: int,
    offsets: Ints,
    resources: Int32s,
    scaled: Reals,
    column_offsets: Ints,
    column_tenants: Int32s,
    state: Floats,
    soonest: Floats,
    active: Bytes,
    reached: Floats,
    bottleneck: Int32s,
    dry: Int32s,
    leaving: Int32s,
    worn: Int32s,
    work: int,
    large: int,
) -> tuple[int, float, int, int]:
    """Run rounds of Algorithm 2 until they cost ``work`` or none of the ``still`` active tenants is left.

    Return the number of rounds (-1 if no resource has a demand), y, the number of active tenants, and the
    number of tenants in ``leaving`` that the caller must still subtract: those of a last round whose rows
    have ``large`` entries or more.
    """
    rounds, done = 0, 0
    while still > 0 and done < work:
        dried, level = exhausted_resources(level, max(epsilon, ROUNDING), state, soonest, dry)
        if dried < 0:
            return -1, level, still, 0
        gone, entries = stop_tenants(
            level, dry[:dried], offsets, column_offsets, column_tenants, active, reached, bottleneck, leaving
        )
        rounds += 1
        still -= gone
        if entries >= large:
            return rounds, level, still, gone
        worn_count = subtract_rows(level, offsets, resources, scaled, leaving[:gone], state, worn)
        if worn_count > 0:
            recompute_sums(
                offsets, resources, scaled, column_offsets, column_tenants, active, worn[:worn_count], state
            )
        done += entries + soonest.size + BLOCK
    return rounds, level, still, 0


@kernel
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
    """Compute A = v z of tenants ``first`` to ``last`` (lines 21 and 23); active ones reached ``level``."""
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if active[tenant] and scaled[k] > 0.0:
                reached[tenant] = level
            amounts[k] = scaled[k] * reached[tenant]
