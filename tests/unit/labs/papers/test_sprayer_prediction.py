"""The model of more cores: exact where it can be, and as many trials say elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from labs.papers.sprayer.prediction import CARD_FRAMES_S, busy_cores, fitted, prediction_sheet


def test_busy_cores_are_those_of_trials() -> None:
    """The mean number of cores with a flow agrees with flows that are dealt out at random."""
    dice = np.random.default_rng(1)
    for cores, flows in ((2, 1), (2, 2), (8, 4), (8, 64)):
        counts = [len(set(dice.integers(0, cores, flows).tolist())) for _ in range(4000)]
        assert busy_cores(cores, flows) == pytest.approx(np.mean(counts), rel=0.02)


def test_the_model_returns_what_it_was_fitted_to() -> None:
    """One flow by RSS has the rate of one core, and spraying the measured one; nothing passes the card."""
    model = fitted(250e3, 490e3, 2)
    assert model.by_flow(2, 1) == pytest.approx(250e3)
    assert model.sprayed(2) == pytest.approx(490e3)
    assert 8 * 240e3 < model.sprayed(8) < 8 * 250e3
    assert model.by_flow(8, 10_000) == pytest.approx(8 * 250e3)
    assert fitted(20e6, 30e6, 2).sprayed(16) == CARD_FRAMES_S
    assert fitted(250e3, 600e3, 2).sprayed(4) == pytest.approx(4 * 250e3), "noise is no gain"
    assert fitted(250e3, 250e3, 1).sprayed(8) == pytest.approx(8 * 250e3)


def test_predictions_are_marked() -> None:
    """The table says what it is, and has the measured number of cores to be compared with."""
    sheet = prediction_sheet({"in memory": fitted(250e3, 500e3, 2)}, 2, (1, 128))
    assert sheet.title.startswith("PREDICTION")
    assert [row[1:3] for row in sheet.rows][:2] == [(2, 1), (2, 128)]
    assert {row[1] for row in sheet.rows} == {2, 4, 8, 16}
