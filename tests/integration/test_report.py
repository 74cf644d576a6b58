"""The page about a job has real contents in each part, for a plain run, an executor and a MapReduce job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.client.sync.node import Node, connect
from dios.installation import version
from dios.lib import mapreduce
from dios.web.report.collection import collect
from dios.web.report.page import page_of
from tests.support.node.running_node import running_node

PARTS = ("Timeline", "Stages", "Nodes", "Cost", "Shares now", "Explanation", "Versions")
WORK = b"def map_keys(line):\n    return line.split()\nreduce = sum\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a node."""
    with running_node(tmp_path_factory.mktemp("report"), accept_weaker_sandbox="yes", pool_size="1") as node:
        yield node.running.socket


def plain_run(node: Node) -> None:
    """Run a task that fails."""
    node.run(b"raise SystemExit(3)", label="plain").wait()


def executor_job(node: Node) -> None:
    """Make two calls."""
    with dios.Executor(1, node=node) as executor:
        assert list(executor.map(pow, [2, 3], [2, 2])) == [4, 9]


def mapreduce_job(node: Node) -> None:
    """Count words."""
    mapreduce.run(node, WORK, [b"a b a", b"c"], reducers=1, splits=2)


@pytest.mark.parametrize(
    ("job", "stage", "tasks"),
    [
        (plain_run, "plain", 1),
        (executor_job, "worker", 1),
        (mapreduce_job, "job mapper", 3),
    ],
)
def test_each_part_has_contents(place: Path, job: object, stage: str, tasks: int) -> None:
    """The parts are there in order; they name the stage, its node and its cost, and why it took its time."""
    assert callable(job)
    with connect(place, groups=()) as node, connect(place, groups=()) as reader:
        job(node)
        report = collect(reader, node.self.fingerprint, lambda _: None)
    page = page_of(report)
    parts = dict(re.findall(r"<h2>([^<]+)</h2>(.*?)(?=<h2>|</main>)", page, re.DOTALL))
    assert tuple(parts) == PARTS
    assert len(report.tasks) == tasks
    assert parts["Timeline"].count("<rect") == tasks
    assert f"<td>{stage}" in parts["Stages"]
    assert f"<td>{tasks}</td>" in parts["Nodes"]
    assert re.search(r"processor time.*[0-9]\.[0-9]{2} s", parts["Cost"], re.DOTALL)
    assert re.search(r"[1-9][0-9.]* MiB", parts["Cost"])
    assert "Unknown: " in parts["Shares now"]
    assert f"The longest task of stage {stage}" in parts["Explanation"]
    assert ("Tasks that ended badly" in parts["Explanation"]) is (job is plain_run)
    assert version() in parts["Versions"]
