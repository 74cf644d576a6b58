"""What a simulation reports, and the command ``dios lab simulate``."""

from __future__ import annotations

import csv
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from labs.simulate.scheduling.report import Spread, summarise
from labs.simulate.scheduling.run import SimulationConfig, simulate
from labs.simulate.scheduling.schedulers import scheduler_for
from labs.simulate.workloads.google_like import GoogleLike, GoogleWorkload
from tests.support.node.command_user import require_schema

pytestmark = [pytest.mark.long, pytest.mark.extended]

SEED = 11
SAMPLE = Path(__file__).parents[3] / "data" / "google-trace"
PAGE = Path(__file__).parents[4] / "docs" / "experiments.md"


def test_a_spread_of_nothing_has_no_numbers() -> None:
    """An empty distribution has None, and what is no number is left out."""
    assert Spread.of([math.nan]) == Spread(0, None, None, None, None, None)
    assert Spread.of([1.0, 3.0, math.nan]).mean == 2.0


def invoke(*words: str) -> tuple[int, str, str]:
    """Exit status and output of ``dios lab simulate``."""
    result = CliRunner().invoke(main.app, ["lab", "simulate", *words])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_tells_people() -> None:
    """A tiny run ends well and shows tasks, waiting and decisions."""
    status, shown, _ = invoke("--synthetic", "google", "--machines", "5", "--hours", "0.02", "--check")
    assert status == 0
    for word in ("quincy", "utilisation", "waiting, s", "decision, ms", "digest"):
        assert word in shown


def test_the_command_writes_json_tables_and_pictures(tmp_path: Path) -> None:
    """--json is one document; --out holds it too, with a line for each task and round; --plots draws."""
    out = tmp_path / "deep" / "out"
    status, shown, _ = invoke(
        "--synthetic",
        "mix-srg",
        "--hours",
        "0.03",
        "--model",
        "queue",
        "--json",
        "--out",
        str(out),
        "--plots",
    )
    assert status == 0
    require_schema("dios lab simulate", shown)
    told = json.loads(shown)
    assert told == json.loads((out / "summary.json").read_text())
    with (out / "tasks.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == told["submitted"]
    with (out / "rounds.csv").open(newline="") as file:
        assert sum(int(row["placed"]) for row in csv.DictReader(file)) == told["placed"]
    assert sorted(path.name for path in out.glob("*.png")) == [
        "decisions.png",
        "runtimes.png",
        "timeline.png",
        "waiting.png",
    ]


def test_running_tasks_stay_when_that_is_asked_for() -> None:
    """Whare-M moves tasks as it learns; with --stay it does not."""
    words = (
        "--synthetic",
        "mix-srg",
        "--model",
        "whare-m",
        "--hours",
        "0.03",
        "--round-interval",
        "2",
        "--json",
    )
    moving, staying = (json.loads(invoke(*words, *stay)[1]) for stay in ((), ("--stay",)))
    assert moving["preempted"] + moving["migrated"] > 0
    assert staying["preempted"] + staying["migrated"] == 0 < staying["placed"]


def test_the_command_reads_a_trace() -> None:
    """The sample runs under the model that is named."""
    status, shown, _ = invoke(
        "--trace", str(SAMPLE), "--hours", "0.4", "--model", "trivial", "--round-interval", "10", "--json"
    )
    assert status == 0
    told = json.loads(shown)
    assert (told["submitted"], told["finished"], told["model"]) == (13, 7, "trivial")
    assert told["passed_over"] == {"machine UPDATE": 1, "task UPDATE": 2}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--trace DIR or --synthetic"),
        (["--synthetic", "google", "--trace", "x"], "--trace DIR or --synthetic"),
        (["--synthetic", "yahoo"], "google, mix-srg, mix-dc"),
        (["--trace", "nowhere"], "machine_events"),
        (["--synthetic", "google", "--model", "best"], "trivial"),
        (["--synthetic", "google", "--solver", "magic"], "ortools"),
        (["--synthetic", "google", "--machines", "0"], "0 machines"),
        (["--synthetic", "google", "--machines", "1000000000000"], "1 to 1000000"),
        (["--synthetic", "google", "--hours", "0"], "--hours is 0.0"),
        (["--trace", str(SAMPLE), "--hours", "inf"], "--hours is inf"),
        (["--trace", str(SAMPLE), "--hours", "nan"], "--hours is nan"),
        (["--synthetic", "google", "--load", "-1"], "load is -1.0"),
        (["--synthetic", "google", "--round-interval", "often"], "'often'"),
        (["--synthetic", "google", "--param", "omega"], "NAME=VALUE"),
        (["--synthetic", "google", "--param", "omicron=1"], "no parameter 'omicron'"),
        (["--synthetic", "google", "--scale", "0.5"], "--scale has no effect"),
        (["--synthetic", "mix-dc", "--load", "0.5"], "--load has no effect"),
        (["--synthetic", "google", "--plots"], "--out DIR"),
        (["--synthetic", "mix-srg", "--model", "queue", "--param", "a=1"], "queue has no parameters"),
    ],
)
def test_bad_options_are_clear_errors(words: list[str], told: str) -> None:
    """Status 1, and a message that says what would do."""
    status, _, said = invoke(*words)
    assert status == 1
    assert told in " ".join(said.split())


def test_bad_options_leave_no_directory(tmp_path: Path) -> None:
    """--out is made when the options are known to be good."""
    assert invoke("--synthetic", "google", "--model", "best", "--out", str(tmp_path / "out"))[0] == 1
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_the_command_with_its_summary() -> None:
    """On a terminal a bar shows progress; Ctrl-C gives the summary so far and status 130."""
    words = ["--synthetic", "google", "--machines", "5", "--hours", "900", "--model", "queue"]
    control, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "dios.cli.main", "lab", "simulate", *words],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            # A dumb terminal shows no bar.
            env={**os.environ, "TERM": "xterm"},
        )
        with process:
            try:
                os.close(terminal)
                before = _read_until(control, lambda shown: b"rounds/s" in shown)
                assert b"simulating" in before
                process.send_signal(signal.SIGINT)
                after = _read_until(control, lambda shown: b"interrupted after" in shown)
                assert process.wait(30) == 130
            finally:
                process.kill()
    finally:
        os.close(control)
    assert b"utilisation" in after
    assert b"Traceback" not in after


def _read_until(control: int, done: Callable[[bytes], bool]) -> bytes:
    """What a terminal shows until a condition holds; kernels may have to be compiled first."""
    shown = b""
    deadline = time.monotonic() + 160
    while not done(shown) and time.monotonic() < deadline:
        if select.select([control], [], [], 0.2)[0]:
            try:
                shown += os.read(control, 65_536)
            except OSError:
                break
    assert done(shown), shown[-2000:]
    return shown


def test_every_model_of_a_run_is_counted() -> None:
    """The summary's rounds by algorithm add up to all rounds."""
    workload = GoogleWorkload(GoogleLike(5, seed=SEED, seconds=30))
    summary = summarise(simulate(SimulationConfig(workload, scheduler_for("trivial"), 30, round_interval=5)))
    assert Counter(summary.algorithms).total() == summary.rounds > 0


@pytest.mark.parametrize(
    "program", re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
def test_the_programs_of_the_page_run(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/experiments.md shows programs that work and print something."""
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.startswith("0.")
