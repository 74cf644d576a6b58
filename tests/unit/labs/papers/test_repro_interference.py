"""``dios lab repro interference`` and ``dios lab calibrate``: the pairs, the counts, and the numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.host.machine.machine_tree import Element, Part
from labs.commands import calibrate
from labs.papers.interference import evaluation, system_calls
from labs.papers.interference.places import Place, Sharing, lacks, last_level_bytes, places


def invoke(*words: str) -> tuple[int, str, str]:
    """Return the status, output and messages of a command."""
    result = CliRunner().invoke(main.app, [*words])
    return result.exit_code, result.stdout, result.stderr


def core(number: int, threads: tuple[int, ...]) -> Element:
    """Return a core with its first cache."""
    inside = tuple(Element(Part.THREAD, thread, (thread,)) for thread in threads)
    return Element(Part.CACHE, 1, threads, 32, (Element(Part.CORE, number, threads, 0, inside),))


def socket(number: int, cores: tuple[Element, ...]) -> Element:
    """Return a package whose cores share the last-level cache."""
    cpus = tuple(sorted(cpu for element in cores for cpu in element.cpus))
    return Element(Part.PACKAGE, number, cpus, 0, (Element(Part.CACHE, 3, cpus, 4096, cores),))


def two_sockets() -> Element:
    """Return two sockets of two cores with two threads each."""
    cores = [core(number, (number, number + 4)) for number in range(4)]
    return Element(
        Part.MACHINE, 0, tuple(range(8)), 0, (socket(0, tuple(cores[:2])), socket(1, tuple(cores[2:])))
    )


def test_pairs_are_found_by_what_they_share() -> None:
    """Two sockets, a last-level cache, a core and a thread; what a machine lacks is said."""
    tree = two_sockets()
    assert places(tree, set(range(8))) == {
        Sharing.MEMORY: Place(0, 2),
        Sharing.LAST_LEVEL: Place(0, 1),
        Sharing.CORE: Place(0, 4),
        Sharing.THREAD: Place(0, 0),
    }
    pairs = places(tree, {0, 1})
    assert list(pairs) == [Sharing.LAST_LEVEL, Sharing.THREAD]
    assert any("one socket" in sentence for sentence in lacks(pairs.keys()))
    assert len(lacks(pairs.keys())) == len(Sharing) - 2
    assert last_level_bytes(tree) == 4096


def test_the_summary_of_strace_is_read_by_call() -> None:
    """Lines with and without errors; the total is not a call."""
    text = (
        "% time     seconds  usecs/call     calls    errors syscall\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        " 60.00    0.000120           1       100           read\n"
        " 40.00    0.000080           4        20         3 openat\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        "100.00    0.000200           1       120         3 total\n"
    )
    counts = system_calls.parse_counts(text)
    assert counts == {"read": 100, "openat": 20}
    assert system_calls.CallCounts("application", {**counts, "exit": 1}).common == ["read", "openat"]


def test_the_machine_and_its_lacks_are_shown(tmp_path: Path) -> None:
    """Figure 2.5 is this machine's tree, and each kind of pair that it does not have is said."""
    words = ("--quick", "--figure", "2.5", "--out", str(tmp_path), "--json")
    status, shown, said = invoke("lab", "repro", "interference", *words)
    assert status == 0, said
    (report,) = json.loads(shown)
    assert report["command"] == "dios lab repro interference --figure 2.5 --seed 1 --quick"
    told = " ".join(said.split())
    assert all(sentence in told for sentence in evaluation.not_shown())
    assert len(report["tables"][1]["rows"]) == len(Sharing)


@pytest.mark.extended
def test_every_figure_of_chapter_2_is_written(tmp_path: Path) -> None:
    """All figures that this machine can make, quickly, with a matrix as a picture."""
    status, shown, said = invoke("lab", "repro", "interference", "--quick", "--out", str(tmp_path), "--json")
    assert status == 0, said
    left = [number for number in evaluation.FIGURES if number not in evaluation.missing_requirements()]
    assert [report["figure"] for report in json.loads(shown)] == left
    assert list(tmp_path.glob("figure-2.6-*.png"))


def test_a_calibration_that_was_kept_is_shown_again(tmp_path: Path) -> None:
    """The file of --out gives the same parameter, without measuring; another file is refused."""
    kept = tmp_path / "here.json"
    matrix = [[1.0, 1.0, 1.1, 2.0]] * 4
    kept.write_text(json.dumps({"sharing": "a cache", "processors": [0, 1], "slow_downs": matrix}))
    status, shown, said = invoke("lab", "calibrate", "--from", str(kept), "--json")
    assert status == 0, said
    calibration = json.loads(shown)
    assert calibration["parameter"] == "slow_downs=" + ",".join(["100,100,110,200"] * 4)
    assert calibration["set"] is None
    kept.write_text("{}")
    status, _, said = invoke("lab", "calibrate", "--from", str(kept))
    assert status == 1
    assert "is not a calibration" in " ".join(said.split())


@pytest.mark.parametrize(
    ("model", "chosen"), [("coco", {"weights": "1,1,1,1,1,0,1"}), ("whare-mcs", {}), ("spread", None)]
)
def test_a_calibration_is_set_with_the_models_other_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, chosen: dict[str, str] | None
) -> None:
    """The present model gets the slow-downs and keeps what was chosen; a model without classes is refused."""
    asked: list[dict[str, object]] = []

    def answer(node: str | None, question: dict[str, object]) -> dict[str, object]:
        asked.append(question)
        rows = [{"setting": "model", "value": model, "default": "spread"}]
        given = {"weights": "1,1,1,1,1,1,1", "slow_downs": "old", **(chosen or {})}
        usual = {"weights": "1,1,1,1,1,1,1", "slow_downs": ""}
        rows += [
            {"setting": f"{model}.{name}", "value": value, "default": usual[name]}
            for name, value in given.items()
        ]
        return {"settings": rows} if question["ask"] == "settings" else {"model": model, "before": model}

    monkeypatch.setattr(calibrate, "ask", answer)
    kept = tmp_path / "here.json"
    kept.write_text(json.dumps({"sharing": "a cache", "processors": [0, 1], "slow_downs": [[1.5] * 4] * 4}))
    status, shown, said = invoke("lab", "calibrate", "--from", str(kept), "--set", "--json")
    if chosen is None:
        assert status == 1
        assert "dios sched set-model coco" in " ".join(said.split())
        assert len(asked) == 1
        return
    assert status == 0, said
    assert json.loads(shown)["set"] == model
    parameters = {**chosen, "slow_downs": ",".join(["150"] * 16)}
    assert asked[-1] == {"ask": "set-model", "model": model, "parameters": parameters}
