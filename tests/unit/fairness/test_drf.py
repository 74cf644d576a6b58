from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dios.fairness import drf
from tests.support.fairness.oracles import drawn, filled

CASES = 1000


def test_drf_equals_progressive_filling_in_fractions() -> None:
    """With and without weights, with zeros, ties and idle users, amounts are those of whole usage curves."""
    for seed in range(CASES):
        demands, weights, _ = drawn(seed)
        given = None if seed % 4 == 0 else weights[:, 0]
        expected = filled(demands, np.zeros(len(demands)), np.ones(len(demands)) if given is None else given)
        allocation = drf(demands, weights=given)
        np.testing.assert_allclose(
            allocation.amounts, expected, rtol=1e-9, atol=1e-15, err_msg=f"seed {seed}"
        )
        np.testing.assert_array_equal(
            allocation.share, allocation.amounts.max(axis=1), err_msg=f"seed {seed}"
        )
        assert (allocation.amounts <= demands).all(), f"seed {seed}"
        assert (allocation.amounts.sum(axis=0) <= 1 + 1e-12).all(), f"seed {seed}"
        met = allocation.bottleneck == -1
        np.testing.assert_array_equal(allocation.amounts[met], demands[met], err_msg=f"seed {seed}")


def test_the_example_of_two_users() -> None:
    """Of 9 cpus and 18 GB, tasks of (1, 4) and (3, 1) get room for 3 and 2, as DRF's paper has it."""
    many = 100
    demands = many * np.array([[1 / 9, 4 / 18], [3 / 9, 1 / 18]])
    allocation = drf(demands)
    np.testing.assert_allclose(allocation.amounts * [9, 18], [[3, 12], [6, 2]], rtol=1e-12)
    np.testing.assert_allclose(allocation.share, [2 / 3, 2 / 3], rtol=1e-12)
    assert allocation.bottleneck.tolist() == [0, 0]


def test_others_go_on_when_a_resource_is_dry() -> None:
    """Users of a resource that ran dry stop; one that does not use it rises to its demand."""
    allocation = drf([[1.0, 0.0], [1.0, 0.0], [0.0, 0.9]])
    np.testing.assert_allclose(allocation.amounts, [[0.5, 0.0], [0.5, 0.0], [0.0, 0.9]], rtol=1e-12)
    assert allocation.bottleneck.tolist() == [0, 0, -1]


@pytest.mark.parametrize(
    ("demands", "weights", "place"),
    [
        ([[0.1, np.nan]], None, r"demands\[0, 1\] is nan"),
        ([[0.1], [-1.0]], None, r"demands\[1, 0\] is -1.0"),
        (0.5, None, r"demands has the shape \(\)"),
        ([[0.1]], [[1.0]], r"weights has the shape \(1, 1\)"),
        ([[0.1]], [0.0], r"weights\[0\] is 0.0"),
    ],
)
def test_drf_names_what_makes_no_sense(
    demands: npt.ArrayLike, weights: npt.ArrayLike | None, place: str
) -> None:
    """Bad demands and weights are a ValueError with the index at fault."""
    with pytest.raises(ValueError, match=place):
        drf(demands, weights=weights)
