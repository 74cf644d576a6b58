"""The time that explanations may take from a scheduler."""

from __future__ import annotations

import pytest

from dios.firmament.coordinator.query_handler import ExplainAllowance
from dios.limits import EXPLAIN_S, EXPLAIN_SHARE


def test_explanations_take_a_part_of_the_time_and_never_more_at_once() -> None:
    """What was spent comes back at the stated rate, a bounded debt first, and nothing is saved up."""
    allowance = ExplainAllowance()
    assert allowance.left_s(100.0) == EXPLAIN_S
    for _ in range(3):
        allowance.spend(EXPLAIN_S)
        assert allowance.left_s(100.0) == 0
    assert allowance.left_s(100.0 + EXPLAIN_S / EXPLAIN_SHARE) == 0
    assert allowance.left_s(100.0 + (EXPLAIN_S + 0.2) / EXPLAIN_SHARE) == pytest.approx(0.2)
    assert allowance.left_s(1e6) == EXPLAIN_S
