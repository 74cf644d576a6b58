"""Extended dominant resource fairness, exact: every tenant leaves once, every resource runs dry once.

Not for: an answer by a deadline whatever the size (``dc_drf.py``), or past use (``drf.sdrf``).

A water level y rises from 0. Tenant i holds ``v_ir * y`` of resource r, until one of its resources runs
dry. ``mu_r`` is the sum of v over those who still rise, ``K_r`` what those who left keep; so r runs dry at
``e_r = (1 - K_r) / mu_r``. A tenant that leaves early never makes another resource run dry sooner: e_r
only grows, and a heap whose keys may be too small, corrected when they come to the top, is enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dios.fairness import edrf_kernels
from dios.fairness.allocation import Allocation, Floats
from dios.fairness.edrf_kernels import KEPT, MU, Columns, Dry, Scaled
from dios.fairness.sparse_demands import (
    SCALE_MAX,
    SCALE_MIN,
    SUMS,
    TOUCHED,
    Demands,
    Reals,
    Rows,
    add_up,
    check_entries,
    place_columns,
    rows_of,
    scales,
    weights_of,
)


def edrf(demands: Demands, *, weights: npt.ArrayLike | None = None, cap: bool = False) -> Allocation:
    """Algorithm 1 of the DC-DRF paper (EDRF), solved by events in near linear time.

    ``demands`` are fractions of each resource's total (they may exceed 1): an array (n, m), or a tuple
    ``(indptr, indices, values, m)``, whose rows may be in any order but name no resource twice. ``weights``
    are (n,) or (n, m), more than 0 where there is a demand; None: all 1. With ``cap`` nobody gets more than
    it demands; the paper's algorithm has no such bound.

    ``share`` of the answer is z of Table 1's notation: ``amounts = rho_i * d_ir * z_i`` with d the demand
    over the tenant's largest and ``rho_i`` the least ``w_ir / d_ir``. A tenant without demands has z = 0.

    Raises ``ValueError`` with the index at fault for numbers that are negative or not finite, for wrong
    shapes and for weights of zero.
    """
    rows = rows_of(demands, single=True)
    least = rows.values.min(initial=np.inf)
    if not (least >= 0.0 and rows.values.max(initial=0.0) < np.inf):
        check_entries(rows, 0, rows.shape[0])
    shares, per_entry = weights_of(weights, rows, np.float64)
    values, scale, unit = _scaled(rows, shares, per_entry=per_entry)
    tenants, scaled = rows.shape[0], (rows.offsets, rows.resources, values, scale)
    index, dry = _columns(rows, scaled, zeros=bool(least == 0.0))
    with np.errstate(divide="ignore", over="ignore"):
        # Whoever demands more than can be said in its weight never has it all, nor who demands nothing.
        until = unit / scale if cap else np.empty(0)
    caps = (until, np.argsort(until, kind="stable"))
    rising, z, stopped = scale > 0.0, np.zeros(tenants), np.full(tenants, -1, np.int64)
    most = int(np.diff(index[0]).max(initial=0)) + 1
    room = (np.empty(most, np.int32), np.empty(2 * TOUCHED, np.int64))
    still = int(np.count_nonzero(rising))
    rounds = edrf_kernels.rise(scaled, index, dry, caps, (rising, z, stopped), room, still)
    given = np.empty(values.size)
    edrf_kernels.amounts(scaled, rows.values, z, stopped, cap, given)
    return Allocation(rows.spread(given), z, stopped, rounds)


def _columns(rows: Rows, scaled: Scaled, *, zeros: bool) -> tuple[Columns, Dry]:
    """Who demands each resource, and the heap of when they run dry; ``zeros``: some values are 0."""
    sums = np.zeros(rows.shape[1], SUMS)
    sums["seen"] = -1
    if add_up(*scaled, sums) >= 0:
        check_entries(rows, 0, rows.shape[0])
    busy = np.flatnonzero(sums["count"])
    with np.errstate(divide="ignore", over="ignore"):
        # What is next to nothing never runs dry, for its users demand more elsewhere.
        dry_at = 1.0 / sums["mu"][busy]
    starts = np.zeros(rows.shape[1] + 1, np.int64)
    np.cumsum(sums["count"], out=starts[1:])
    members = np.empty(int(starts[-1]), np.int32)
    place_columns(*scaled[:3], zeros, 0, rows.shape[0], starts[:-1].copy(), members)
    state = np.zeros((rows.shape[1], 2))
    state[:, MU], state[:, KEPT] = sums["mu"], 0.0
    first = np.argsort(dry_at, kind="stable")
    return (starts, members), (dry_at[first], busy[first].astype(np.int32), sums["mu"].copy(), state)


def _scaled(rows: Rows, weights: Floats, *, per_entry: bool) -> tuple[Reals, Floats, Floats]:
    """Values and by what each tenant's are multiplied to be its v; and in what unit they are given."""
    scale = np.zeros(rows.shape[0])
    scales(rows.offsets, rows.values, weights, per_entry, scale)
    if ((scale == 0.0) | ((scale > SCALE_MIN) & (scale < SCALE_MAX))).all():
        return rows.values, scale, np.ones(1)
    tenants = rows.tenants()
    peaks = np.zeros(rows.shape[0])
    np.maximum.at(peaks, tenants, rows.values)
    asked = rows.values > 0.0
    values = np.zeros(rows.values.size)
    values[asked] = rows.values[asked] / peaks[tenants[asked]]
    scales(rows.offsets, values, weights, per_entry, scale)
    return values, scale, peaks
