"""The words of `dios shares`."""

from __future__ import annotations

from typing import cast

import pytest

from dios.cli.scheduling.shares import rate_solution_text
from dios.firmament.coordinator.answers import RateSolutionAnswer

BY_DC_DRF = "rates by DC-DRF in 2.0 ms, because exact ones took 310.0 ms"
SIZE = "3 principals at 8 links and disks"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "rates by EDRF, exact, in 2.0 ms: 3 principals at 8 links and disks"),
        (
            {"algorithm": "dc-drf", "epsilon": 0.004},
            f"{BY_DC_DRF}; at most 0.4 % of a link or disk is left over: {SIZE}",
        ),
        (
            {"algorithm": "dc-drf", "completed": False},
            f"{BY_DC_DRF}; its deadline came first, so more may be left over: {SIZE}",
        ),
    ],
    ids=["exact", "dc-drf", "late"],
)
def test_the_algorithm_of_the_rates_is_shown(changes: dict[str, object], text: str) -> None:
    """The line below the rates names the algorithm, its time, and what it may leave over."""
    by: RateSolutionAnswer = {
        "algorithm": "edrf", "principals": 3, "resources": 8, "seconds": 0.002, "epsilon": 0.0,
        "completed": True, "exact_s": 0.31,
    }  # fmt: skip
    assert rate_solution_text(cast("RateSolutionAnswer", {**by, **changes})) == text
