"""Tasks of live nodes that report how much of their work is done, and the cost model that compares them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import dios
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import LOADED_S

# The fixture waits for the cluster.
pytestmark = [pytest.mark.timeout(LOADED_S + 300), pytest.mark.extended, pytest.mark.long]

WORKER = b"""
import sys
import dios

node = dios.connect()
node.progress(float(sys.argv[1]))
# Nothing happens to it.
node.next_event()
"""
JOB = 7


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes with coordinators."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("nodes") / "cluster", nodes=2, settings=settings
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIOS_COORDINATOR", "on")
        try:
            local_cluster.start(live_cluster)
            yield live_cluster
        finally:
            local_cluster.stop(live_cluster)


@pytest.fixture
def node(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the first node, when LATE schedules both of them and judges tasks after a second."""
    with dios.connect(str(cluster.nodes[0].socket)) as node:
        wait_until(lambda: is_scheduled(node), "one coordinator schedules both nodes", LOADED_S)
        late: dict[str, object] = {
            "ask": "set-model",
            "model": "late",
            "parameters": {"cap": "0.5", "minimum_run": "1"},
        }
        assert asked(node, late)["ok"]
        yield node


def asked(node: dios.Node, question: dict[str, object]) -> dict[str, object]:
    """The answer of the scheduler; none while it has no coordinator that answers."""
    try:
        answer: dict[str, object] = json.loads(node.ask_scheduler(json.dumps(question).encode()))
    except dios.UnreachableError:
        return {}
    return answer


def is_scheduled(node: dios.Node) -> bool:
    """Return True if the flow scheduler of one coordinator attends to both nodes."""
    status = asked(node, {"ask": "status"})
    return status.get("placed_by") == "flow" and status["attends"] == ["n1", "n2"]


def worth_copies(node: dios.Node) -> list[str]:
    """The fingerprints of the tasks that are worth a copy."""
    rows = asked(node, {"ask": "status"}).get("worth_copies", [])
    assert isinstance(rows, list)
    return [str(row["task"]) for row in rows]


def explained(node: dios.Node, task: dios.Task) -> str:
    """The explanation of a task."""
    return str(asked(node, {"ask": "explain", "task": task.fingerprint}).get("lines"))


def test_the_slow_task_of_a_job_is_found_and_copied(node: dios.Node) -> None:
    """Of four tasks on two nodes at 90 and one at 10 %, LATE names the last, and copies it to the other node.

    Nothing but the tasks' own reports tells the coordinator how far they are.
    """

    def run(share: str, copy_of: str = "") -> dios.Task:
        return node.run(WORKER, args=[share], work=dios.work(job=JOB, copy_of=copy_of))

    tasks = [run(share) for share in ("0.9", "0.9", "0.9", "0.9", "0.1")]
    slow = tasks[-1]
    wait_until(lambda: worth_copies(node) == [slow.fingerprint], "the slow task is worth a copy", 100)
    assert [task.status().progress for task in tasks] == [0.9, 0.9, 0.9, 0.9, 0.1]
    assert "10% of its work is done" in explained(node, slow)
    assert "a copy of it may end sooner" in explained(node, slow)
    assert "a copy" not in explained(node, tasks[0])
    copy = run("0.2", copy_of=slow.fingerprint)
    wait_until(
        lambda: f"copy of task {slow.fingerprint}" in explained(node, copy), "it is known as a copy", 100
    )
    assert copy.node != slow.node
    assert worth_copies(node) == []
    for task in (*tasks, copy):
        task.kill()
