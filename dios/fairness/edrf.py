"""Extended dominant resource fairness (EDRF), exact, in nearly linear time.

DC-DRF, which answers before a deadline at any size, is in ``dc_drf``.

A water level y rises from 0. Tenant i holds ``v_ir * y`` of resource r until one of its resources is
exhausted; each tenant stops once, and each resource is exhausted at most once. ``mu_r`` is the sum of v over
the tenants that still rise, and ``K_r`` is the amount held by those that stopped, so r is exhausted at
``e_r = (1 - K_r) / mu_r``. A tenant that stops early never makes another resource run out sooner: e_r only
grows. A heap whose keys may be too small, corrected when they reach the top, is therefore sufficient.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dios.fairness import edrf_kernels
from dios.fairness.allocation import Allocation, Floats
from dios.fairness.edrf_kernels import KEPT, MU, ExhaustionHeap, ResourceIndex, ScaledRows
from dios.fairness.sparse_demands import (
    PREFETCH_ROWS,
    SCALE_MAX,
    SCALE_MIN,
    SUMS,
    DemandRows,
    Demands,
    Reals,
    as_rows,
    check_entries,
    checked_weights,
    compute_scales,
    fill_columns,
    sum_demands,
)


def edrf(demands: Demands, *, weights: npt.ArrayLike | None = None, cap: bool = False) -> Allocation:
    """Divide resources by Algorithm 1 of the DC-DRF paper (EDRF), solved from event to event.

    ``demands`` are fractions of each resource's total and may exceed 1: an array (n, m), or a tuple
    ``(indptr, indices, values, m)`` whose rows may be in any order but must not repeat a resource.
    ``weights`` are (n,) or (n, m) and must be more than 0 where there is a demand; None means 1 everywhere.
    With ``cap`` no tenant receives more than it demands; the paper's algorithm has no such bound.

    ``share`` of the result is z of Table 1: ``amounts = rho_i * d_ir * z_i``, where d is the demand divided
    by the tenant's largest one and ``rho_i`` is the least ``w_ir / d_ir``. A tenant without demands has z =
    0.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for wrong
    shapes and for weights of zero.
    """
    rows = as_rows(demands, single=True)
    least = rows.values.min(initial=np.inf)
    if not (least >= 0.0 and rows.values.max(initial=0.0) < np.inf):
        check_entries(rows, 0, rows.shape[0])
    shares, per_entry = checked_weights(weights, rows, np.float64)
    values, scale, unit = _scale_demands(rows, shares, per_entry=per_entry)
    tenants, scaled = rows.shape[0], (rows.offsets, rows.resources, values, scale)
    index, dry = _index_resources(rows, scaled, zeros=bool(least == 0.0))
    with np.errstate(divide="ignore", over="ignore"):
        # A quotient that overflows to infinity belongs to a tenant that never reaches its whole demand.
        until = unit / scale if cap else np.empty(0)
    caps = (until, np.argsort(until, kind="stable"))
    rising, z, stopped = scale > 0.0, np.zeros(tenants), np.full(tenants, -1, np.int64)
    most = int(np.diff(index[0]).max(initial=0)) + 1
    room = (np.empty(most, np.int32), np.empty(2 * PREFETCH_ROWS, np.int64))
    still = int(np.count_nonzero(rising))
    rounds = edrf_kernels.raise_level(scaled, index, dry, caps, (rising, z, stopped), room, still)
    given = np.empty(values.size)
    edrf_kernels.amounts(scaled, rows.values, z, stopped, cap, given)
    return Allocation(rows.in_input_shape(given), z, stopped, rounds)


def _index_resources(
    rows: DemandRows, scaled: ScaledRows, *, zeros: bool
) -> tuple[ResourceIndex, ExhaustionHeap]:
    """Return the tenants of each resource and the heap of exhaustion levels; ``zeros``: some values are 0."""
    sums = np.zeros(rows.shape[1], SUMS)
    sums["seen"] = -1
    if sum_demands(*scaled, sums) >= 0:
        check_entries(rows, 0, rows.shape[0])
    busy = np.flatnonzero(sums["count"])
    with np.errstate(divide="ignore", over="ignore"):
        # A mu close to 0 may overflow to infinity: such a resource is never exhausted before the others.
        dry_at = 1.0 / sums["mu"][busy]
    starts = np.zeros(rows.shape[1] + 1, np.int64)
    np.cumsum(sums["count"], out=starts[1:])
    members = np.empty(int(starts[-1]), np.int32)
    fill_columns(*scaled[:3], zeros, 0, rows.shape[0], starts[:-1].copy(), members)
    state = np.zeros((rows.shape[1], 2))
    state[:, MU], state[:, KEPT] = sums["mu"], 0.0
    first = np.argsort(dry_at, kind="stable")
    return (starts, members), (dry_at[first], busy[first].astype(np.int32), sums["mu"].copy(), state)


def _scale_demands(rows: DemandRows, weights: Floats, *, per_entry: bool) -> tuple[Reals, Floats, Floats]:
    """Return the values, the factor (n,) that turns a tenant's values into v, and the unit of the values."""
    scale = np.zeros(rows.shape[0])
    compute_scales(rows.offsets, rows.values, weights, per_entry, scale)
    if ((scale == 0.0) | ((scale > SCALE_MIN) & (scale < SCALE_MAX))).all():
        return rows.values, scale, np.ones(1)
    tenants = rows.tenants()
    peaks = np.zeros(rows.shape[0])
    np.maximum.at(peaks, tenants, rows.values)
    asked = rows.values > 0.0
    values = np.zeros(rows.values.size)
    values[asked] = rows.values[asked] / peaks[tenants[asked]]
    compute_scales(rows.offsets, values, weights, per_entry, scale)
    return values, scale, peaks
