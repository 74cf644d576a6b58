"""A link of two real nodes is divided by the guarantees of tasks (Packer paper, II-C and II-D)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import dios
from dios import limits
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.messages import Guarantee, Metered
from dios.wire.types import Traffic
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

LINK = 8 * limits.MIB
ME = f"uid:{os.geteuid()}"
READS = b"import dios\n(data,) = dios.connect().inputs\nwhile True:\n    data.read_bytes()\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes that keep nothing of what they read from each other."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1", "coordinator": "off", "measure": "no"}
    settings |= {"link_rate": str(LINK), "remote_cache_bytes": "0"}
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def govern(cluster: LocalCluster, *guarantees: Guarantee) -> Metered:
    """Set the guarantees of the first node for a minute; without any read its meters alone."""

    async def ask() -> Metered:
        async with dios.open_node(str(cluster.nodes[0].socket), groups=()) as node:
            return await node.govern("", guarantees=guarantees, lease_ms=60_000 if guarantees else 0)

    return trio.run(ask)


def sent(cluster: LocalCluster, task: int) -> int:
    """The bytes that the first node sent for a task with a guarantee, or with 0 for all others."""
    meters = govern(cluster).meters
    return sum(meter.moved for meter in meters if meter.task == task and meter.traffic is Traffic.OUT)


def test_a_task_with_a_guarantee_gets_it_and_others_the_remainder(cluster: LocalCluster) -> None:
    """Of two tasks that read all that they can, one has three quarters of the link guaranteed."""
    with dios.connect(str(cluster.nodes[0].socket)) as node:
        data = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=os.urandom(limits.MIB))
        favoured, other = (node.run(READS, inputs=[data], host="n2") for _ in range(2))
        govern(cluster, Guarantee(ME, 0, favoured.object_id, 0, ((0, LINK * 3 // 4),)))
        begins = sent(cluster, favoured.object_id), sent(cluster, 0)
        wait_until(lambda: sent(cluster, 0) > begins[1] + 8 * limits.MIB, "the other one has read much", 60)
        much = sent(cluster, favoured.object_id) - begins[0]
        little = sent(cluster, 0) - begins[1]
        assert 2 < much / little < 4.5
        assert other.status().state is dios.TaskState.RUNNING
