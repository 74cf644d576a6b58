"""A cluster in which one node cannot start pure tasks: kept jobs and services run on the other one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.supervised.kept_jobs import KeptJobs
from dios.lib.supervised.services import ServiceProgram, Services
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.running_node import exists, wait_until
from tests.support.node.unconfined_node import unconfined_node

PATIENCE_S = 120
SETTINGS = {"coordinator": "off", "pool_size": "1"}
COUNTS = b"import time\ntime.sleep(3)\nprint('counted')\n"
"""It still runs when the supervisor reads the list of tasks, with those that were refused."""
STAYS = b"import time\ntime.sleep(100_000)\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes without a scheduler; the machine of the first one cannot confine pure tasks."""
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=2, settings=SETTINGS)
    first, second = live_cluster.nodes
    with unconfined_node(first.data):
        daemon.start_detached(second.data, flags=second.flags())
        try:
            local_cluster.wait_ready(live_cluster.nodes)
            yield live_cluster
        finally:
            running = daemon.find(second.socket)
            if running is not None:
                os.kill(running.pid, signal.SIGKILL)
                wait_until(lambda: not exists(running.pid), "the second node is gone")


def test_the_other_node_starts_what_one_refuses(cluster: LocalCluster) -> None:
    """The job succeeds in its first attempt, the only one it has; the service has all its replicas."""
    with dios.connect(str(cluster.nodes[0].socket), groups=()) as node:
        jobs, services = KeptJobs(node), Services(node)
        jobs.start("count", ServiceProgram(COUNTS), attempts=1)
        services.create("web", ServiceProgram(STAYS), replicas=3)
        assert jobs.wait("count", PATIENCE_S).exit_status == 0
        wait_until(lambda: services.describe("web").running == 3, "all replicas run", PATIENCE_S)
        service = services.describe("web")
        assert {replica.task.node for replica in service.replicas if replica.task is not None} == {"n2"}
        assert {replica.restarts for replica in service.replicas} == {0}
        services.remove("web")
