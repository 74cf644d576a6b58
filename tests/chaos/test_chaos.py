"""A short run of ``make chaos``, and proof that its verdicts can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.wire.types import Semantics
from tests.chaos.history import Action, History, Outcome
from tests.chaos.round import play
from tests.chaos.verdict import BrokenPromiseError, judge_commits, judge_keys, judge_runs
from tests.chaos.workload import Key, Run

pytestmark = pytest.mark.long

SEED = 7
FAULTS = 3


def test_a_cluster_keeps_its_promises_while_nodes_fail(tmp_path: Path) -> None:
    """Nodes are killed, frozen and stopped under load: no promise is broken, and nothing is left."""
    tally = play(tmp_path / "cluster", SEED, lambda faults: faults == FAULTS)
    assert set(tally.faults) == {"kill", "freeze", "stop"}
    assert {operation for operation, outcome in tally.calls if outcome is Outcome.DONE} >= {
        "increment counter",
        "read counter",
        "write register",
        "write store",
        "create",
        "run",
    }


def kept(level: Semantics, *rows: tuple[Action, int, Outcome]) -> tuple[History, dict[str, Key]]:
    """The history of one counter, one call after the other."""
    history = History()
    for action, value, outcome in rows:
        history.end(history.begin("counter", action, "client", value), outcome)
    return history, {"counter": Key(0, b"", level)}


INCREMENT, READ = Action.INCREMENT, Action.READ
DONE, FAILED, UNKNOWN = Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN


@pytest.mark.parametrize("level", Semantics)
def test_a_counter_that_is_right_is_accepted(level: Semantics) -> None:
    """Definite increments count, indefinite ones may, and failed ones do not."""
    rows = ((INCREMENT, 1, DONE), (INCREMENT, 2, FAILED), (INCREMENT, 2, UNKNOWN), (READ, 2, DONE))
    judge_keys(*kept(level, *rows))


@pytest.mark.parametrize("level", Semantics)
def test_an_increment_that_was_said_to_have_failed_must_not_count(level: Semantics) -> None:
    """A commit that is answered as a conflict, and is made all the same, is found at every level."""
    rows = ((INCREMENT, 1, DONE), (INCREMENT, 2, FAILED), (READ, 2, DONE))
    with pytest.raises(BrokenPromiseError):
        judge_keys(*kept(level, *rows))


@pytest.mark.parametrize(("commits", "broken"), [(1, False), (2, False), (0, True), (3, True)])
@pytest.mark.parametrize("level", Semantics)
def test_commits_are_counted_at_every_level(level: Semantics, commits: int, *, broken: bool) -> None:
    """One definite commit, one unknown and one failed are one or two, also where updates may be lost."""
    rows = ((INCREMENT, 1, DONE), (INCREMENT, 1, UNKNOWN), (INCREMENT, 1, FAILED))
    history, _ = kept(level, *rows)
    if not broken:
        judge_commits("counter", history.operations["counter"], commits)
        return
    with pytest.raises(BrokenPromiseError, match="commits"):
        judge_commits("counter", history.operations["counter"], commits)


def test_a_lost_update_is_found_at_strong_levels_only() -> None:
    """Two increments reach the same value: that is what the weak levels permit."""
    rows = ((INCREMENT, 1, DONE), (INCREMENT, 1, DONE), (READ, 1, DONE))
    judge_keys(*kept(Semantics.ANY, *rows))
    with pytest.raises(BrokenPromiseError, match="not linearizable"):
        judge_keys(*kept(Semantics.MRSW, *rows))


@pytest.mark.parametrize(
    ("outcome", "executions", "broken"),
    [
        (DONE, 1, False),
        (DONE, 0, True),
        (DONE, 2, True),
        (FAILED, 0, False),
        (FAILED, 1, True),
        (UNKNOWN, 0, False),
        (UNKNOWN, 1, False),
        (UNKNOWN, 2, True),
    ],
)
def test_a_run_is_executed_once(outcome: Outcome, executions: int, *, broken: bool) -> None:
    """A run that succeeded was executed once, one that failed never, any other at most once."""
    runs = [Run(b"", outcome, "")]
    if not broken:
        judge_runs(runs, [executions])
        return
    with pytest.raises(BrokenPromiseError, match="executed"):
        judge_runs(runs, [executions])
