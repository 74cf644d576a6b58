"""``dios lab repro sprayer``: what it writes, and what it does where a machine cannot do all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.errors import InvalidError
from labs.papers.sprayer import connections, evaluation, runs

pytestmark = [pytest.mark.long, pytest.mark.extended]


def invoke(*words: str) -> tuple[int, str, str]:
    """The command's status, output and what it said beside it."""
    result = CliRunner().invoke(main.app, ["lab", "repro", "sprayer", *words])
    return result.exit_code, result.stdout, result.stderr


def quiet(_: str) -> None:
    """Nobody listens."""


@pytest.mark.extended
def test_every_figure_that_this_machine_can_make_is_written_with_the_thesis_beside_it(tmp_path: Path) -> None:
    """All figures, quickly: each has its table, JSON and claims; what is left out is said with its reason."""
    lacks = evaluation.missing_requirements()
    status, shown, said = invoke("--quick", "--out", str(tmp_path), "--json")
    assert status == 0, said
    reports = json.loads(shown)
    assert [entry["figure"] for entry in reports] == [
        name for name in evaluation.FIGURES if name not in lacks
    ]
    assert all(reason in said.replace("\n", " ") for reason in lacks.values())
    for report in reports:
        assert report["command"] == f"dios lab repro sprayer --figure {report['figure']} --seed 21 --quick"
        text = (tmp_path / f"figure-{report['figure']}.md").read_text()
        assert f"`{report['command']}`" in text
        assert "## Compared with the thesis" in text
        assert report["measured"]
        assert report["claims"]
        for claim in report["claims"]:
            assert f"| {claim['what']} | {claim['published']} | {claim['ours']} |" in text
        assert all(Path(path).stat().st_size for path in report["files"])


def test_without_namespaces_rates_in_memory_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where unshare is missing: workers alone, the rest is told with what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, said = invoke("--quick", "--figure", "3.6a", "--out", str(tmp_path / "out"))
    assert status == 0, said
    assert "apt install util-linux" in said
    table = json.loads((tmp_path / "out" / "figure-3.6a.json").read_text())["tables"][0]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert {row["place"] for row in rows} == {runs.MEMORY}
    assert all(row["mean"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("wanted", "told"), [("all", {"3.6b", "3.7b", "3.8", "3.9", "quic"}), ("3.6a", set())]
)
def test_what_is_wanted_and_left_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, told: set[str]
) -> None:
    """Where unshare is missing, those figures are told that are wanted and left out, and no others."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, said = invoke("--quick", "--figure", wanted, "--out", str(tmp_path / "out"))
    assert status == 0, said
    listed = said.partition("left out (")[2].partition(")")[0].replace("\n", " ").split(", ")
    assert set(listed) == {"cables", *told}


def test_a_figure_that_needs_namespaces_is_refused_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with status 1 and the reason, before anything is made."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, said = invoke("--quick", "--figure", "3.8", "--out", str(tmp_path / "out"))
    assert status == 1
    assert "apt install util-linux" in said
    assert not (tmp_path / "out").exists()


def test_a_figure_of_sprayer_that_is_not_there_and_a_seed_below_zero_are_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    status, _, said = invoke("--figure", "9", "--out", str(tmp_path / "out"))
    assert status == 1
    assert all(number in said for number in evaluation.FIGURES)
    with pytest.raises(InvalidError, match="-1"):
        list(evaluation.reproduce(["3.6a"], tmp_path / "out", -1, quiet, seeds=None, quick=True))
    assert not (tmp_path / "out").exists()


def test_the_seeds_of_a_figure_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a figure has the number of seeds in its command, and lists them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    status, _, said = invoke("--quick", "--figure", "3.7a", "--seeds", "2", "--out", str(out))
    assert status == 0, said
    text = (out / "figure-3.7a.md").read_text()
    assert "--seeds 2 --quick`" in text
    assert "seeds: 21, 22" in text


def test_a_figure_of_sprayer_finished_before_an_interrupt_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second figure: status 130, the first one's name and its files."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("labs.papers.sprayer.rates.figure_7a", interrupted)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    status, _, said = invoke("--quick", "--figure", "3.6a", "--figure", "3.7a", "--out", str(out))
    assert status == 130
    assert "has what was finished: 3.6a" in said
    assert (out / "figure-3.6a.md").exists()


def test_a_subset_of_two_cores_is_told_apart_from_spraying_only_where_it_differs() -> None:
    """With two cores it is left out, with the reason; with more it has its rows."""
    played = runs.SprayerRuns(1, quiet, runs.QUICK, None)
    named = any("subset:2 is not measured" in note for note in connections._notes(played))
    assert named == ("subset:2" not in connections._steers(played)) == (played.cores == 2)


def test_means_ends_and_ratios_are_those_of_all_seeds() -> None:
    """Mean, least and most; one by the other, seed by seed."""
    assert runs.middle_and_ends([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert runs.ratios([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]
    assert runs.times([2.0, 1.0]) == "1.50 x (1.00 to 2.00)"
    assert runs.spread([1.0, 2.0, 3.0]) == 1.0
