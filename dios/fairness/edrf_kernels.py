"""The compiled passes of exact EDRF: raising the level from event to event, and computing the amounts.

``sums`` is (m, 2) and holds a resource's mu and K side by side. Tenants leave mu by subtraction, which costs
it precision; when most of it is gone, it is computed again before any decision depends on it. Whether tenants
are left is decided from the tenants themselves, never by comparing a sum with zero.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.fairness.allocation import Floats, Ints
from dios.fairness.sparse_demands import Int32s, Reals, prefetch_rows
from dios.kernels import inlined_kernel, kernel, no_refcount_kernel

ScaledRows: TypeAlias = tuple[Ints, Int32s, Reals, Floats]
"""Offsets, resources, values, and the factor that turns a tenant's values into its v."""

ResourceIndex: TypeAlias = tuple[Ints, Int32s]
"""The start of each resource's tenants (m + 1,), and the tenants."""

ExhaustionHeap: TypeAlias = tuple[Floats, Int32s, Floats, Floats]
"""A heap of levels with their resources, each resource's mu when it was last computed, and ``sums``."""

Bools: TypeAlias = npt.NDArray[np.bool_]

MU, KEPT = 0, 1

RECOMPUTE_BELOW: Final = 1e-3
"""A mu below this fraction of its last computed value has lost precision and is computed again."""


@inlined_kernel
def _sift_down(keys: Floats, heap: Int32s, size: int) -> None:
    """Move the top of the heap down to its place."""
    key, name, at = keys[0], heap[0], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[at], heap[at] = keys[child], heap[child]
        at = child
    keys[at], heap[at] = key, name


@no_refcount_kernel
def _recompute_mu(demands: ScaledRows, living: Int32s, count: int, r: int) -> float:
    """Return mu of resource r, summed over those of its tenants that still rise."""
    offsets, resources, values, scale = demands
    total = 0.0
    for k in range(count):
        i = living[k]
        for p in range(offsets[i], offsets[i + 1]):
            if resources[p] == r:
                total += values[p] * scale[i]
    return total


@inlined_kernel
def _collect_rising(index: ResourceIndex, r: int, rising: Bools, living: Int32s) -> int:
    """Write the tenants of resource r that still rise into ``living``; return their number."""
    starts, members = index
    count = 0
    for p in range(starts[r], starts[r + 1]):
        living[count] = members[p]
        count += rising[members[p]]
    return count


@no_refcount_kernel
def _correct_top(
    demands: ScaledRows,
    index: ResourceIndex,
    dry: ExhaustionHeap,
    size: int,
    level: float,
    rising: Bools,
    living: Int32s,
) -> int:
    """Bring the resource that is exhausted next to the top, with its true level; return the heap's size."""
    keys, heap, before, sums = dry
    while size > 0:
        r = heap[0]
        if sums[r, MU] < RECOMPUTE_BELOW * before[r]:
            sums[r, MU] = _recompute_mu(demands, living, _collect_rising(index, r, rising, living), r)
            before[r] = sums[r, MU]
        if sums[r, MU] > 0.0:
            # Rounding may give a resource a level below the current one; the level itself never falls.
            at = max((1.0 - sums[r, KEPT]) / sums[r, MU], level)
            if at <= keys[0]:
                break
            keys[0] = at
        else:
            size -= 1
            keys[0], heap[0] = keys[size], heap[size]
        _sift_down(keys, heap, size)
    return size


@inlined_kernel
def _stop_tenant(demands: ScaledRows, i: int, first: int, last: int, level: float, sums: Floats) -> None:
    """Stop tenant i, whose row is ``first`` to ``last``: it keeps its amounts at ``level``."""
    _offsets, resources, values, scale = demands
    factor = scale[i]
    for p in range(first, last):
        v = values[p] * factor
        sums[resources[p], MU] -= v
        sums[resources[p], KEPT] += v * level


@no_refcount_kernel
def raise_level(
    demands: ScaledRows,
    index: ResourceIndex,
    dry: ExhaustionHeap,
    caps: tuple[Floats, Ints],
    out: tuple[Bools, Floats, Ints],
    room: tuple[Int32s, Ints],
    still: int,
) -> int:
    """Raise the level from event to event; fill z and the resource that stopped each tenant.

    ``caps`` are the levels at which tenants have all they demand, and the tenants in that order (both empty
    without caps). ``room`` is scratch memory: one more place than the tenants of one resource, and bounds of
    some rows. ``still`` is the number of tenants that rise. Return how often a resource was exhausted.
    """
    keys, heap, before, sums = dry
    until, order = caps
    rising, z, stopped = out
    living, bounds = room
    offsets, resources, values, _scale = demands
    size, rounds, following, level = len(heap), 0, 0, 0.0
    while still > 0:
        size = _correct_top(demands, index, dry, size, level, rising, living)
        next_dry = keys[0] if size > 0 else np.inf
        while following < len(order) and not rising[order[following]]:
            following += 1
        if following < len(order) and until[order[following]] <= next_dry:
            i = order[following]
            if until[i] == np.inf:
                break
            level = max(level, until[i])
            rising[i], z[i] = False, until[i]
            still -= 1
            _stop_tenant(demands, i, offsets[i], offsets[i + 1], level, sums)
            continue
        if size == 0:
            break
        r, level = heap[0], next_dry
        count = _collect_rising(index, r, rising, living)
        first = 0
        while first < count:
            some = prefetch_rows(offsets, resources, values, living, first, count, bounds)
            for k in range(some):
                i = living[first + k]
                rising[i], z[i], stopped[i] = False, level, r
                _stop_tenant(demands, i, bounds[2 * k], bounds[2 * k + 1], level, sums)
            first += some
        rounds += count > 0
        still -= count
        sums[r, MU] = before[r] = 0.0
    return rounds


@kernel
def amounts(
    demands: ScaledRows,
    asked: Reals,
    z: Floats,
    stopped: Ints,
    cap: bool,  # noqa: FBT001 - kernels take arguments by position
    allocated: Floats,
) -> None:
    """Write each tenant's amounts into ``allocated``, by value; with ``cap`` at most ``asked``."""
    offsets, _resources, values, scale = demands
    for i in range(len(z)):
        factor = scale[i] * z[i]
        for p in range(offsets[i], offsets[i + 1]):
            if cap and stopped[i] < 0:
                allocated[p] = asked[p]
            else:
                had = values[p] * factor
                allocated[p] = min(had, asked[p]) if cap else had
