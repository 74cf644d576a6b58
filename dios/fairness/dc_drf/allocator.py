"""DC-DRF: an allocation that is nearly EDRF, before a deadline, in every control interval."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dios.fairness.allocation import Allocation, as_number_array
from dios.fairness.dc_drf.columns import TILED_MIN, DemandTable, TileWorkers, build_table, tiles_of
from dios.fairness.dc_drf.epsilon import EPSILON_MAX, EpsilonSearch
from dios.fairness.dc_drf.kernels import (
    BEFORE,
    BLOCK,
    COUNT,
    MU,
    allocate_rows,
    gather_rows,
    recompute_sums,
    run_rounds,
    subtract_tiles,
)
from dios.fairness.sparse_demands import DemandRows, Demands, Reals, as_rows

THREADED_MIN: Final = 1 << 20
"""The least number of non-zero demands for more than one thread: with fewer, an interval on two threads takes
longer (docs/experiments.md#fair-shares)."""

CLOCK_CHECK_ENTRIES: Final = 50_000
"""Row entries that are touched between two readings of the clock: less than a millisecond."""


class TileTimes(NamedTuple):
    """Processor time of the parts of an interval that several threads share, in seconds.

    An interval takes its other processor time and ``longest_s`` if each thread has a processor of its own.
    """

    tiled_s: float
    """Of all threads together."""
    longest_s: float
    """Of the thread that worked longest, in each step."""


class DcDrf:
    """Algorithm 2 of the DC-DRF paper: one allocation for each control interval, before its deadline.

    Arguments:
    - ``demands``: dense (n, m), or CSR ``(indptr, indices, values, m)``: the demand of tenant i for resource
      r as a fraction of r. Only the proportions within a tenant count.
    - ``deadline_s``: seconds after which the rounds of an interval end.
    - ``weights``: (n,) or (n, m), positive; None means 1 for all.
    - ``threads``: the largest number of tiles at a time; by default the CPUs of this process. Fewer demands
      than THREADED_MIN have one thread. The allocation does not depend on it.
    - ``dtype``: the precision of the rows, "float32" or "float64". Sums over tenants, residuals, amounts and
      shares are always double.
    - ``epsilon``: the first value of the search: 0 is exact; after a restart, pass the last value.
    - ``clock``: returns seconds and never runs backwards.

    Raises ``ValueError`` with the index at fault; the allocator is then unchanged. Not thread-safe.
    """

    def __init__(
        self,
        demands: Demands,
        *,
        deadline_s: float,
        weights: ArrayLike | None = None,
        threads: int | None = None,
        dtype: str = "float32",
        epsilon: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise ValueError(f"deadline_s is {deadline_s}; it must be a finite number of seconds above 0")
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; it must be at least 1")
        if not 0.0 <= epsilon <= EPSILON_MAX:
            raise ValueError(f"epsilon is {epsilon}; it must lie between 0 and {EPSILON_MAX}")
        self._threads = threads or len(os.sched_getaffinity(0))
        self._dtype = _precision(dtype)
        self._deadline_s = float(deadline_s)
        self._weights = None if weights is None else as_number_array("weights", weights).copy()
        self._clock = clock
        self._search = EpsilonSearch(float(epsilon))
        self.tile_times = TileTimes(0.0, 0.0)
        """The processor time of the tiles of the last interval."""
        rows = as_rows(demands, single=True)
        with self._workers(rows) as workers:
            self._table = build_table(rows, self._weights, self._dtype, workers, None)
            self._spare: Reals | None = None
            _warm_up(self._dtype, workers)

    def _workers(self, rows: DemandRows) -> TileWorkers:
        """Return the threads for these demands; a small case has one."""
        return TileWorkers(self._threads if rows.values.size >= THREADED_MIN else 1)

    @property
    def epsilon(self) -> float:
        """The fraction of a resource that the next interval may leave unallocated."""
        return self._search.epsilon

    def interval(self, demands: Demands | None = None, weights: ArrayLike | None = None) -> Allocation:
        """Return the allocation of one control interval; ``demands`` replace the last ones, None keeps them.

        ``weights`` replace the last ones together with new demands; None keeps them.

        ``amounts`` are fractions of the resources in the demands' shape (CSR: one for each value), ``share``
        is z (the dominant share if weights are 1), ``bottleneck`` is the resource that stopped a tenant, and
        ``epsilon`` is the value that was used. If ``completed``, every tenant with demands needs some
        resource of which at least 1 - epsilon is allocated; with epsilon 0 the result is EDRF. If the
        deadline came first, the last complete round counts: tenants that still rise keep the level they have
        reached (line 21), and no resource is over capacity. At least one round is always made.

        Reading new demands counts towards the deadline; the final pass that writes the amounts does not.
        Paper: section 3, Algorithm 2; tiles of Table 2.
        """
        began = self._clock()
        if weights is not None and demands is None:
            raise ValueError("weights came without demands; give both, because demands are kept weighted")
        rows = None if demands is None else as_rows(demands, single=True)
        weighting = self._weights if weights is None else as_number_array("weights", weights).copy()
        with self._workers(rows or self._table.rows) as workers:
            table = self._table
            if rows is not None:
                spare, self._spare = self._spare, None
                table = build_table(rows, weighting, self._dtype, workers, self._table, spare)
                self._weights = weighting
            rounds = _Rounds(table, self._search.epsilon, workers)
            used = 0.0
            while rounds.active and used <= self._deadline_s:
                rounds.advance()
                used = self._clock() - began
            allocation = rounds.allocation()
            self.tile_times = TileTimes(workers.tiled_s, workers.longest_s)
        if table is not self._table:
            # Reusing this memory is faster than asking the system for new pages.
            self._table, self._spare = table, self._table.rows.values
        self._search.record_interval(late=used > self._deadline_s, used=used / self._deadline_s)
        return allocation


def _precision(dtype: str) -> type[np.float32 | np.float64]:
    for kind in (np.float32, np.float64):
        if dtype in (kind, kind.__name__):
            return kind
    raise ValueError(f"dtype is {dtype!r}; it must be float32 or float64")


def _warm_up(dtype: type[np.float32 | np.float64], workers: TileWorkers) -> None:
    """Run every kernel once on a tiny case, so that no interval has to wait for the compiler."""
    rounds = _Rounds(build_table(as_rows([[1.0]]), None, dtype, workers, None), 0.0, workers)
    rounds.advance()
    rounds.subtract(np.zeros(0, np.int32))
    rounds.allocation()


@dataclass(frozen=True)
class _RoundBuffers:
    """Arrays that the rounds write to: each tenant's state, and lists that every round fills again."""

    active: NDArray[np.uint8]
    reached: NDArray[np.float64]
    bottleneck: NDArray[np.int32]
    dry: NDArray[np.int32]
    leaving: NDArray[np.int32]
    worn: NDArray[np.int32]


class _Rounds:
    """The rounds of one interval: lines 5 to 23 of Algorithm 2."""

    def __init__(self, table: DemandTable, epsilon: float, workers: TileWorkers) -> None:
        tenants, resources = table.rows.shape
        self._table = table
        self._epsilon = epsilon
        self._workers = workers
        self._level = 0.0
        self._count = 0
        self._state = np.zeros((resources, 4))
        self._state[:, MU] = self._state[:, BEFORE] = table.sums
        self._state[:, COUNT] = table.counts
        self._taken = np.empty((0, resources, 2))
        self._soonest = np.zeros(-(-resources // BLOCK))
        self._buffers = _RoundBuffers(
            active=np.ones(tenants, np.uint8),
            reached=np.zeros(tenants),
            bottleneck=np.full(tenants, -1, np.int32),
            dry=np.empty(resources, np.int32),
            leaving=np.empty(tenants, np.int32),
            worn=np.empty(resources, np.int32),
        )
        self.active = table.active
        """The number of tenants that still rise."""

    def advance(self) -> None:
        """Run at least one round: lines 13 to 18."""
        table, buffers = self._table, self._buffers
        rounds, self._level, self.active, pending = run_rounds(
            self._level,
            self._epsilon,
            self.active,
            table.rows.offsets,
            table.rows.resources,
            table.rows.values,
            table.column_offsets,
            table.column_tenants,
            self._state,
            self._soonest,
            buffers.active,
            buffers.reached,
            buffers.bottleneck,
            buffers.dry,
            buffers.leaving,
            buffers.worn,
            CLOCK_CHECK_ENTRIES,
            # Below this size separate sums per tile do not pay; the choice depends on the case alone.
            max(TILED_MIN, 4 * table.rows.shape[1]),
        )
        if rounds < 0:
            raise AssertionError(f"{self.active} tenants still rise, but no resource has a demand")
        self._count += rounds
        if pending and self.active:
            self.subtract(np.sort(buffers.leaving[:pending]))

    def subtract(self, leaving: NDArray[np.int32]) -> None:
        """Subtract many leaving tenants from the sums, in tiles (line 17)."""
        table, buffers = self._table, self._buffers
        ends = np.zeros(leaving.size + 1, np.int64)
        np.cumsum(table.rows.offsets[leaving + 1] - table.rows.offsets[leaving], out=ends[1:])
        tiles = tiles_of(ends)
        if len(self._taken) < len(tiles):
            self._taken = np.empty((len(tiles), table.rows.shape[1], 2))
        taken = self._taken[: len(tiles)]
        self._workers.run(
            [
                partial(
                    gather_rows,
                    *(
                        table.rows.offsets,
                        table.rows.resources,
                        table.rows.values,
                        leaving[first:last],
                        taken[tile],
                    ),
                )
                for tile, (first, last) in enumerate(tiles)
            ]
        )
        worn = subtract_tiles(self._level, taken, self._state, buffers.worn)
        if worn:
            recompute_sums(
                *(
                    table.rows.offsets,
                    table.rows.resources,
                    table.rows.values,
                    table.column_offsets,
                    table.column_tenants,
                ),
                *(buffers.active, buffers.worn[:worn], self._state),
            )

    def allocation(self) -> Allocation:
        """Return the amounts (lines 20 to 23); tenants that still rise keep the level of the last round."""
        table, buffers = self._table, self._buffers
        rows = table.rows
        amounts = np.empty(rows.values.size)
        self._workers.run(
            [
                partial(
                    allocate_rows,
                    *(self._level, rows.offsets, rows.values, buffers.active),
                    *(buffers.reached, first, last, amounts),
                )
                for first, last in table.tiles
            ]
        )
        return Allocation(
            amounts=rows.in_input_shape(amounts),
            share=buffers.reached,
            bottleneck=buffers.bottleneck.astype(np.int64),
            rounds=self._count,
            epsilon=self._epsilon,
            completed=self.active == 0,
        )
