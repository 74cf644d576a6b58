"""``dios lab repro sdrf`` and ``dios lab repro dc-drf``: what they write, and that baselines are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.errors import InvalidError
from dios.fairness.dc_drf.allocator import DcDrf
from dios.fairness.edrf import edrf
from labs.papers.dc_drf import algorithm_1, changes, clouds, demand_profiles, evaluation
from labs.papers.figures import _claim_as_json
from labs.papers.judgements import Judgement
from labs.papers.sdrf import evaluation as sdrf_evaluation
from labs.papers.sdrf import months, spike, tree_cost, waits
from labs.simulate.fairness.generate_demands import generate_demands
from tests.support.node.command_user import require_schema

RESULTS = Path(__file__).parents[4] / "labs" / "benchmarks" / "results"
KNOWN = {"sdrf": sdrf_evaluation.FIGURES, "dc-drf": evaluation.FIGURES}


def invoke(*words: str) -> tuple[int, str, str]:
    """The command's status, output and what it said beside it."""
    result = CliRunner().invoke(main.app, ["lab", "repro", *words])
    return result.exit_code, result.stdout, result.stderr


def quiet(_: str) -> None:
    """Nobody listens."""


# The commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["sdrf", "dc-drf"])
@pytest.mark.extended(keep=1)
def test_every_figure_is_written_with_the_paper_beside_it(family: str, tmp_path: Path) -> None:
    """All figures, quickly: each has its table, JSON and claims, and the command that makes it again."""
    status, shown, said = invoke(family, "--quick", "--out", str(tmp_path), "--json")
    assert status == 0, said
    require_schema(f"dios lab repro {family}", shown)
    reports = json.loads(shown)
    assert [entry["figure"] for entry in reports] == list(KNOWN[family])
    for report in reports:
        assert report["command"] == f"dios lab repro {family} --figure {report['figure']} --seed 1 --quick"
        text = (tmp_path / f"figure-{report['figure']}.md").read_text()
        assert f"`{report['command']}`" in text
        assert "## Compared with the paper" in text
        assert report["claims"]
        for claim in report["claims"]:
            assert f"| {claim['what']} | {claim['published']} | {claim['ours']} |" in text
        stored = json.loads((tmp_path / f"figure-{report['figure']}.json").read_text())
        assert stored == {key: value for key, value in report.items() if key != "files"}
        assert all(Path(path).stat().st_size for path in report["files"])


@pytest.mark.long
@pytest.mark.extended
def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    """To the byte, pictures among them, for what measures no time."""
    written: list[dict[str, bytes]] = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "9")):
        words = ("--quick", "--figure", "5", "--figure", "7", "--seed", seed)
        assert invoke("sdrf", *words, "--out", str(tmp_path / name))[0] == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert written[0].keys() == written[2].keys()
    assert all(written[0][name] != written[2][name] for name in written[0])


@pytest.mark.parametrize("family", ["sdrf", "dc-drf"])
def test_an_unknown_figure_is_refused_with_those_that_there_are(family: str, tmp_path: Path) -> None:
    """The message names the figure and lists the others; nothing is run or written."""
    status, _, said = invoke(family, "--figure", "99", "--out", str(tmp_path / "out"))
    assert status != 0
    assert "no figure '99'" in said
    assert all(number in said for number in KNOWN[family])
    assert not (tmp_path / "out").exists()


def test_large_and_quick_exclude_each_other(tmp_path: Path) -> None:
    """One says the paper's sizes, the other the smallest."""
    status, _, said = invoke("dc-drf", "--large", "--quick", "--out", str(tmp_path / "out"))
    assert status == 1
    assert "--large and --quick" in said


def test_the_command_of_a_large_figure_says_so() -> None:
    """Whoever copies it from the page gets the same sizes again."""
    all_clouds = clouds.Clouds(4, quiet, clouds.QUICK._replace(quick=False, options=clouds.LARGE.options))
    assert demand_profiles.figure_7(all_clouds).command == "dios lab repro dc-drf --figure 7 --seed 4 --large"


def test_a_seed_below_zero_is_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidError, match="-1"):
        list(sdrf_evaluation.reproduce(["4"], tmp_path, -1, quiet, quick=True))
    with pytest.raises(InvalidError, match="-1"):
        list(evaluation.reproduce(["3"], tmp_path, -1, quiet, quick=True, large=False))


def test_what_was_finished_before_an_interrupt_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second figure: status 130, the first one's name and its files."""

    def interrupted(months: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(waits, "figure_5", interrupted)
    status, _, said = invoke("sdrf", "--quick", "--figure", "4", "--figure", "5", "--out", str(tmp_path))
    assert status == 130
    assert "has what was finished: 4" in said
    assert (tmp_path / "figure-4.md").exists()


# What they stand on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", clouds.PROFILES)
def test_algorithm_1_comes_to_the_exact_shares(profile: str) -> None:
    """Round by round as printed: the levels at which tenants leave are those of the exact solution."""
    demands = generate_demands(profile, 400, 60, seed=3)
    exact = edrf(demands)
    timed_rounds = algorithm_1.run(demands, 60.0)
    assert timed_rounds.finished
    levels = np.unique(exact.share)
    merged = levels[np.concatenate([[True], np.diff(levels) > 1e-9 * levels[1:]])]
    assert np.allclose(timed_rounds.levels, merged, rtol=1e-9)
    assert timed_rounds.entries[0] == demands[2].size
    assert (np.diff(timed_rounds.entries) < 0).all()
    # If each demand that is summed cost a second, two timed rounds would foretell the whole, and
    # as much for each round.
    cost = np.cumsum(timed_rounds.entries).astype(np.float64)
    cost += 7.0 * np.arange(1, cost.size + 1)
    begun = replace(timed_rounds, seconds=cost[:2], entries=timed_rounds.entries[:2], idle_s=7.0)
    whole = algorithm_1.extrapolate(demands, exact.share, begun)
    assert np.allclose(whole.levels, timed_rounds.levels, rtol=1e-9)
    assert np.allclose(whole.seconds, cost)


def test_algorithm_1_stops_when_patience_ends() -> None:
    """Two rounds at least, and the whole is extrapolated from them by the demands still active."""
    demands = generate_demands("G0", 2_000, 300, seed=3)
    timed_rounds = algorithm_1.run(demands, 0.0)
    assert timed_rounds.levels.size == 2
    assert not timed_rounds.finished
    whole = algorithm_1.extrapolate(demands, edrf(demands).share, timed_rounds)
    assert whole.levels.size > 50
    assert whole.seconds[-1] > timed_rounds.seconds[-1]


def test_distances_from_exact_shares_are_those_of_the_allocations() -> None:
    """Utilisation, deviation and shortfalls once more, from amounts instead of levels."""
    all_clouds = clouds.Clouds(1, quiet, clouds.QUICK)
    cloud = all_clouds.cloud("G0")
    assert cloud.distance(cloud.exact.share) == (1.0, 0.0, 0.0, 0.0)
    allocation = DcDrf(cloud.demands, deadline_s=60.0, epsilon=0.05, dtype="float64").interval()
    distance = cloud.distance(allocation.share)
    offsets = cloud.demands[0]
    given, exact = (np.add.reduceat(outcome.amounts, offsets[:-1]) for outcome in (allocation, cloud.exact))
    assert distance.utilisation == pytest.approx(given.sum() / exact.sum())
    assert distance.deviation == pytest.approx((given / exact).std())
    assert distance.worst == pytest.approx((1 - given / exact).max())
    assert 0 < distance.thousandth < distance.worst
    assert distance.utilisation > 0.94


def test_changed_demands_are_those_of_the_chosen_share() -> None:
    """A tenth of the tenants, by no more than said, and nothing else."""
    demands = generate_demands("G0", 2_000, 200, seed=1)
    offsets, resources, values, size = changes._changed(demands, 0.1, 0.5, np.random.default_rng(1))
    assert (offsets is demands[0], resources is demands[1], size) == (True, True, 200)
    touched = np.add.reduceat(values != demands[2], offsets[:-1]) > 0
    assert 0.07 < touched.mean() < 0.13
    ratio = values / demands[2]
    assert 0.5 <= ratio.min() < 0.6
    assert 1.4 < ratio.max() <= 1.5 + 1e-6


def test_the_months_compare_every_discount_factor_with_drf() -> None:
    """Every cell is there, once; near 1 the gain is between none and all."""
    played = months.Months(1, quiet, months.QUICK)
    cells = played.cells(1, 0.5)
    assert tuple(cells) == months.QUICK.deltas
    assert played.cells(1, 0.5) is cells
    values = played.over_seeds(0.5, months.QUICK.deltas[-1], lambda comparison: -comparison.wait_users)
    assert len(values) == months.QUICK.seeds
    assert all(-1 < value < 1 for value in values)


def test_a_small_run_judges_only_what_it_can() -> None:
    """The example agrees at any size; of the smallest months nothing is judged, and not all would agree."""
    claims = {claim.subject: claim for claim in spike.figure_4(1, quiet, quick=True).claims}
    assert {claim.judgement(quick=True) for claim in claims.values()} == {Judgement.AGREES}
    month = waits.figure_5(months.Months(1, quiet, months.QUICK)).claims
    assert {claim.judgement(quick=True) for claim in month} == {Judgement.NOT_JUDGED}
    assert {claim.judgement(quick=False) for claim in month} != {Judgement.AGREES}


def test_a_crowd_waits_whole_until_its_tasks_run_out() -> None:
    """Everybody has tasks waiting from the first instant on: as many each, of whole units."""
    trace = tree_cost.crowd(50, 1_000, 7)
    assert np.bincount(trace.user).tolist() == [20] * 50
    assert not trace.submit_us.any()
    assert (trace.demands == np.rint(trace.demands)).all()


def test_the_kept_figure_7_judges_the_numbers_of_its_table() -> None:
    """Its judgements were computed after the run; they are those of the columns that they name."""
    kept = json.loads((RESULTS / "fairness-dc-drf" / "figure-7.json").read_text())
    (sheet,) = kept["tables"]
    columns = dict(zip(sheet["columns"], zip(*sheet["rows"], strict=True), strict=True))
    distances = [
        clouds.Distance(utilisation, deviation, worst, 0.0)
        for utilisation, deviation, worst in zip(
            columns["utilisation"], columns["deviation"], columns["worst shortfall"], strict=True
        )
    ]
    claims = demand_profiles._claims_7(list(columns["fraction of exact"]), distances)
    assert kept["claims"] == [_claim_as_json(claim, quick=False) for claim in claims]
