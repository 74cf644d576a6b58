"""`dios pack learn`: from courses that coordinators exchanged and kept to a job that can be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from dios.cli.main import app
from dios.cli.packing import learn
from dios.firmament.coordinator.usage_queries import learned
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.usage_profile import UsageChannel
from dios.packer import TiMra
from dios.wire.messages import Asked
from tests.support.firmament.samples import batches, chances
from tests.support.firmament.usage_profiles import course, some_course
from tests.support.node.command_user import require_schema

MIB = 2**20
UNITS = {
    UsageChannel.CPU_MILLI: 1000,
    UsageChannel.MEMORY: MIB,
    UsageChannel.DISK_WRITE: 1e6,
    UsageChannel.DISK_READ: 1e6,
}
JOB = """
name = "words"
[tasks.map]
count = 2
program = "map.py"
cpu = 4
[tasks.reduce]
program = "reduce.py"
after = ["map"]
cpu = 1
"""


class Cluster:
    """A coordinator's knowledge, which answers in the place of a node."""

    def __init__(self) -> None:
        self.knowledge = KnowledgeBase("n1", 1)
        self.asked: list[dict[str, object]] = []

    def answer(self, node: str | None, question: dict[str, object]) -> dict[str, object]:
        """As ``sched_live.ask`` gives it."""
        del node
        self.asked.append(question)
        reply = learned(self.knowledge, Asked(1, "uid:1", True, b""), question)
        told: dict[str, object] = json.loads(json.dumps(reply))
        del told["ok"]
        return told


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two runs of a job."""
    new_cluster = Cluster()
    for run, seconds in ((1, 3), (2, 4)):
        for copy in range(2):
            new_cluster.knowledge.add_usage_profile(
                course(
                    f"map.{copy}",
                    run=run,
                    task=10 * run + copy,
                    began_s=1000 * run,
                    cpu_milli=[900, *[100 + 50 * copy] * (seconds - 1)],
                    memory=[64 * MIB] * seconds,
                )
            )
        new_cluster.knowledge.add_usage_profile(
            course("reduce", run=run, task=10 * run + 2, began_s=1000 * run + seconds, cpu_milli=[2000] * 2)
        )
    monkeypatch.setattr(learn, "ask", new_cluster.answer)
    return new_cluster


def run(*words: str, status: int = 0) -> tuple[str, str]:
    """What `dios pack learn` with these words writes, and says beside it."""
    done = CliRunner().invoke(app, ["pack", "learn", *words])
    assert done.exit_code == status, done.output
    return done.stdout, done.stderr


@pytest.mark.usefixtures("cluster")
def test_what_is_written_can_be_run_and_reserves_what_was_taken() -> None:
    """The output alone is a job, with comments that say where it comes from."""
    text, _ = run("words", "--margin", "1", "--spare-s", "0")
    job = TiMra.from_toml(text)
    assert [node.name for node in job.nodes] == ["map.0", "map.1", "reduce"]
    assert job.demand[0, :, 0].tolist() == [0.9, 0.15, 0.15, 0.15, 0, 0]
    assert job.demand[2, :, 0].tolist() == [0, 0, 0, 0, 2, 2]
    assert job.demand[0, :, 1].tolist() == [64] * 4 + [0] * 2
    assert text.startswith(
        "# The use of the tasks of words in its last 2 runs, times 1; from `dios pack learn`."
    )
    assert "# disk_write was not measured" in text


@pytest.mark.usefixtures("cluster")
def test_a_job_s_file_gets_the_demands_that_were_measured(tmp_path: Path) -> None:
    """--from keeps graph and programs, --out writes a file, and --json tells both numbers and text."""
    source, out = tmp_path / "words.toml", tmp_path / "tighter.toml"
    source.write_text(JOB)
    shown, said = run("words", "--from", str(source), "--out", str(out), "--instant-s", "2", "--spare-s", "0")
    assert shown == ""
    assert f"wrote {out}; `dios pack check {out}`" in said
    job = TiMra.from_toml(out)
    assert job.demand[:, :, 0].tolist() == [[0.99, 0.17, 0], [0.99, 0.17, 0], [0, 0, 2.2]]
    assert job.nodes[2].after == ("map.0", "map.1")
    assert 'program = "reduce.py"' in out.read_text()
    shown = run("words", "--from", str(source), "--instant-s", "2", "--spare-s", "0", "--json")[0]
    require_schema("dios pack learn", shown)
    told = json.loads(shown)
    assert told["toml"] == out.read_text()
    assert (told["runs"], told["margin"], len(told["members"])) == (2, 1.1, 3)
    assert "next" not in told


@pytest.mark.usefixtures("cluster")
def test_a_job_has_time_to_spare() -> None:
    """Without --spare-s a job may take two seconds longer, or a tenth, before its time is over."""
    text, _ = run("words", "--margin", "1")
    assert TiMra.from_toml(text).instants == 6 + 2
    assert "# Each task may run 2 s longer than measured." in text


def test_errors_say_what_to_do(cluster: Cluster, tmp_path: Path) -> None:
    """Unknown jobs, users and files, and jobs that make no sense, end with a message and no traceback."""
    assert "Jobs with measured runs: words" in run("wrods", status=1)[1]
    assert "give uid:1000" in run("words", "--principal", "no-such-user-here", status=1)[1]
    assert "usage of 'words': no run of it or of any" in run("words", "--principal", "uid:77", status=1)[1]
    assert cluster.asked[-1]["principal"] == "uid:77"
    source = tmp_path / "words.toml"
    assert "No such file" in run("words", "--from", str(source), status=1)[1]
    source.write_text(JOB.replace("cpu = 4", "cpuu = 4"))
    assert (
        "words.toml:6: tasks.map.cpuu is not a known key; did you mean cpu?"
        in run("words", "--from", str(source), status=1)[1]
    )
    assert "instant_s is 0.0; it must be finite and above 0" in run("words", "--instant-s", "0", status=1)[1]
    assert "--margin" in run("words", "--margin", "0.9", status=2)[1]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_recorded_makes_a_job(cluster: Cluster, seed: int) -> None:
    """Courses that came from several coordinators and were stored make a job that reserves each of them."""
    rng, below = chances(seed), KnowledgeBase("n2", 1)
    for number in range(20):
        profile = replace(some_course(rng, number=number), began_ns=10**18 + rng.randrange(10**11))
        below.add_usage_profile(replace(profile, principal="uid:1", job="ranks", length_ms=profile.length_ms))
    for part in batches(below, 3):
        cluster.knowledge.merge(part)
    cluster.knowledge = KnowledgeBase.from_bytes(cluster.knowledge.to_bytes(), "n1", 2)
    job = TiMra.from_toml(run("ranks", "--instant-s", "30", "--margin", "1")[0])
    at = {node.name: number for number, node in enumerate(job.nodes)}
    members = cluster.knowledge.usage_profiles.members("uid:1", "ranks")
    assert len(members) == 3, seed
    for member in members:
        asked = job.demand[at[member.name]]
        for which, channel in enumerate(UNITS):
            most = max(member.highest.values.get(channel, [0]))
            assert asked[:, which].max() >= most / UNITS[channel] - 1e-6, (seed, member.name, channel)
        assert (job.instants + 1) * 30 >= member.start_s + member.length_s, seed


def test_a_large_job_is_asked_for_in_parts(cluster: Cluster) -> None:
    """More members than one answer holds come in several, and are all there."""
    for number in range(60):
        values = [10**6 + number * at for at in range(256)]
        cluster.knowledge.add_usage_profile(
            course(f"t{number}x", job="large", cpu_milli=values, memory=values)
        )
    job = TiMra.from_toml(run("large")[0])
    assert len(job.nodes) == 60
    assert len(cluster.asked) > 1
