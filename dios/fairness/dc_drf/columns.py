"""Demands in the form that DC-DRF works on: checked, scaled to v = rho d, and indexed by resource.

A table is never changed after it was built; the rounds of an interval work on copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dios.fairness.allocation import Floats, Ints
from dios.fairness.dc_drf.kernels import scale_rows
from dios.fairness.sparse_demands import (
    DemandRows,
    Int32s,
    Reals,
    check_entries,
    checked_weights,
    fill_columns,
)

_T = TypeVar("_T")

TILES: Final = 16
"""The number of tiles of tenants in a large case, whatever the number of threads, so that sums never vary."""

TILED_MIN: Final = 1 << 16
"""The least number of non-zero demands for tiles; handing one to a thread takes about 50 microseconds."""


class TileWorkers:
    """A thread pool for the tiles of a step, or none if ``threads`` is 1. Use it in a ``with`` block."""

    def __init__(self, threads: int) -> None:
        self.tiled_s = 0.0
        """The processor time of all tiles so far, in seconds."""
        self.longest_s = 0.0
        """The sum over all steps of the processor time of the thread that worked longest in the step."""
        self._pool = ThreadPoolExecutor(threads, "dc-drf") if threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def run(self, tiles: Sequence[Callable[[], _T]]) -> list[_T]:
        """Run all tiles; return their results in order."""
        if self._pool is None or len(tiles) == 1:
            timed = [_timed(tile) for tile in tiles]
        else:
            timed = [future.result() for future in [self._pool.submit(_timed, tile) for tile in tiles]]
        by_thread: dict[int, float] = {}
        for _, thread, spent in timed:
            by_thread[thread] = by_thread.get(thread, 0.0) + spent
        self.tiled_s += sum(by_thread.values())
        self.longest_s += max(by_thread.values(), default=0.0)
        return [result for result, _, _ in timed]


def _timed(tile: Callable[[], _T]) -> tuple[_T, int, float]:
    """Run a tile; return its result, the thread, and its processor time in seconds."""
    began = time.thread_time()
    result = tile()
    return result, threading.get_ident(), time.thread_time() - began


@dataclass(frozen=True)
class DemandTable:
    """Demands of n tenants for m resources: rows of v, tenants by resource, and initial mu and counts."""

    rows: DemandRows
    """The rows; their values are v."""
    column_offsets: Ints
    column_tenants: Int32s
    sums: Floats
    counts: Ints
    active: int
    tiles: tuple[tuple[int, int], ...]
    zeros: bool
    """True if some v may be 0."""


def tiles_of(offsets: Ints) -> tuple[tuple[int, int], ...]:
    """Return ranges of tenants with about equally many entries; a single range for a small case."""
    tenants, entries = offsets.size - 1, int(offsets[-1])
    if entries < TILED_MIN:
        return ((0, tenants),)
    cuts = np.searchsorted(offsets, np.linspace(0, entries, TILES + 1)[1:-1])
    bounds = [0, *(min(tenants, int(cut)) for cut in cuts), tenants]
    return tuple((a, b) for a, b in pairwise(bounds) if a < b)


def build_table(
    rows: DemandRows,
    weights: ArrayLike | None,
    dtype: type[np.float32 | np.float64],
    workers: TileWorkers,
    last: DemandTable | None,
    spare: Reals | None = None,
) -> DemandTable:
    """Return the demands checked, scaled and indexed; reuse the columns of ``last`` if they are the same.

    ``spare`` is memory for the v if it has the right size and type. Rows are copied, so the table shares
    no memory with the caller.
    """
    least = float(rows.values.min(initial=np.inf))
    sound = least >= 0.0 and bool(rows.values.max(initial=0.0) < np.inf)
    tiles = tiles_of(rows.offsets)
    same = last is not None and sound and _same_columns(rows, last, zeros=least == 0.0)
    if last is not None and same:
        rows = replace(rows, offsets=last.rows.offsets, resources=last.rows.resources)
    else:
        workers.run([partial(check_entries, rows, first, end) for first, end in tiles])
        rows = replace(rows, offsets=rows.offsets.copy(), resources=rows.resources.copy())
    shares, per_entry = checked_weights(weights, rows, dtype)
    fits = spare is not None and spare.size == rows.values.size and spare.dtype == dtype
    scaled = spare if spare is not None and fits else np.empty(rows.values.size, dtype)
    sums = [np.zeros(rows.shape[1]) for _ in tiles]
    counts = [np.zeros(rows.shape[1], np.int64) for _ in tiles]
    active = workers.run(
        [
            partial(
                scale_rows,
                *(rows.offsets, rows.resources, rows.values, shares, per_entry),
                *(first, end, scaled, sums[tile], counts[tile]),
            )
            for tile, (first, end) in enumerate(tiles)
        ]
    )
    rows = replace(rows, values=scaled)
    if last is not None and same:
        column_offsets, column_tenants = last.column_offsets, last.column_tenants
    else:
        column_offsets, column_tenants = _columns(rows, tiles, counts, workers)
    return DemandTable(
        rows=rows,
        column_offsets=column_offsets,
        column_tenants=column_tenants,
        sums=np.sum(sums, axis=0),
        counts=np.sum(counts, axis=0),
        active=sum(active),
        tiles=tiles,
        zeros=least == 0.0,
    )


def _same_columns(rows: DemandRows, last: DemandTable, *, zeros: bool) -> bool:
    """Return True if the same tenants demand the same resources; ``zeros``: some of the new values are 0."""
    return (
        rows.shape == last.rows.shape
        and np.array_equal(rows.offsets, last.rows.offsets)
        and np.array_equal(rows.resources, last.rows.resources)
        and (not (zeros or last.zeros) or np.array_equal(rows.values > 0, last.rows.values > 0))
    )


def _columns(
    rows: DemandRows, tiles: tuple[tuple[int, int], ...], counts: list[Ints], workers: TileWorkers
) -> tuple[Ints, Int32s]:
    """Return the tenants by resource, in order. Each tile writes only to its own places."""
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
            partial(
                fill_columns,
                *(rows.offsets, rows.resources, rows.values, True),
                *(first, end, places[tile], tenants),
            )
            for tile, (first, end) in enumerate(tiles)
        ]
    )
    return offsets, tenants
