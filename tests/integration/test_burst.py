"""Bursts of runs on real nodes: all end well, however few may run at once, and the nodes stay alive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import dios
from dios.errors import DiosError
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster

SESSIONS = 4
PATIENCE_S = 280


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes that run few tasks at once."""
    settings = {"accept_weaker_sandbox": "yes", "tasks_max": "12", "pool_size": "2"}
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


async def _burst(cluster: LocalCluster, runs: int) -> Counter[str]:
    """Start tasks on the second node from sessions at the first, all at once; return how they ended."""
    near, far = cluster.nodes
    ends: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(dios.open_node(str(near.socket))) for _ in range(SESSIONS)
        ]

        async def run_task(number: int) -> None:
            session = sessions[number % SESSIONS]
            try:
                task = await session.run(b"print(1)", host=far.name)
                status = await task.wait()
                ends["well" if status.ok else str(status.cause)] += 1
                await task.close()
            except DiosError as error:
                ends[type(error).__name__] += 1

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(run_task(number) for number in range(runs)))
    return ends


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("runs", [60, 600])
def test_all_of_many_runs_at_once_end_well(cluster: LocalCluster, runs: int) -> None:
    """Runs that a node has no room for wait there; none fails, and each node lists the other as alive."""
    assert asyncio.run(_burst(cluster, runs)) == {"well": runs}
    with dios.connect(str(cluster.nodes[0].socket)) as node:
        assert {str(row.status) for row in node.nodes()} == {"alive"}
