"""The predicted turn of a principal is when its priority becomes the least (SDRF paper, equation 14)."""

from __future__ import annotations

import math

import pytest

from dios.fairness.stateful.priority import Commitment
from dios.firmament.policies.predicted_turns import PREDICTED_MAX, predicted_turns

TAU = 100.0


def _user(share: float, owed: float) -> Commitment:
    return Commitment(0.0, TAU, (share,), (0.0,), (owed,))


def test_a_fading_commitment_meets_a_steady_share() -> None:
    """0.1 + 0.8 e^(-t/tau) meets 0.3 after tau ln 4; a larger share that fades to more is never the next."""
    turns = predicted_turns({"steady": _user(0.3, 0.0), "past": _user(0.1, 0.8), "large": _user(0.5, 0.6)})
    assert turns["steady"] == (1, 0.0)
    assert turns["past"].place == 2
    assert turns["past"].next_in_s == pytest.approx(TAU * math.log(4), rel=1e-3)
    assert (turns["large"].place, turns["large"].next_in_s) == (3, None)


def test_many_principals_have_an_order_only() -> None:
    """Beyond the bound nothing is predicted, and without principals there is nothing to order."""
    turns = predicted_turns({f"{number:03}": _user(0.1, number / 100) for number in range(PREDICTED_MAX + 1)})
    assert [turn.place for turn in turns.values()] == list(range(1, PREDICTED_MAX + 2))
    assert [turn.next_in_s for turn in turns.values()] == [0.0] + [None] * PREDICTED_MAX
    assert predicted_turns({}) == {}
