from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dios.fairness.allocation import Allocation
from dios.fairness.dc_drf import allocator
from dios.fairness.dc_drf import columns as dc_drf_columns
from dios.fairness.dc_drf.allocator import DcDrf
from dios.fairness.dc_drf.epsilon import EPSILON_MAX, EpsilonSearch
from dios.fairness.sparse_demands import Demands
from labs.simulate.fairness.generate_demands import generate_demands

Doubles = NDArray[np.float64]
TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
LONG_S = 1e9
CASES = 1000


def naive(demands: Doubles, weights: Doubles | None, rounds: int | None = None) -> tuple[Doubles, Doubles]:
    """The paper's Algorithm 1 as it stands, over sums made anew each round: amounts and z."""
    n, m = demands.shape
    if weights is None:
        weights = np.ones(n)
    by_entry = np.broadcast_to(weights[:, None] if weights.ndim == 1 else weights, (n, m))
    d = demands / np.maximum(demands.max(axis=1, keepdims=True), 1e-300)
    with np.errstate(divide="ignore"):
        rho = np.min(np.where(d > 0, by_entry / d, np.inf), axis=1)
    v = np.where(d > 0, np.where(np.isinf(rho), 0.0, rho)[:, None] * d, 0.0)
    left, z, alive = np.ones(m), np.zeros(n), demands.max(axis=1) > 0
    done = 0
    while alive.any() and (rounds is None or done < rounds):
        mu = v[alive].sum(axis=0)
        x = min(left[r] / mu[r] for r in range(m) if mu[r] > 0)
        left = left - x * mu
        z[alive] += x
        dry = (left <= 1e-12) & (mu > 0)
        alive &= ~(v[:, dry] > 0).any(axis=1)
        done += 1
    return v * z[:, None], z


def random_case(seed: int) -> tuple[Doubles, Doubles | None]:
    """Demands with zeros, idle tenants, ties, single rows and columns; weights of every shape."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 25)), int(rng.integers(1, 9))
    demands = rng.random((n, m)) * (rng.random((n, m)) < rng.choice([0.3, 0.7, 1.0]))
    if seed % 3 == 0:
        demands = np.ceil(demands * 4) / 4
    demands[rng.random(n) < 0.1] = 0.0
    if seed % 4 == 1:
        return demands, rng.integers(1, 5, n).astype(np.float64)
    if seed % 4 == 2:
        return demands, rng.random((n, m)) + 0.1
    return demands, None


def csr(demands: Doubles) -> tuple[NDArray[np.int64], NDArray[np.int64], Doubles, int]:
    """The demands in compressed rows."""
    rows, columns = np.nonzero(demands)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(demands)))])
    return offsets, columns, demands[rows, columns], demands.shape[1]


def ticking(step: float) -> Callable[[], float]:
    """A clock that moves by ``step`` seconds at every look."""
    ticks = itertools.count()
    return lambda: next(ticks) * step


def same(left: Allocation, right: Allocation) -> bool:
    """Whether two allocations are equal to the last bit."""
    return (
        np.array_equal(left.amounts, right.amounts)
        and np.array_equal(left.share, right.share)
        and np.array_equal(left.bottleneck, right.bottleneck)
        and left.rounds == right.rounds
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.extended(keep=1)
def test_epsilon_zero_is_the_exact_allocation(dtype: str) -> None:
    """With epsilon 0 and time enough the allocation is Algorithm 1's, dense and sparse, on 1,000 cases."""
    for seed in range(CASES):
        demands, weights = random_case(seed)
        amounts, z = naive(demands, weights)
        allocation = DcDrf(demands, deadline_s=LONG_S, weights=weights, threads=1, dtype=dtype).interval()
        near = TOLERANCE[dtype] * max(1.0, float(z.max(initial=0.0)))
        assert allocation.completed, seed
        np.testing.assert_allclose(allocation.amounts, amounts, atol=near, rtol=0, err_msg=f"seed {seed}")
        np.testing.assert_allclose(allocation.share, z, atol=near, rtol=0, err_msg=f"seed {seed}")
        assert (allocation.amounts.sum(axis=0) <= 1 + 1e-12).all(), seed
        assert ((allocation.bottleneck >= 0) == (demands.max(axis=1) > 0)).all(), seed
        sparse = DcDrf(csr(demands), deadline_s=LONG_S, weights=weights, threads=1, dtype=dtype).interval()
        assert np.array_equal(sparse.amounts, allocation.amounts[demands > 0]), seed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_completed_it_keeps_its_bound(dtype: str) -> None:
    """Every tenant wants a resource of which 1 - epsilon is given; none is over capacity; epsilon is told."""
    for seed in range(CASES):
        demands, weights = random_case(seed)
        epsilon = (0.01, 0.1, 0.5)[seed % 3]
        allocation = DcDrf(
            demands, deadline_s=LONG_S, weights=weights, threads=1, dtype=dtype, epsilon=epsilon
        ).interval()
        used = allocation.amounts.sum(axis=0)
        assert allocation.completed, seed
        assert allocation.epsilon == epsilon, seed
        assert (used <= 1 + 1e-12).all(), seed
        served = np.where(demands > 0, used, 0.0).max(axis=1)
        assert (served[demands.max(axis=1) > 0] >= 1 - epsilon - 1e-12).all(), seed
        asking = np.flatnonzero(demands.max(axis=1) > 0)
        assert (used[allocation.bottleneck[asking]] >= 1 - epsilon - 1e-12).all(), seed
        assert (demands[asking, allocation.bottleneck[asking]] > 0).all(), seed


def test_a_timeout_keeps_the_last_complete_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after k rounds, the allocation is Algorithm 1's after k rounds, and says it is not complete."""
    monkeypatch.setattr(allocator, "CLOCK_CHECK_ENTRIES", 1)
    demands = np.random.default_rng(5).random((60, 30)) * (np.random.default_rng(6).random((60, 30)) < 0.1)
    exact = DcDrf(demands, deadline_s=LONG_S, dtype="float64").interval()
    assert exact.rounds > 5
    for rounds in range(1, exact.rounds):
        allocation = DcDrf(
            demands, deadline_s=rounds - 0.5, threads=1, dtype="float64", clock=ticking(1.0)
        ).interval()
        assert (allocation.rounds, allocation.completed) == (rounds, False)
        amounts, z = naive(demands, None, rounds)
        np.testing.assert_allclose(allocation.amounts, amounts, atol=1e-12, rtol=1e-9)
        np.testing.assert_allclose(allocation.share, z, atol=1e-12, rtol=1e-9)


def test_epsilon_rises_when_late_and_falls_with_time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0 epsilon rises until an interval completes; with a deadline that grew it falls back to 0."""
    monkeypatch.setattr(allocator, "CLOCK_CHECK_ENTRIES", 1)
    demands = generate_demands("G0", 300, 200, seed=1)
    sharing = DcDrf(demands, deadline_s=20.5, threads=1, clock=ticking(1.0))
    seen = [sharing.interval() for _ in range(40)]
    assert seen[0].epsilon == 0
    assert not seen[0].completed
    late = list(itertools.takewhile(lambda allocation: not allocation.completed, seen))
    assert all(a.epsilon < b.epsilon for a, b in itertools.pairwise(late))
    assert any(allocation.completed for allocation in seen)
    assert all(allocation.rounds <= 21 for allocation in seen)
    kept = min(allocation.epsilon for allocation in seen if allocation.completed)
    unhurried = DcDrf(demands, deadline_s=LONG_S, threads=1, epsilon=kept, clock=ticking(1.0))
    fallen = [unhurried.interval() for _ in range(40)]
    assert all(allocation.completed for allocation in fallen)
    assert all(a.epsilon > b.epsilon or a.epsilon == 0 for a, b in itertools.pairwise(fallen))
    assert unhurried.epsilon == 0
    assert fallen[-1].rounds > fallen[0].rounds


def test_the_search_settles_just_within_the_deadline() -> None:
    """Where an interval takes c / epsilon, the search comes within a fifth of the best epsilon and stays."""
    for best in (2e-6, 3e-4, 0.02):
        search = EpsilonSearch()
        trail = []
        for _ in range(80):
            used = best / search.epsilon if search.epsilon else 100.0
            search.record_interval(late=used > 1, used=used)
            trail.append(search.epsilon)
        assert all(best / 1.2 < epsilon < best * 1.2 for epsilon in trail[50:]), (best, trail)


def test_epsilon_has_a_greatest_value() -> None:
    """However often the search comes too late, epsilon stays at its bound."""
    search = EpsilonSearch()
    for _ in range(60):
        search.record_interval(late=True, used=2.0)
    assert search.epsilon == EPSILON_MAX


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """One thread and two give the same allocation to the last bit, with tiles and many tenants leaving."""
    demands = generate_demands("U2", 2000, 150, seed=3)
    monkeypatch.setattr(allocator, "THREADED_MIN", 1)
    for epsilon in (0.0, 0.05):
        monkeypatch.setattr(dc_drf_columns, "TILED_MIN", 1000)
        monkeypatch.setattr(allocator, "TILED_MIN", 1000)
        serial, two = (
            DcDrf(demands, deadline_s=LONG_S, threads=threads, dtype=dtype, epsilon=epsilon).interval()
            for threads in (1, 2)
        )
        assert same(serial, two)
        monkeypatch.setattr(dc_drf_columns, "TILED_MIN", 1 << 40)
        monkeypatch.setattr(allocator, "TILED_MIN", 1 << 40)
        whole = DcDrf(demands, deadline_s=LONG_S, threads=1, dtype=dtype, epsilon=epsilon).interval()
        np.testing.assert_allclose(serial.amounts, whole.amounts, rtol=1e-6, atol=1e-12)


def test_small_cases_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are used from a number of demands on; the times of their tiles are added up by thread."""
    counts: list[int] = []

    class Recorded(dc_drf_columns.TileWorkers):
        def __init__(self, threads: int) -> None:
            counts.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(allocator, "TileWorkers", Recorded)
    demands = generate_demands("U2", 200, 50, seed=3)
    DcDrf(demands, deadline_s=LONG_S, threads=2).interval(demands)
    assert counts == [1, 1]
    monkeypatch.setattr(allocator, "THREADED_MIN", demands[2].size)
    sharing = DcDrf(demands, deadline_s=LONG_S, threads=2)
    sharing.interval()
    assert counts[2:] == [2, 2]
    assert 0.0 < sharing.tile_times.longest_s <= sharing.tile_times.tiled_s


def test_new_demands_take_the_place_of_the_last() -> None:
    """An interval with new demands, of the same places or of others, is what a new object would give."""
    rng = np.random.default_rng(8)
    first = rng.random((40, 12)) * (rng.random((40, 12)) < 0.4)
    sharing = DcDrf(first, deadline_s=LONG_S, dtype="float64")
    sharing.interval()
    for changed in (first * (1 + rng.random((40, 12))), np.roll(first, 1, axis=1), rng.random((7, 3))):
        fresh = DcDrf(changed, deadline_s=LONG_S, dtype="float64").interval()
        assert same(sharing.interval(changed), fresh)
        assert same(sharing.interval(), fresh)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_the_same_places_are_taken_in_as_if_they_were_the_first(dtype: str) -> None:
    """Interval after interval with other values, zeros and idle tenants and bad ones among them."""
    rng = np.random.default_rng(12)
    offsets, resources, values, count = csr(rng.random((30, 8)) * (rng.random((30, 8)) < 0.5))
    sharing = DcDrf((offsets, resources, values, count), deadline_s=LONG_S, dtype=dtype)
    for turn in range(30):
        values = rng.random(values.size)
        if turn % 3:
            values[rng.random(values.size) < 0.2] = 0.0
            values[: offsets[turn % 5]] = 0.0
        fresh = DcDrf((offsets, resources, values, count), deadline_s=LONG_S, dtype=dtype).interval()
        assert same(sharing.interval((offsets, resources, values, count)), fresh), turn
        with pytest.raises(ValueError, match="values"):
            sharing.interval((offsets, resources, np.where(values > 0.9, np.nan, values), count))
        assert same(sharing.interval(), fresh), turn


def test_demands_that_change_under_its_hands_change_nothing() -> None:
    """The arrays that were handed over may be written to afterwards."""
    demands = csr(np.random.default_rng(9).random((20, 5)))
    sharing = DcDrf(demands, deadline_s=LONG_S)
    before = sharing.interval()
    for column in demands[:3]:
        assert isinstance(column, np.ndarray)
        column[:] = 0
    assert same(sharing.interval(), before)


def test_nobody_and_nothing() -> None:
    """No tenants, no resources, or only idle tenants: an empty allocation, complete, in no rounds."""
    for shape in ((0, 3), (3, 0), (0, 0), (4, 2)):
        allocation = DcDrf(np.zeros(shape), deadline_s=1.0).interval()
        assert allocation.amounts.shape == shape
        assert (allocation.rounds, allocation.completed) == (0, True)
        assert (allocation.share == 0).all()
        assert (allocation.bottleneck == -1).all()


def test_a_sum_that_lost_its_digits_is_made_anew() -> None:
    """After those of a billion times the weight have left a resource, the rest of it is shared exactly."""
    demands = np.array([[1.0, 0.7, 0.0], [0.9, 0.3, 0.0], [0.0, 1.0, 0.3], [0.0, 0.8, 1.0]])
    weights = np.array([1.1e9, 0.7e9, 1.0, 0.3])
    amounts, z = naive(demands, weights)
    allocation = DcDrf(demands, deadline_s=LONG_S, weights=weights, dtype="float64").interval()
    assert allocation.bottleneck.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(allocation.share, z, rtol=1e-12)
    np.testing.assert_allclose(allocation.amounts, amounts, rtol=1e-12)


@pytest.mark.parametrize(
    ("demands", "fault"),
    [
        ([[0.1, np.nan]], r"demands\[0, 1\]"),
        ([[0.1, 0.2], [-1.0, 0.2]], r"demands\[1, 0\]"),
        ([[np.inf]], r"demands\[0, 0\]"),
        ([0.1, 0.2], r"demands has the shape \(2,\)"),
        ([[0.1], [0.1, 0.2]], "demands is not a rectangular array"),
        ([[0.1, None]], r"demands\[0, 1\] is nan"),
        (([0, 2], [0, 1], [0.1, np.nan], 2), r"values\[1\]"),
        (([0, 1, 2], [0, 1], [0.1, -0.5], 2), r"values\[1\].*tenant 1"),
        (([0, 2], [0, 2], [0.1, 0.1], 2), r"indices\[1\]"),
        (([0, 2], [1, 1], [0.1, 0.1], 2), r"indices\[1\] names resource 1 for the second time in row 0"),
        (([0, 2, 1], [0], [0.1], 2), r"indptr\[2\]"),
        (([1, 2], [0, 1], [0.1, 0.1], 2), r"indptr\[0\]"),
        (([0, 3], [0, 1], [0.1, 0.1], 2), "indptr ends with 3"),
        (([0.0, 1.0], [0], [0.1], 2), "indptr"),
        (([0, 1], [0], [0.1], -1), r"demands\[3\]"),
        ([["a"]], "demands holds values of the type <U1; it must hold numbers"),
    ],
)
def test_bad_demands_are_refused(demands: Demands, fault: str) -> None:
    """What is no demand raises ValueError with its place, also in an interval, which then changes nothing."""
    with pytest.raises(ValueError, match=fault):
        DcDrf(demands, deadline_s=1.0)
    sharing = DcDrf([[0.5, 0.25], [0.1, 0.3]], deadline_s=LONG_S)
    before = sharing.interval()
    with pytest.raises(ValueError, match=fault):
        sharing.interval(demands)
    assert same(sharing.interval(), before)


def test_a_tuple_of_rows_is_a_dense_matrix() -> None:
    """Rows may be in a tuple; only a tuple of four parts that ends with a number is sparse."""
    rows = ([0.5, 0.25], [0.1, 0.3])
    assert same(
        DcDrf(rows, deadline_s=LONG_S).interval(rows), DcDrf(list(rows), deadline_s=LONG_S).interval()
    )


@pytest.mark.parametrize(
    ("weights", "fault"),
    [
        ([1.0], r"weights has the shape \(1,\)"),
        ([[1.0], [1.0, 1.0]], "weights is not a rectangular array"),
        ([1.0, 0.0], r"weights\[1\]"),
        ([1.0, -1.0], r"weights\[1\]"),
        ([1.0, 1e-60], r"weights\[1\]"),
        ([[1.0, np.nan], [1.0, 1.0]], r"weights\[0, 1\]"),
        ([[1.0, 1.0], [0.0, 1.0]], r"weights\[1, 0\]"),
    ],
)
def test_bad_weights_are_refused(weights: list[float], fault: str) -> None:
    """What is no weight raises ValueError with its place."""
    with pytest.raises(ValueError, match=fault):
        DcDrf([[0.5, 0.25], [0.1, 0.3]], deadline_s=1.0, weights=weights)


def test_bad_options_are_refused() -> None:
    """A deadline, a number of threads, a precision or an epsilon that means nothing raises ValueError."""
    demands = [[0.5, 0.25]]
    for deadline_s in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="deadline_s"):
            DcDrf(demands, deadline_s=deadline_s)
    with pytest.raises(ValueError, match="threads"):
        DcDrf(demands, deadline_s=1.0, threads=0)
    for dtype in ("int32", "exact"):
        with pytest.raises(ValueError, match="dtype"):
            DcDrf(demands, deadline_s=1.0, dtype=dtype)
    for epsilon in (-0.1, 0.6, np.nan):
        with pytest.raises(ValueError, match="epsilon"):
            DcDrf(demands, deadline_s=1.0, epsilon=epsilon)
    assert DcDrf(demands, deadline_s=1.0, threads=os.cpu_count()).interval().completed


def test_weights_may_change_with_the_demands() -> None:
    """An interval with other demands and weights divides as a new allocator does; weights need demands."""
    (before, _), (demands, weights) = random_case(4), random_case(5)
    continued = DcDrf(before, deadline_s=LONG_S, threads=1, dtype="float64")
    with pytest.raises(ValueError, match="without demands"):
        continued.interval(weights=weights)
    fresh = DcDrf(demands, weights=weights, deadline_s=LONG_S, threads=1, dtype="float64").interval()
    assert same(continued.interval(demands, weights), fresh)
    assert same(continued.interval(demands), fresh)
