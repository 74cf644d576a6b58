"""A node started by somebody whose files nobody else may read."""

from __future__ import annotations

import os
from pathlib import Path

from dios.client.sync.node import connect
from tests.support.node.running_node import running_node


def test_a_strict_umask_hides_nothing_from_tasks(tmp_path: Path) -> None:
    """Under umask 077 a node starts, and its tasks, which are another user, find Python's library."""
    before = os.umask(0o077)
    try:
        with (
            running_node(tmp_path / "node", pool_size="1") as node,
            connect(node.place, groups=()) as session,
        ):
            assert session.run(b"import json, email.message").wait(timeout=30).ok
    finally:
        os.umask(before)
