"""Data of ``dios.Executor`` when the workers run on another node than the caller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import dios
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster

LARGE = 1_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes, for all tests of this file."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "2"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("nodes") / "cluster", nodes=2, settings=settings
    )
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


@pytest.fixture
def executor(cluster: LocalCluster) -> Iterator[dios.Executor]:
    """An executor with two workers on the second node, made by a session at the first."""
    with (
        dios.connect(str(cluster.nodes[0].socket)) as near,
        dios.Executor(2, node=near, host=cluster.nodes[1].name) as executor,
    ):
        yield executor


def total(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the sum of an array."""
    return float(values.sum())


def test_arguments_are_copied_to_the_node_of_the_workers(executor: dios.Executor) -> None:
    """Large arguments and references reach workers on another node, and are read-only there."""
    values = np.ones(LARGE)
    futures = [executor.submit(total, values) for _ in range(8)]
    assert [future.result(60) for future in futures] == [LARGE] * 8
    assert executor.submit(total, executor.put(values + 1)).result(60) == 2 * LARGE
    assert not executor.submit(lambda array: array.flags.writeable, values).result(60)


def test_results_stay_on_the_node_of_their_worker(executor: dios.Executor) -> None:
    """A large result goes to the next call there without the caller, who gets it when it asks."""
    future = executor.submit(np.full, LARGE, 2.0)
    assert executor.submit(total, future).result(60) == 2 * LARGE
    assert future.is_undecoded
    assert total(future.result(60)) == 2 * LARGE


class Keeper:
    """Keeps an array."""

    def __init__(self, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        self.values = values

    def total(self) -> tuple[str, float]:
        """Return the node of this object and the sum of the array."""
        return dios.connect().self.node, float(self.values.sum())


def test_arguments_of_a_constructor_are_copied_to_its_node(
    cluster: LocalCluster, executor: dios.Executor
) -> None:
    """The data of an actor are on its node before its worker gets them; ``bytes`` go the same way."""
    keeper = executor.actor(Keeper, np.ones(LARGE))
    assert keeper.total.submit().result(60) == (cluster.nodes[1].name, LARGE)
    content = bytes(range(256)) * 1024
    assert executor.submit(lambda data: (type(data).__name__, sum(data)), content).result(60) == (
        "bytes",
        sum(content),
    )
