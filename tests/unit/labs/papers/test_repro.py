from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.errors import InvalidError
from dios.firmament.models.green import GreenModel
from dios.firmament.models.green_power import MACHINES
from dios.firmament.models.random_fit import RandomFitModel
from labs.papers import figures
from labs.papers.firmament import evaluation, green, mix, solver
from labs.papers.firmament.green_lab import BatchJob, GreenRun, GreenSetup, batch_jobs, machines, run
from labs.papers.judgements import Judgement

NOTHING = np.zeros(1)


def quiet(_: str) -> None:
    """Nobody listens."""


def make(number: str, out: Path, seed: int = 1) -> figures.Figure:
    """One figure, quickly."""
    [reproduction] = evaluation.reproduce([number], out, seed, quiet, quick=True)
    return reproduction.figure


def invoke(*words: str) -> tuple[int, str, str]:
    """The command's status, output and what it said beside it."""
    result = CliRunner().invoke(main.app, ["lab", "repro", "firmament", *words])
    return result.exit_code, result.stdout, result.stderr


# The command ------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_the_command_writes_every_figure_with_the_thesis_beside_it(tmp_path: Path) -> None:
    """All figures, quickly: each has its table, JSON and pictures, and each claim the thesis' word."""
    status, shown, said = invoke("--quick", "--out", str(tmp_path), "--json")
    assert status == 0, said
    reports = json.loads(shown)
    assert [entry["figure"] for entry in reports] == list(evaluation.FIGURES)
    for report in reports:
        text = (tmp_path / f"figure-{report['figure']}.md").read_text()
        assert f"`{report['command']}`" in text
        assert report["command"].endswith("--seed 1 --quick")
        assert report["claims"]
        for claim in report["claims"]:
            assert f"| {claim['what']} | {claim['published']} | {claim['ours']} |" in text
        stored = json.loads((tmp_path / f"figure-{report['figure']}.json").read_text())
        assert stored == {key: value for key, value in report.items() if key != "files"}
        assert all(Path(path).stat().st_size for path in report["files"])
        assert any(path.endswith(".png") for path in report["files"])


def test_an_unknown_figure_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    """The message names the figure and lists the others; nothing is run or written."""
    status, _, said = invoke("--figure", "9.1", "--out", str(tmp_path / "out"))
    assert status != 0
    assert "no figure '9.1'" in said
    assert "8.7" in said
    assert not (tmp_path / "out").exists()


def test_a_directory_that_cannot_be_is_found_before_anything_is_run(tmp_path: Path) -> None:
    """A file in the directory's place ends the command with its name, not after hours."""
    (tmp_path / "taken").write_text("")
    status, _, said = invoke("--quick", "--out", str(tmp_path / "taken"))
    assert status != 0
    assert "taken" in said


def test_what_was_finished_before_an_interrupt_stays(tmp_path: Path) -> None:
    """Figures are written one by one: an interrupt in the second leaves the first whole."""

    def stop(text: str) -> None:
        if text.startswith(green.FIXED):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(evaluation.reproduce(["8.2", "8.6"], tmp_path, 1, stop, quick=True))
    assert {"figure-8.2.md", "figure-8.2.json"} <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "figure-8.6.md").exists()


def test_figures_are_chosen_by_number_in_the_thesis_order() -> None:
    """Several, in any order and spelling; none or all: every one; a seed below 0 is refused."""
    assert figures.select_figures(["8.4", "Figure 8.1"], evaluation.FIGURES) == ["8.1", "8.4"]
    assert (
        figures.select_figures([], evaluation.FIGURES)
        == figures.select_figures(["8.2", "all"], evaluation.FIGURES)
        == list(evaluation.FIGURES)
    )
    with pytest.raises(InvalidError, match="-1"):
        list(evaluation.reproduce(["8.1"], Path(), -1, quiet, quick=True))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Tables, JSON and pictures of simulated figures repeat."""
    for name in ("one", "two"):
        make("8.6", tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("measured", [True, False])
def test_a_measured_figure_has_its_date_and_a_simulated_one_none(tmp_path: Path, *, measured: bool) -> None:
    """A reader of kept results learns when they were measured; simulated ones follow from the seed."""
    figure = figures.Figure("1", "One", 1, False, (), (), (), measured=measured)
    [reproduction] = figures.make_figures(["1"], {"1": lambda: figure}, tmp_path, 1)
    assert ("date" in dict(reproduction.figure.setting)) is measured
    assert ("\n- date: " in (tmp_path / "figure-1.md").read_text()) is measured


def test_the_seed_decides_the_mix() -> None:
    """The same seed gives the same decisions, another one gives others."""
    digests = [mix.MixRuns(seed, quiet, 30.0).outcome(mix.COCO, large=False).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


# The thesis' numbers ------------------------------------------------------------------------------------


def test_the_thesis_numbers_are_those_of_its_text() -> None:
    """Table 8.5, and the times of §8.4 in seconds."""
    assert list(green.TABLE_8_5.values()) == [(52_553, 0), (51_049, 5), (53_324, 0), (52_871, 0)]
    assert solver.THESIS[3_000]["cs2"][0] == 0.515
    assert solver.THESIS[3_000]["incremental relaxation"][:2] == (0.044, 0.25)
    assert solver.THESIS[12_550]["cs2"] == (2.86, 4.98, 9.25)
    assert solver.THESIS[12_550]["incremental relaxation"] == (0.265, 0.345, 3.98)


def test_claims_about_the_mix_hold_only_when_they_do() -> None:
    """Made-up medians: better than both baselines agrees, worse contradicts, twenty times is not 2 to 4."""
    base = {name: [2.0, 2.0] for name in (mix.QUEUE, mix.LOAD)}
    for ours, last, others in (
        (1.3, Judgement.AGREES, Judgement.AGREES),
        (1.05, Judgement.STRONGER, Judgement.AGREES),
        (1.8, Judgement.WEAKER, Judgement.AGREES),
        (2.6, Judgement.CONTRADICTS, Judgement.CONTRADICTS),
    ):
        groups = {program: {**base, mix.WHARE: [ours], mix.COCO: [ours]} for program in mix.PROGRAMS}
        *first, slow_down = mix._claims_8_1("here", groups)
        assert {claim.judgement(quick=False) for claim in first} == {others}
        assert slow_down.judgement(quick=False) is last
        assert slow_down.judgement(quick=True) is Judgement.NOT_JUDGED


# The energy lab -----------------------------------------------------------------------------------------


def fixed(**more: bool) -> GreenSetup:
    """Random placement on x86, no service."""
    return GreenSetup("test", lambda: RandomFitModel(seed=1), x86_only=True, web_tasks=(0, 0), **more)


def test_energy_is_that_of_the_cores_that_worked() -> None:
    """A job of ten seconds on an x86 machine: its cores' watts for as long as its speed takes."""
    lab = run(fixed(), [BatchJob(1, 0, 10.0, 100.0)], NOTHING, 50)
    there = [power for name, power in MACHINES.items() if name in {"r420", "r415"}]
    possible = [power.marginal * np.ceil(10 / power.speed) for power in there]
    assert any(abs(sum(lab.joules) - energy) < 1e-6 for energy in possible)
    assert (lab.done, lab.missed) == (1, 0)
    assert lab.idle_watts == pytest.approx(6.95 + 9.55 + 87.10 + 70.60 + 544.94)


def test_the_service_answers_what_its_tasks_can() -> None:
    """Two tasks on x86 under an endless load serve what their cores do, and draw those cores' watts."""
    setup = GreenSetup("test", GreenModel, x86_only=True, web_tasks=(2, 2))
    lab = run(setup, (), np.full(5, 1e9), 5)
    r420 = MACHINES["r420"]
    assert lab.served == [2 * r420.requests] * 5
    assert lab.web_joules == pytest.approx([2 * r420.marginal] * 5)
    assert lab.web_joules == pytest.approx(lab.joules)


def test_green_uses_frugal_machines_and_scales_with_the_load() -> None:
    """A little load stays on the boards; much of it brings more tasks, and less takes them away again."""
    load = np.concatenate([np.full(30, 500.0), np.full(60, 30_000.0), np.full(120, 500.0)])
    lab = run(GreenSetup("test", GreenModel, web_tasks=(1, 8), web_first=1), (), load, 400)
    assert max(lab.web_tasks[:25]) == 1
    assert max(lab.web_tasks[60:90]) > 4
    assert lab.web_tasks[-1] < max(lab.web_tasks)
    assert lab.joules[20] < 1.0


def test_batch_jobs_have_deadlines_from_two_to_twenty_runtimes() -> None:
    """§8.2.2; and about ten of them at any time."""
    jobs = batch_jobs(3, 800)
    factors = np.array([(job.deadline - job.at) / job.work for job in jobs])
    assert factors.min() >= 2
    assert factors.max() < 20
    assert sum(job.work for job in jobs) / 800 == pytest.approx(10, rel=0.25)
    assert [machine.name for machine in machines()] == list(MACHINES)


def test_a_job_that_is_stopped_begins_again_and_may_miss_its_deadline() -> None:
    """A deadline that nobody can keep counts as missed, and the job still ends."""
    lab: GreenRun = run(fixed(), [BatchJob(1, 0, 10.0, 3.0)], NOTHING, 50)
    assert (lab.done, lab.missed) == (1, 1)


# Tables and measuring -----------------------------------------------------------------------------------


def test_spreads_are_the_box_plots_percentiles() -> None:
    """Count, 1, 25, 50, 75, 99 and the maximum; empty cells of nothing."""
    assert figures.percentile_cells(np.arange(101.0)) == (101, 1.0, 25.0, 50.0, 75.0, 99.0, 100.0)
    assert figures.percentile_cells([]) == (0, "", "", "", "", "", "")
    assert len(figures.PERCENTILE_COLUMNS) == 7


def test_the_references_solve_what_ours_solves(tmp_path: Path) -> None:
    """One round in so many has times of all solvers, and costs that were compared."""
    measurement = solver.measure(solver.SolverScale(10, 120.0, 5.0, 3), 1, quiet)
    rounds = len(measurement.outcome.rounds) - 10
    assert len(measurement.seconds[solver.OURS]) == len(measurement.whole) == rounds
    assert len(measurement.together) == -(-rounds // 3)
    assert {len(measurement.seconds[name]) for name in solver.REFERENCES} == {len(measurement.together)}
    assert measurement.outcome.faults == 0, measurement.outcome.fault_texts
