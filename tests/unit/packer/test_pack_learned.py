"""Jobs made of what was measured in earlier runs: valid, tight, and never below what was taken."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from dios import limits
from dios.packer import JobError, TiMra
from dios.packer.job.learned import fresh_job, job_from
from dios.packer.job.timeline import TaskUsage, convert_measurements

MIB = 2**20
CHANNELS = ("cpu_milli", "memory", "disk_write", "disk_read")
UNITS = (1000.0, MIB, 1e6, 1e6)
WORDS = """
# A comment.
name = "words"
instants = 6
instant_s = 2.0
weight = 0.25

[tasks.map]
count = 2
program = "map.py"
args = ["--top", "2"]
cpu = 1
disk_read = { 0 = 40, 2 = 10 }

[tasks.reduce]
program = "reduce.py"
start = 3
disk_write = [0, 0, 0, 20, 30, 0]
after = ["map"]

[tasks.last]
start = 5
cpu = 0.5

[services.input]
service = "objects"
disk_read = 7

[[edges]]
from = "map"
to = "reduce"
bandwidth = { 3 = 25, 4 = 0 }

[[edges]]
from = "input"
to = "map"
pattern = "all"
bandwidth = 5
depends = false
"""


def measured(
    member: str,
    start_s: float = 0,
    length_s: float = 0,
    *,
    runs: int = 3,
    completed: int = 3,
    instant_s: int = 1,
    **values: list[tuple[int, int]],
) -> TaskUsage:
    """What a task took."""
    return TaskUsage(member, runs, completed, start_s, length_s, instant_s, values)


def read(text: str) -> tuple[TiMra, dict[str, int]]:
    """The job of a text, and where its nodes stand."""
    job = TiMra.from_toml(text)
    return job, {node.name: at for at, node in enumerate(job.nodes)}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("margin", [1.0, 1.1, 1.5])
def test_never_less_is_asked_for_than_was_taken(seed: int, margin: float) -> None:
    """At every moment of every task each demand is at least what was measured, times the margin.

    Starts count to a tenth of an instant. And no more is asked for than the largest that was measured.
    """
    rng = Random(seed)  # noqa: S311 - a seed, not a secret
    length = rng.choice([0.5, 1.0, 2.0, 7.0])
    members = []
    for number in range(rng.randrange(1, 6)):
        instant_s = rng.choice([1, 2, 4])
        count = rng.randrange(1, 30)
        values = {
            channel: [(0, rng.randrange(10**9))]
            + [
                (at, rng.randrange(10 ** rng.randrange(1, 10)))
                for at in range(1, count)
                if rng.random() < 0.5
            ]
            for channel in rng.sample(CHANNELS, 2)
        }
        took = (count - rng.random() * 0.9) * instant_s
        members.append(TaskUsage(f"t{number}", 1, 1, rng.random() * 20, took, instant_s, values))
    job, index = read(fresh_job("made", members, instant_s=length, margin=margin))
    for usage in members:
        for which, (channel, unit) in enumerate(zip(CHANNELS, UNITS, strict=True)):
            asked, steps = job.demand[index[usage.member], :, which], usage.values.get(channel, [])
            assert steps or not asked.any(), seed
            most = max((value for _, value in steps), default=0)
            assert asked.max(initial=0.0) <= most / unit * margin + (1 if which == 1 else 0.01) + 1e-9, seed
            for at, value in steps:
                for share in (0.0, 0.99):
                    moment = usage.start_s + (at + share) * usage.instant_s
                    if moment < usage.start_s + usage.length_s:
                        near = [max(0, int(m / length)) for m in (moment - 0.1 * length, moment)]
                        assert max(asked[near]) >= value / unit * margin - 1e-6, (
                            seed,
                            usage.member,
                            channel,
                            at,
                        )


def test_copies_are_one_task() -> None:
    """What has numbers from 0 on is one task with a count, and asks for the most of its copies."""
    members = [
        measured("map.0", 0.02, 3, cpu_milli=[(0, 1000), (1, 200)]),
        measured("map.1", 0.03, 2.5, cpu_milli=[(0, 300), (2, 900)], memory=[(0, 5 * MIB)]),
        measured("odd.1", 0, 1, cpu_milli=[(0, 100)]),
        measured("one.0", 0, 1, cpu_milli=[(0, 100)]),
    ]
    text = fresh_job("made", members, margin=1.0)
    job, index = read(text)
    assert list(index) == ["map.0", "map.1", "odd.1", "one.0"]
    assert text.count("count = ") == 1
    for copy in ("map.0", "map.1"):
        assert job.demand[index[copy], :, 0].tolist() == [1.0, 0.3, 0.9]
        assert job.demand[index[copy], :, 1].tolist() == [5.0] * 3
    assert (job.instants, job.instant_s, job.name) == (3, 1.0, "made")


def test_neighbours_that_are_nearly_equal_are_one_step() -> None:
    """Within a tenth, or a fiftieth of the most, instants are told as one, by their highest."""
    steps = list(enumerate([1000, 1090, 1050, 500, 505, 0, 15, 0, 300]))
    text = fresh_job("made", [measured("t", 0, 9, cpu_milli=steps)], margin=1.0)
    assert "cpu = { 0 = 1.09, 3 = 0.51, 5 = 0.02, 8 = 0.3 }" in text


def test_a_task_has_its_time() -> None:
    """A task asks for something from its start to its end, and for memory all that time."""
    first, second = measured("a", 0, 4.0, memory=[(0, MIB)]), measured("b", 4.05, 2.5, memory=[(0, 2 * MIB)])
    text = fresh_job("made", [first, second], margin=1.0)
    job, index = read(text)
    assert job.demand[:, :, 1].tolist() == [[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 2, 2, 2]]
    assert [job.nodes[index[name]].start for name in ("a", "b")] == [0, 4]


@pytest.mark.parametrize("seed", range(20))
def test_a_late_task_has_its_time(seed: int) -> None:
    """After its measured end a task asks for what it took last, however late it is by then."""
    rng = Random(seed)  # noqa: S311 - a seed, not a secret
    length_s, spare_s, start_s = rng.randrange(1, 20), rng.choice([1, 2, 5]), rng.randrange(5)
    steps = [(at, rng.randrange(1, 4_000)) for at in range(length_s)]
    text = fresh_job("t", [measured("t", start_s, length_s, cpu_milli=steps)], margin=1.0, spare_s=spare_s)
    asked = TiMra.from_toml(text).demand[0, :, 0].tolist()
    assert len(asked) == start_s + length_s + spare_s, seed
    for late in range(1, spare_s + 1):
        moved = [0.0] * start_s + [0.0] * late + [value / 1000 for _, value in steps]
        end = start_s + length_s
        assert all(a >= b for a, b in zip(asked[end:], moved[end:], strict=False)), (seed, late)
    assert asked[-1] <= max(value / 1000 for _, value in steps[-1:]) + 0.01 + 0.1 * asked[-1], seed
    assert asked[:start_s] == [0] * start_s, seed


def test_a_task_that_ended_at_once_asks_for_an_instant() -> None:
    """A task without any length, late in a job, has what it took at its start."""
    members = [measured("a", 0, 7), measured("b", 5, 0, cpu_milli=[(0, 500)])]
    job, index = read(fresh_job("t", members, margin=1.0, spare_s=1.0))
    assert job.demand[index["b"], :, 0].tolist() == [0, 0, 0, 0, 0, 0.5, 0, 0]


def test_comments_say_what_is_not_known() -> None:
    """Runs, failures, what was moved and what was not measured stand beside the task."""
    first = measured("map.0", 0, 2, completed=2, cpu_milli=[(0, 1)], received=[(0, 0), (1, 125_000)])
    other = measured("map.1", 0, 2, runs=2, completed=2, cpu_milli=[(0, 1)])
    text = fresh_job("made", [first, other])
    assert "# measured in 3 runs; failed or stopped: 1 of 5; each received up to 1 Mbit/s" in text
    for resource in ("memory", "disk_write", "disk_read"):
        assert f"# {resource} was not measured" in text


def test_a_job_keeps_all_but_its_demands() -> None:
    """Graph, programs and weight stay; what was measured stands in the place of what was guessed."""
    members = [
        measured("map.0", 0, 8.2, cpu_milli=[(0, 500)], memory=[(0, MIB)], disk_read=[(0, 0)]),
        measured("map.1", 0.05, 7, cpu_milli=[(0, 900), (3, 100)], memory=[(0, MIB)], disk_read=[(0, 0)]),
        measured("reduce", 8.3, 4, cpu_milli=[(0, 2000)]),
        measured("gone", 0, 1, cpu_milli=[(0, 9000)]),
    ]
    before, _ = read(WORDS)
    text = job_from(WORDS, members, margin=1.0)
    job, index = read(text)
    assert [(node.name, node.service, node.after) for node in job.nodes] == [
        (node.name, node.service, node.after) for node in before.nodes
    ]
    assert [(edge.source, edge.target, edge.depends) for edge in job.edges] == [
        (edge.source, edge.target, edge.depends) for edge in before.edges
    ]
    assert (job.name, job.weight, job.instants, job.instant_s) == ("words", 0.25, 13, 1.0)
    assert 'program = "map.py"\nargs = ["--top", "2"]' in text
    for copy in ("map.0", "map.1"):
        assert job.demand[index[copy], :, 0].tolist() == [0.9] * 3 + [0.5] * 6 + [0] * 4
        assert not job.demand[index[copy], :, 3].any(), "it was measured that nothing is read"
    assert job.demand[index["reduce"], :, 0].tolist() == [0] * 8 + [2.0] * 5
    # What was not measured is asked for as it was before, by the most and all the time.
    assert job.demand[index["reduce"], :, 2].tolist() == [0] * 8 + [30.0] * 5
    assert job.demand[index["last"], :, 0].tolist() == [0.5] * 13
    assert job.demand[index["input"], :, 3].tolist() == [7.0] * 13
    assert "no longer a task of this job: gone" in text


def test_edges_ask_for_what_went_from_node_to_node() -> None:
    """An edge has its part of what its target received and its source sent; or else what it had."""
    members = [
        measured("map.0", 0, 4, sent=[(0, 0), (3, 250_000)]),
        measured("map.1", 0, 4, sent=[(0, 0)]),
        measured("reduce", 4, 3, received=[(0, 1_000_000), (2, 0)]),
    ]
    job, _ = read(job_from(WORDS, members, margin=1.0))
    by = {
        (edge.source, edge.target): flow.tolist() for edge, flow in zip(job.edges, job.bandwidth, strict=True)
    }
    # Both mappers' edges are one entry: 2 Mbit/s that one sent, then each a half of 8 Mbit/s.
    assert by["map.0", "reduce"] == by["map.1", "reduce"] == [0, 0, 0, 2, 4, 4, 0]
    assert by["input", "map.0"] == by["input", "map.1"] == [5, 5, 5, 5, 0, 0, 0]
    text = job_from(WORDS, [measured("map.0", 0, 4), measured("reduce", 4, 3, received=[(0, 0)])])
    job, _ = read(text)
    assert job.bandwidth[0].tolist() == [0] * 4 + [25] * 3
    assert text.count("# no traffic between nodes was measured") == 2


def test_a_little_is_nothing() -> None:
    """What a line in a log costs a disk, or a link, is not asked for; that is told."""
    members = [
        measured("map.0", 0, 2, disk_write=[(0, 99_999)], disk_read=[(0, 0)], sent=[(0, 12_000)]),
        measured("reduce", 0, 2, disk_read=[(0, 100_000)]),
    ]
    text = job_from(WORDS, members, margin=1.0)
    job, index = read(text)
    assert not job.demand[index["map.0"], :, 2:].any()
    assert job.demand[index["reduce"], :, 3].tolist() == [0.1, 0.1]
    assert text.count("# disk_write: less than 0.1 MB/s, which is not demanded") == 1
    assert text.count("less than") == 1
    assert job.bandwidth[0].tolist() == [25, 25], "as it was before"


def test_edges_without_numbers_share_alike() -> None:
    """Where a job asked for no bandwidth, what a task received is divided equally among its edges."""
    text = '[tasks.a]\ncount = 4\n[tasks.b]\n[[edges]]\nfrom = "a"\nto = "b"\n'
    job, _ = read(job_from(text, [measured("b", 0, 2, received=[(0, 500_000)])], margin=2.0))
    assert job.bandwidth.tolist() == [[2.0, 2.0]] * 4


def test_a_learned_job_can_be_learned_again(tmp_path: Path) -> None:
    """What was written from a file, with the same measurements, is the same job again."""
    members = [measured("map.0", 0, 8.2, cpu_milli=[(0, 500)]), measured("reduce", 8.3, 4, memory=[(0, MIB)])]
    path = tmp_path / "words.toml"
    path.write_text(job_from(WORDS, members))
    once, again = TiMra.from_toml(path), TiMra.from_toml(job_from(path, members))
    assert once.same_as(again)


def test_names_are_any_text() -> None:
    """Names with quotes, dots and line ends come back as they were."""
    names = ['a "quoted" one', "dots.and.1", "new\nline", "ümlaut"]
    job, index = read(fresh_job(names[2], [measured(name, 0, 1, cpu_milli=[(0, 1)]) for name in names]))
    assert sorted(index) == sorted(names)
    assert job.name == names[2]


def test_long_runs_need_long_instants() -> None:
    """More instants than a job may have are refused, with a length that does; and it does."""
    usage = measured("t", 0, 100_000, instant_s=512, cpu_milli=[(0, 1)])
    with pytest.raises(JobError, match=f"more than the {limits.PACKER_INSTANTS_MAX}.*use 25 or more"):
        fresh_job("long", [usage])
    job, _ = read(fresh_job("long", [usage], instant_s=25))
    assert job.instants == 4000
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(JobError, match="instant_s"):
            fresh_job("long", [usage], instant_s=bad)


def test_a_file_that_is_no_job_is_told_with_its_line(tmp_path: Path) -> None:
    """The error has file, line and field."""
    path = tmp_path / "job.toml"
    path.write_text(WORDS.replace("cpu = 1", "cpu = -1"))
    with pytest.raises(JobError, match=r"job.toml:12: tasks.map.cpu is -1"):
        job_from(path, [measured("map.0", 0, 1)])


def test_an_answer_that_makes_no_sense_is_told() -> None:
    """What is no list of members is an error, not a traceback."""
    with pytest.raises(JobError, match="are invalid"):
        convert_measurements([{"member": 3}])
