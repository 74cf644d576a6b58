"""SDRF's repeated game: what lies bring over several rounds, with commitments by equations 6 and 7.

The paper's Proposition 3 says that none ever pays. That holds for the games below, and not for all: who knows
that it will soon need little very badly does better when it asks for less now (the last test).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from dios.fairness import sdrf

ROUNDS = 3
GAMES = 40
PATIENCE = (0.0, 0.3, 0.6, 0.9, 0.95)
"""By how much the first user values each round less than the one before (equation 2)."""

Floats = npt.NDArray[np.float64]


def utilities(truth: Floats, told: Floats, delta: float) -> Floats:
    """What the first user gets done in each round (equation 1), when it says ``told`` (T, m).

    ``truth`` is (T, n, m). A round's commitments are those of what was used in the rounds before.
    """
    rounds, users, resources = truth.shape
    owed, done = np.zeros((users, resources)), np.zeros(rounds)
    for t in range(rounds):
        said = truth[t].copy()
        said[0] = told[t]
        amounts = sdrf(said, owed).amounts
        done[t] = min(1.0, float((amounts[0] / truth[t, 0]).min()))
        owed = (1 - delta) * np.maximum(amounts - 1 / users, 0.0) + delta * owed
    return done


def games(kind: str) -> Iterator[tuple[int, Floats, float]]:
    """Drawn games (seed, truth, delta) on a coarse grid; all demands are positive, as in the paper."""
    for seed in range(GAMES):
        rng = np.random.default_rng(seed)
        users, resources = int(rng.integers(2, 5)), int(rng.integers(1, 4))
        truth = rng.integers(1, 9, (ROUNDS, users, resources)) / 8
        if kind == "steady":
            truth[:, 0] = truth[0, 0]
        yield seed, truth, float(rng.choice([0.3, 0.6, 0.9]))


def best_gain(truth: Floats, lies: Iterable[Floats], delta: float, patience: tuple[float, ...]) -> float:
    """The most that any of the lies (T, m) brings, for a user of any of these patiences."""
    honest = utilities(truth, truth[:, 0], delta)
    weights = np.array(patience)[:, None] ** np.arange(ROUNDS)
    return max(float((weights @ (utilities(truth, lie, delta) - honest)).max()) for lie in lies)


def test_with_a_steady_demand_no_lie_pays() -> None:
    """Who needs the same in every round, whatever the others do, gains nothing by asking for less or more."""
    for seed, truth, delta in games("steady"):
        lies = (
            truth[:, 0] * np.array([*factors, 1.0])[:, None]
            for factors in itertools.product((0.01, 0.3, 0.6, 0.9, 1.0, 1.5), repeat=ROUNDS - 1)
        )
        assert best_gain(truth, lies, delta, PATIENCE) <= 1e-12, f"seed {seed}"


def test_asking_for_more_than_one_needs_never_pays() -> None:
    """Whatever all need from round to round, a lie that asks for no less of anything brings nothing later."""
    for seed, truth, delta in games("any"):
        rng = np.random.default_rng(1000 + seed)
        lies = [
            np.maximum(truth[:, 0] * np.array(factors)[:, None], rng.integers(0, 9, truth[:, 0].shape) / 8)
            for factors in itertools.product((1.0, 1.5, 3.0), repeat=ROUNDS)
        ]
        assert best_gain(truth, lies, delta, (*PATIENCE, 1.0)) <= 1e-12, f"seed {seed}"


def test_to_a_user_without_patience_no_lie_pays() -> None:
    """Whoever looks at the round alone gains nothing in any round of any game, whatever it owes by then."""
    for seed, truth, delta in games("any"):
        rng = np.random.default_rng(2000 + seed)
        for last in range(ROUNDS):
            for _ in range(20):
                told = truth[:, 0].copy()
                told[last] = rng.integers(1, 9, truth.shape[2]) / 8
                honest, lied = (utilities(truth, said, delta)[last] for said in (truth[:, 0], told))
                assert lied <= honest + 1e-12, f"seed {seed}, round {last}"


def test_proposition_3_does_not_hold_for_every_game() -> None:
    """A pool that is empty today and full tomorrow: who saves today does all of tomorrow's little work."""
    truth = np.full((2, 10, 1), 0.01)
    truth[0, 0], truth[1], truth[1, 0] = 1.0, 1.0, 0.05
    told = truth[:, 0].copy()
    told[0] = 0.2
    assert utilities(truth, truth[:, 0], 0.5).tolist() == pytest.approx([0.91, 0.0])
    assert utilities(truth, told, 0.5).tolist() == pytest.approx([0.2, 1.0])
