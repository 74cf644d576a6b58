"""A pure task that spoils everything it really holds: wake-ups, flags, shared memory, its socket, its end.

Not for: single attempts with a known answer (``test_escape_buffers.py`` and its neighbours), or frames alone
(``tests/fuzz``). ``make fuzz-tasks`` plays more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.security.hostile_tasks import PLAYS, Stage, open_stage

STEPS = 60
SEEDS = 3
LONG_STEPS = 400
LONG_SEEDS = 8


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One node for all plays."""
    with open_stage(tmp_path_factory.mktemp("hands")) as opened:
        yield opened


@pytest.mark.parametrize("name", PLAYS)
def test_what_a_task_spoils_is_its_own(stage: Stage, name: str) -> None:
    """A neighbour's calls and the partner's waits are answered, and the node is afterwards as before."""
    for seed in range(SEEDS):
        played = stage.play(name, seed, STEPS)
        assert played.neighbour_calls
    assert stage.play(name, 100, STEPS, tasks=3).partner_turns


@pytest.mark.extended
@pytest.mark.parametrize("name", PLAYS)
def test_long_plays_of_tasks(stage: Stage, name: str) -> None:
    """The same with other seeds, more steps, and several tasks at once."""
    for seed in range(1_000, 1_000 + LONG_SEEDS):
        stage.play(name, seed, LONG_STEPS, tasks=1 + seed % 4)


def test_a_node_stops_while_tasks_spoil_what_they_hold(tmp_path: Path) -> None:
    """SIGTERM ends the node with all processes and control groups, whatever its tasks do at that moment."""
    with open_stage(tmp_path) as stage:
        stage.play("all", 7, STEPS)
        stage.stops(lingering=3)
