"""The watcher reads while somebody looks, keeps the past, and survives a node that does not answer."""

from __future__ import annotations

import json
import threading
from typing import cast

import pytest

from dios.client.ops.cluster import Gathered
from dios.client.ops.status import Status
from dios.client.sync.node import Node
from dios.errors import UnreachableError
from dios.web.observation import watcher as watching
from dios.web.observation.watcher import Watcher, find_task
from dios.wire.types import TaskState

SHARES = [{"principal": "uid:1", "share": 0.5, "commitment": 1, "credit": "much"}]


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
