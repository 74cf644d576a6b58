"""``dios lab pack``: what it prints, writes and refuses, and that its counts are those of plain sums."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.packer import Datacenter, Edge, Node, TiMra, allocate
from dios.packer.baselines import POLICIES
from labs.simulate.packing.generate_jobs import Workload
from labs.simulate.packing.simulate import Simulation, SyntheticJobs, demand_over_time, summarise
from tests.support.node.command_user import require_schema

SMALL = ("--servers", "60", "--per-rack", "10", "--racks-per-pod", "3", "--instants", "12")


def invoke(*words: str) -> tuple[int, str, str]:
    """The command's status, output and what it said beside it."""
    result = CliRunner().invoke(main.app, ["lab", "pack", *words])
    return result.exit_code, result.stdout, result.stderr


def write_jobs(folder: Path) -> Path:
    """Two jobs: one of half a server for two instants, one that no server can hold."""
    folder.mkdir()
    jobs = (TiMra("half", [Node("task", cpu=8)], instants=2), TiMra("large", [Node("task", cpu=17)]))
    for job in jobs:
        (folder / f"{job.name}.toml").write_text(job.to_toml())
    return folder


# The command ------------------------------------------------------------------------------------------


def test_every_policy_has_a_row() -> None:
    """In the order in which they were named, each with parts and times."""
    words = [word for name in POLICIES for word in ("--policy", name)]
    status, shown, said = invoke(*SMALL, *words)
    assert status == 0, said
    rows = [line.split() for line in shown.splitlines()[5:]]
    assert rows[0][:4] == ["policy", "tasks", "jobs", "revenue"]
    assert [row[0] for row in rows[1:]] == list(POLICIES)
    assert all(0 < float(row[1].rstrip("%")) <= 100 for row in rows[1:])


def test_several_seeds_are_told_one_by_one() -> None:
    """The table has the median, and a column for each."""
    seeds = ("--seed", "4", "--seed", "5", "--seed", "6")
    status, shown, said = invoke(*SMALL, "--policy", "slots", *seeds)
    assert status == 0, said
    head, row = shown.splitlines()[5:]
    assert head.split()[-6:] == ["seed", "4", "seed", "5", "seed", "6"]
    percentages = sorted(float(cell.rstrip("%")) for cell in row.split()[-3:])
    assert float(row.split()[1].rstrip("%")) == percentages[1]


def test_json_and_files_hold_the_same_numbers(tmp_path: Path) -> None:
    """summary.json is what is printed, instants.csv adds up to it, pictures are there."""
    out = tmp_path / "out"
    status, shown, said = invoke(*SMALL, "--policy", "tetris", "--json", "--out", str(out), "--seed", "5")
    assert status == 0, said
    require_schema("dios lab pack", shown)
    summary = json.loads(shown)
    assert summary == json.loads((out / "summary.json").read_text())
    rows = list(csv.DictReader((out / "instants.csv").read_text().splitlines()))
    assert len(rows) == summary["instants"] == summary["runs"][0]["instants_played"] == 12
    assert sum(int(row["tasks"]) for row in rows) == summary["runs"][0]["tasks"]
    (policy,) = summary["runs"][0]["policies"]
    late = rows[summary["begin"] :]
    part = sum(int(row["admitted"]) for row in late) / sum(int(row["tasks"]) for row in late)
    assert policy["tasks"] == pytest.approx(part)
    assert {path.name for path in out.glob("*.png")} == {"acceptance.png", "bandwidth.png", "cpu.png"}


def test_your_jobs_come_when_you_say(tmp_path: Path) -> None:
    """Of three halves for two servers' instants at once, all fit; what no server holds is refused."""
    folder = write_jobs(tmp_path / "jobs")
    (folder / "arrivals.csv").write_text("instant,job\n0,half\n0,half\n1,half\n2,half.toml\n2,large\n")
    words = ("--servers", "1", "--jobs", str(folder), "--policy", "fixed", "--json")
    status, shown, said = invoke(*words)
    assert status == 0, said
    (run,) = json.loads(shown)["runs"]
    assert (run["jobs"], run["instants_played"]) == (5, 3)
    (policy,) = run["policies"]
    # The third one came while two halves were there.
    assert policy["tasks"] == 3 / 5
    assert policy["refused_for"]["cpu"] == 2
    assert policy["used"][0] == pytest.approx((1 + 1 + 0.5) / 3)


def test_without_jobs_nothing_is_admitted(tmp_path: Path) -> None:
    """Where no job arrived, the table has dashes and JSON has nulls instead of admitted fractions."""
    jobs = write_jobs(tmp_path / "jobs")
    (jobs / "arrivals.csv").write_text("9,half\n")
    words = ("--servers", "2", "--jobs", str(jobs), "--instants", "3", "--policy", "slots")
    status, shown, said = invoke(*words)
    assert status == 0, said
    assert shown.splitlines()[-1].split()[:4] == ["slots", "-", "-", "-"]
    (run,) = json.loads(invoke(*words, "--json")[1])["runs"]
    assert [run["policies"][0][name] for name in ("jobs", "tasks", "revenue")] == [None] * 3


def test_without_arrivals_each_job_comes_once(tmp_path: Path) -> None:
    """At instant 0."""
    folder = write_jobs(tmp_path / "jobs")
    status, shown, said = invoke("--servers", "2", "--jobs", str(folder), "--policy", "slots", "--json")
    assert status == 0, said
    (run,) = json.loads(shown)["runs"]
    assert (run["jobs"], run["policies"][0]["jobs"]) == (2, 0.5)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--policy", "best"), ("--policy 'best'", "tetris-time")),
        (("--servers", "0"), ("--servers is 0",)),
        (("--rate", "0"), ("--rate is 0",)),
        (("--bandwidth", "nan"), ("--bandwidth is nan",)),
        (("--instants", "0"), ("--instants is 0",)),
        (("--jobs", "{tmp}", "--seed", "3"), ("--seed has no meaning",)),
        (("--jobs", "{tmp}"), ("holds no job",)),
        (("--jobs", "{tmp}/jobs"), ("arrivals.csv:2", "none.toml", "half, large")),
        (("--jobs", "{tmp}/bad"), ("job.toml:3", "tasks.a.cpu")),
    ],
)
def test_what_means_nothing_is_refused_by_name(
    words: tuple[str, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    """Status 1, and the option, or the file and the line."""
    (write_jobs(tmp_path / "jobs") / "arrivals.csv").write_text("0,half\n1,none\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "job.toml").write_text('name = "a"\ninstants = 1\ntasks.a.cpu = -1\n')
    status, shown, said = invoke(*(word.replace("{tmp}", str(tmp_path)) for word in words))
    assert (status, shown) == (1, "")
    told = " ".join(said.split())
    assert [name for name in named if name not in told] == [], told


def test_an_interrupt_tells_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the ninth instant: status 130, the table of eight, and how far it came."""
    step = Simulation.step

    def interrupted(simulation: Simulation) -> None:
        if simulation.done == 8:
            raise KeyboardInterrupt
        step(simulation)

    monkeypatch.setattr(Simulation, "step", interrupted)
    status, shown, said = invoke(*SMALL, "--policy", "slots", "--seed", "3")
    assert status == 130
    assert "seed 3: 8 of 12" in said
    assert shown.splitlines()[-1].startswith("slots")


# What it counts ---------------------------------------------------------------------------------------


def test_what_jobs_ask_for_is_what_is_booked_by_who_knows_it() -> None:
    """A policy that knows demands over time books exactly what is asked for; one that knows peaks more."""
    simulation = Simulation(
        lambda: Datacenter.tree(60, per_rack=10, racks_per_pod=3),
        SyntheticJobs(Workload(), 8, 2.5),
        ["ahead", "tetris"],
        14,
    )
    for _ in range(14):
        simulation.step()
    knows, peaks = simulation.records
    np.testing.assert_allclose(knows.used, knows.booked, rtol=1e-4)
    assert (peaks.used.sum(axis=0) < peaks.booked.sum(axis=0)).all()
    ahead, tetris = summarise(simulation, 5)
    assert 0 < tetris.tasks < ahead.tasks <= 1
    assert int(simulation.arrivals.jobs.sum()) == 35


def test_a_job_pays_for_what_it_asks_for_by_the_server() -> None:
    """Half a server's cores for three instants and a tenth of a link for two: 1.7."""
    job = TiMra(
        "pays",
        [Node("a", cpu=4), Node("b", cpu=4)],
        [Edge("a", "b", {0: 100, 2: 0})],
        instants=3,
    )
    simulation = Simulation(lambda: Datacenter.tree(50), lambda _: [job, job], ["fixed"], 4)
    assert simulation.payment(job) == pytest.approx(1.5 + 0.2)
    simulation.step()
    assert simulation.records[0].admitted.revenue[0] == pytest.approx(3.4)


def test_links_count_as_often_as_a_path_passes_one() -> None:
    """None on a server, two in a rack, four in a pod, six beyond, each with the edge's bandwidth."""
    for gap, links in ((0, 0), (1, 2), (4, 4), (8, 6)):
        datacenter = Datacenter.tree(16, per_rack=2, racks_per_pod=4, capacity=(1, 1, 1, 1))
        taken = [Node(f"full.{at}", cpu=1) for at in range(16)]
        wanted = [0, gap]
        held = []
        for node in taken:
            placement = allocate(datacenter, TiMra(node.name, [node]), policy="slots")
            assert placement
            held.append(placement)
        for placement in held:
            if placement.servers[placement.job.nodes[0].name] in wanted:
                placement.release()
        cpu = 1.0 if gap else 0.5
        job = TiMra("two", [Node("a", cpu=cpu), Node("b", cpu=cpu)], [Edge("a", "b", 10)])
        placement = allocate(datacenter, job)
        assert placement
        assert demand_over_time(datacenter, placement)[0, 4] == 10 * links
