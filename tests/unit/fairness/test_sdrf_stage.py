"""The stage game of SDRF: equal to equation 10 in fractions, and the paper's propositions on drawn games.

Proposition 3 is about many games in a row: ``test_sdrf_repeated.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dios.fairness import SdrfScheduler, drf, sdrf, smmf
from tests.support.fairness.oracles import drawn, filled

CASES = 1000
GAMES = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)

Floats = npt.NDArray[np.float64]


class Game(NamedTuple):
    """Demands (n, m), commitments (n,), and what the first user might say instead (m,)."""

    demands: Floats
    commitments: Floats
    lie: Floats


@st.composite
def games(draw: st.DrawFn) -> Game:
    """Up to five users and four resources; on a coarse grid, so that much ties and is zero."""
    users, resources = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    amount = st.one_of(st.integers(0, 12).map(lambda k: k / 8), st.floats(0.001, 2.0))
    row = st.lists(amount, min_size=resources, max_size=resources)
    owed = st.integers(0, 6).map(lambda k: k / 8)
    return Game(
        np.array(draw(st.lists(row, min_size=users, max_size=users))),
        np.array(draw(st.lists(owed, min_size=users, max_size=users))),
        np.array(draw(row)),
    )


def utility(amounts: Floats, demands: Floats) -> float:
    """How much of its work a user can do with ``amounts``: the least ratio, at most 1 (equation 1)."""
    asked = demands > 0
    return float(min(1.0, (amounts[asked] / demands[asked]).min(initial=1.0)))


def test_sdrf_equals_equation_10_in_fractions() -> None:
    """With zeros, ties, idle users and commitments of either shape: what whole usage curves give."""
    for seed in range(CASES):
        demands, _, commitments = drawn(seed)
        given_as = commitments
        if seed % 2:
            rest = np.random.default_rng(seed).random(demands.shape)
            given_as = commitments[:, None] * rest
            given_as[:, seed % demands.shape[1]] = commitments
        expected = filled(demands, commitments, np.ones(len(demands)))
        allocation = sdrf(demands, given_as)
        np.testing.assert_allclose(
            allocation.amounts, expected, rtol=1e-9, atol=1e-14, err_msg=f"seed {seed}"
        )
        assert (allocation.amounts <= demands).all(), f"seed {seed}"
        assert (allocation.amounts.sum(axis=0) <= 1 + 1e-12).all(), f"seed {seed}"
        np.testing.assert_allclose(
            allocation.share, allocation.amounts.max(axis=1), rtol=1e-12, err_msg=f"seed {seed}"
        )


def test_smmf_equals_equation_8_in_fractions() -> None:
    """One resource with commitments: what the usage curve gives, which is the dominant share as well."""
    for seed in range(CASES):
        demands, _, commitments = drawn(seed)
        demands = demands[:, :1]
        expected = filled(demands, commitments, np.ones(len(demands)))[:, 0]
        allocation = smmf(demands[:, 0], commitments)
        np.testing.assert_allclose(
            allocation.amounts, expected, rtol=1e-9, atol=1e-14, err_msg=f"seed {seed}"
        )
        np.testing.assert_array_equal(allocation.share, allocation.amounts, err_msg=f"seed {seed}")


def test_many_users_are_divided_as_few() -> None:
    """Two thousand users of four resources, each with all its demands: equation 10 holds at one level x."""
    rng = np.random.default_rng(8)
    demands, owed = rng.random((2000, 4)) * rng.pareto(1.5, (2000, 1)) * 1e-3 + 1e-9, rng.random(2000) * 0.01
    allocation = sdrf(demands, owed)
    largest = demands.max(axis=1)
    waiting = allocation.bottleneck >= 0
    # A user that has begun and is not satisfied stands at the level.
    between = waiting & (allocation.share > 0)
    assert between.sum() > 10
    x = float(np.median((allocation.share + owed)[between]))
    expected = np.clip((x - owed)[:, None] * demands / largest[:, None], 0, demands)
    np.testing.assert_allclose(allocation.amounts, expected, rtol=1e-9, atol=1e-14)
    assert allocation.amounts.sum(axis=0).max() == pytest.approx(1.0, rel=1e-12)


def test_without_commitments_sdrf_is_drf() -> None:
    """Commitments of zero, of either shape, give plain DRF's amounts."""
    for seed in range(CASES):
        demands, _, _ = drawn(seed)
        plain = drf(demands).amounts
        for owed in (np.zeros(len(demands)), np.zeros(demands.shape)):
            np.testing.assert_allclose(
                sdrf(demands, owed).amounts, plain, rtol=1e-9, atol=1e-14, err_msg=f"seed {seed}"
            )


def test_a_dry_resource_stops_also_those_who_have_not_begun() -> None:
    """One bottleneck is one round, and stops users whom the level has not reached as well."""
    allocation = sdrf([[0.9, 0.1], [0.9, 0.2], [0.5, 0.5]], [0.0, 0.0, 0.9])
    np.testing.assert_allclose(allocation.share, [0.5, 0.5, 0.0], rtol=1e-12)
    assert allocation.bottleneck.tolist() == [0, 0, 0]
    assert allocation.rounds == 1


@GAMES
@given(games())
def test_all_are_satisfied_or_there_is_a_bottleneck(game: Game) -> None:
    """Proposition 1, for each user: it has what it asked for, or a resource that it uses is full."""
    allocation = sdrf(game.demands, game.commitments)
    full = allocation.amounts.sum(axis=0) > 1 - 1e-9
    for i, stop in enumerate(allocation.bottleneck):
        if stop < 0:
            assert (allocation.amounts[i] == game.demands[i]).all()
        else:
            assert full[stop]
            assert game.demands[i, stop] > 0


@GAMES
@given(games())
def test_a_lie_does_not_pay_in_the_stage_game(game: Game) -> None:
    """Proposition 2: whatever the first user says it demands, it does no more work than by the truth."""
    honest = sdrf(game.demands, game.commitments).amounts[0]
    told = game.demands.copy()
    told[0] = game.lie
    lied = sdrf(told, game.commitments).amounts[0]
    assert utility(lied, game.demands[0]) <= utility(honest, game.demands[0]) + 1e-9


@GAMES
@given(games())
def test_nothing_is_wasted(game: Game) -> None:
    """Proposition 4: every amount is in the proportion of the demands, so that less of one is less work."""
    amounts = sdrf(game.demands, game.commitments).amounts
    for had, asked in zip(amounts, game.demands, strict=True):
        np.testing.assert_allclose(had, utility(had, asked) * asked, rtol=1e-9, atol=1e-12)


@GAMES
@given(games())
def test_nobody_can_be_given_more_without_taking(game: Game) -> None:
    """Proposition 5: whoever lacks something lacks it in a full resource, each bit of which does work."""
    amounts = sdrf(game.demands, game.commitments).amounts
    free = 1 - amounts.sum(axis=0)
    for had, asked in zip(amounts, game.demands, strict=True):
        if utility(had, asked) < 1 - 1e-9:
            assert free[asked > 0].min() <= 1e-9


@GAMES
@given(games())
def test_sharing_is_no_worse_than_an_nth(game: Game) -> None:
    """Proposition 6: who owes nothing works as with 1/n of all; who owes c has 1/n - c of its dominant."""
    allocation = sdrf(game.demands, game.commitments)
    for i, asked in enumerate(game.demands):
        right = max(0.0, 1 / len(game.demands) - game.commitments[i])
        assert allocation.share[i] >= min(right, asked.max()) - 1e-9
        if game.commitments[i] == 0.0:
            alone = np.full(len(asked), 1 / len(game.demands))
            assert utility(allocation.amounts[i], asked) >= utility(alone, asked) - 1e-9


def test_weights_scale_shares_as_in_fractions() -> None:
    """What whole usage curves give if each user rises by its weight over the mean; equal weights are none."""
    for seed in range(CASES // 4):
        demands, drawn_weights, commitments = drawn(seed)
        weights = drawn_weights[:, 0]
        rates = weights / weights.mean()
        allocation = sdrf(demands, commitments, weights=weights)
        expected = filled(demands, commitments, rates)
        np.testing.assert_allclose(
            allocation.amounts, expected, rtol=1e-8, atol=1e-12, err_msg=f"seed {seed}"
        )
        assert (allocation.amounts <= demands).all(), f"seed {seed}"
        single = smmf(demands[:, 0], commitments, weights=weights)
        expected = filled(demands[:, :1], commitments, rates)
        np.testing.assert_allclose(
            single.amounts, expected[:, 0], rtol=1e-8, atol=1e-12, err_msg=f"seed {seed}"
        )
        same = sdrf(demands, commitments, weights=np.full(len(demands), 3.0))
        assert (same.amounts == sdrf(demands, commitments).amounts).all(), f"seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_weights_divide_as_the_scheduler_does(seed: int) -> None:
    """Small tasks of users with a past and with weights: the scheduler starts what ``sdrf`` gives at once."""
    rng = np.random.default_rng(seed)
    users, resources, size = 4, 2, 1000
    weights = rng.integers(1, 6, users) / 2.0
    named = {f"u{i}": float(weights[i]) for i in range(users)}
    pool = SdrfScheduler([size] * resources, weights=named, delta=0.9)
    past = [400, *rng.integers(1, 30, users - 1)]
    for i in range(users):
        for number in range(past[i]):
            pool.submit(f"u{i}", [2, 1], (i, "past", number), t=0.0)
    started = pool.schedule(0.0)
    for tag in started:
        pool.finish(tag, t=20.0)
    assert len(started) == sum(past)
    needs = rng.integers(1, 4, (users, resources))
    for i in range(users):
        for number in range(size):
            pool.submit(f"u{i}", needs[i], f"{i} {number}", t=20.0)
    owed = pool.commitments(20.0)
    commitments = np.array([owed[f"u{i}"] for i in range(users)])
    assert commitments.max() > 0.01
    counts = np.bincount([int(str(tag).split()[0]) for tag in pool.schedule(20.0)], minlength=users)
    got = counts[:, None] * needs / size
    expected = sdrf(needs * 1.0, commitments, weights=weights).amounts
    np.testing.assert_allclose(got, expected, atol=0.02, err_msg=f"seed {seed}")


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, 1e7], [1.0], [1.0, -1.0]])
def test_weights_outside_of_their_bounds_are_named(weights: list[float]) -> None:
    """Zero, negative and huge weights, and too few of them, are a ValueError."""
    with pytest.raises(ValueError, match="weights"):
        sdrf([[0.1], [0.1]], [0.0, 0.0], weights=weights)


@pytest.mark.parametrize(
    ("demands", "commitments", "place"),
    [
        ([[0.1, np.nan]], [0.0], r"demands\[0, 1\] is nan"),
        ([[0.1], [0.1]], [0.0, -0.5], r"commitments\[1\] is -0.5"),
        ([[0.1], [0.1]], [[0.0], [np.inf]], r"commitments\[1, 0\] is inf"),
        ([[0.1], [0.1]], [0.0], r"commitments has the shape \(1,\)"),
        ([[0.1, 0.1]], [[0.0]], r"commitments has the shape \(1, 1\)"),
        ([0.1], [0.0], r"demands has the shape \(1,\)"),
    ],
)
def test_sdrf_names_what_makes_no_sense(
    demands: npt.ArrayLike, commitments: npt.ArrayLike, place: str
) -> None:
    """Bad demands and commitments are a ValueError with the index at fault."""
    with pytest.raises(ValueError, match=place):
        sdrf(demands, commitments)


@pytest.mark.parametrize(
    ("demand", "commitment", "place"),
    [
        ([0.1, -0.1], [0.0, 0.0], r"demand\[1\] is -0.1"),
        ([0.1, 0.1], [0.0, np.nan], r"commitment\[1\] is nan"),
        ([0.1, 0.1], [0.0], r"commitment has the shape \(1,\)"),
        ([[0.1]], [0.0], r"demand has the shape \(1, 1\)"),
    ],
)
def test_smmf_names_what_makes_no_sense(demand: npt.ArrayLike, commitment: npt.ArrayLike, place: str) -> None:
    """Bad demands and commitments of one resource are a ValueError with the index at fault."""
    with pytest.raises(ValueError, match=place):
        smmf(demand, commitment)


@pytest.mark.parametrize("users", [0, 2])
def test_no_users_or_idle_ones_get_nothing(users: int) -> None:
    """Nobody, or nobody who asks: an empty answer of the right shape."""
    assert sdrf(np.zeros((users, 3)), np.zeros(users)).amounts.tolist() == [[0.0] * 3] * users
    assert smmf(np.zeros(users), np.zeros(users)).amounts.tolist() == [0.0] * users
