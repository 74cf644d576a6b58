"""Demands and weights of tenants, checked and stored as compressed rows (CSR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.fairness.allocation import (
    Floats,
    Ints,
    as_kernel_array,
    as_number_array,
    checked_numbers,
    raise_first_invalid,
)
from dios.kernels import inlined_kernel, kernel

Int32s: TypeAlias = npt.NDArray[np.int32]
Reals: TypeAlias = npt.NDArray[np.float32 | np.float64]

Demands: TypeAlias = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, int]
"""Dense (n, m), or CSR: (indptr (n + 1,), indices (z,), values (z,), number of resources m)."""

_CSR_PARTS = 4

SCALE_MIN, SCALE_MAX = 1e-290, 1e290
"""Outside of this range, v as demand times a factor would lose precision or overflow."""

PREFETCH_ROWS: Final = 64
"""The number of rows that are prefetched at once."""

CACHE_LINE_ENTRIES: Final = 16
"""At most the number of a row's entries in a cache line."""

SCALE_TINY: Final = float(np.finfo(np.float64).tiny)
"""The least scale of a tenant that demands something, so that it is never 0."""

SUMS: Final = np.dtype([("mu", np.float64), ("count", np.int32), ("seen", np.int32)])
"""For each resource: use per unit of level, number of tenants that use it, and the last of these tenants."""


@dataclass(frozen=True)
class DemandRows:
    """Demands of n tenants for m resources: ``offsets`` (n + 1,), ``resources`` and ``values`` (z,)."""

    shape: tuple[int, int]
    dense: bool
    offsets: Ints
    resources: Int32s
    values: Reals

    def in_input_shape(self, amounts: Floats) -> Floats:
        """Return amounts (z,) in the shape in which the demands were given."""
        if not self.dense:
            return amounts
        amounts_2d = np.zeros(self.shape)
        amounts_2d[self.tenants(), self.resources] = amounts
        return amounts_2d

    def tenants(self) -> Ints:
        """Return the tenant of each entry, (z,)."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.offsets))


def as_rows(demands: Demands, *, single: bool = False) -> DemandRows:
    """Return demands as rows; dense ones are checked, sparse ones except for their entries.

    Call :func:`check_entries` to check the entries of sparse demands. The arrays may be the caller's memory,
    so do not write to them. With ``single``, sparse values keep single precision. Raise ``ValueError`` with
    the argument at fault.
    """
    # A tuple of rows is a dense matrix like any other.
    if isinstance(demands, tuple) and len(demands) == _CSR_PARTS and isinstance(demands[3], int | np.integer):
        indptr, indices, values, columns = demands
        return _sparse(indptr, indices, values, int(columns), single=single)
    dense = checked_numbers("demands", demands, (None, None))  # type: ignore[arg-type] # the sparse form is behind us
    tenants, resources = np.nonzero(dense)
    offsets = np.zeros(len(dense) + 1, np.int64)
    np.cumsum(np.count_nonzero(dense, axis=1), out=offsets[1:])
    shape = (dense.shape[0], dense.shape[1])
    return DemandRows(
        shape,
        dense=True,
        offsets=offsets,
        resources=resources.astype(np.int32),
        values=dense[tenants, resources],
    )


def _sparse(
    indptr: npt.ArrayLike,
    indices: npt.ArrayLike,
    given: npt.ArrayLike,
    columns: int,
    *,
    single: bool,
) -> DemandRows:
    ends, places, values = (
        as_number_array("indptr", indptr),
        as_number_array("indices", indices),
        as_number_array("values", given),
    )
    for name, part in (("indptr", ends), ("indices", places)):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise ValueError(
                f"{name} has the shape {part.shape} and the type {part.dtype}; "
                "it must be a one-dimensional array of integers"
            )
    if values.shape != places.shape:
        raise ValueError(f"values has the shape {values.shape}; it must be {places.shape}, as indices")
    if not 0 <= columns < 2**31:
        raise ValueError(f"demands[3] is {columns}; the number of resources must be from 0 to 2**31 - 1")
    offsets = as_kernel_array(ends, np.int64)
    if not offsets.size or offsets[0] != 0:
        raise ValueError("indptr[0] is not 0; indptr must begin with 0 and have one entry more than tenants")
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if falls.size:
        raise ValueError(f"indptr[{falls[0] + 1}] is less than the entry before it; indptr must not decrease")
    if offsets[-1] != places.size:
        raise ValueError(
            f"indptr ends with {offsets[-1]}; it must end with the number of values, {places.size}"
        )
    if places.size and (places.min() < 0 or places.max() >= columns):
        at = int(np.argmax((places < 0) | (places >= columns)))
        raise ValueError(f"indices[{at}] is {places[at]}; it must be from 0 to {columns - 1}")
    resources = as_kernel_array(places, np.int32)
    kept = single and values.dtype == np.float32
    return DemandRows(
        (offsets.size - 1, columns),
        dense=False,
        offsets=offsets,
        resources=resources,
        values=as_kernel_array(values, np.float32) if kept else as_kernel_array(values, np.float64),
    )


def check_entries(rows: DemandRows, first: int, last: int) -> None:
    """Raise ``ValueError`` if tenants ``first`` to ``last`` have an invalid value or repeat a resource."""
    fault = first_fault(rows.offsets, rows.resources, rows.values, rows.shape[1], first, last)
    if fault < 0:
        return
    value, resource = rows.values[fault], rows.resources[fault]
    tenant = int(np.searchsorted(rows.offsets, fault, side="right")) - 1
    if np.isfinite(value) and value >= 0.0:
        raise ValueError(f"indices[{fault}] names resource {resource} for the second time in row {tenant}")
    raise ValueError(
        f"values[{fault}] is {value} (tenant {tenant}, resource {resource}); it must be finite and at least 0"
    )


def checked_weights(
    weights: npt.ArrayLike | None, rows: DemandRows, dtype: type[np.float32 | np.float64]
) -> tuple[Floats, bool]:
    """Return the weights and False if they are per tenant (n,), or True if per entry of the rows (z,).

    ``weights`` are (n,) or (n, m), and must be more than 0 where there is a demand; None means 1 everywhere.
    Numbers that are too small or too large for ``dtype`` are refused, with the index at fault in the
    ``ValueError``.
    """
    tenants = rows.shape[0]
    if weights is None:
        return np.ones(tenants), False
    given = as_number_array("weights", weights)
    checked = checked_numbers("weights", given, (tenants,) if given.ndim == 1 else rows.shape)
    least = float(np.finfo(dtype).tiny)
    # Their sum must be finite, too.
    most = min(float(np.finfo(dtype).max), float(np.finfo(np.float64).max) / max(1, tenants))
    good = (checked >= least) & (checked <= most)
    tenant = rows.tenants() if checked.ndim > 1 else None
    if tenant is not None:
        unused = np.ones(checked.shape, np.bool_)
        asked = rows.values > 0.0
        unused[tenant[asked], rows.resources[asked]] = False
        good |= unused
    if not good.all():
        raise_first_invalid("weights", checked, good, f"it must be from {least:.2g} to {most:.2g}")
    return (checked, False) if tenant is None else (checked[tenant, rows.resources], True)


@kernel
def first_fault(offsets: Ints, resources: Int32s, values: Reals, count: int, first: int, last: int) -> int:
    """Return the first entry that is negative or not finite, or that repeats a resource of its row; or -1."""
    seen = np.full(count, -1, np.int64)
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if not (values[k] >= 0.0 and values[k] < np.inf) or seen[resources[k]] == tenant:
                return k
            seen[resources[k]] = tenant
    return -1


@inlined_kernel
def rho_of(
    values: Reals,
    weights: Floats,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    tenant: int,
    first: int,
    last: int,
    peak: float,
) -> float:
    """Return a tenant's rho (Table 1); its entries are ``first`` to ``last``, the largest is ``peak``."""
    if not per_entry:
        return float(weights[tenant])
    rho = np.inf
    for k in range(first, last):
        share = values[k] / peak
        if share > 0.0:
            rho = min(rho, weights[k] / share)
    return rho


@kernel
def compute_scales(
    offsets: Ints,
    values: Reals,
    weights: Floats,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    scale: Floats,
) -> None:
    """Fill ``scale``, which holds zeros, with the factor that turns a tenant's values into its v."""
    for tenant in range(len(scale)):
        peak = 0.0
        for k in range(offsets[tenant], offsets[tenant + 1]):
            peak = max(peak, values[k])
        if peak > 0.0:
            rho = rho_of(values, weights, per_entry, tenant, offsets[tenant], offsets[tenant + 1], peak)
            scale[tenant] = max(rho / peak, SCALE_TINY)


@kernel
def sum_demands(
    offsets: Ints, resources: Int32s, values: Reals, scale: Floats, sums: npt.NDArray[np.void]
) -> int:
    """Add the use of all tenants to ``sums``; return the first entry that repeats a resource, or -1."""
    for tenant in range(len(scale)):
        factor = scale[tenant]
        for k in range(offsets[tenant], offsets[tenant + 1]):
            entry = sums[resources[k]]
            if entry["seen"] == tenant:
                return k
            entry["seen"] = tenant
            entry["mu"] += values[k] * factor
            entry["count"] += values[k] > 0.0
    return -1


@inlined_kernel
def prefetch_rows(
    offsets: Ints, resources: Int32s, values: Reals, tenants: Int32s, first: int, last: int, bounds: Ints
) -> int:
    """Prefetch the rows of some of ``tenants``, from ``first`` on, so that memory loads them in parallel.

    Write the rows' bounds into ``bounds``, which has room for ``PREFETCH_ROWS`` pairs. Return the number of
    rows.
    """
    some = min(PREFETCH_ROWS, last - first)
    # Load all row lengths before looping over any row, or the processor waits for each of them.
    for k in range(some):
        tenant = tenants[first + k]
        bounds[2 * k], bounds[2 * k + 1] = offsets[tenant], offsets[tenant + 1]
    total = 0
    for k in range(some):
        for at in range(bounds[2 * k], bounds[2 * k + 1], CACHE_LINE_ENTRIES):
            total += resources[at] + (values[at] > 0.0)
    # The sum is never negative, but the compiler cannot know that and must keep the loads.
    return some if total >= 0 else 0


@kernel
def fill_columns(
    offsets: Ints,
    resources: Int32s,
    values: Reals,
    zeros: bool,  # noqa: FBT001 - a kernel is called by position
    first: int,
    last: int,
    places: Ints,
    tenants: Int32s,
) -> None:
    """Write tenants ``first`` to ``last`` into the columns of the resources that they demand.

    ``places`` holds the position of each resource's next tenant and is advanced. Without ``zeros`` no value
    is 0, and the values are not read.
    """
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if not zeros or values[k] > 0.0:
                resource = resources[k]
                tenants[places[resource]] = tenant
                places[resource] += 1
