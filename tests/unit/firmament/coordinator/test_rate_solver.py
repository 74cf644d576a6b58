"""The choice between exact shares and those of DC-DRF, by measured times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dios.fairness import edrf
from dios.fairness.allocation import Floats
from dios.firmament.coordinator.rate_solver import EXACT, IN_TIME, RateSolver, TenantDemands
from dios.limits import RATE_CALM_SOLVES, RATE_SLOW_SOLVES, RATE_SOLVE_MS_MAX

LATE_S = 2 * RATE_SOLVE_MS_MAX / 1000


class StepClock:
    """A clock that goes on by ``step_s`` at each reading, so that each computation takes at least that."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += self.step_s
        return self.now


def drawn(seed: int, principals: int = 40, resources: int = 6) -> TenantDemands:
    """Return demands for some resources each: small ones, and some for more than there is."""
    random = np.random.default_rng(seed)
    wanted = random.random((principals, resources)) < 0.5
    values = np.where(
        wanted, random.choice([0.01, 0.1, 3.0], (principals, 1)) * random.random(wanted.shape), 0
    )
    row, column = np.nonzero(values)
    offsets = np.searchsorted(row, np.arange(principals + 1)).astype(np.int64)
    weights = random.choice([0.5, 1.0, 4.0], principals)
    return TenantDemands(offsets, column.astype(np.int64), values[row, column], resources, weights)


def is_short(demands: TenantDemands, amounts: Floats) -> npt.NDArray[np.bool_]:
    """Return True for each principal that has less than its demands."""
    tenant = np.repeat(np.arange(demands.weights.size), np.diff(demands.offsets))
    return np.bincount(tenant, demands.values - amounts, demands.weights.size) > 1e-6


def solver_in_time(clock: StepClock, demands: TenantDemands) -> RateSolver:
    """Return a solver whose exact shares took too long, so that DC-DRF computes the next ones."""
    solver = RateSolver(clock)
    clock.step_s = LATE_S
    for _ in range(RATE_SLOW_SOLVES):
        solver.solve(demands)
    return solver


@pytest.mark.parametrize("seed", range(12))
def test_dc_drf_gives_nobody_more_than_its_demand_and_is_exact_if_there_is_time(seed: int) -> None:
    """With enough time the shares of DC-DRF, and the principals that it limits, are those of EDRF."""
    demands, clock = drawn(seed), StepClock()
    solver = solver_in_time(clock, demands)
    clock.step_s = 0.0
    shares = solver.solve(demands)
    rows = (demands.offsets, demands.resources, demands.values, demands.resource_count)
    exact = edrf(rows, weights=demands.weights, cap=True)
    assert solver.report is not None
    assert (solver.report.algorithm, solver.report.epsilon, solver.report.completed) == (IN_TIME, 0.0, True)
    assert shares.amounts == pytest.approx(exact.amounts, rel=1e-5)
    # A demand that its resource can just satisfy may end at either.
    gap = is_short(demands, exact.amounts)
    assert (shares.limited[gap]).all()
    assert not shares.limited[~gap & (exact.bottleneck < 0)].any()


def test_exact_shares_that_are_slow_once_are_computed_again() -> None:
    """A single slow solution may have been the machine's; only several in a row change the algorithm."""
    demands, clock = drawn(1), StepClock()
    solver = RateSolver(clock)
    used = []
    for step in (LATE_S, 0.0, LATE_S, LATE_S, 0.0):
        clock.step_s = step
        solver.solve(demands)
        assert solver.report is not None
        used.append(solver.report.algorithm)
    assert used == [EXACT, EXACT, EXACT, EXACT, IN_TIME]
    assert solver.report is not None
    assert solver.report.exact_s == pytest.approx(LATE_S)


def test_dc_drf_is_used_until_it_was_exact_and_fast_for_some_intervals() -> None:
    """The way back needs RATE_CALM_SOLVES good intervals in a row, so that the algorithm does not flap."""
    demands, clock = drawn(2), StepClock()
    solver = solver_in_time(clock, demands)
    used = []
    for step in (0.0, LATE_S, *[0.0] * (RATE_CALM_SOLVES + 8)):
        clock.step_s = step
        solver.solve(demands)
        assert solver.report is not None
        used.append(solver.report.algorithm)
    back = used.index(EXACT)
    assert set(used[:back]) == {IN_TIME}
    # The late interval raised epsilon; the intervals until it was 0 again do not count.
    assert back > 2 + RATE_CALM_SOLVES


def test_few_demands_need_no_deadline() -> None:
    """Exact shares return for demands so few that exact shares would be fast, as they were measured."""
    clock = StepClock()
    solver = solver_in_time(clock, drawn(3, principals=400))
    few = drawn(3, principals=5)
    clock.step_s = LATE_S / 10
    for _ in range(RATE_CALM_SOLVES):
        solver.solve(few)
        assert solver.report is not None
        assert solver.report.algorithm == IN_TIME
    solver.solve(few)
    assert solver.report is not None
    assert solver.report.algorithm == EXACT


def test_shares_at_the_deadline_overload_nothing_and_hold_for_all_that_still_rose() -> None:
    """Principals that the deadline stopped keep their level, so they are limited, and no link is over."""
    demands, clock = drawn(4, principals=6_000, resources=50), StepClock()
    solver = solver_in_time(clock, demands)
    shares = solver.solve(demands)
    assert solver.report is not None
    assert not solver.report.completed
    sums = np.bincount(demands.resources, shares.amounts, demands.resource_count)
    assert (sums <= 1 + 1e-6).all()
    gap = is_short(demands, shares.amounts)
    assert (shares.limited == gap).all()
    assert gap.any()


def test_dc_drf_that_is_not_faster_is_not_used() -> None:
    """Where reading the demands takes the most time, exact shares come back, for many intervals."""
    demands, clock = drawn(5), StepClock()
    solver = solver_in_time(clock, demands)
    used = []
    for _ in range(RATE_SLOW_SOLVES + 2 * RATE_CALM_SOLVES):
        # Each computation of DC-DRF reads the clock at least twice as often as an exact one.
        solver.solve(demands)
        assert solver.report is not None
        used.append(solver.report.algorithm)
    assert used == [IN_TIME] * RATE_SLOW_SOLVES + [EXACT] * (2 * RATE_CALM_SOLVES)


def test_more_demands_are_compared_with_exact_shares_of_as_many() -> None:
    """DC-DRF that takes longer than exact shares of the former, few demands did is still the faster one."""
    clock = StepClock()
    solver = solver_in_time(clock, drawn(6, principals=20))
    many = drawn(6, principals=2_000)
    for _ in range(2 * RATE_SLOW_SOLVES):
        solver.solve(many)
        assert solver.report is not None
        assert solver.report.algorithm == IN_TIME
        assert solver.report.seconds > solver.report.exact_s
