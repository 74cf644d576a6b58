"""Tasks come and go; the node is afterwards what it was before."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import dios
from tests.support.node.running_node import RunningNode, running_node, wait_until

POOL = 4
TASKS = 1_000
AT_ONCE = 20


def _run_some(session: dios.Node, source: dios.Reference, count: int) -> None:
    for start in range(0, count, AT_ONCE):
        tasks = [session.run(source) for _ in range(min(AT_ONCE, count - start))]
        for task in tasks:
            assert task.wait(timeout=60).exit_code == 0
            task.close()


def _namespaces(node: RunningNode) -> set[str]:
    """Return the process namespaces in which the node and everything below it run."""
    namespaces = set()
    for pid in (node.running.pid, *node.descendants()):
        with contextlib.suppress(OSError):
            namespaces.add(str(Path(f"/proc/{pid}/ns/pid").readlink()))
    return namespaces


def _settle(node: RunningNode, processes: int) -> None:
    wait_until(lambda: len(node.descendants()) == processes, "the zygote and its pool are left")


@pytest.mark.extended
def test_thousand_tasks_leave_nothing(tmp_path: Path) -> None:
    """1,000 tasks started and ended leave no process, descriptor, mapping or namespace behind."""
    with (
        running_node(tmp_path / "node", pool_size=str(POOL)) as node,
        dios.connect(node.place, groups=()) as session,
    ):
        source = session.create(dios.SHMEM_BLOB, data=b"pass")
        # The first ones bring what stays: threads of the daemon, arenas, the pool.
        _run_some(session, source, 60)
        # The zygote and its pool: counting them here could come before the pool is full again.
        processes = 1 + POOL
        _settle(node, processes)
        before = (node.descriptors(), node.mappings(), len(_namespaces(node)))
        _run_some(session, source, TASKS)
        _settle(node, processes)
        wait_until(lambda: node.descriptors() <= before[0], "descriptors are back where they were")
        assert len(_namespaces(node)) <= before[2]
        # An allocator may take or return a few arenas; a leak would show a thousand.
        assert node.mappings() <= before[1] + TASKS // 50
