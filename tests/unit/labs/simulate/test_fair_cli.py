"""``dios lab fair``: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from labs.simulate.fairness import trace_report
from tests.support.node.command_user import require_schema

ROOT = Path(__file__).parents[4]
SMALL = ("--synthetic", "--users", "30", "--tasks", "2000", "--days", "2", "--capacity", "0.8")


def invoke(*words: str) -> tuple[int, str, str]:
    """The command's status, output and what it said beside it."""
    result = CliRunner().invoke(main.app, ["lab", "fair", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.extended
def test_every_mechanism_has_a_row_beside_drf() -> None:
    """DRF and each delta, with changes and events."""
    status, shown, said = invoke(*SMALL, "--delta", "1-1e-4", "--delta", "0.99999")
    assert status == 0, said
    lines = shown.splitlines()
    assert "2,000 of 30 users in 2.0 days" in lines[0]
    assert [line.split("  ")[0] for line in lines[4:]] == ["DRF", "SDRF, 1 - 1e-4", "SDRF, 1 - 1e-5"]
    assert "%" in lines[5]
    assert "%" not in lines[4]


def test_json_and_files_hold_the_same_numbers(tmp_path: Path) -> None:
    """summary.json is what is printed; users.csv has everybody; pictures are there."""
    status, shown, said = invoke(*SMALL, "--json", "--out", str(tmp_path / "out"), "--seed", "5")
    assert status == 0, said
    require_schema("dios lab fair", shown)
    summary = json.loads(shown)
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    drf, sdrf = summary["mechanisms"]
    assert drf["delta"] is None
    assert sdrf["delta"] == 1 - 1e-6
    assert sdrf["events_per_thousand"] >= 0
    assert sdrf["wait_users"] == pytest.approx(sdrf["wait_users_s"] / drf["wait_users_s"] - 1)
    rows = list(csv.DictReader((tmp_path / "out" / "users.csv").read_text().splitlines()))
    assert len(rows) == 30
    mean = sum(float(row["mean wait s (DRF)"]) for row in rows) / 30
    assert mean == pytest.approx(drf["wait_users_s"], abs=1e-3)
    assert sum(int(row["completed (DRF)"]) for row in rows) == drf["completed"]
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"waits.png", "reductions.png"}


def test_the_google_trace_is_read_and_what_is_left_out_is_told() -> None:
    """The rows of the 2011 format become tasks; the reasons for the others stand beside the table."""
    status, shown, said = invoke("--trace", str(ROOT / "tests/data/google-trace"), "--json")
    assert status == 0, said
    assert json.loads(shown)["tasks"] == 11
    assert "left out of the trace: " in said
    assert "evicted or lost" in said
    status, shown, _ = invoke("--trace", str(ROOT / "tests/data/google-trace"), "--json", "--days", "0.01")
    assert status == 0
    assert json.loads(shown)["days"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give either --trace DIR or --synthetic"),
        (("--synthetic", "--trace", "x"), "give either --trace DIR or --synthetic"),
        (("--trace", "nowhere"), "no part-*.csv"),
        (("--trace", "x", "--users", "3"), "--users is for synthetic traces only"),
        (("--synthetic", "--delta", "1"), "--delta '1': it must be between 0 and 1"),
        (("--synthetic", "--delta", "much"), "--delta 'much': give a number"),
        (("--synthetic", "--priority", "lowest"), "--priority is 'lowest'"),
        (("--synthetic", "--capacity", "0"), "--capacity is 0.0"),
        (("--synthetic", "--days", "nan"), "--days is nan"),
        (("--synthetic", "--users", "2"), "users is 2"),
        ((*SMALL, "--capacity", "1e-9"), "no task fits into --capacity 1e-09"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(words: tuple[str, ...], said: str) -> None:
    """Each message names the option at fault."""
    status, _, told = invoke(*words)
    assert status == 1
    assert said in told


def test_an_interrupt_ends_it_with_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the second mechanism plays: status 130, and the first one's name."""
    real = trace_report.run_mechanism

    def run_mechanism(*given: object) -> object:
        if given[2] is not None:
            signal.raise_signal(signal.SIGINT)
        return real(*given)  # type: ignore[arg-type] # passed on

    monkeypatch.setattr(trace_report, "run_mechanism", run_mechanism)
    status, _, said = invoke(*SMALL)
    assert status == 130
    assert "interrupted; finished: DRF" in said


def test_help_teaches_with_examples() -> None:
    """Each option is told, and examples stand on lines of their own."""
    status, shown, _ = invoke("--help")
    assert status == 0
    examples = shown.partition("Examples:")[2]
    assert examples.count("dios lab fair --") == 3
    for option in ("--trace", "--synthetic", "--delta", "--priority", "--capacity", "--out", "--json"):
        assert option in shown
