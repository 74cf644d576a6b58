"""Fair shares of resources that replace each other: the properties that hold, and those that do not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dios.fairness import drf_with_substitutes, edrf
from dios.fairness.allocation import Floats

pywraplp = pytest.importorskip("ortools.linear_solver.pywraplp")

NEAR = 1e-6
"""Shares are exact to 1e-9; work is in units of several per share."""
CPU_OR_GPU = np.array([[1.0, 0.0], [0.0, 1.0]])
"""A unit takes all processors or all GPUs."""


def most_work(ways: Floats, amounts: Floats) -> float:
    """The most units of work that fit into amounts, by a program of the test's own."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    work = [solver.NumVar(0, solver.infinity(), "") for _ in ways]
    for resource, amount in enumerate(amounts.tolist()):
        solver.Add(sum(float(way[resource]) * part for way, part in zip(ways, work, strict=True)) <= amount)
    solver.Maximize(sum(work))
    assert solver.Solve() == solver.OPTIMAL
    return float(solver.Objective().Value())


def largest_share(games: list[Floats], user: int, floors: Floats, alone: Floats) -> float:
    """The largest share of a user if the others have at least these."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    work = [[solver.NumVar(0, solver.infinity(), "") for _ in ways] for ways in games]
    for resource in range(games[0].shape[1]):
        used = [
            float(way[resource]) * part
            for ways, mine in zip(games, work, strict=True)
            for way, part in zip(ways, mine, strict=True)
        ]
        solver.Add(sum(used) <= 1.0)
    for other, floor in enumerate(floors.tolist()):
        if other != user:
            solver.Add(sum(work[other]) >= floor * float(alone[other]) * (1.0 - 1e-8))
    solver.Maximize(sum(work[user]))
    assert solver.Solve() == solver.OPTIMAL
    return float(solver.Objective().Value() / alone[user])


def random_game(seed: int, users: int | None = None) -> list[Floats]:
    """Two to four users, each with one to three ways over three resources; ties and zeros are frequent."""
    random = np.random.default_rng(seed)
    games: list[Floats] = []
    while len(games) < (users or 2 + seed % 3):
        ways = random.integers(0, 4, (random.integers(1, 4), 3)) / 4.0
        if ways.max(axis=1).min() > 0.0:
            games.append(ways)
    return games


@pytest.mark.parametrize("seed", range(12))
def test_with_one_way_for_each_user_it_is_drf(seed: int) -> None:
    """The share is the dominant share, also with weights and with zeros."""
    random = np.random.default_rng(seed)
    demands = random.integers(0, 5, (4, 3)) / 5.0 + np.eye(4, 3) / 7.0
    demands[3, 0] += 0.1
    weights = random.integers(1, 4, 4).astype(float)
    allocation = drf_with_substitutes([demand[None] for demand in demands], weights=weights)
    expected = edrf(demands, weights=weights)
    np.testing.assert_allclose(allocation.amounts, expected.amounts, atol=NEAR)
    np.testing.assert_allclose(allocation.share, expected.amounts.max(axis=1), atol=NEAR)


@pytest.mark.parametrize("seed", range(24))
def test_shares_are_fair_and_nothing_is_wasted(seed: int) -> None:
    """Sharing incentive, and no share can be larger without a loss for one that is not larger: so Pareto."""
    games = random_game(seed)
    weights = np.random.default_rng(seed).integers(1, 4, len(games)).astype(float)
    allocation = drf_with_substitutes(games, weights=weights)
    assert allocation.amounts.sum(axis=0).max() <= 1.0 + NEAR
    for user, ways in enumerate(games):
        assert most_work(ways, np.ones(3)) == pytest.approx(allocation.alone[user])
        part = np.full(3, weights[user] / weights.sum())
        assert allocation.work[user].sum() >= most_work(ways, part) - NEAR
        np.testing.assert_allclose(allocation.work[user] @ ways, allocation.amounts[user], atol=1e-12)
    level = allocation.share / weights
    for user in range(len(games)):
        floors = np.where(level <= level[user] + NEAR, allocation.share, 0.0)
        assert largest_share(games, user, floors, allocation.alone) <= allocation.share[user] + NEAR


@pytest.mark.parametrize("seed", range(24))
def test_two_users_do_not_envy_each_other(seed: int) -> None:
    """The amounts of the other would do no more of a user's work than its own, if there are two."""
    games = random_game(seed, 2)
    allocation = drf_with_substitutes(games)
    for user in range(2):
        assert most_work(games[user], allocation.amounts[1 - user]) <= allocation.work[user].sum() + NEAR


def test_three_users_may_envy() -> None:
    """The example of the page: the first could do more with the amounts of the second."""
    games = [np.array([[3.0, 2.0]]), np.array([[1.0, 1.0], [3.0, 0.0]]), np.array([[1.0, 2.0]])]
    allocation = drf_with_substitutes(games)
    np.testing.assert_allclose(allocation.share, 18 / 47, atol=NEAR)
    assert allocation.work[0].sum() == pytest.approx(6 / 47)
    assert most_work(games[0], allocation.amounts[1]) == pytest.approx(20 / 141)


def test_a_lie_may_pay() -> None:
    """The example of the page: a user who claims to need half of the processors gets more done."""
    other = np.array([[1.0, 0.0]])
    honest = drf_with_substitutes([other, CPU_OR_GPU])
    assert honest.work[1].sum() == pytest.approx(4 / 3)
    lie = drf_with_substitutes([other, np.array([[0.5, 0.0], [0.0, 1.0]])])
    assert most_work(CPU_OR_GPU, lie.amounts[1]) == pytest.approx(1.4)


def test_nobody_does_more_than_it_wants() -> None:
    """The rest goes to the others; a user who wants nothing gets nothing."""
    allocation = drf_with_substitutes([CPU_OR_GPU, CPU_OR_GPU, CPU_OR_GPU], wanted=[0.25, 5.0, 0.0])
    np.testing.assert_allclose([work.sum() for work in allocation.work], [0.25, 1.75, 0.0], atol=NEAR)


def test_invalid_input_names_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways that need nothing, wrong shapes and weights are errors; so is a missing OR-Tools."""
    with pytest.raises(ValueError, match=r"ways\[1\]\[0\] needs nothing"):
        drf_with_substitutes([[[1.0, 0.0]], [[0.0, 0.0]]])
    with pytest.raises(ValueError, match=r"ways\[1\] has the shape"):
        drf_with_substitutes([[[1.0, 0.0]], [[1.0]]])
    with pytest.raises(ValueError, match=r"weights\[0\] is 0"):
        drf_with_substitutes([[[1.0, 0.0]]], weights=[0.0])
    with pytest.raises(ValueError, match="ways is empty"):
        drf_with_substitutes([])
    monkeypatch.setitem(sys.modules, "ortools.linear_solver.pywraplp", None)
    with pytest.raises(ModuleNotFoundError, match="\\[ortools\\]"):
        drf_with_substitutes([[[1.0, 0.0]]])
