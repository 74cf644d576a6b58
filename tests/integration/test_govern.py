"""Rates and meters of real nodes: asked for at one node, of another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import dios
from dios import limits
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.messages import Metered, Rate
from dios.wire.types import Traffic

ME = f"uid:{os.geteuid()}"
SIZE = 3 * limits.MIB + 17
WAIT_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes without a coordinator, which would tell rates of its own."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "0", "coordinator": "off", "link_rate": "1GiB"}
    settings["measure"] = "no"  # else the capacity of the disk changes between two answers
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


@pytest.fixture
def near(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the first node."""
    with dios.connect(str(cluster.nodes[0].socket)) as session:
        yield session


def govern(cluster: LocalCluster, host: str, *rates: Rate, lease_ms: int = 0) -> Metered:
    """Tell rates, or ask only, from a session of its own at the first node."""

    async def ask() -> Metered:
        async with dios.open_node(str(cluster.nodes[0].socket), groups=()) as node:
            return await node.govern(host, rates, lease_ms=lease_ms)

    return trio.run(ask)


def moved(answer: Metered) -> dict[Traffic, int]:
    """What was moved of this user's."""
    assert {meter.principal for meter in answer.meters} <= {ME}
    return {meter.traffic: meter.moved for meter in answer.meters}


def store(session: dios.Node, data: bytes, host: str) -> None:
    """A durable object on a node."""
    assert session.home is not None
    session.create(dios.DURABLE_BLOB, groups=[session.home], data=data, host=host)


def waits(condition: Callable[[], bool], description: str) -> None:
    """Wait until another node's figures say so."""
    pause = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError(description)


def test_a_node_tells_the_meters_of_another(cluster: LocalCluster, near: dios.Node) -> None:
    """What goes to another node and is stored there is on both nodes' meters, to the byte."""
    here, there = (node.name for node in cluster.nodes)
    store(near, bytes(SIZE), there)
    sent, got = govern(cluster, here), govern(cluster, there)
    assert moved(sent) == {Traffic.OUT: SIZE}
    assert moved(got) == {Traffic.IN: SIZE, Traffic.STORE: SIZE}
    assert sent.node != got.node
    assert sent == govern(cluster, "")
    assert got.capacity[:2] == (limits.GIB, limits.GIB)


def test_a_users_next_call_waits_until_its_rate_is_lifted(cluster: LocalCluster, near: dios.Node) -> None:
    """Who stored more than its rate gives on another node is held up there, until the rate is lifted."""
    there = cluster.nodes[1].name
    slow = Rate(ME, Traffic.STORE, limits.RATE_BYTES_S_MIN)
    govern(cluster, there, slow, lease_ms=60_000)
    store(near, bytes(100 * limits.MIB), there)
    done = threading.Event()

    def store_more() -> None:
        store(near, b"small", there)
        done.set()

    thread = threading.Thread(target=store_more)
    thread.start()
    waits(lambda: any(meter.waiting for meter in govern(cluster, there).meters), "it is seen to wait")
    assert not done.is_set()
    govern(cluster, there, lease_ms=1_000)
    assert done.wait(WAIT_S), "it goes on"
    thread.join()
