"""The compiled passes of exact EDRF: index, events, amounts.

Not for: checks of shapes and the meaning of the numbers (``edrf.py``).

``sums`` is (m, 4), a resource's four numbers side by side in memory: mu and what rounding took from it,
K, and how many tenants still rise. The count says exactly when nobody is left, and the second number keeps
mu exact when large tenants leave and tiny ones stay.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dios.compiled import borrowing, compiled, inlined
from dios.fairness.allocation import Floats, Ints
from dios.fairness.sparse_demands import Places

Demands: TypeAlias = tuple[Ints, Places, Floats, Floats, Floats]
"""indptr, indices, values, each tenant's largest value, and its rho."""


@compiled
def peaks(indptr: Ints, values: Floats) -> Floats:
    """Each tenant's largest demand, 0 where it has none."""
    found = np.zeros(len(indptr) - 1)
    for i in range(len(found)):
        for p in range(indptr[i], indptr[i + 1]):
            found[i] = max(found[i], values[p])
    return found


@inlined
def _added(sums: Floats, r: int, v: float) -> None:
    """Add v to mu of resource r, keeping what rounding takes (Knuth's two-sum)."""
    before = sums[r, 0]
    after = before + v
    part = after - before
    sums[r, 0] = after
    sums[r, 1] += (before - (after - part)) + (v - part)


@compiled
def add_up(indptr: Ints, indices: Places, values: Floats, largest: Floats, rho: Floats, sums: Floats) -> Ints:
    """Fill ``sums``; returns where each resource's tenants will begin in the transposed index, (m + 1,)."""
    starts = np.zeros(len(sums) + 1, np.int64)
    for i in range(len(largest)):
        for p in range(indptr[i], indptr[i + 1]):
            v = values[p] / largest[i] * rho[i] if values[p] > 0.0 else 0.0
            if v > 0.0:
                r = indices[p]
                _added(sums, r, v)
                sums[r, 3] += 1.0
            if values[p] > 0.0:
                starts[indices[p] + 1] += 1
    for r in range(len(sums)):
        starts[r + 1] += starts[r]
    return starts


@inlined
def _sunk(keys: Floats, ids: Ints, size: int) -> None:
    """Put the top of the heap where it belongs."""
    key, name, at = keys[0], ids[0], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[at], ids[at] = keys[child], ids[child]
        at = child
    keys[at], ids[at] = key, name


@borrowing
def _top(keys: Floats, ids: Ints, size: int, sums: Floats, level: float) -> int:
    """Bring to the top the resource that runs dry next, with its true level; returns the heap's size."""
    while size > 0:
        r = ids[0]
        if sums[r, 3] == 0.0:
            size -= 1
            keys[0], ids[0] = keys[size], ids[size]
        else:
            mu = sums[r, 0] + sums[r, 1]
            # Rounding may put a resource below the level that is reached already, never a tenant.
            dry = max((1.0 - sums[r, 2]) / mu, level) if mu > 0.0 else level
            if dry <= keys[0]:
                break
            keys[0] = dry
        _sunk(keys, ids, size)
    return size


@borrowing
def _left(demands: Demands, i: int, level: float, sums: Floats) -> None:
    """Tenant i keeps what it has at ``level`` and rises no more."""
    indptr, indices, values, largest, rho = demands
    for p in range(indptr[i], indptr[i + 1]):
        if values[p] > 0.0:
            v = values[p] / largest[i] * rho[i]
            if v > 0.0:
                r = indices[p]
                _added(sums, r, -v)
                sums[r, 2] += v * level
                sums[r, 3] -= 1.0


@borrowing
def rise(
    demands: Demands,
    index: tuple[Ints, Places],
    dry: tuple[Floats, Ints, Floats],
    caps: tuple[Floats, Ints],
    out: tuple[npt.NDArray[np.bool_], Floats, Ints, Places],
) -> int:
    """Let the level rise until everybody has left; fills z and the resource that stopped each.

    ``dry`` is a heap of levels and resources, and ``sums``; ``caps`` the levels at which tenants have all
    they demand, and the tenants in that order (both empty: no caps). The last of ``out`` is room for the
    tenants of one resource. Returns how often a resource ran dry.
    """
    starts, members = index
    keys, ids, sums = dry
    until, order = caps
    rising, z, stopped, living = out
    size, level, rounds, following = len(ids), 0.0, 0, 0
    while True:
        size = _top(keys, ids, size, sums, level)
        while following < len(order) and not rising[order[following]]:
            following += 1
        capped = following < len(order) and until[order[following]] < np.inf
        if capped and (size == 0 or until[order[following]] <= keys[0]):
            i = order[following]
            level = max(level, until[i])
            rising[i], z[i] = False, until[i]
            _left(demands, i, level, sums)
            continue
        if size == 0:
            return rounds
        r, level, found = ids[0], keys[0], 0
        # First who is still there, then their rows: the look-ups in memory do not wait for each other.
        for p in range(starts[r], starts[r + 1]):
            if rising[members[p]]:
                living[found] = members[p]
                found += 1
        for k in range(found):
            i = living[k]
            rising[i], z[i], stopped[i] = False, level, r
            _left(demands, i, level, sums)
        sums[r, 3] = 0.0
        rounds += 1


@compiled
def amounts(demands: Demands, z: Floats, stopped: Ints, cap: bool) -> Floats:  # noqa: FBT001 - kernels take arguments by position
    """What each tenant has of each resource, in the order of the values; with ``cap`` at most the demand."""
    indptr, _indices, values, largest, rho = demands
    found = np.zeros(len(values))
    for i in range(len(z)):
        for p in range(indptr[i], indptr[i + 1]):
            if cap and stopped[i] < 0:
                found[p] = values[p]
            elif values[p] > 0.0:
                had = values[p] / largest[i] * rho[i] * z[i]
                found[p] = min(had, values[p]) if cap else had
    return found
