"""The choice between exact shares of links and stores (EDRF) and nearly exact ones in time (DC-DRF).

Measured times decide it, and not the number of principals and links: the same shares take longer on a busy
machine. Both algorithms divide each resource among those who want more of it than there is, and give nobody
more than its demand. ``rate_control`` makes rates of the shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.fairness import DcDrf, edrf
from dios.fairness.allocation import Floats, Ints
from dios.fairness.sparse_demands import Int32s
from dios.limits import RATE_CALM_SOLVES, RATE_RETRY_SOLVES, RATE_SLOW_SOLVES, RATE_SOLVE_MS_MAX

EXACT: Final = "edrf"
IN_TIME: Final = "dc-drf"
_DEADLINE_S: Final = RATE_SOLVE_MS_MAX / 1000


class TenantDemands(NamedTuple):
    """The demands of n principals for m resources, as fractions of each resource; more than 0."""

    offsets: Ints
    """(n + 1,): the first entry of each principal, and the number of entries."""
    resources: Ints
    """(z,)"""
    values: Floats
    """(z,)"""
    resource_count: int
    weights: Floats
    """(n,)"""


class RateShares(NamedTuple):
    """The shares of one control interval."""

    amounts: Floats
    """(z,): a fraction of a resource for each demand."""
    limited: npt.NDArray[np.bool_]
    """(n,): True for principals that get less than their demands."""


class SolveReport(NamedTuple):
    """The algorithm of the last shares, and its time."""

    algorithm: str
    principals: int
    resources: int
    seconds: float
    epsilon: float
    """The fraction of a resource that may have been left unallocated."""
    completed: bool
    """False if the deadline came first."""
    exact_s: float
    """The time that exact shares took when they were computed last; 0 if they never were."""


class RateSolver:
    """Computes shares exactly while that is fast enough, and by DC-DRF with a deadline while it is not.

    It changes to DC-DRF when exact shares took longer than the deadline RATE_SLOW_SOLVES times in a row. It
    changes back when RATE_CALM_SOLVES intervals in a row show that exact shares take half of the deadline at
    most: DC-DRF was exact itself in that time, or the last exact shares, in proportion to the number of
    demands, would have been. It also changes back, for RATE_RETRY_SOLVES intervals at least, when DC-DRF
    takes as long as slow exact shares would, in that proportion: reading the demands, which no deadline
    shortens, may be most of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_time: DcDrf | None = None
        """DC-DRF with its search for epsilon, while it is in use."""
        self._streak = 0
        """The number of intervals in a row that speak for the other algorithm."""
        self._slower = 0
        """The number of intervals in a row in which DC-DRF was not faster than slow exact shares."""
        self._patience = RATE_SLOW_SOLVES
        """The number of slow intervals in a row after which DC-DRF is used."""
        self._exact_entry_s = self._exact_s = 0.0
        """The time of the last exact shares, for one demand and in all."""
        self.report: SolveReport | None = None

    def solve(self, demands: TenantDemands) -> RateShares:
        """Return the shares of one control interval."""
        if self._in_time is None:
            return self._solve_exactly(demands)
        return self._solve_in_time(self._in_time, demands)

    def _solve_exactly(self, demands: TenantDemands) -> RateShares:
        began = self._clock()
        rows = (demands.offsets, demands.resources, demands.values, demands.resource_count)
        given = edrf(rows, weights=demands.weights, cap=True)
        seconds = self._exact_s = self._clock() - began
        self._exact_entry_s = seconds / max(1, demands.values.size)
        self._note(EXACT, demands, seconds)
        self._streak = self._streak + 1 if seconds > _DEADLINE_S else 0
        if self._streak >= self._patience:
            capped, weights = _with_own_resources(demands)
            self._in_time = DcDrf(
                capped, deadline_s=_DEADLINE_S, weights=weights, threads=1, clock=self._clock
            )
            self._streak = self._slower = 0
        return RateShares(given.amounts, given.bottleneck >= 0)

    def _solve_in_time(self, allocator: DcDrf, demands: TenantDemands) -> RateShares:
        began = self._clock()
        given = allocator.interval(*_with_own_resources(demands))
        seconds = self._clock() - began
        self._note(IN_TIME, demands, seconds, given.epsilon, completed=given.completed)
        was_exact = given.completed and not given.epsilon and seconds <= _DEADLINE_S / 2
        exact_s = self._exact_entry_s * demands.values.size
        calm = was_exact or exact_s <= _DEADLINE_S / 2
        self._streak = self._streak + 1 if calm else 0
        self._slower = self._slower + 1 if seconds >= exact_s and not calm else 0
        if self._streak >= RATE_CALM_SOLVES or self._slower >= RATE_SLOW_SOLVES:
            self._patience = RATE_SLOW_SOLVES if self._streak >= RATE_CALM_SOLVES else RATE_RETRY_SOLVES
            self._in_time, self._streak = None, 0
        shared = (given.bottleneck >= 0) & (given.bottleneck < demands.resource_count)
        # A principal that still rose at the deadline has a level, and keeps to it.
        rising = (given.bottleneck < 0) & (np.diff(demands.offsets) > 0)
        own = np.ones(given.amounts.size, np.bool_)
        own[_ends(demands)] = False
        return RateShares(given.amounts[own], shared | rising)

    def _note(
        self,
        algorithm: str,
        demands: TenantDemands,
        seconds: float,
        epsilon: float = 0.0,
        *,
        completed: bool = True,
    ) -> None:
        principals = demands.weights.size
        self.report = SolveReport(
            algorithm, principals, demands.resource_count, seconds, epsilon, completed, self._exact_s
        )


def _ends(demands: TenantDemands) -> Ints:
    """Return the place of each principal's own resource in the rows that have it, (n,)."""
    return demands.offsets[1:] + np.arange(demands.weights.size)


def _with_own_resources(demands: TenantDemands) -> tuple[tuple[Ints, Int32s, Floats, int], Floats]:
    """Return demands and weights with a resource for each principal that is exhausted by its whole demand.

    DC-DRF has no bound at the demand, and so would divide among principals what some of them do not want. The
    own resource must not count as the dominant one of a principal that demands less than all of each
    resource: its weight makes up for that.
    """
    principals, entries = demands.weights.size, demands.values.size
    number = np.arange(principals)
    ends = _ends(demands)
    shared = np.ones(entries + principals, np.bool_)
    shared[ends] = False
    values, resources = np.ones(shared.size), np.empty(shared.size, np.int32)
    values[shared], resources[shared] = demands.values, demands.resources
    resources[ends] = demands.resource_count + number
    offsets = demands.offsets.copy()
    offsets[1:] += number + 1
    weights = demands.weights.copy()
    some = np.flatnonzero(np.diff(demands.offsets))
    if some.size:
        weights[some] /= np.minimum(np.maximum.reduceat(demands.values, demands.offsets[some]), 1.0)
    return (offsets, resources, values, demands.resource_count + principals), weights
