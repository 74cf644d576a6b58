"""``dios lab repro packer``: what it writes, and what its figures stand on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.errors import InvalidError
from dios.packer import Datacenter, allocate
from dios.packer.job.ti_mra import Edge, Node, TiMra
from dios.packer.share_bandwidth import share_bandwidth
from dios.packer.templates import peaks
from labs.papers.packer import admitted, evaluation, missing_capacity, one_server, published_rules, runs
from labs.simulate.packing.generate_jobs import Workload, generate_job


def invoke(*words: str) -> tuple[int, str, str]:
    """The command's status, output and what it said beside it."""
    result = CliRunner().invoke(main.app, ["lab", "repro", "packer", *words])
    return result.exit_code, result.stdout, result.stderr


def quiet(_: str) -> None:
    """Nobody listens."""


# The command ------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_every_figure_of_packer_is_written_with_the_paper_beside_it(tmp_path: Path) -> None:
    """All figures, quickly: each has its table, JSON and claims, and the command that makes it again."""
    status, shown, said = invoke("--quick", "--out", str(tmp_path), "--json")
    assert status == 0, said
    reports = json.loads(shown)
    assert [entry["figure"] for entry in reports] == list(evaluation.FIGURES)
    for report in reports:
        assert report["command"] == f"dios lab repro packer --figure {report['figure']} --seed 11 --quick"
        text = (tmp_path / f"figure-{report['figure']}.md").read_text()
        assert f"`{report['command']}`" in text
        assert "## Compared with the paper" in text
        assert report["claims"]
        for claim in report["claims"]:
            assert f"| {claim['what']} | {claim['published']} | {claim['ours']} |" in text
        assert "seeds: 11, 12" in text
        assert all(Path(path).stat().st_size for path in report["files"])


@pytest.mark.extended
def test_the_same_seed_gives_the_same_figures_and_another_seed_others(tmp_path: Path) -> None:
    """To the byte, pictures among them, for what measures no time."""
    written: list[dict[str, bytes]] = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "9")):
        words = ("--quick", "--figure", "3", "--figure", "8", "--seed", seed, "--seeds", "1")
        status, _, said = invoke(*words, "--out", str(tmp_path / name))
        assert status == 0, said
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert written[0].keys() == written[2].keys()
    assert all(written[0][name] != written[2][name] for name in written[0])
    assert b"--seed 1 --seeds 1 --quick`" in written[0]["figure-3.md"]


def test_a_figure_that_is_not_there_and_a_seed_below_zero_are_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    status, _, said = invoke("--figure", "9", "--out", str(tmp_path / "out"))
    assert status == 1
    assert all(number in said for number in evaluation.FIGURES)
    with pytest.raises(InvalidError, match="-1"):
        list(evaluation.reproduce(["3"], tmp_path, -1, quiet, seeds=None, quick=True))
    assert not (tmp_path / "out").exists()


def test_a_figure_finished_before_an_interrupt_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second figure: status 130, the first one's name and its files."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(admitted, "figure_4", interrupted)
    words = ("--quick", "--figure", "3", "--figure", "4", "--seeds", "1", "--out", str(tmp_path))
    status, _, said = invoke(*words)
    assert status == 130
    assert "has what was finished: 3" in said
    assert (tmp_path / "figure-3.md").exists()


# What they stand on -----------------------------------------------------------------------------------


def test_a_job_of_constant_guarantees_asks_for_as_much_while_it_sends() -> None:
    """Each edge gets its mean over the instants at which it sends, at every instant."""
    job = generate_job(Workload(), 11, 3)
    steady = one_server.constant(job)
    for before, after in zip(job.bandwidth, steady.bandwidth, strict=True):
        assert after == pytest.approx(np.full(job.instants, before[before > 0].mean()))
    assert np.array_equal(steady.demand, job.demand)


def test_what_a_server_promises_is_what_the_data_centre_booked_of_its_link() -> None:
    """The guarantees of all senders of a server add up to what its link up has lost."""
    datacenter = Datacenter.tree(40, per_rack=8, racks_per_pod=2)
    promised = np.zeros((40, 30))
    for number in range(6):
        job = one_server.constant(generate_job(Workload(), 12, number))
        placement = allocate(datacenter, job, policy="literal")
        if placement:
            for _, server, edges in one_server._senders(placement):
                promised[server, : job.instants] += job.bandwidth[edges].sum(axis=0)
    assert promised.any()
    np.testing.assert_allclose(1000 - datacenter.free("up")[:30].T, promised, atol=0.01)


def test_algorithm_2_as_printed_comes_to_the_same_where_all_have_enough_and_favours_the_first() -> None:
    """Enough for all: demands. Too little: everything is given out, but the first of equals gets more."""
    enough = one_server.as_printed(
        100.0, np.array([10.0, 20.0]), np.array([30.0, 15.0]), np.array([0.5, 0.5])
    )
    assert enough == pytest.approx([30.0, 15.0])
    short = one_server.as_printed(10.0, np.ones(3), np.full(3, 9.0), np.ones(3))
    assert short.sum() == pytest.approx(10.0, abs=1e-4)
    assert short[0] > short[1] > short[2]
    assert share_bandwidth(10.0, [1] * 3, [9] * 3, [1] * 3) == pytest.approx([10 / 3] * 3)


def test_steps_of_a_row_stand_where_its_instants_are() -> None:
    """Before the window they are cut off, after its end too."""
    row = one_server._over_steps(np.array([1.0, 2.0, 3.0]), -1, 2 * one_server.STEPS)
    assert row.reshape(2, -1).tolist() == [[2.0] * one_server.STEPS, [3.0] * one_server.STEPS]
    late = one_server._over_steps(np.array([1.0, 2.0]), 1, 2 * one_server.STEPS)
    assert late.reshape(2, -1)[:, 0].tolist() == [0.0, 1.0]


def test_a_policy_told_peaks_admits_no_job_by_what_it_cannot_know() -> None:
    """Literal, told peaks, sees a job as literal sees the same job with its peaks all the time."""
    told = runs.PEAKS[0]
    assert told.name == "literal, peaks"
    first, other = (Datacenter.tree(30, per_rack=10, racks_per_pod=2) for _ in range(2))
    for number in range(20):
        job = generate_job(Workload(), 13, number)
        placement = allocate(first, job, number // 4, policy=told)
        same = allocate(other, peaks(job), number // 4, policy="literal")
        assert bool(placement) == bool(same)
        if placement and same:
            assert placement.places == same.places


def test_gains_are_parts_of_the_other() -> None:
    """A half more is +50 %; something beside nothing is without end."""
    assert runs.gain(0.6, 0.4) == pytest.approx(0.5)
    assert runs.gain(0.1, 0.0) == float("inf")
    assert runs.percent([0.5, 0.1, 0.2]) == "+20% (+10% to +50%)"


def test_links_are_supplied_if_their_jobs_never_ask_for_more() -> None:
    """Two servers in two racks: one job of 600 Mbit/s is supplied, and neither of two on the same link."""
    datacenter = Datacenter.tree(2, per_rack=1, racks_per_pod=2)
    loads = missing_capacity.LinkLoads(datacenter, 8)
    nodes = [Node("a", 1.0, 0.0, 0.0, 0.0), Node("b", 1.0, 0.0, 0.0, 0.0)]
    jobs = [TiMra(f"job {at}", nodes, [Edge("a", "b", 600.0)], 3) for at in range(2)]
    counts = []
    for job in jobs:
        free = job.with_arrays(job.demand, 0.0 * job.bandwidth)
        placement = allocate(datacenter, free, 0, pinned={"a": 0, "b": 1})
        assert placement
        loads.add(job, placement)
        counts.append(loads.supplied(0))
    assert counts == [2, 0]
    # A server up and another one down, and likewise their racks.
    assert sorted(loads.jobs[0][2].tolist()) == [0, 3, 4, 7]
    assert loads.capacity[:5].tolist() == [1000.0] * 4 + [10_000.0]


def test_rules_as_published_look_at_peaks_and_counts_alone() -> None:
    """Two servers: slots refuse the ninth task; Tetris packs by peaks, and jobs that end make room again."""

    def source(instant: int) -> list[TiMra]:
        nodes = [Node(f"task {at}", 2.0, 0.0, 0.0, 0.0) for at in range(6)]
        edges = [Edge("task 0", "task 5", 1e6)]
        return [TiMra(f"job {instant}.{at}", nodes, edges, 2) for at in range(2)]

    outcome = published_rules.slots_as_published(source, 2, 4)
    # Four slots on each server, and six tasks in a job: one at a time, for two instants.
    assert outcome.admitted == [True, False, False, False, True, False, False, False]
    outcome = published_rules.tetris_as_published(source, 2, 4)
    # Eight tasks of two cores on each server, so two jobs; a link is no obstacle.
    assert outcome.admitted == [True, True, False, False, True, True, False, False]
    assert len(outcome.job_s) == 8
