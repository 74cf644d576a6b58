"""The watcher reads while somebody looks, keeps the past, and survives a node that does not answer."""

from __future__ import annotations

import json
import threading
from typing import cast

import pytest

from dios.client.ops.cluster import Gathered, Member
from dios.client.ops.status import Status
from dios.client.sync.node import Node
from dios.errors import UnreachableError
from dios.web.observation import watcher as watching
from dios.web.observation.cluster_view import ClusterView, with_unseen
from dios.web.observation.watcher import PAUSE_S_MAX, Watcher, find_task, pause_after
from dios.wire.types import Cause, NodeStatus, TaskState

SHARES = [{"principal": "uid:1", "share": 0.5, "commitment": 1, "credit": "much"}]


def test_pauses_grow_with_readings_within_bounds() -> None:
    """A reading takes 3 % of the time; a long one, which may have waited for a node, has a shorter pause."""
    assert pause_after(0.001, 0.5) == 0.5
    assert pause_after(0.03, 0.5) == pytest.approx(0.97)
    assert pause_after(5.0, 0.5) == PAUSE_S_MAX
    assert pause_after(5.0, 0.5, 2.0) == 2.0
    assert pause_after(5.0, 20.0) == 20.0


def test_tasks_of_a_dead_node_stay_in_the_picture() -> None:
    """A task that ran there is lost with its node; that of a node that is only suspected stays as it was."""

    def view(status: NodeStatus, *tasks: Status) -> ClusterView:
        node = Member(3, "n3", "", "", status, False, 1, 0, 0, 2, 0, False)
        return ClusterView(taken_s=9.0, nodes=(node,), tasks=tasks)

    there = Status("ab", "", TaskState.RUNNING, started_ns=1, node="n3")
    here = Status("cd", "", TaskState.RUNNING, started_ns=2, node="n1")
    before = view(NodeStatus.ALIVE, there, here)
    assert [task.fingerprint for task in with_unseen(view(NodeStatus.ALIVE, here), before).tasks] == ["cd"]
    suspected = with_unseen(view(NodeStatus.SUSPECT, here), before)
    assert suspected.tasks == [there, here]
    lost, _ = with_unseen(view(NodeStatus.DEAD, here), suspected).tasks
    assert (lost.cause, lost.ended_ns) == (Cause.NODE_LOST, 9_000_000_000)
    again = with_unseen(view(NodeStatus.DEAD, here), view(NodeStatus.DEAD, lost, here))
    assert again.tasks == [lost, here]


class FakeNode:
    """A node with one task and a scheduler, which fails while ``broken`` is set."""

    def __init__(self) -> None:
        self.broken = threading.Event()
        self.readings = 0

    def nodes(self) -> list[object]:
        """Return no nodes."""
        return []

    def tasks(self) -> Gathered[Status]:
        """Return one task, or fail."""
        self.readings += 1
        if self.broken.is_set():
            raise UnreachableError("gone")
        return Gathered([Status("ab", "", TaskState.RUNNING)], incomplete=True)

    def ask_scheduler(self, question: bytes) -> bytes:
        """Answer every question."""
        del question
        return json.dumps({"ok": True, "principals": SHARES}).encode()

    def close(self) -> None:
        """Do nothing."""


def test_reads_only_for_viewers_and_keeps_the_last_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read before the first viewer; a lost node leaves the old view with the reason."""
    monkeypatch.setattr(watching, "PERIOD_S_MIN", 0.0)
    monkeypatch.setattr(watching, "_RETRY_S", 0.0)
    node = FakeNode()
    watcher = Watcher(lambda: cast("Node", node))
    try:
        assert node.readings == 0
        watcher.add_viewer()
        assert watcher.wait_for(0, 30)
        assert find_task(watcher.view, "ab") is not None
        assert "did not answer" in watcher.view.problems[0]
        assert watcher.shares["uid:1"][-1][1:] == (0.5, 1.0, 0.0)
        node.broken.set()
        version = watcher.version
        while not watcher.view.problems[0].startswith("The node does not answer"):
            assert watcher.wait_for(version, 30)
            version = watcher.version
        assert find_task(watcher.view, "ab") is not None
        node.broken.clear()
        while watcher.view.problems[0].startswith("The node does not answer"):
            assert watcher.wait_for(watcher.version, 30)
    finally:
        watcher.close()
