"""Demands and weights as they come in: checked, and kept by tenant in compressed rows.

Not for: dividing, nor what each way to divide makes of the rows (``edrf.py``, ``dc_columns.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.compiled import compiled, inlined
from dios.fairness.allocation import Floats, Ints, array_of, as_compiled, numbers, refuse

Places: TypeAlias = npt.NDArray[np.int32]
Reals: TypeAlias = npt.NDArray[np.float32 | np.float64]

Demands: TypeAlias = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, int]
"""Dense (n, m), or CSR: (indptr (n + 1,), indices (z,), values (z,), number of resources m)."""

_CSR_PARTS = 4

SCALE_MIN, SCALE_MAX = 1e-290, 1e290
"""Beyond, a tenant's v is not its demand times one number: that would lose digits, or be no number."""

TOUCHED: Final = 64
"""Rows that are asked for at once."""

LINE: Final = 16
"""Entries of a row that come from memory at once, or fewer."""

SCALE_TINY: Final = float(np.finfo(np.float64).tiny)
"""A tenant that demands something never has a scale of 0."""

SUMS: Final = np.dtype([("mu", np.float64), ("count", np.int32), ("seen", np.int32)])
"""What all use of a resource for each unit of level, how many do, and the last of them."""


@dataclass(frozen=True)
class Rows:
    """Demands of n tenants for m resources: ``offsets`` (n + 1,), ``resources`` and ``values`` (z,)."""

    shape: tuple[int, int]
    dense: bool
    offsets: Ints
    resources: Places
    values: Reals

    def spread(self, amounts: Floats) -> Floats:
        """Amounts (z,) in the shape of the demands as they came."""
        if not self.dense:
            return amounts
        spread = np.zeros(self.shape)
        spread[self.tenants(), self.resources] = amounts
        return spread

    def tenants(self) -> Ints:
        """Whose each entry is, (z,)."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.offsets))


def rows_of(demands: Demands, *, own: bool = False, single: bool = False) -> Rows:
    """The demands in rows; dense ones are checked, of sparse ones all but the entries (`check_entries`).

    With ``own``, ``offsets`` and ``resources`` are no memory of the caller's; values may be, so do not write
    to them. With ``single``, sparse values in single precision stay so. ``ValueError`` names the fault.
    """
    # A tuple of rows is a rectangle like any other.
    if isinstance(demands, tuple) and len(demands) == _CSR_PARTS and isinstance(demands[3], int | np.integer):
        indptr, indices, values, columns = demands
        return _sparse(indptr, indices, values, int(columns), own=own, single=single)
    found = numbers("demands", demands, (None, None))  # type: ignore[arg-type] # the sparse form is behind us
    tenants, resources = np.nonzero(found)
    offsets = np.zeros(len(found) + 1, np.int64)
    np.cumsum(np.count_nonzero(found, axis=1), out=offsets[1:])
    shape = (found.shape[0], found.shape[1])
    return Rows(
        shape,
        dense=True,
        offsets=offsets,
        resources=resources.astype(np.int32),
        values=found[tenants, resources],
    )


def _sparse(
    indptr: npt.ArrayLike,
    indices: npt.ArrayLike,
    given: npt.ArrayLike,
    columns: int,
    *,
    own: bool,
    single: bool,
) -> Rows:
    ends, places, values = array_of("indptr", indptr), array_of("indices", indices), array_of("values", given)
    for name, part in (("indptr", ends), ("indices", places)):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise ValueError(f"{name} has the shape {part.shape} and the type {part.dtype}: (any) integers")
    if values.shape != places.shape:
        raise ValueError(f"values has the shape {values.shape}: {places.shape} is needed, as of indices")
    if not 0 <= columns < 2**31:
        raise ValueError(f"demands[3] is {columns}: the number of resources is needed, below 2**31")
    offsets = as_compiled(ends, np.int64)
    if not offsets.size or offsets[0] != 0:
        raise ValueError("indptr[0] is not 0: one entry more than there are tenants is needed, from 0 on")
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if falls.size:
        raise ValueError(f"indptr[{falls[0] + 1}] is less than the one before it")
    if offsets[-1] != places.size:
        raise ValueError(f"indptr ends at {offsets[-1]}: {places.size} is needed, the number of values")
    if places.size and (places.min() < 0 or places.max() >= columns):
        at = int(np.argmax((places < 0) | (places >= columns)))
        raise ValueError(f"indices[{at}] is {places[at]}: there are {columns} resources")
    resources = as_compiled(places, np.int32)
    kept = single and values.dtype == np.float32
    return Rows(
        (offsets.size - 1, columns),
        dense=False,
        offsets=offsets.copy() if own and offsets is ends else offsets,
        resources=resources.copy() if own and resources is places else resources,
        values=as_compiled(values, np.float32) if kept else as_compiled(values, np.float64),
    )


def check_entries(rows: Rows, first: int, last: int) -> None:
    """Raise ``ValueError`` where tenants ``first`` to ``last`` have a bad value, or a resource twice."""
    fault = first_fault(rows.offsets, rows.resources, rows.values, rows.shape[1], first, last)
    if fault < 0:
        return
    value, resource = rows.values[fault], rows.resources[fault]
    tenant = int(np.searchsorted(rows.offsets, fault, side="right")) - 1
    if np.isfinite(value) and value >= 0.0:
        raise ValueError(f"indices[{fault}] is {resource} for the second time in row {tenant}")
    raise ValueError(
        f"values[{fault}] is {value} (tenant {tenant}, resource {resource}): "
        "a finite number of at least 0 is needed"
    )


def weights_of(
    weights: npt.ArrayLike | None, rows: Rows, dtype: type[np.float32 | np.float64]
) -> tuple[Floats, bool]:
    """Weights by tenant (n,), or by entry of the rows (z,), which are then True.

    ``weights`` are (n,) or (n, m), more than 0 where there is a demand; None: all 1. Less than ``dtype`` can
    hold, or more, could serve nobody. ``ValueError`` names the index at fault.
    """
    tenants = rows.shape[0]
    if weights is None:
        return np.ones(tenants), False
    given = array_of("weights", weights)
    found = numbers("weights", given, (tenants,) if given.ndim == 1 else rows.shape)
    least = float(np.finfo(dtype).tiny)
    # All of them together are to be a number, too.
    most = min(float(np.finfo(dtype).max), float(np.finfo(np.float64).max) / max(1, tenants))
    good = (found >= least) & (found <= most)
    tenant = rows.tenants() if found.ndim > 1 else None
    if tenant is not None:
        unused = np.ones(found.shape, np.bool_)
        asked = rows.values > 0.0
        unused[tenant[asked], rows.resources[asked]] = False
        good |= unused
    if not good.all():
        refuse("weights", found, good, f"from {least:.2g} to {most:.2g} is needed")
    return (found, False) if tenant is None else (found[tenant, rows.resources], True)


@compiled
def first_fault(offsets: Ints, resources: Places, values: Reals, count: int, first: int, last: int) -> int:
    """The first value that is negative or not finite, or whose resource its row has named before; or -1."""
    seen = np.full(count, -1, np.int64)
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if not (values[k] >= 0.0 and values[k] < np.inf) or seen[resources[k]] == tenant:
                return k
            seen[resources[k]] = tenant
    return -1


@inlined
def rho_of(
    values: Reals,
    weights: Floats,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    tenant: int,
    first: int,
    last: int,
    peak: float,
) -> float:
    """A tenant's rho (Table 1), its entries from ``first`` to ``last``, the largest of which is ``peak``."""
    if not per_entry:
        return float(weights[tenant])
    rho = np.inf
    for k in range(first, last):
        share = values[k] / peak
        if share > 0.0:
            rho = min(rho, weights[k] / share)
    return rho


@compiled
def scales(
    offsets: Ints,
    values: Reals,
    weights: Floats,
    per_entry: bool,  # noqa: FBT001 - a kernel is called by position
    scale: Floats,
) -> None:
    """Fill by what each tenant's values are multiplied to be its v: rho over the largest. Comes as 0."""
    for tenant in range(len(scale)):
        peak = 0.0
        for k in range(offsets[tenant], offsets[tenant + 1]):
            peak = max(peak, values[k])
        if peak > 0.0:
            rho = rho_of(values, weights, per_entry, tenant, offsets[tenant], offsets[tenant + 1], peak)
            scale[tenant] = max(rho / peak, SCALE_TINY)


@compiled
def add_up(offsets: Ints, resources: Places, values: Reals, scale: Floats, sums: npt.NDArray[np.void]) -> int:
    """Add to ``sums`` what all tenants use; the first entry that repeats a resource in its row, or -1."""
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


@inlined
def touch_rows(
    offsets: Ints, resources: Places, values: Reals, tenants: Places, first: int, last: int, bounds: Ints
) -> int:
    """Touch the rows of some of ``tenants``, from ``first`` on, so that they come from memory side by side.

    Where they begin and end is left in ``bounds``, room for ``TOUCHED`` pairs. Returns how many they are.
    """
    some = min(TOUCHED, last - first)
    # How long a row is must be here before a loop over it is begun, or the processor waits for each.
    for k in range(some):
        tenant = tenants[first + k]
        bounds[2 * k], bounds[2 * k + 1] = offsets[tenant], offsets[tenant + 1]
    total = 0
    for k in range(some):
        for at in range(bounds[2 * k], bounds[2 * k + 1], LINE):
            total += resources[at] + (values[at] > 0.0)
    # It is never negative, which the compiler does not know: it must look.
    return some if total >= 0 else 0


@compiled
def place_columns(
    offsets: Ints,
    resources: Places,
    values: Reals,
    zeros: bool,  # noqa: FBT001 - a kernel is called by position
    first: int,
    last: int,
    places: Ints,
    tenants: Places,
) -> None:
    """Write tenants ``first`` to ``last`` into the columns of what they demand.

    ``places`` are where each resource's next tenant goes, and are moved on. Without ``zeros`` no value is 0,
    and none is looked at.
    """
    for tenant in range(first, last):
        for k in range(offsets[tenant], offsets[tenant + 1]):
            if not zeros or values[k] > 0.0:
                resource = resources[k]
                tenants[places[resource]] = tenant
                places[resource] += 1
