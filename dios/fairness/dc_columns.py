"""Demands as DC-DRF works on them: checked, scaled to v = rho d, and indexed by resource too.

Not for: allocating. What is made here is never changed; the rounds of an interval work on copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.dc_kernels import (
    BAD_RESOURCE,
    BAD_VALUE,
    FINE,
    Doubles,
    Ints,
    Longs,
    Reals,
    faulty_entry,
    place_columns,
    scale_rows,
)

Demands: TypeAlias = ArrayLike | tuple[ArrayLike, ArrayLike, ArrayLike, int]
_T = TypeVar("_T")

TILES: Final = 16
"""Tiles of tenants in a large case. The number of threads does not change it, nor any sum's order."""

TILED_MIN: Final = 1 << 16
"""Non-zero demands from which tiles pay for the hand-over to a thread, some 50 microseconds each."""


class Workers:
    """Runs the tiles of a step, on ``threads`` threads; use it as a context, it leaves no thread behind."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "dc-drf") if threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def run(self, tiles: Sequence[Callable[[], _T]]) -> list[_T]:
        """The answers of all tiles, in order."""
        if self._pool is None or len(tiles) == 1:
            return [tile() for tile in tiles]
        return [future.result() for future in [self._pool.submit(tile) for tile in tiles]]


@dataclass(frozen=True)
class Table:
    """Demands of n tenants for m resources: rows of v, columns of tenants, and mu and counts at the start."""

    shape: tuple[int, int]
    dense: bool
    offsets: Longs
    resources: Ints
    scaled: Reals
    column_offsets: Longs
    column_tenants: Ints
    sums: Doubles
    counts: Longs
    active: int
    tiles: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rows:
    """Demands as they came in, checked, in compressed rows."""

    shape: tuple[int, int]
    dense: bool
    offsets: Longs
    resources: Ints
    values: Reals
    tiles: tuple[tuple[int, int], ...]


def tiles_of(offsets: Longs) -> tuple[tuple[int, int], ...]:
    """Stripes of tenants with about equally many entries; one for a small case."""
    tenants, entries = offsets.size - 1, int(offsets[-1])
    if entries < TILED_MIN:
        return ((0, tenants),)
    cuts = np.searchsorted(offsets, np.linspace(0, entries, TILES + 1)[1:-1])
    bounds = [0, *(min(tenants, int(cut)) for cut in cuts), tenants]
    return tuple((a, b) for a, b in pairwise(bounds) if a < b)


def table_of(
    demands: Demands,
    weights: ArrayLike | None,
    dtype: type[np.float32 | np.float64],
    workers: Workers,
    last: Table | None,
) -> Table:
    """The checked, scaled and indexed demands; columns of ``last`` are kept where the same are demanded."""
    # A tuple of rows is a rectangle like any other.
    if isinstance(demands, tuple) and len(demands) == 4 and isinstance(demands[3], int | np.integer):
        rows = _sparse(demands[0], demands[1], demands[2], int(demands[3]), workers)
    else:
        rows = _dense(demands)
    shares, per_entry = _weights(weights, rows, dtype)
    scaled = np.zeros(rows.values.size, dtype)
    sums = [np.zeros(rows.shape[1]) for _ in rows.tiles]
    counts = [np.zeros(rows.shape[1], np.int64) for _ in rows.tiles]
    active = workers.run(
        [
            partial(
                scale_rows,
                *(rows.offsets, rows.resources, rows.values, shares, per_entry),
                *(first, end, scaled, sums[tile], counts[tile]),
            )
            for tile, (first, end) in enumerate(rows.tiles)
        ]
    )
    if last is not None and _same_columns(rows, scaled, last):
        column_offsets, column_tenants = last.column_offsets, last.column_tenants
    else:
        column_offsets, column_tenants = _columns(rows, scaled, counts, workers)
    return Table(
        shape=rows.shape,
        dense=rows.dense,
        offsets=rows.offsets,
        resources=rows.resources,
        scaled=scaled,
        column_offsets=column_offsets,
        column_tenants=column_tenants,
        sums=np.sum(sums, axis=0),
        counts=np.sum(counts, axis=0),
        active=sum(active),
        tiles=rows.tiles,
    )


def _same_columns(rows: Rows, scaled: Reals, last: Table) -> bool:
    return (
        rows.shape == last.shape
        and np.array_equal(rows.offsets, last.offsets)
        and np.array_equal(rows.resources, last.resources)
        and np.array_equal(scaled > 0, last.scaled > 0)
    )


def _columns(rows: Rows, scaled: Reals, counts: list[Longs], workers: Workers) -> tuple[Longs, Ints]:
    """Tenants by resource, in order. Each tile knows its places beforehand, and writes there alone."""
    total = np.sum(counts, axis=0)
    offsets = np.zeros(rows.shape[1] + 1, np.int64)
    np.cumsum(total, out=offsets[1:])
    tenants = np.empty(int(offsets[-1]), np.int32)
    places, at = [], offsets[:-1]
    for count in counts:
        places.append(at.copy())
        at = at + count
    workers.run(
        [
            partial(place_columns, rows.offsets, rows.resources, scaled, first, end, places[tile], tenants)
            for tile, (first, end) in enumerate(rows.tiles)
        ]
    )
    return offsets, tenants


def _dense(demands: ArrayLike) -> Rows:
    found = _reals("demands", demands)
    if found.ndim != 2:
        raise ValueError(f"demands has shape {found.shape}; it must be (tenants, resources)")
    wrong = ~(np.isfinite(found) & (found >= 0))
    if wrong.any():
        tenant, resource = divmod(int(np.argmax(wrong)), found.shape[1])
        raise ValueError(
            f"demands[{tenant}, {resource}] is {found[tenant, resource]}; a demand is finite and not negative"
        )
    tenants, resources = np.nonzero(found)
    offsets = np.zeros(found.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(tenants, minlength=found.shape[0]), out=offsets[1:])
    return Rows(
        (found.shape[0], found.shape[1]),
        dense=True,
        offsets=offsets,
        resources=resources.astype(np.int32),
        values=found[tenants, resources],
        tiles=tiles_of(offsets),
    )


def _sparse(indptr: ArrayLike, indices: ArrayLike, given: ArrayLike, count: int, workers: Workers) -> Rows:
    offsets, columns = _whole("indptr", indptr), _whole("indices", indices)
    values = _reals("values", given)
    if not 0 <= count < 2**31:
        raise ValueError(f"demands[3] is {count}; it must be the number of resources, below 2**31")
    if offsets.size == 0 or offsets[0] != 0:
        raise ValueError("indptr[0] is not 0; indptr has one entry more than there are tenants")
    falls = np.diff(offsets) < 0
    if falls.any():
        raise ValueError(f"indptr[{int(np.argmax(falls)) + 1}] is smaller than the one before it")
    if columns.shape != (offsets[-1],) or values.shape != columns.shape:
        raise ValueError(
            f"indices has shape {columns.shape} and values {values.shape}; indptr ends at {offsets[-1]}"
        )
    tiles = tiles_of(offsets)
    answers = workers.run(
        [partial(faulty_entry, offsets, columns, values, count, first, last) for first, last in tiles]
    )
    for entry, fault in answers:
        if fault != FINE:
            _refuse(entry, fault, offsets, columns, values, count)
    return Rows(
        (offsets.size - 1, count),
        dense=False,
        offsets=offsets.copy(),
        resources=columns.astype(np.int32),
        values=values,
        tiles=tiles,
    )


def _refuse(entry: int, fault: int, offsets: Longs, columns: Longs, values: Reals, count: int) -> None:
    tenant = int(np.searchsorted(offsets, entry, side="right")) - 1
    if fault == BAD_RESOURCE:
        raise ValueError(f"indices[{entry}] is {columns[entry]}; there are {count} resources")
    if fault == BAD_VALUE:
        raise ValueError(
            f"values[{entry}] is {values[entry]} (tenant {tenant}, resource {columns[entry]}); "
            "a demand is finite and not negative"
        )
    raise ValueError(f"indices[{entry}] names resource {columns[entry]} twice for tenant {tenant}")


def _weights(
    weights: ArrayLike | None, rows: Rows, dtype: type[np.float32 | np.float64]
) -> tuple[Doubles, bool]:
    """Weights by tenant, or by entry of the rows (then True)."""
    tenants = rows.shape[0]
    if weights is None:
        return np.ones(tenants), False
    found = _reals("weights", weights).astype(np.float64)
    if found.shape not in ((tenants,), rows.shape):
        raise ValueError(f"weights has shape {found.shape}; it must be ({tenants},) or {rows.shape}")
    used = np.ones(found.shape, np.bool_)
    by_entry = np.repeat(np.arange(tenants), np.diff(rows.offsets))
    if found.ndim == 2:
        used[...] = False
        asked = rows.values > 0
        used[by_entry[asked], rows.resources[asked]] = True
    # No weight on what is asked for, or none that the precision can hold: nobody could be served.
    least, most = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
    wrong = ~(np.isfinite(found) & (found >= 0)) | (used & ~((found >= least) & (found <= most)))
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), found.shape)
        index = ", ".join(str(int(part)) for part in place)
        raise ValueError(
            f"weights[{index}] is {found[place]}; a weight is finite and more than 0 in {dtype.__name__}"
        )
    return (found, False) if found.ndim == 1 else (found[by_entry, rows.resources], True)


def _whole(name: str, values: ArrayLike) -> Longs:
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} is {found.dtype} of shape {found.shape}; it must be a column of whole numbers"
        )
    return np.ascontiguousarray(found, np.int64)


def _reals(name: str, values: ArrayLike) -> Reals:
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {found.dtype}; it must hold numbers")
    if found.dtype == np.float32:
        return np.ascontiguousarray(found, np.float32)
    return np.ascontiguousarray(found, np.float64)
