"""Scenarios of each family of calls: what goes in, and every effect that comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.core.scenarios import Scenario

TEXTS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_outcomes_are_as_written(path: Path) -> None:
    """``python -m tests.unit.core.test_scenarios`` writes them again, for a reader of the diff."""
    text = path.read_text()
    assert Scenario().play(text) == text


if __name__ == "__main__":
    for text in TEXTS:
        text.write_text(Scenario().play(text.read_text()))
