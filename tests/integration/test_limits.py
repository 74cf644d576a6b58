"""Limits on a real node: from settings, over restarts, over children, and by the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.client.sync.node import Node
from dios.wire.types import Cause
from tests.support.node.running_node import RunningNode, running_node

ME = f"uid:{os.geteuid()}"
MB = 2**20
SPLITS = b"""
import dios
node = dios.connect()
program, kept = node.input("program"), []
first = node.arguments == ("first",)
children = []
if first:
    for _ in range(2):
        children.append(node.run(program, inputs={"program": program}, args=["child"]))
        print(children[-1].console().receive().decode().strip(), flush=True)
try:
    while True:
        kept.append(node.create(dios.SHMEM_BLOB, data=b"x"))
except dios.LimitError:
    print(len(kept), flush=True)
if not first:
    node.next_event()
for child in children:
    child.kill()
"""
HOARDS = b"held = []\nwhile True:\n    held.append(bytearray(2**20))\n"
SPINS = b"while True:\n    pass\n"
HOLDS = b"""
import dios
node = dios.connect()
lent = node.input("lent")
view = lent.read_bytes()
print("ready", flush=True)
event = node.next_event()
try:
    lent.write_bytes(b"late")
except dios.DiosError as error:
    print(type(error).__name__, event.label, event.expired)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests here."""
    with running_node(
        tmp_path_factory.mktemp("node") / "data", task_limits="objects=7", group_limits="bytes=100000"
    ) as started:
        yield started


@pytest.fixture
def node(running: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A connection of somebody whose home directory is empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with dios.connect(running.place, groups=[]) as connected:
        yield connected


def test_a_pure_task_gains_nothing_by_children(node: Node) -> None:
    """A task limited to seven objects by the settings and its children have seven together."""
    with node.create(dios.SHMEM_BLOB, data=SPLITS) as program:
        task = node.run(program, inputs={"program": program}, args=["first"])
        printed = b"".join(task.console())
        assert task.wait(60).ok
    assert printed == b"7\n0\n0\n"


def test_memory_ends_a_task(node: Node) -> None:
    """A task that takes more memory than was set aside for it ends, and all of that comes back."""
    task = node.run(HOARDS, limits=dios.Limits(memory_bytes=256 * MB))
    ended = task.wait(60)
    assert not ended.ok
    assert ended.cause is Cause.MEMORY or "MemoryError" in ended.detail, ended
    assert used(node, dios.Resource.MEMORY_BYTES) == 0


def test_cpu_time_ends_a_task(node: Node) -> None:
    """A task that uses up its CPU time ends for that reason, and what it used stays counted."""
    before = used(node, dios.Resource.CPU_MS)
    ended = node.run(SPINS, limits=dios.Limits(cpu_ms=1000)).wait(60)
    assert ended.cause is Cause.CPU, ended
    # The kernel enforces the limit by sampling, which runs ahead of the exact count on a busy machine.
    assert used(node, dios.Resource.CPU_MS) >= before + 500


def test_a_reference_in_a_running_tasks_hands(node: Node) -> None:
    """What a pure task was handed is taken back while it runs: it is told, and writes no more."""
    with node.create(dios.SHMEM_BLOB, data=b"text") as blob:
        task = node.run(HOLDS, inputs={"lent": blob})
        with task.console() as console:
            assert console.receive() == b"ready\n"
            assert blob.retire() == 1
            assert b"".join(console) == b"BadReferenceError lent False\n"
        assert task.wait(30).ok
        assert blob.read_bytes() == b"text"


def used(node: Node, resource: dios.Resource) -> int:
    """How much of a resource counts with the user."""
    return next(usage for usage in node.limits() if usage.subject == ME).used[resource]


def test_limits_survive_a_restart(
    running: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits that were set, and those of the settings, hold in the node's next life."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with dios.connect(running.place) as first:
        group, other = first.create_group(), first.create_group()
        names = [group.name, other.name]
        first.set_limits(group, bytes=20)
        first.create(dios.DURABLE_BLOB, groups=[group], data=bytes(15)).close()
        count = used(first, dios.Resource.OBJECTS)
        first.set_limits(ME, objects=count + 3)
    running.stop()
    running.restart()
    with dios.connect(running.place, groups=[name for name in names if name]) as again:
        limited = next(usage for usage in again.limits() if usage.subject == ME)
        assert limited.limits[dios.Resource.OBJECTS] == count + 3
        inner = [again.lookup(name)[0] for name in names if name]
        with pytest.raises(dios.LimitError, match="bytes for group"):
            again.create(dios.SHMEM_BLOB, groups=[inner[0]], data=bytes(6))
        again.create(dios.SHMEM_BLOB, groups=[inner[0]], data=bytes(5)).close()
        with pytest.raises(dios.LimitError, match="100,000 bytes for group"):
            again.create(dios.SHMEM_BLOB, groups=[inner[1]], data=bytes(100_001))
