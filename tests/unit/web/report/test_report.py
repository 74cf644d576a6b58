"""A page about a job is well-formed, loads and runs nothing, and shows text of others as text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from dios.cli.main import app
from dios.client.ops.status import Status
from dios.errors import InvalidError
from dios.web.observation.cluster_view import ClusterView
from dios.web.observation.jobs import job_tasks
from dios.web.report.collection import JobReport
from dios.web.report.page import page_of, timeline
from dios.wire.types import Cause, TaskState
from tests.support.web.elements import Elements

S = 1_000_000_000
EVIL: Final = "</title></svg><script>alert(1)</script><img src=http://x onerror=y>\"'&\x1b[2J\u202e"
TASKS: Final = (
    Status(
        "aa00",
        EVIL,
        TaskState.RUNNING,
        started_ns=1 * S,
        node=EVIL,
        principal=EVIL,
        secrecy=(EVIL, "uid:5/payroll"),
    ),
    Status(
        "bb00", "map 1", TaskState.ENDED, started_ns=2 * S, ended_ns=4 * S, parent="aa00", cause=Cause.EXITED
    ),
    Status(
        "cc00",
        "map 2",
        TaskState.ENDED,
        started_ns=2 * S,
        ended_ns=3 * S,
        parent="bb00",
        cause=Cause.MEMORY,
        detail=EVIL,
    ),
    Status("dd00", EVIL, TaskState.WAITING, parent="aa00"),
    Status("ee00", "other", TaskState.RUNNING, started_ns=1 * S, parent="ff00"),
)


def test_a_job_is_a_task_with_all_that_it_started() -> None:
    """Children of children belong to it; a first task that is forgotten is known as a parent."""
    assert [task.fingerprint for task in job_tasks(TASKS, "aa")[1]] == ["dd00", "aa00", "bb00", "cc00"]
    assert job_tasks(TASKS, "ff") == ("ff00", [TASKS[4]])
    assert job_tasks(TASKS, "map 2") == ("cc00", [TASKS[2]])
    for text in ("zz", ""):
        with pytest.raises(InvalidError):
            job_tasks(TASKS, text)


def test_the_page_has_all_parts_and_no_markup_of_others() -> None:
    """Hostile labels, reasons, users, nodes, explanations and problems add no element and no attribute."""
    mark, tasks = job_tasks(TASKS, "aa")
    shares = {"principals": [{"principal": EVIL, "share": 0.5, "resource": EVIL}]}
    view = ClusterView(1.0, (), TASKS, {}, shares, (EVIL,))
    report = JobReport(mark, tasks, view, {"dd00": [EVIL, "no room"]}, {"bb00": 1500}, {EVIL: EVIL}, 9 * S)
    page = page_of(report)
    elements = Elements()
    elements.feed(page)
    assert not elements.tags & {"script", "img", "link", "iframe", "object", "a"}
    assert not {name for name in elements.attributes if name.startswith("on") or name in {"src", "href"}}
    assert not set(page) & {"\x1b", "\u202e"}
    assert page.count("&lt;script&gt;") > 8
    for words in ("2 of 4 tasks have ended, 1 of them badly", "1.50 s of 1 tasks", "no room", "memory"):
        assert words in page
    assert page.count("uid:5/payroll") == 2, "in the facts of the job and in the bar of the task"


def test_bars_have_their_place_in_time_and_in_lanes() -> None:
    """The picture is well-formed XML; bars at the same time are in different lanes."""
    root = ET.fromstring(timeline(job_tasks(TASKS, "bb")[1], 9 * S))  # noqa: S314 - made by us
    bars = [{key: rect.get(key) for key in ("class", "x", "y", "width")} for rect in root.iter("rect")]
    assert bars == [
        {"class": "exited", "x": "140.0", "y": "2", "width": "1000.0"},
        {"class": "failed", "x": "140.0", "y": "16", "width": "500.0"},
    ]


def test_a_file_is_not_written_over(tmp_path: Path) -> None:
    """The command refuses before it asks a node, and names the option that allows it."""
    page = tmp_path / "page.html"
    page.write_text("mine")
    result = CliRunner().invoke(app, ["report", "aa", "-o", str(page), "--node", str(tmp_path)])
    assert result.exit_code == 1
    assert "--force" in result.output
    assert page.read_text() == "mine"
