"""Two plays of ``make starved``; each stops a process for longer than former limits of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.starved.plays import PLAYS, perform
from tests.support.node.confinement import mechanisms_or_skip

pytestmark = pytest.mark.long

STOP_S = 11.0


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("name", ["start: the probe stops", "restart: the successor stops"])
def test_a_process_that_was_stopped_breaks_nothing(name: str, tmp_path: Path) -> None:
    """What the user typed works, later than usual, and so does the next command."""
    mechanisms_or_skip()
    (play,) = (play for play in PLAYS if play.name == name)
    perform(play, tmp_path, busy=2, stop_s=STOP_S)
