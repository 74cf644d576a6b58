from __future__ import annotations

from fractions import Fraction
from importlib import import_module

import numpy as np
import numpy.typing as npt
import pytest

from dios.packer import share_bandwidth
from dios.packer.job.ti_mra import Floats

CASES = 1000
Case = tuple[float, Floats, Floats, Floats]


def poured(capacity: float, guarantees: Floats, demands: Floats, weights: Floats) -> list[Fraction]:
    """Algorithm 2 with exact shares, in fractions: the level rises from breakpoint to breakpoint."""
    asked = [Fraction(float(demand)) for demand in demands]
    rates = [min(Fraction(float(guarantee)), two) for guarantee, two in zip(guarantees, asked, strict=True)]
    left = Fraction(capacity) - sum(rates)
    for share in (
        [Fraction(float(weight)) for weight in weights],
        [Fraction(int(weight == 0)) for weight in weights],
    ):
        while left > 0:
            hungry = [i for i, rate in enumerate(rates) if rate < asked[i] and share[i] > 0]
            if not hungry:
                break
            total = sum(share[i] for i in hungry)
            step = min(left / total, *((asked[i] - rates[i]) / share[i] for i in hungry))
            for i in hungry:
                rates[i] += step * share[i]
            left -= step * total
    return rates


def drawn(seed: int) -> Case:
    """A link with ties, tasks without weight, without a guarantee, without a demand, and idle links."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 9))
    guarantees: Floats = rng.choice([0.0, 0.25, 1.0, rng.uniform(0, 2)], size)
    demands = rng.choice([0.0, 0.25, 1.5, rng.uniform(0, 4), rng.uniform(0, 4)], size)
    weights = rng.choice([0.0, 0.5, 1.0, 1e-9, rng.uniform(0, 1)], size)
    certain = float(np.minimum(guarantees, demands).sum())
    capacity = certain * float(rng.choice([1.0, 1.5, 3.0])) + float(rng.choice([0.0, 0.5, 8.0]))
    return capacity, guarantees, demands, weights


def test_rates_equal_water_filling_in_fractions() -> None:
    """On drawn links, with ties and zeros, rates are those of exact water filling."""
    for seed in range(CASES):
        case = drawn(seed)
        expected = [float(rate) for rate in poured(*case)]
        np.testing.assert_allclose(
            share_bandwidth(*case), expected, rtol=1e-9, atol=1e-12, err_msg=f"seed {seed}"
        )


def test_rates_keep_their_promises() -> None:
    """Never below min(demand, guarantee), never above demand or link, nothing left beside somebody hungry."""
    for seed in range(CASES):
        capacity, guarantees, demands, weights = drawn(seed)
        rates = share_bandwidth(capacity, guarantees, demands, weights)
        assert (rates >= np.minimum(demands, guarantees) * (1 - 1e-12)).all(), f"seed {seed}"
        assert (rates <= demands).all(), f"seed {seed}"
        assert rates.sum() <= capacity * (1 + 1e-12), f"seed {seed}"
        if (rates < demands * (1 - 1e-9)).any():
            assert rates.sum() >= capacity * (1 - 1e-9), f"seed {seed}: hungry beside what is free"


def test_equals_get_equal_shares() -> None:
    """Tasks alike in everything get the same rate, wherever they stand (as printed, Algorithm 2 differs)."""
    rates = share_bandwidth(10.0, [1.0, 1.0, 1.0], [9.0, 9.0, 9.0], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(rates, [10 / 3] * 3, rtol=1e-15)


def test_weight_zero_waits_for_those_with_weight() -> None:
    """A task of weight 0 gets its guarantee, and more only when nobody with a weight is hungry."""
    assert share_bandwidth(10.0, [1, 1], [20, 20], [0.5, 0.0]).tolist() == [9.0, 1.0]
    assert share_bandwidth(10.0, [1, 1], [4, 20], [0.5, 0.0]).tolist() == [4.0, 6.0]


def test_weights_may_be_as_small_as_numbers_are() -> None:
    """Only proportions of weights count: the smallest ones there are overflow nothing."""
    tiny = 5e-324
    np.testing.assert_allclose(share_bandwidth(9.0, [0, 0], [9, 9], [tiny, 2 * tiny]), [3, 6], rtol=1e-12)


def test_many_levels_are_found_by_sorting() -> None:
    """Needs that satisfy one task in a round are solved by sorted breakpoints, to the same rates."""
    size = 400
    needs: Floats = np.power(1.05, np.arange(size))
    case: Case = (float(needs.sum() * 0.9), np.zeros(size), needs, np.full(size, 0.5))
    rates = share_bandwidth(*case)
    np.testing.assert_allclose(rates, [float(rate) for rate in poured(*case)], rtol=1e-9)


def test_sorting_and_rounds_find_the_same_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a single round, breakpoints alone give the rates of water filling."""
    monkeypatch.setattr(import_module("dios.packer.share_bandwidth"), "PACKER_ROUNDS_MAX", 0)
    for seed in range(200):
        case = drawn(seed)
        expected = [float(rate) for rate in poured(*case)]
        np.testing.assert_allclose(
            share_bandwidth(*case), expected, rtol=1e-9, atol=1e-12, err_msg=f"seed {seed}"
        )


@pytest.mark.parametrize(
    ("capacity", "guarantees", "demands", "weights", "place"),
    [
        (np.nan, [1], [1], [1], "capacity is nan"),
        (-1.0, [1], [1], [1], "capacity is -1.0"),
        (1.0, [0, -1], [1, 1], [1, 1], r"guarantees\[1\] is -1.0"),
        (1.0, [0, 0], [1, np.inf], [1, 1], r"demands\[1\] is inf"),
        (1.0, [0, 0], [np.nan, 1], [1, 1], r"demands\[0\] is nan"),
        (1.0, [0], [1], [1.5], r"weights\[0\] is 1.5"),
        (1.0, [0], [1, 2], [1], r"demands has the shape \(2,\)"),
        (1.0, ["a"], [1], [1], "guarantees is not a list of numbers"),
        (1.0, [1, 1], [1, 1], [1, 1], "guarantees in use are 2"),
    ],
)
def test_bad_links_are_named(
    capacity: float, guarantees: npt.ArrayLike, demands: npt.ArrayLike, weights: npt.ArrayLike, place: str
) -> None:
    """Numbers that make no sense are a ValueError with the index at fault."""
    with pytest.raises(ValueError, match=place):
        share_bandwidth(capacity, guarantees, demands, weights)
