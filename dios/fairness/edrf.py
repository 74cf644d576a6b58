"""Extended dominant resource fairness, exact: every tenant leaves once, every resource runs dry once.

Not for: an answer by a deadline whatever the size (``dc_drf.py``), or past use (``drf.sdrf``).

A water level y rises from 0. Tenant i holds ``v_ir * y`` of resource r, until one of its resources runs
dry. ``mu_r`` is the sum of v over those who still rise, ``K_r`` what those who left keep; so r runs dry at
``e_r = (1 - K_r) / mu_r``. A tenant that leaves early never makes another resource run dry sooner: e_r
only grows, and a heap whose keys may be too small, corrected when they come to the top, is enough.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dios.fairness import edrf_events
from dios.fairness.allocation import Allocation, Floats, Ints, as_compiled, numbers, positive

Csr: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, int]
"""A sparse matrix: (indptr (n + 1,), indices (z,), values (z,), number of columns)."""

_CSR_PARTS = 4


def edrf(
    demands: npt.ArrayLike | Csr, *, weights: npt.ArrayLike | None = None, cap: bool = False
) -> Allocation:
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
    if isinstance(demands, tuple) and len(demands) == _CSR_PARTS and isinstance(demands[3], int | np.integer):
        indptr, indices, values, columns = _sparse(demands[0], demands[1], demands[2], int(demands[3]))
        z, stopped, rounds, amounts = _divided(indptr, indices, values, columns, weights, cap=cap)
        return Allocation(amounts, z, stopped, rounds)
    # A tuple of rows is a rectangle like any other.
    dense = numbers("demands", demands, (None, None))  # type: ignore[arg-type] # the sparse form is behind us
    rows, found = np.nonzero(dense)
    indptr = np.zeros(len(dense) + 1, np.int64)
    np.cumsum(np.count_nonzero(dense, axis=1), out=indptr[1:])
    z, stopped, rounds, given = _divided(
        indptr, found.astype(np.int32), dense[rows, found], dense.shape[1], weights, cap=cap
    )
    amounts = np.zeros_like(dense)
    amounts[rows, found] = given
    return Allocation(amounts, z, stopped, rounds)


def _sparse(
    indptr: npt.ArrayLike, indices: npt.ArrayLike, values: npt.ArrayLike, columns: int
) -> tuple[Ints, npt.NDArray[np.int32], Floats, int]:
    """The parts of a CSR matrix as the kernels want them, or ``ValueError``."""
    ends, places = np.asarray(indptr), np.asarray(indices)
    held = as_compiled(values, np.float64)
    for name, part in (("indptr", ends), ("indices", places)):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise ValueError(f"{name} has the shape {part.shape} and the type {part.dtype}: (any) integers")
    if held.shape != places.shape:
        raise ValueError(f"values has the shape {held.shape}: {places.shape} is needed, as of indices")
    if columns < 0 or columns > np.iinfo(np.int32).max:
        raise ValueError(f"demands[3] is {columns}: the number of resources is needed, below 2**31")
    if not len(ends) or ends[0] != 0 or ends[-1] != len(places):
        raise ValueError(f"indptr must begin with 0 and end with {len(places)}, the number of values")
    falls = np.flatnonzero(np.diff(ends.astype(np.int64)) < 0)
    if len(falls):
        raise ValueError(f"indptr[{falls[0] + 1}] is less than the one before it")
    outside = (places < 0) | (places >= columns)
    if outside.any():
        at = int(np.argmax(outside))
        raise ValueError(f"indices[{at}] is {places[at]}: there are {columns} resources")
    ends, places = as_compiled(ends, np.int64), as_compiled(places, np.int32)
    fault = edrf_events.first_fault(ends, places, held, np.full(columns, -1, np.int64))
    if fault >= 0 and np.isfinite(held[fault]) and held[fault] >= 0.0:
        row = int(np.searchsorted(ends, fault, side="right")) - 1
        raise ValueError(f"indices[{fault}] is {places[fault]} for the second time in row {row}")
    if fault >= 0:
        raise ValueError(f"values[{fault}] is {held[fault]}: a finite number of at least 0 is needed")
    return ends, places, held, columns


def _ratios(
    indptr: Ints, indices: npt.NDArray[np.int32], values: Floats, peaks: Floats, weights: Floats
) -> Floats:
    """Each tenant's rho (Table 1), for weights (n, m)."""
    asked = values > 0.0
    rows = np.repeat(np.arange(len(peaks)), np.diff(indptr))[asked]
    columns = indices[asked]
    used = np.zeros(weights.shape, np.bool_)
    used[rows, columns] = True
    positive("weights", weights, used)
    rho = np.full(len(peaks), np.inf)
    with np.errstate(over="ignore"):
        # A demand that is next to nothing gives a ratio without end, which is never the least.
        np.minimum.at(rho, rows, weights[rows, columns] * (peaks[rows] / values[asked]))
    return np.where(np.isinf(rho), 1.0, rho)


def _divided(
    indptr: Ints,
    indices: npt.NDArray[np.int32],
    values: Floats,
    columns: int,
    weights: npt.ArrayLike | None,
    *,
    cap: bool,
) -> tuple[Floats, Ints, int, Floats]:
    """Each tenant's z and what stopped it, how often a resource ran dry, and the amounts, as ``values``."""
    tenants = len(indptr) - 1
    peaks = edrf_events.peaks(indptr, values)
    if weights is None:
        rho = np.ones(tenants)
    elif np.ndim(weights) == 1:
        rho = numbers("weights", weights, (tenants,))
        positive("weights", rho)
    else:
        rho = _ratios(indptr, indices, values, peaks, numbers("weights", weights, (tenants, columns)))
    sums = np.zeros((columns, 4))
    starts = edrf_events.add_up(indptr, indices, values, peaks, rho, sums)
    members = edrf_events.transposed(indptr, indices, values, starts)
    caps = np.where(peaks > 0.0, peaks / rho, np.inf) if cap else np.empty(0)
    order = np.argsort(caps, kind="stable")
    busy = np.flatnonzero(sums[:, 3] > 0.0)
    dry_at = 1.0 / sums[busy, 0]
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
