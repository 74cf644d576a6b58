"""Runs that move between three nodes: nothing is counted twice or lost, whatever their tasks do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.movable import MovableRun
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.messages import Work
from dios.wire.types import Cause, TaskState
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

PATIENCE_S = 90
COUNTING = Path(__file__).parents[2] / "examples" / "counting.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes without a scheduler, for all tests of this file; the last one kills a node."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1", "coordinator": "off"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("nodes") / "cluster", nodes=3, settings=settings
    )
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


@pytest.fixture
def node(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the first node; no node is drained."""
    with dios.connect(str(cluster.nodes[0].socket), groups=()) as node:
        for member in cluster.nodes:
            node.set_node(member.name, "undrain")
        yield node


class Counter:
    """A run of the example, whose output is collected as it comes."""

    def __init__(self, node: dios.Node, last: int, hosts: list[str], grace: float = 60.0) -> None:
        self.node = node
        self.hosts = hosts
        self.lines: list[str] = []
        self.ended: dios.Status | None = None

        def start(work: Work, more: list[dios.Handed]) -> dios.Task:
            host = self.hosts.pop(0)
            return node.run(COUNTING, args=[str(last)], outputs=more, work=work, host=host, label="count")

        self.run = MovableRun(node, start, dios.work(restartable=True, grace=grace))
        self.thread = threading.Thread(target=self._go, daemon=True)
        self.thread.start()

    def _go(self) -> None:
        task: dios.Task | None = self.run.start()
        while task is not None:
            self._read(task)
            self.ended = task.wait()
            task = self.run.again(self.ended)

    def _read(self, task: dios.Task) -> None:
        text = b""
        try:
            for part in task.console():
                *lines, text = (text + part).split(b"\n")
                self.lines += [line.decode() for line in lines]
        except dios.UnreachableError:
            return  # its node is dead

    def until(self, count: int) -> None:
        """Wait until so many lines are here."""
        wait_until(lambda: len(self.lines) >= count, f"{count} lines", PATIENCE_S)

    def finish(self) -> None:
        """Wait for the end of the run."""
        self.thread.join(PATIENCE_S)
        assert self.ended is not None
        assert self.ended.ok, self.ended
        self.run.close()


def test_a_run_that_moves_counts_each_number_once(node: dios.Node) -> None:
    """It is drained from one node and preempted on the next, and continues each time where it was."""
    counter = Counter(node, 100, ["n2", "n3", "n2"])
    counter.until(5)
    node.set_node("n2", "drain")
    counter.until(20)
    node.set_node("n2", "undrain")
    task = counter.run.task
    assert task is not None
    assert not node.place("n3", preempted=[task.object_id]).refused
    counter.finish()
    assert counter.lines == [str(number) for number in range(1, 101)]
    assert [(end.node, end.cause) for end in counter.run.history] == [
        ("n2", Cause.MOVED),
        ("n3", Cause.MOVED),
    ]
    assert "n2 is drained" in counter.run.history[0].reason
    assert counter.ended is not None
    assert (counter.ended.moves, counter.ended.restarts, counter.ended.node) == (2, 0, "n2")
    assert counter.ended.kept_bytes > 0


REFUSED = b"""import dios
with dios.checkpointed(lambda: b"state", lambda data: None, every=0.05) as state:
    state.sleep(0.2)
print("went on")
"""


def test_a_program_learns_of_a_checkpoint_that_is_refused(node: dios.Node) -> None:
    """The program goes on, and its output has the reason of the node."""
    checkpoint = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    task = node.run(REFUSED, outputs=[checkpoint.restrict("read", label="dios.checkpoint")])
    lines = b"".join(task.console()).decode().splitlines()
    assert task.wait().ok
    assert lines[-1] == "went on"
    assert lines[0].startswith("dios.checkpointed: the state was not saved: ")
    assert not checkpoint.size


HOSTILE = b"""import sys, time, dios
node = dios.connect()
kept = node.output("dios.checkpoint")
if kept.size:
    print("again with", kept.read_bytes())
    sys.exit(3)
kept.write_bytes(b"nonsense")
while True:
    time.sleep(1000)
"""


def test_a_task_that_never_leaves_is_ended(node: dios.Node) -> None:
    """While its time runs it is shown as moving; the run begins again with what it stored, and the reason."""
    hosts = ["n2", "n3"]

    def start(work: Work, more: list[dios.Handed]) -> dios.Task:
        return node.run(HOSTILE, outputs=more, work=work, host=hosts.pop(0), label="hostile")

    kept = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    with MovableRun(node, start, dios.work(restartable=True, grace=3.0), checkpoint=kept) as run:
        task = run.start()
        wait_until(lambda: kept.size > 0, "it runs", PATIENCE_S)
        node.set_node("n2", "drain")
        assert task.status().leave_ns > 0
        ended = run.wait()
    assert (ended.exit_code, ended.restarts, ended.moves) == (3, 1, 0)
    (end,) = run.history
    assert (end.cause, end.kept_bytes) == (Cause.PREEMPTED, len(b"nonsense"))
    assert "did not leave in time" in end.reason


WRITER = b"""import dios, time
node = dios.connect()
kept = node.output("dios.checkpoint")
try:
    while True:
        kept.write_bytes(b"first")
        time.sleep(0.01)
except dios.DiosError as error:
    print(type(error).__name__, flush=True)
"""


def test_a_task_that_was_taken_for_dead_cannot_change_the_state(node: dios.Node) -> None:
    """Before the next task starts, the former one has lost its reference to the checkpoint."""
    programs = [(WRITER, "n2"), (b"pass", "n3")]

    def start(work: Work, more: list[dios.Handed]) -> dios.Task:
        program, host = programs.pop(0)
        return node.run(program, outputs=more, work=work, host=host)

    kept = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    with MovableRun(node, start, dios.work(restartable=True, grace=1.0), checkpoint=kept) as run:
        first = run.start()
        wait_until(lambda: kept.size > 0, "the first one writes", PATIENCE_S)
        taken_for = dios.Status("", "", TaskState.ENDED, cause=Cause.NODE_LOST, node="n2")
        second = run.again(taken_for)
        assert second is not None
        kept.write_bytes(b"second", replace=True)
        assert first.wait(PATIENCE_S).ok
        assert b"".join(first.console()).strip() == b"BadReferenceError"
        assert second.wait(PATIENCE_S).ok
        assert kept.read_bytes() == b"second"


def slow(number: int) -> int:
    """Return a number, after a while."""
    import time

    time.sleep(0.05)
    return number


def test_calls_of_a_drained_node_are_made_elsewhere(node: dios.Node) -> None:
    """An executor's workers leave; no call fails, and the moves are no losses."""
    node.set_node("n1", "drain")  # so that all of its workers are elsewhere
    with dios.Executor(3, node=node, work=dios.work(), retries=0) as executor:
        futures = [executor.submit(slow, number) for number in range(200)]
        assert futures[0].result(PATIENCE_S) == 0
        used = {row.node for row in node.tasks() if row.label == "worker" and not row.ended}
        assert used
        assert "n1" not in used
        node.set_node("n1", "undrain")
        for name in used:
            node.set_node(name, "drain")
        assert [future.result(PATIENCE_S) for future in futures] == list(range(200))
        wait_until(lambda: executor.stats().workers_moved > 0, "a worker has moved", PATIENCE_S)
        assert (executor.stats().failed, executor.stats().workers_lost) == (0, 0)


def test_a_run_goes_on_when_its_node_is_killed(cluster: LocalCluster, node: dios.Node) -> None:
    """It begins again at its last checkpoint: no number is lost, and only later ones may come twice."""
    counter = Counter(node, 60, ["n3", "n2"])
    counter.until(3)
    node.set_node("n3", "drain")
    counter.until(10)
    counter.hosts.append("n1")
    running = daemon.find(cluster.nodes[1].socket)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    counter.finish()
    assert [end.cause for end in counter.run.history] == [Cause.MOVED, Cause.NODE_LOST]
    seen = [int(line) for line in counter.lines]

    assert set(seen) == set(range(1, 61))
    assert counter.ended is not None
    assert (counter.ended.moves, counter.ended.restarts) == (1, 1)
