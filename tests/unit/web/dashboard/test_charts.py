"""Charts have bars that do not overlap, bounded numbers of vertices, and no text that is read as HTML."""

from __future__ import annotations

import json

from dios.client.ops.status import Status
from dios.web.dashboard import charts
from dios.web.dashboard.pages.capabilities import graph_of
from dios.web.observation.packing import Demands
from dios.web.observation.references import HeldReference
from dios.wire.types import Cause, TaskState

S = 1_000_000_000


def _task(node: str, start: int, end: int, label: str = "") -> Status:
    state = TaskState.ENDED if end else TaskState.RUNNING
    return Status(f"{start:012x}", label, state, started_ns=start * S, ended_ns=end * S, node=node)


def test_bars_in_one_lane_do_not_overlap() -> None:
    """Tasks at the same time are in different lanes of their node; later ones use a lane again."""
    tasks = [_task("n1", 1, 5), _task("n1", 2, 3), _task("n1", 4, 0), _task("n2", 1, 2)]
    options = json.loads(json.dumps(charts.timeline(tasks, 9 * S)))
    assert options["yAxis"]["data"] == ["n1 1", "n1 2", "n2 1"]
    bars = [bar[:3] for bar in options["series"][0]["data"]]
    assert bars == [[0, 1000, 5000], [1, 2000, 3000], [1, 4000, 0], [2, 1000, 2000]]
    assert options["xAxis"]["max"] == 9000


def test_colours_show_states_and_failures() -> None:
    """A task that was killed has another colour than one that ended well or that runs."""
    killed = Status("1", "", TaskState.ENDED, cause=Cause.KILLED)
    well = Status("1", "", TaskState.ENDED, cause=Cause.EXITED)
    assert len({charts.colour_of(task) for task in (killed, well, _task("n1", 1, 0))}) == 3


def test_further_tasks_of_a_sankey_diagram_are_one_vertex() -> None:
    """Units and costs of tasks that have no room in the picture are added up."""
    links = [[f"task {number}", "n1", 1, 2] for number in range(charts.SANKEY_TASKS_MAX + 5)]
    series = json.loads(json.dumps(charts.sankey(links)))["series"][0]
    assert len(series["data"]) == charts.SANKEY_TASKS_MAX + 2
    assert {
        "source": "further tasks",
        "target": "n1",
        "value": 5,
        "name": "further tasks to n1: 5 units, cost 10",
    } in series["links"]


def test_tooltips_are_text_and_names_are_harmless() -> None:
    """ECharts draws tooltips on the canvas, and control and direction characters are escaped."""
    evil = "<img src=x onerror=alert(1)>\x1b[2J\u202e"
    for options in (
        charts.timeline([_task(evil, 1, 0, evil)], 9 * S),
        charts.treemap({"g": [("f", 0)]}),
        charts.graph([("a", "task"), ("b", "object")], [("a", "b", "read")]),
        charts.sankey([[evil, "n1", 1, 1]]),
        charts.lines({"a": [(1.0, 2.0)]}, "share"),
        charts.areas(Demands([1.0], {"a": [1.0]}, 2.0), [(1.0, 2.0)], "processors", 1.0),
    ):
        assert json.loads(json.dumps(options))["tooltip"]["renderMode"] == "richText"
        assert not any(letter in json.dumps(options, ensure_ascii=False) for letter in "\x1b\u202e")


def _held(task: str, target: str, secrecy: str = "") -> HeldReference:
    return HeldReference(task, target, "read", "delegated", "", 0, 0, 0, secrecy)


def test_labelled_vertices_are_of_their_own_categories_and_have_their_first_tags() -> None:
    """Without labels there are tasks and objects alone; edges use the names of their vertices."""
    plain_rows = [_held("t1", "pay"), _held("t1", "x")]
    assert dict(graph_of(plain_rows, {"t1": "job"}, {})[0]) == {
        "job t1": "task", "pay": "object", "x": "object",
    }  # fmt: skip
    rows = [_held("t1", "pay", "uid:1/a uid:1/b uid:1/c uid:1/d"), _held("t1", "x"), _held("t2", "x")]
    nodes, edges = graph_of(rows, {}, {"t1": "uid:1/a"})
    assert dict(nodes) == {
        "t1 (uid:1/a)": "task with a label",
        "t2": "task",
        "pay (uid:1/a, uid:1/b, uid:1/c +1)": "object with a label",
        "x": "object",
    }
    assert {end for source, target, _ in edges for end in (source, target)} == dict(nodes).keys()
