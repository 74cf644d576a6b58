"""The program of a node in a cluster is replaced: the others see a pause, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import dios
from dios.errors import EndOfStreamError, TimeLimitError
from dios.node import daemon, local_cluster, restart_status
from dios.node.local_cluster import LocalCluster, LocalNode
from dios.node.restart_status import RestartStatus
from tests.support.node.running_node import wait_until

LARGE = bytes(range(256)) * 4096
SILENCE_S = 4.0
"""Longer than it takes until a node that says nothing is dead."""
PROGRAM = b"""
import dios
with dios.connect() as node:
    gate = node.input("gate")
    print("up", flush=True)
    while gate.read_bytes() != b"end":
        pass
    print("down", flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes, one of which keeps a coordinator."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("restart") / "cluster", nodes=2, settings=settings
    )
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def restart(node: LocalNode) -> RestartStatus:
    """Replace the program of a node, by the same one."""
    running = daemon.find(node.socket)
    assert running is not None
    return restart_status.request(running.pid, node.data, limit_ms=60_000)


def test_a_restarted_member_is_the_same_start(cluster: LocalCluster) -> None:
    """Volatile objects, references, and tasks of other nodes live on, in both directions."""
    first, two = cluster.nodes
    with dios.connect(str(first.socket)) as near, dios.connect(str(two.socket)) as far:
        assert near.home is not None
        wait_until(lambda: sum(node.usable for node in near.nodes()) == 2, "both nodes answer")
        gate = near.create(dios.SHMEM_BLOB, data=LARGE, groups=[near.home])
        assert gate.name is not None
        there = far.find(gate.name)
        assert there is not None
        assert there.read_bytes() == LARGE
        away = next(node.name for node in near.nodes() if not node.here)
        task = near.run(PROGRAM, inputs={"gate": gate}, host=away)
        wait_until(lambda: task.console().read_bytes() == b"up\n", "the task runs")
        epochs = {node.name: node.epoch for node in near.nodes()}
        for node in (two, first, two):
            assert restart(node).pause_ms > 0
        wait_until(lambda: sum(node.usable for node in near.nodes()) == 2, "both nodes answer again")
        assert {node.name: node.epoch for node in near.nodes()} == epochs
        assert there.read_bytes() == LARGE
        there.write_bytes(b"end")
        assert task.wait(timeout=30).exit_code == 0
        assert gate.read_bytes() == b"end"


def test_a_slow_restart_is_no_death(cluster: LocalCluster) -> None:
    """A node that is silent for longer than others' suspicion lasts answers a task's read afterwards."""
    first = cluster.nodes[0]
    with dios.connect(str(first.socket)) as near:
        assert near.home is not None
        wait_until(lambda: sum(node.usable for node in near.nodes()) == 2, "both nodes answer")
        gate = near.create(dios.SHMEM_BLOB, data=LARGE, groups=[near.home])
        away = next(node.name for node in near.nodes() if not node.here)
        task = near.run(PROGRAM, inputs={"gate": gate}, host=away)
        wait_until(lambda: task.console().read_bytes() == b"up\n", "the task runs")
        running = daemon.find(first.socket)
        assert running is not None
        stopped: list[str] = []

        def stop_for_a_while(state: str) -> None:
            if state == restart_status.REPLACING:
                os.kill(running.pid, signal.SIGSTOP)
                stopped.append(state)
                until = time.monotonic() + SILENCE_S
                wait_until(lambda: time.monotonic() > until, "the silence is long")
                os.kill(running.pid, signal.SIGCONT)

        for _ in range(5):
            restart_status.request(running.pid, first.data, limit_ms=60_000, show=stop_for_a_while)
            if stopped:
                break
        assert stopped, "the replacement of a program was over each time before it was seen"
        gate.write_bytes(b"end")
        assert task.wait(timeout=30).exit_code == 0


FULL = 64 * 1024


def write(stream: dios.Stream, done: threading.Event) -> None:
    """Send numbers until ``done``, then a last message."""
    number = 0
    while not done.wait(0.002):
        stream.send(b"%d" % number)
        number += 1
    stream.send(b"end")


def read(stream: dios.Stream) -> int:
    """Receive the numbers of ``write``, and return how many there were."""
    number = 0
    while (message := stream.receive(30)) != b"end":
        assert message == b"%d" % number
        number += 1
    return number


def test_streams_between_nodes_go_on(cluster: LocalCluster) -> None:
    """No message is lost or comes twice when the node of either end restarts, also in full rings.

    One stream flows in each direction while both nodes restart, and a third one is full: nobody reads it.
    """
    first, two = cluster.nodes
    with dios.connect(str(first.socket)) as near, dios.connect(str(two.socket)) as far:
        assert near.home is not None
        wait_until(lambda: sum(node.usable for node in near.nodes()) == 2, "both nodes answer")
        pairs = []
        for writer, reader in ((near, far), (far, near), (near, far)):
            near_stream = near.create_stream(groups=[near.home], ring_bytes=FULL)
            assert near_stream.name is not None
            other = far.find(near_stream.name)
            assert isinstance(other, dios.Stream)
            pairs.append((near_stream, other) if (writer, reader) == (near, far) else (other, near_stream))
        (ahead, ahead_end), (back, back_end), (full, full_end) = pairs
        for stream, end in pairs:
            stream.send(b"first")
            assert end.receive(30) == b"first"
        sent = 0
        with contextlib.suppress(TimeLimitError):
            while sent < 2000:
                full.send(b"%d" % sent + bytes(30_000), timeout=2)
                sent += 1
        for node in (first, two):
            done = threading.Event()
            with ThreadPoolExecutor(4) as pool:
                for stream in (ahead, back):
                    pool.submit(write, stream, done)
                counts = [pool.submit(read, end) for end in (ahead_end, back_end)]
                told = restart(node)
                done.set()
            assert told.pause_ms > 0, told
            assert all(count.result() for count in counts)
        for number in range(sent):
            assert full_end.receive(30) == b"%d" % number + bytes(30_000)
        full.detach()
        with pytest.raises(EndOfStreamError):
            full_end.receive(30)
