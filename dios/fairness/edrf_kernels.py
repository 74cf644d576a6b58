"""The compiled passes of exact EDRF: events and amounts.

Not for: checks of shapes and the meaning of the numbers (``edrf.py``).

``sums`` is (m, 2), a resource's two numbers side by side in memory: mu, and K. Tenants leave mu by
subtraction, which costs it digits; where most of it has gone it is added up anew before anything is decided
by it. Who is left is known from the tenants themselves, never from a sum that is compared with zero.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.compiled import borrowing, compiled, inlined
from dios.fairness.allocation import Floats, Ints
from dios.fairness.sparse_demands import Places, Reals, touch_rows

Scaled: TypeAlias = tuple[Ints, Places, Reals, Floats]
"""Offsets, resources, values, and by what a tenant's values are multiplied to be its v."""

Columns: TypeAlias = tuple[Ints, Places]
"""Where each resource's tenants begin, (m + 1,), and the tenants."""

Dry: TypeAlias = tuple[Floats, Places, Floats, Floats]
"""A heap of levels and of resources, each resource's mu when it was last added up, and ``sums``."""

Bools: TypeAlias = npt.NDArray[np.bool_]

MU, KEPT = 0, 1

WORN: Final = 1e-3
"""A mu below this part of what it was has lost digits, and is added up anew."""


@inlined
def _sunk(keys: Floats, heap: Places, size: int) -> None:
    """Put the top of the heap where it belongs."""
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


@borrowing
def _mended(demands: Scaled, living: Places, found: int, r: int) -> float:
    """Mu of resource r, added up over those of its tenants who still rise."""
    offsets, resources, values, scale = demands
    total = 0.0
    for k in range(found):
        i = living[k]
        for p in range(offsets[i], offsets[i + 1]):
            if resources[p] == r:
                total += values[p] * scale[i]
    return total


@inlined
def _collected(index: Columns, r: int, rising: Bools, living: Places) -> int:
    """How many tenants of resource r still rise; they are written into ``living``."""
    starts, members = index
    found = 0
    for p in range(starts[r], starts[r + 1]):
        living[found] = members[p]
        found += rising[members[p]]
    return found


@borrowing
def _top(
    demands: Scaled,
    index: Columns,
    dry: Dry,
    size: int,
    level: float,
    rising: Bools,
    living: Places,
) -> int:
    """Bring to the top the resource that runs dry next, with its true level; returns the heap's size."""
    keys, heap, before, sums = dry
    while size > 0:
        r = heap[0]
        if sums[r, MU] < WORN * before[r]:
            sums[r, MU] = _mended(demands, living, _collected(index, r, rising, living), r)
            before[r] = sums[r, MU]
        if sums[r, MU] > 0.0:
            # Rounding may put a resource below the level that is reached already, never a tenant.
            at = max((1.0 - sums[r, KEPT]) / sums[r, MU], level)
            if at <= keys[0]:
                break
            keys[0] = at
        else:
            size -= 1
            keys[0], heap[0] = keys[size], heap[size]
        _sunk(keys, heap, size)
    return size


@inlined
def _left(demands: Scaled, i: int, first: int, last: int, level: float, sums: Floats) -> None:
    """Tenant i, whose row lies there, keeps what it has at ``level`` and rises no more."""
    _offsets, resources, values, scale = demands
    factor = scale[i]
    for p in range(first, last):
        v = values[p] * factor
        sums[resources[p], MU] -= v
        sums[resources[p], KEPT] += v * level


@borrowing
def rise(
    demands: Scaled,
    index: Columns,
    dry: Dry,
    caps: tuple[Floats, Ints],
    out: tuple[Bools, Floats, Ints],
    room: tuple[Places, Ints],
    still: int,
) -> int:
    """Let the level rise from event to event; fills z and the resource that stopped each tenant.

    ``caps`` are the levels at which tenants have all they demand, and the tenants in that order (both empty:
    no caps). ``room`` is for one more than the tenants of one resource, and for the bounds of some rows.
    ``still`` tenants rise. Returns how often a resource ran dry.
    """
    keys, heap, before, sums = dry
    until, order = caps
    rising, z, stopped = out
    living, bounds = room
    offsets, resources, values, _scale = demands
    size, rounds, following, level = len(heap), 0, 0, 0.0
    while still > 0:
        size = _top(demands, index, dry, size, level, rising, living)
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
            _left(demands, i, offsets[i], offsets[i + 1], level, sums)
            continue
        if size == 0:
            break
        r, level = heap[0], next_dry
        found = _collected(index, r, rising, living)
        first = 0
        while first < found:
            some = touch_rows(offsets, resources, values, living, first, found, bounds)
            for k in range(some):
                i = living[first + k]
                rising[i], z[i], stopped[i] = False, level, r
                _left(demands, i, bounds[2 * k], bounds[2 * k + 1], level, sums)
            first += some
        rounds += found > 0
        still -= found
        sums[r, MU] = before[r] = 0.0
    return rounds


@compiled
def amounts(
    demands: Scaled,
    asked: Reals,
    z: Floats,
    stopped: Ints,
    cap: bool,  # noqa: FBT001 - kernels take arguments by position
    found: Floats,
) -> None:
    """What each tenant has of each resource, in the order of the values; with ``cap`` at most ``asked``."""
    offsets, _resources, values, scale = demands
    for i in range(len(z)):
        factor = scale[i] * z[i]
        for p in range(offsets[i], offsets[i + 1]):
            if cap and stopped[i] < 0:
                found[p] = asked[p]
            else:
                had = values[p] * factor
                found[p] = min(had, asked[p]) if cap else had
