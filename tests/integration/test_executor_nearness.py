"""Calls of executors, runs and mappers on three scheduled nodes run where their data is, and on all nodes."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait

import numpy as np
import pytest

import dios
from dios.lib import mapreduce
from dios.lib.executor import pool
from dios.lib.jobs.ledger import Role
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S

# The first test waits for the cluster.
pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]

SIZE = 64 * 1024 * 1024
MOST = CPUS * 0.6
"""The processors of a worker of which a node has room for one."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with coordinators, for all tests of this file."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("nodes") / "cluster", nodes=3, settings=settings
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIOS_COORDINATOR", "on")
        try:
            local_cluster.start(live_cluster)
            yield live_cluster
        finally:
            local_cluster.stop(live_cluster)


@pytest.fixture(scope="module")
def node(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the first node, when all of them are scheduled."""
    with dios.connect(str(cluster.nodes[0].socket)) as node:
        wait_until(lambda: is_scheduled(node), "one coordinator schedules all nodes", LOADED_S)
        yield node


@pytest.fixture(scope="module")
def executor(node: dios.Node) -> Iterator[dios.Executor]:
    """An executor with a worker on each node; those that still work at the end are killed."""
    executor = dios.Executor(node=node, work=dios.work(cpus=MOST), idle_timeout=None)
    try:
        yield executor
    finally:
        executor.__exit__(KeyboardInterrupt, None, None)


@pytest.fixture(scope="module")
def arrays(executor: dios.Executor) -> dict[str, Future[np.ndarray[tuple[int], np.dtype[np.uint8]]]]:
    """An array on each node, by the names of the nodes."""
    futures = made_by(executor)
    while len(futures) < 3:
        futures = made_by(executor)
    return futures


def made_by(executor: dios.Executor) -> dict[str, Future[np.ndarray[tuple[int], np.dtype[np.uint8]]]]:
    """Have three arrays made at the same time, and return one of each node that has some.

    The caller does not ask for the arrays themselves.
    """

    def new_array() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        time.sleep(1)
        return np.ones(SIZE, np.uint8)

    futures = [executor.submit(new_array) for _ in range(3)]
    assert not wait(futures, 120).not_done
    return {future.stored.node: future for future in futures if future.stored is not None}


def is_scheduled(node: dios.Node) -> bool:
    """Return True if the flow scheduler schedules all nodes."""
    try:
        answer = json.loads(node.ask_scheduler(b'{"ask": "status"}'))
    except dios.UnreachableError:
        return False
    known = sum(member.cpus for member in node.nodes()) == 3 * CPUS
    return answer["placed_by"] == "flow" and len(answer["attends"]) == 3 and known


def received(node: dios.Node) -> int:
    """Return the number of transfers of bulk data that the nodes have received from each other."""
    return sum(
        node.info(host=member.name).counts.get("peer_transfers_received", 0) for member in node.nodes()
    )


def place(*arrays: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> tuple[str, int]:
    """Return the node on which this runs, and the sum of the sizes of arrays."""
    return dios.connect().self.node, sum(array.size for array in arrays)


def test_calls_run_where_their_arguments_are(
    node: dios.Node,
    executor: dios.Executor,
    arrays: dict[str, Future[np.ndarray[tuple[int], np.dtype[np.uint8]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrays on three nodes stay there, in any order of the calls; two together bring one of them along."""
    # The wait for a near worker is longer than the other calls of this test on any machine.
    monkeypatch.setattr(pool, "_NEAR_WAIT_S", 600)
    monkeypatch.setattr(pool, "_COPIED_PER_S", 1)
    before = received(node)
    order = [name for number in range(4) for name in sorted(arrays, reverse=bool(number % 2))]
    futures = [executor.submit(place, arrays[name]) for name in order]
    assert [future.result(120) for future in futures] == [(name, SIZE) for name in order]
    assert received(node) == before
    ran_on, size = executor.submit(place, *[arrays[name] for name in ("n2", "n3")]).result(120)
    assert ran_on in {"n2", "n3"}
    assert size == 2 * SIZE
    assert received(node) == before + 1


@pytest.mark.extended
def test_a_worker_starts_where_the_waiting_call_has_its_arguments(
    node: dios.Node, arrays: dict[str, Future[np.ndarray[tuple[int], np.dtype[np.uint8]]]]
) -> None:
    """The scheduler gets the places of the arguments with the request for a worker.

    On a busy machine a node may refuse a start, and then the next best one gets the worker.
    """
    elsewhere = 0
    for name, array in [*arrays.items()] * 3:
        with dios.Executor(1, node=node, work=dios.work(cpus=0.1)) as other:
            ran_on, size = other.submit(place, array).result(120)
        assert size == SIZE
        elsewhere += ran_on != name
    assert elsewhere <= 2, (
        f"{elsewhere} of 9 workers were not where their arguments are; by chance it would be 6"
    )


READER = b"import dios, time; time.sleep(0.5); print(len(dios.connect().inputs[0].read_bytes()))"


def test_runs_go_where_their_input_is(node: dios.Node) -> None:
    """Of ten runs that are handed 64 MB of another node nine go there, five at a time, untold.

    Their node knows the place and the size from the reference. A node that is busy may refuse one.
    """
    large = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=bytes(SIZE), host="n3")
    places: list[str] = []
    for _ in range(2):
        tasks = [node.run(READER, inputs=[large], work=dios.work(cpus=CPUS / 100)) for _ in range(5)]
        assert all(task.wait().state is dios.TaskState.ENDED for task in tasks)
        places += [task.node for task in tasks]
    assert places.count("n3") >= 9, places


COUNT = b"""
def map_keys(line):
    return [b"lines"]

def reduce(word, counts):
    return sum(counts)
"""
LINE = b"word " * 199 + b"\n"


def test_mappers_go_where_their_input_is(node: dios.Node) -> None:
    """Of ten mappers over 64 MB of another node nine run there, five at a time."""
    text = LINE * (SIZE // len(LINE))
    large = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=text, host="n2")
    places: list[str] = []
    for _ in range(2):
        result = mapreduce.run(node, COUNT, [large], splits=5, reducers=1, workers=5)
        assert dict(result) == {b"lines": SIZE // len(LINE)}
        places += [task.status.node for task in result.tasks if task.role is Role.MAPPER and task.ok]
    assert places.count("n2") >= 9, places


def accuracy_and_node(estimator: object, points: object, labels: object) -> dict[str, float]:
    """Return the score of a fit, and the number of the node on which it ran."""
    time.sleep(0.5)
    return {"accuracy": estimator.score(points, labels), "node": float(dios.connect().self.node[1:])}  # type: ignore[attr-defined]


@pytest.mark.extended
def test_a_grid_search_runs_on_several_nodes(
    node: dios.Node, executor: dios.Executor, arrays: dict[str, object]
) -> None:
    """The workers of joblib's backend are where the scheduler has room for the work of each."""
    joblib = pytest.importorskip("joblib")
    datasets = pytest.importorskip("sklearn.datasets")
    importlib.import_module("dios.bridges.joblib")
    points, labels = datasets.load_iris(return_X_y=True)
    del executor, arrays  # They leave room for one of these workers on each node.
    search = importlib.import_module("sklearn.model_selection").GridSearchCV(
        importlib.import_module("sklearn.tree").DecisionTreeClassifier(random_state=1),
        {"max_depth": list(range(1, 7))},
        scoring=accuracy_and_node,
        refit="accuracy",
        cv=2,
    )
    with joblib.parallel_config(backend="dios", n_jobs=3, node=node, work=dios.work(cpus=CPUS * 0.3)):
        search.fit(points, labels)
    assert search.best_score_ > 0.9
    used = {number for part in range(2) for number in search.cv_results_[f"split{part}_test_node"]}
    assert len(used) > 1


def stay(_array: object) -> None:
    """Do not return while a test runs."""
    time.sleep(600)


def test_a_call_does_not_wait_for_ever_for_a_near_worker(
    executor: dios.Executor, arrays: dict[str, Future[np.ndarray[tuple[int], np.dtype[np.uint8]]]]
) -> None:
    """It goes elsewhere when it has waited as long as a copy takes."""
    stays = executor.submit(stay, arrays["n1"])
    wait_until(lambda: executor.stats().running == 1, "the worker is busy")
    ran_on, size = executor.submit(place, arrays["n1"]).result(120)
    assert ran_on in {"n2", "n3"}
    assert size == SIZE
    assert not stays.done()


def test_an_executor_ends_while_its_worker_waits_for_a_place(
    node: dios.Node, executor: dios.Executor, arrays: dict[str, object]
) -> None:
    """The start that waits for the scheduler holds up neither the end nor other steps."""
    del executor, arrays  # They have the room on all nodes.
    other = dios.Executor(1, node=node, work=dios.work(cpus=MOST))
    future = other.submit(abs, -1)
    wait_until(lambda: other.stats().starting == 1, "the worker is requested")
    other.shutdown(cancel_futures=True)
    assert future.cancelled()
