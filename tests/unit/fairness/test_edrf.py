from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dios.fairness import edrf
from tests.support.fairness.oracles import algorithm_1, drawn, filled

CASES = 1000


def rows_of(demands: npt.NDArray[np.float64], seed: int) -> tuple[list[int], list[int], list[float]]:
    """A matrix in CSR form, each row in a shuffled order and with its zeros kept here and there."""
    rng = np.random.default_rng(seed)
    indptr, indices, values = [0], [], []
    for row in demands:
        for r in rng.permutation(len(row)):
            if row[r] > 0.0 or rng.random() < 0.3:
                indices.append(int(r))
                values.append(float(row[r]))
        indptr.append(len(indices))
    return indptr, indices, values


def test_edrf_equals_algorithm_1_by_rounds() -> None:
    """Amounts and z are those of Algorithm 1 in fractions, for weights of either shape."""
    for seed in range(CASES):
        demands, weights, _ = drawn(seed)
        if seed % 2:
            weights = np.repeat(weights[:, :1], demands.shape[1], axis=1)
        given = weights[:, 0] if seed % 2 else weights
        amounts, z, rounds = algorithm_1(demands, weights)
        allocation = edrf(demands, weights=given)
        np.testing.assert_allclose(allocation.amounts, amounts, rtol=1e-9, atol=1e-15, err_msg=f"seed {seed}")
        np.testing.assert_allclose(allocation.share, z, rtol=1e-9, err_msg=f"seed {seed}")
        assert allocation.rounds >= rounds, f"seed {seed}: a tie may be two rounds, but no round is left out"
        assert (allocation.amounts.sum(axis=0) <= 1 + 1e-12).all(), f"seed {seed}"


def test_sparse_and_dense_demands_get_the_same() -> None:
    """A CSR matrix, its rows in any order and with zeros in it, is divided as the dense one is."""
    for seed in range(CASES):
        demands, weights, _ = drawn(seed)
        indptr, indices, values = rows_of(demands, seed)
        cap = seed % 5 == 0
        dense = edrf(demands, weights=weights, cap=cap)
        sparse = edrf((indptr, indices, values, demands.shape[1]), weights=weights, cap=cap)
        back = np.zeros(demands.shape)
        back[np.repeat(np.arange(len(demands)), np.diff(indptr)), indices] = sparse.amounts
        assert sparse.amounts.shape == (len(values),)
        np.testing.assert_allclose(back, dense.amounts, rtol=1e-12, atol=1e-15, err_msg=f"seed {seed}")
        np.testing.assert_allclose(sparse.share, dense.share, rtol=1e-12, err_msg=f"seed {seed}")


def test_values_in_single_precision_are_divided_in_double() -> None:
    """Sparse values kept as float32 get what the same numbers get as float64, to the last digits."""
    for seed in range(200):
        demands, weights, _ = drawn(seed)
        indptr, indices, values = rows_of(demands, seed)
        short = np.array(values, np.float32)
        expected = edrf((indptr, indices, short.astype(np.float64), demands.shape[1]), weights=weights)
        allocation = edrf((indptr, indices, short, demands.shape[1]), weights=weights)
        np.testing.assert_array_equal(allocation.amounts, expected.amounts, err_msg=f"seed {seed}")
        np.testing.assert_array_equal(allocation.share, expected.share, err_msg=f"seed {seed}")


def test_a_cap_gives_nobody_more_than_it_asked_for() -> None:
    """With cap the answer is weighted progressive filling, and no amount is above its demand."""
    for seed in range(CASES):
        demands, weights, _ = drawn(seed)
        allocation = edrf(demands, weights=weights[:, 0], cap=True)
        expected = filled(demands, np.zeros(len(demands)), weights[:, 0])
        np.testing.assert_allclose(
            allocation.amounts, expected, rtol=1e-9, atol=1e-15, err_msg=f"seed {seed}"
        )
        assert (allocation.amounts <= demands).all(), f"seed {seed}"


def test_heavy_tails_lose_no_digits() -> None:
    """Demands and weights over twelve orders of magnitude are divided as in fractions."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        demands = np.exp(rng.normal(0.0, 5.0, (30, 6)))
        demands[rng.random(demands.shape) < 0.6] = 0.0
        weights = np.exp(rng.normal(0.0, 5.0, 30))
        amounts, z, _ = algorithm_1(demands, np.repeat(weights[:, None], 6, axis=1))
        allocation = edrf(demands, weights=weights)
        np.testing.assert_allclose(allocation.amounts, amounts, rtol=1e-9, err_msg=f"seed {seed}")
        np.testing.assert_allclose(allocation.share, z, rtol=1e-9, err_msg=f"seed {seed}")
        assert (allocation.amounts.sum(axis=0) <= 1 + 1e-12).all(), f"seed {seed}"


def test_a_tenant_of_next_to_no_weight_gets_what_giants_left() -> None:
    """When heavy tenants have gone, the slope of a resource is that of the light one, to the last digits."""
    rng = np.random.default_rng(9)
    demands = np.column_stack([rng.random(20) * 0.1, np.ones(20)])
    demands = np.vstack([demands, [1.0, 0.0]])
    weights = np.append(rng.random(20) + 0.5, 1e-9)
    amounts, z, _ = algorithm_1(demands, np.repeat(weights[:, None], 2, axis=1))
    allocation = edrf(demands, weights=weights)
    np.testing.assert_allclose(allocation.share, z, rtol=1e-9)
    np.testing.assert_allclose(allocation.amounts, amounts, rtol=1e-9)


def test_demands_and_weights_at_the_ends_of_double_precision_are_divided() -> None:
    """Next to nothing of a resource, or next to everything with next to no weight, is no error."""
    np.testing.assert_allclose(edrf([[1.0, 1e-310]]).amounts, [[1.0, 1e-310]], rtol=1e-9)
    capped = edrf([[1e300], [0.25]], weights=[1e-300, 1.0], cap=True)
    np.testing.assert_allclose(capped.amounts, [[0.75], [0.25]], rtol=1e-9)


def test_everybody_who_asks_is_stopped_by_a_resource_that_it_uses_and_that_is_full() -> None:
    """Without a cap each tenant names its bottleneck; it demands that resource, and nothing of it is left."""
    rng = np.random.default_rng(7)
    demands = rng.random((400, 60)) * (rng.random((400, 60)) < 0.08)
    allocation = edrf(demands)
    busy = demands.any(axis=1)
    assert busy.any()
    assert (allocation.bottleneck[~busy] == -1).all()
    stopped = allocation.bottleneck[busy]
    assert (demands[busy, stopped] > 0).all()
    np.testing.assert_allclose(allocation.amounts.sum(axis=0)[stopped], 1.0, rtol=1e-12)
    assert allocation.rounds == len(set(stopped.tolist()))


@pytest.mark.parametrize("users", [0, 1, 3])
@pytest.mark.parametrize("resources", [0, 1, 2])
def test_nothing_asked_is_nothing_given(users: int, resources: int) -> None:
    """No users, no resources or only idle users: an empty answer of the right shape, and no rounds."""
    allocation = edrf(np.zeros((users, resources)))
    assert allocation.amounts.shape == (users, resources)
    assert not allocation.amounts.any()
    assert allocation.share.tolist() == [0.0] * users
    assert allocation.bottleneck.tolist() == [-1] * users
    assert (allocation.rounds, allocation.epsilon, allocation.completed) == (0, 0.0, True)


@pytest.mark.parametrize(
    ("demands", "weights", "place"),
    [
        ([[0.1, 0.2], [np.nan, 0.1]], None, r"demands\[1, 0\] is nan"),
        ([[0.1, -0.2]], None, r"demands\[0, 1\] is -0.2"),
        ([[0.1, np.inf]], None, r"demands\[0, 1\] is inf"),
        ([0.1, 0.2], None, r"demands has the shape \(2,\)"),
        ([[0.1], [0.1, 0.2]], None, "demands is not a rectangular array"),
        ([[0.1], [0.2]], [1.0], r"weights has the shape \(1,\)"),
        ([[0.1], [0.2]], [[1.0, 1.0]] * 2, r"weights has the shape \(2, 2\)"),
        ([[0.1], [0.2]], [1.0, 0.0], r"weights\[1\] is 0.0"),
        ([[0.1, 0.2]], [[1.0, 0.0]], r"weights\[0, 1\] is 0.0"),
        ([[0.1], [0.2]], [1.0, np.inf], r"weights\[1\] is inf"),
        (([0, 2], [0, 1], [0.1, np.nan], 2), None, r"values\[1\] is nan"),
        (([0, 2], [0, 1], [-0.1, 0.1], 2), None, r"values\[0\] is -0.1"),
        (([0, 2], [0, 2], [0.1, 0.1], 2), None, r"indices\[1\] is 2; it must be from 0 to 1"),
        (
            ([0, 1, 3], [0, 1, 1], [0.1, 0.1, 0.2], 2),
            None,
            r"indices\[2\] names resource 1 for the second time in row 1",
        ),
        (([0, 2, 1, 2], [0, 1], [0.1, 0.1], 2), None, r"indptr\[2\] is less"),
        (
            ([0, 1], [0, 1], [0.1, 0.1], 2),
            None,
            "indptr ends with 1; it must end with the number of values, 2",
        ),
        (([1, 2], [0, 1], [0.1, 0.1], 2), None, r"indptr\[0\] is not 0"),
        (([], [], [], 2), None, r"indptr\[0\] is not 0"),
        (([0, 2], [0, 1], [[0.1], [0.1, 0.2]], 2), None, "values is not a rectangular array"),
        ([["0.5"]], None, "demands holds values of the type <U3"),
        ([[0.1, 0.2]], [1e-310], r"weights\[0\] is 1e-310"),
        ([[0.1], [0.2]], [1.0, 1e308], r"weights\[1\] is 1e\+308"),
        (([0, 2], [0, 1], [0.1], 2), None, r"values has the shape \(1,\)"),
        (([0, 2], [0.0, 1.0], [0.1, 0.1], 2), None, "indices has the shape"),
        (([0, 2], [0, 1], [0.1, 0.1], -1), None, r"demands\[3\] is -1"),
    ],
)
def test_bad_input_is_named_with_its_place(
    demands: npt.ArrayLike, weights: npt.ArrayLike | None, place: str
) -> None:
    """What makes no sense is a ValueError that says which argument, and at which index."""
    with pytest.raises(ValueError, match=place):
        edrf(demands, weights=weights)


def test_frozen_and_strided_arrays_are_divided_and_left_as_they_are() -> None:
    """Arrays that may not be written, or lie scattered in memory, get the same, and no argument changes."""
    demands, weights, _ = drawn(1)
    wide = np.repeat(demands, 2, axis=1)
    wide.setflags(write=False)
    before = wide.copy()
    expected = edrf(demands, weights=weights).amounts
    frozen = weights.copy()
    frozen.setflags(write=False)
    np.testing.assert_array_equal(edrf(wide[:, ::2], weights=frozen).amounts, expected)
    np.testing.assert_array_equal(wide, before)
    indptr, indices, values = (np.array(part) for part in rows_of(demands, 1))
    for part in (indptr, indices, values):
        part.setflags(write=False)
    sparse = edrf((indptr, indices, values, demands.shape[1]), weights=weights)
    assert sparse.amounts is not values
    np.testing.assert_allclose(sparse.amounts.sum(), expected.sum(), rtol=1e-12)
