"""Claims about MapReduce over three real nodes of which one is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import dios
from dios.errors import InvalidError
from dios.lib import mapreduce
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster

JOB = b"""
import time

def map_keys(text):
    if text.startswith(b"word0 "):
        time.sleep(0.02)  # so that there are moments in the middle
    return text.split()

def reduce(word, counts):
    return sum(counts)
"""
TEXT = b"".join(b"word%d other%d\n" % (number % 997, number % 13) for number in range(120_000))
EXPECTED = Counter(TEXT.split())


@pytest.fixture(scope="module")
def fresh_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests of this file."""
    folder = tmp_path_factory.mktemp("jobs") / "cluster"
    unstarted = local_cluster.make(folder, nodes=3, settings={"accept_weaker_sandbox": "yes"})
    try:
        yield unstarted
    finally:
        local_cluster.stop(unstarted)


@pytest.fixture
def cluster(fresh_cluster: LocalCluster) -> LocalCluster:
    """All three run, and see each other."""
    local_cluster.start(fresh_cluster)
    return fresh_cluster


def _kill(cluster: LocalCluster, number: int) -> None:
    running = daemon.find(cluster.nodes[number].socket)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("moment", [0.0, 0.4, 0.75])
@pytest.mark.extended(keep=1)
def test_any_node_may_be_killed_at_any_moment(cluster: LocalCluster, victim: int, moment: float) -> None:
    """The counts are right whichever node is killed: at the start, in the middle, or near the end."""
    struck = False

    def strike(progress: mapreduce.JobProgress) -> None:
        nonlocal struck
        if not struck and progress.running and progress.bytes_done >= moment * progress.bytes_total:
            struck = True
            _kill(cluster, victim)

    with ExitStack() as stack:
        sessions = [
            stack.enter_context(dios.connect(str(member.socket), groups=())) for member in cluster.nodes
        ]
        result = mapreduce.run(sessions, JOB, [TEXT], splits=6, reducers=3, workers=3, progress=strike)
        assert dict(result) == EXPECTED
    assert struck


def test_kept_pairs_are_not_computed_again(cluster: LocalCluster) -> None:
    """A node with reducers and mappers is killed late: at most a fifth of the mappers run again."""
    struck = False

    def strike(progress: mapreduce.JobProgress) -> None:
        nonlocal struck
        if not struck and progress.bytes_done >= 0.75 * progress.bytes_total:
            struck = True
            names = [member.name for member in cluster.nodes]
            reducing = {task.node for task in node.tasks() if "reducer" in task.label and not task.ended}
            _kill(cluster, names.index(next(name for name in names[1:] if name in reducing)))

    with dios.connect(str(cluster.nodes[0].socket), groups=()) as node:
        result = mapreduce.run(node, JOB, [TEXT], splits=12, reducers=3, workers=3, keep=2, progress=strike)
        assert dict(result) == EXPECTED
        assert struck
        mapped = [task for task in result.tasks if task.role is mapreduce.Role.MAPPER and task.ok]
        assert any(task.role is mapreduce.Role.REDUCER for task in result.failures)
        # A mapper that ended in the last moment may have had no second copy yet.
        assert 12 <= len(mapped) <= 14


def test_a_job_for_several_nodes_takes_no_references(cluster: LocalCluster) -> None:
    """A reference is one node's: with several to control the job it is refused at once."""
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(dios.connect(str(member.socket), groups=())) for member in cluster.nodes[:2]
        ]
        blob = sessions[0].create(dios.SHMEM_BLOB, data=TEXT, naming=dios.ANONYMOUS)
        with pytest.raises(InvalidError, match="files or bytes"):
            mapreduce.run(sessions, JOB, [blob])
