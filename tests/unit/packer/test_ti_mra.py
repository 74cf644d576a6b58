from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dios.packer import Edge, JobError, Node, TiMra
from dios.packer.templates import Component, Needs, hose, iterative, map_reduce, peaks, tag, web_service


def test_demands_are_constants_steps_or_numbers() -> None:
    """A constant and steps count within the node's time; a list has one number for each instant."""
    job = TiMra(
        "j", [Node("a", cpu=2, memory={1: 5, 3: 7}, disk_read=[0, 1, 2, 0], start=1, end=3)], instants=4
    )
    assert job.demand[0, :, 0].tolist() == [0, 2, 2, 0]
    assert job.demand[0, :, 1].tolist() == [0, 5, 5, 0]
    assert job.demand[0, :, 3].tolist() == [0, 1, 2, 0]
    assert job.demand[0, :, 2].tolist() == [0, 0, 0, 0]


def test_order_is_by_start_and_dependency() -> None:
    """Nodes stand by the instant at which they begin, none before what it depends on (line 5)."""
    nodes = [
        Node("late", cpu={2: 1}),
        Node("needs late", cpu=1),
        Node("early", cpu=1),
        Node("after early", cpu={1: 1}, after=("early",)),
    ]
    job = TiMra("j", nodes, [Edge("late", "needs late", {3: 1})], instants=4)
    assert [nodes[at].name for at in job.order] == ["early", "after early", "late", "needs late"]


def test_traffic_without_dependency_may_close_a_circle() -> None:
    """Answers to requests are edges that make nobody wait."""
    job = TiMra("j", [Node("a"), Node("b")], [Edge("a", "b", 1), Edge("b", "a", 5, depends=False)])
    assert job.order.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("nodes", "edges", "more", "field"),
    [
        ([Node("a", cpu=-1)], [], {}, "tasks.a.cpu"),
        ([Node("a", cpu=float("nan"))], [], {}, "tasks.a.cpu"),
        ([Node("a", memory=[1, -2])], [], {}, "tasks.a.memory[1]"),
        ([Node("a", memory=[1])], [], {}, "tasks.a.memory"),
        ([Node("a", disk_read={2: 1})], [], {}, "tasks.a.disk_read"),
        ([Node("s", disk_write={-1: 1}, service="x")], [], {}, "services.s.disk_write"),
        ([Node("a", start=2)], [], {}, "tasks.a.start"),
        ([Node("a", end=3)], [], {}, "tasks.a.end"),
        ([Node("a", cpu=[1, 1], end=1)], [], {}, "tasks.a.cpu"),
        ([Node("a"), Node("a")], [], {}, "tasks.a"),
        ([Node("a", after=("b",))], [], {}, "tasks.a.after"),
        ([], [], {}, "tasks"),
        ([Node("a")], [Edge("a", "b")], {}, "edges[0].to"),
        ([Node("a")], [Edge("b", "a")], {}, "edges[0].from"),
        ([Node("a")], [Edge("a", "a")], {}, "edges[0].to"),
        ([Node("a"), Node("b")], [Edge("a", "b", -1)], {}, "edges[0].bandwidth"),
        ([Node("a"), Node("b")], [Edge("a", "b"), Edge("b", "a")], {}, "edges"),
        ([Node("a", after=("b",)), Node("b", after=("a",))], [], {}, "edges"),
        ([Node("a")], [], {"weight": 1.1}, "weight"),
        ([Node("a")], [], {"weight": float("nan")}, "weight"),
        ([Node("a")], [], {"instant_s": 0.0}, "instant_s"),
    ],
)
def test_bad_jobs_name_the_field(
    nodes: list[Node], edges: list[Edge], more: dict[str, float], field: str
) -> None:
    """What makes no sense in a job is a JobError that names the field."""
    with pytest.raises(JobError) as caught:
        TiMra("j", nodes, edges, 2, **more)
    assert caught.value.field == field


@pytest.mark.parametrize("instants", [0, -1, 10**9])
def test_a_number_of_instants_is_bounded(instants: int) -> None:
    """No instants, and more than the bound, are refused by name."""
    with pytest.raises(JobError, match="instants is"):
        TiMra("j", [Node("a")], instants=instants)


def test_a_circle_is_shown() -> None:
    """Whoever writes a circle is shown it."""
    nodes = [Node(name) for name in "abcd"]
    circle = [Edge("a", "b"), Edge("b", "c"), Edge("c", "b"), Edge("c", "d")]
    with pytest.raises(JobError, match=r"(b -> c -> b|c -> b -> c)"):
        TiMra("j", nodes, circle)


def test_other_instants_never_hide_a_peak() -> None:
    """In longer and shorter instants a job asks at each time for no less, and at its peak for no more."""
    rng = np.random.default_rng(7)
    for seed in range(50):
        count = int(rng.integers(1, 12))
        job = TiMra(
            "j", [Node("a", cpu=rng.uniform(0, 4, count)), Node("b")], [Edge("a", "b", 1)], count, 0.3
        )
        other = float(rng.choice([0.1, 0.15, 0.3, 0.45, 0.6, 2.0]))
        rescaled = job.resampled(other)
        assert rescaled.demand.max() == job.demand.max(), f"seed {seed}"
        for at in range(count):
            middle = (at + 0.5) * 0.3
            assert rescaled.demand[0, int(middle / other), 0] >= job.demand[0, at, 0], f"seed {seed}, {other}"
    assert map_reduce(1, 1, instant_s=0.3).resampled(0.1).instants == 36


def test_other_instants_are_bounded() -> None:
    """A job is not cut into more instants than a job may have."""
    job = TiMra("j", [Node("a", cpu=1)], instants=60, instant_s=60.0)
    for instant_s in (1e-3, 5e-324):
        with pytest.raises(JobError, match=r"at most .* are possible"):
            job.resampled(instant_s)


def test_numbers_of_numpy_are_numbers() -> None:
    """Demands may be numpy's own whole and broken numbers."""
    job = TiMra("j", [Node("a", cpu=np.int64(3), memory=np.float32(0.5), disk_read={0: np.int64(2)})])
    assert job.demand[0, 0].tolist() == [3, 0.5, 0, 2]


@pytest.mark.parametrize(
    "text",
    [
        "instants = 1\n[tasks.a]\ncpu = " + "9" * 5000,
        "instants = 1\n[tasks.a]\ncpu = " + "9" * 400,
        "instants = 1\n[tasks.a]\ncpu = [" + "9" * 400 + "]",
        "instants = 1\n[tasks.a]\ncpu = " + "[" * 5000,
        "instants = 1\n[tasks.a]\ncpu = nan",
        "instants = 1\n[tasks]\na = 3",
        "instants = 1\ntasks = 3",
        "instants = 1\n[tasks.a]\nafter = [3]",
        "instants = 1\n[tasks.a]\ncount = 99999999",
        "instants = 1\nedges = 7",
        "instants = 1\n[[edges]]\nto = 'a'",
        "instants = 4000\n[tasks.a]\ncount = 4000",
        "instants = 1\nname = ''",
    ],
)
def test_strange_texts_are_jobs_errors(text: str) -> None:
    """Numbers without end, nesting without end and wrong kinds are a JobError, whatever they are."""
    with pytest.raises(JobError):
        TiMra.from_toml(text + "\n")


EXAMPLES = [
    map_reduce(3, 2, map_needs=Needs(2, 512, 0, 40)),
    iterative(3, 2),
    web_service(2, 3, storage="objects"),
    hose(4, 30.0, instants=3),
    tag({"web": Component(2), "db": Component(3)}, {("web", "db"): (30.0, 10.0)}, {"db": 4.0}),
    TiMra('odd "name"\n', [Node("x.y", after=("ü",)), Node("ü", cpu=0.1)], instants=2, weight=1.0),
]


@pytest.mark.parametrize("job", EXAMPLES, ids=lambda job: repr(job.name))
def test_toml_goes_there_and_back(job: TiMra) -> None:
    """What to_toml writes, from_toml reads as the same job in the same order."""
    again = TiMra.from_toml(job.to_toml())
    assert again.same_as(job)
    assert again.order.tolist() == job.order.tolist()


JOB = """
name = "words"
instants = 6
weight = 0.25

[tasks.map]
count = 3
end = 4
cpu = 1
disk_read = {0 = 40, 2 = 10}

[tasks.reduce]
count = 2
start = 3
cpu = [0, 0, 0, 1, 2, 2]
after = ["map"]

[services.input]
service = "objects"

[[edges]]
from = "map"
to = "reduce"
bandwidth = {3 = 25, 4 = 0}

[[edges]]
from = "input"
to = "map"
bandwidth = 5
"""


def test_toml_counts_copies_and_joins_each_with_each() -> None:
    """Count makes copies; an edge, and after, of a name mean all its copies."""
    job = TiMra.from_toml(JOB)
    assert [node.name for node in job.nodes] == ["map.0", "map.1", "map.2", "reduce.0", "reduce.1", "input"]
    assert len(job.edges) == 9
    assert job.bandwidth[0].tolist() == [0, 0, 0, 25, 0, 0]
    assert job.demand[0, :, 3].tolist() == [40, 40, 10, 10, 0, 0]
    assert job.nodes[3].after == ("map.0", "map.1", "map.2")
    paired = TiMra.from_toml(
        'instants=1\n[tasks.a]\ncount=2\n[tasks.b]\ncount=2\n[[edges]]\nfrom="a"\nto="b"\npattern="each"\n'
    )
    assert paired.ends.tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("was", "now", "place"),
    [
        ("cpu = 1\n", "cpu = -1\n", "tasks.map.cpu is -1"),
        ("cpu = 1\n", "cpus = 1\n", "tasks.map.cpus is not a known key; did you mean cpu?"),
        ("2 = 10}", "7 = 10}", "tasks.map.disk_read has a step at 7"),
        ("2 = 10}", "x = 10}", "tasks.map.disk_read has a step at 'x'"),
        ("1, 2, 2]", "1, 2, true]", r"tasks.reduce.cpu\[5\] is True"),
        ('to = "map"', 'to = "mop"', r"edges\[1\].to is 'mop'"),
        ("weight = 0.25", "weight = 7", "weight is 7.0"),
        ("weight = 0.25", 'weight = "x"', "weight is 'x'"),
        ("start = 3", "start = 6", "tasks.reduce.start is 6"),
        ("count = 2", "count = 0", "tasks.reduce.count is 0"),
        ('["map"]', '"map"', "tasks.reduce.after is not a list"),
        ("instants = 6", "instants = ", "not valid TOML"),
        ("[services.input]", "[services.map]", "services.map is defined twice"),
        ("bandwidth = 5", 'pattern = "some"', "edges.1..pattern is 'some'"),
        (
            "bandwidth = 5",
            'pattern = "each"',
            "edges.1..pattern is each, but there are 1 sources and 3 targets",
        ),
        ("bandwidth = 5", "depends = 1", "edges.1..depends is 1"),
    ],
)
def test_bad_toml_names_line_and_field(was: str, now: str, place: str, tmp_path: Path) -> None:
    """What makes no sense in a text is named with its file, its line and its field."""
    assert was in JOB
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace(was, now, 1))
    with pytest.raises(JobError, match=place) as caught:
        TiMra.from_toml(path)
    line = JOB[: JOB.index(was) + len(was) - 1].count("\n") + 1
    shown = "" if now in {"", "instants = "} else f":{line}:"
    assert str(caught.value).startswith(f"{path}{shown}")


def test_peaks_hold_all_the_time() -> None:
    """Who knows only peaks asks for them at every instant."""
    job = peaks(map_reduce(2, 1, shuffle=10.0))
    assert (job.demand == job.demand.max(axis=1, keepdims=True)).all()
    assert (job.bandwidth == 10.0).all()


def test_hose_and_tag_add_up_to_what_they_promise() -> None:
    """What a task of a hose sends in all is its bandwidth; a trunk carries the smaller of its two totals."""
    job = hose(5, 40.0)
    assert job.bandwidth[job.ends[:, 0] == 2].sum() == pytest.approx(40.0)
    tagged = tag({"a": Component(2), "b": Component(5)}, {("a", "b"): (30.0, 10.0)}, {"b": 8.0})
    trunk = tagged.bandwidth[(tagged.ends[:, 0] < 2)]
    assert trunk.sum() == pytest.approx(50.0)
    assert tagged.bandwidth[tagged.ends[:, 0] == 4].sum() == pytest.approx(8.0)
    with pytest.raises(JobError, match="names 'c'"):
        tag({"a": Component(1)}, {("a", "c"): (1.0, 1.0)})


def test_templates_want_at_least_one() -> None:
    """A template of nothing is refused by name."""
    with pytest.raises(JobError, match="reduces is 0"):
        map_reduce(1, 0)
