"""The daemon is killed: nothing is left running, and what it recorded can be replayed.

Not for: what it was told to keep (``tests/crash``), the store alone (``test_store_crash``), or power cuts.
"""

from __future__ import annotations

from pathlib import Path

import dios
from dios.sim.node.replay import replay
from tests.support.node.running_node import exists, running_node, wait_until


def test_killed_daemon_leaves_no_process(tmp_path: Path) -> None:
    """When the daemon is killed, its zygote, its pool and every task go too."""
    with running_node(tmp_path / "node") as node, dios.connect(node.place, groups=()) as session:
        session.run(b"import time\nwhile True: time.sleep(1)")
        below = node.descendants()
        assert len(below) >= 2
        node.kill()
        wait_until(lambda: not any(exists(pid) for pid in below), "every descendant is gone")


def test_recorded_daemon_replays(tmp_path: Path) -> None:
    """A real daemon's recorded events go through a fresh core with the same outcomes."""
    record = tmp_path / "record"
    with running_node(tmp_path / "node", record=str(record)) as node:
        with dios.connect(node.place, groups=()) as session:
            blob = session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=b"abc")
            blob.write_bytes(b"defg")
            task = session.run(b"print('hello')")
            assert task.wait(timeout=30).exit_code == 0
        node.stop()
    replayed = replay(record)
    assert replayed.first_difference is None
    assert replayed.events > 8
