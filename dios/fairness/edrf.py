"""Extended dominant resource fairness, exact: every tenant leaves once, every resource runs dry once.

Not for: an answer by a deadline whatever the size (``dc_drf.py``), or past use (``drf.sdrf``).

A water level y rises from 0. Tenant i holds ``v_ir * y`` of resource r, until one of its resources runs
dry. ``mu_r`` is the sum of v over those who still rise, ``K_r`` what those who left keep; so r runs dry at
``e_r = (1 - K_r) / mu_r``. A tenant that leaves early never makes another resource run dry sooner: e_r
only grows, and a heap whose keys may be too small, corrected when they come to the top, is enough.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from dios.fairness import edrf_events
from dios.fairness.allocation import Allocation, Floats, Ints
from dios.fairness.sparse_demands import Demands, Rows, check_entries, place_columns, rows_of, weights_of


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
    rows = rows_of(demands)
    check_entries(rows, 0, rows.shape[0])
    shares, per_entry = weights_of(weights, rows, np.float64)
    z, stopped, rounds, given = _divided(rows, shares, per_entry=per_entry, cap=cap)
    return Allocation(rows.spread(given), z, stopped, rounds)


def _ratios(rows: Rows, values: Floats, peaks: Floats, weights: Floats) -> Floats:
    """Each tenant's rho (Table 1), for a weight of each entry."""
    asked = values > 0.0
    tenants = rows.tenants()[asked]
    rho = np.full(len(peaks), np.inf)
    with np.errstate(over="ignore"):
        # A demand that is next to nothing gives a ratio without end, which is never the least.
        np.minimum.at(rho, tenants, weights[asked] * (peaks[tenants] / values[asked]))
    return np.where(np.isinf(rho), 1.0, rho)


def _divided(rows: Rows, weights: Floats, *, per_entry: bool, cap: bool) -> tuple[Floats, Ints, int, Floats]:
    """Each tenant's z and what stopped it, how often a resource ran dry, and the amounts, as ``values``."""
    tenants, columns = rows.shape
    indptr, indices, values = rows.offsets, rows.resources, cast("Floats", rows.values)
    peaks = edrf_events.peaks(indptr, values)
    rho = _ratios(rows, values, peaks, weights) if per_entry else weights
    sums = np.zeros((columns, 4))
    starts = edrf_events.add_up(indptr, indices, values, peaks, rho, sums)
    members = np.empty(int(starts[-1]), np.int32)
    place_columns(indptr, indices, values, 0, tenants, starts[:-1].copy(), members)
    busy = np.flatnonzero(sums[:, 3] > 0.0)
    with np.errstate(over="ignore"):
        # What is next to nothing never runs dry, for its users demand more elsewhere; and whoever demands
        # more than can be said in its weight never has it all.
        dry_at = 1.0 / sums[busy, 0]
        caps = np.where(peaks > 0.0, peaks / rho, np.inf) if cap else np.empty(0)
    order = np.argsort(caps, kind="stable")
    first = np.argsort(dry_at, kind="stable")
    z, stopped = np.zeros(tenants), np.full(tenants, -1, np.int64)
    rounds = edrf_events.rise(
        (indptr, indices, values, peaks, rho),
        (starts, members),
        (dry_at[first], busy[first], sums),
        (caps, order),
        (peaks > 0.0, z, stopped, np.empty(int(np.diff(starts).max(initial=0)), np.int32)),
    )
    amounts = edrf_events.amounts((indptr, indices, values, peaks, rho), z, stopped, cap)
    return z, stopped, int(rounds), amounts
