from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import lib_functions as functions
import pytest
from typer.testing import CliRunner

import dios
from dios.cli.main import app
from dios.client.keyring import Keyring
from dios.ids import Name
from dios.lib.channels import channel
from dios.lib.clock import LamportClock
from dios.lib.keyvalue import create_store, open_store
from dios.lib.mutex import Guarded, Mutex
from dios.lib.pickers import spread
from dios.lib.services import create_service, open_service
from dios.lib.spawn import Spawner
from dios.lib.store_keeper import keep_store
from dios.lib.supervised.services import Services
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.nametext import format_name
from tests.support.client.web_server import web_server
from tests.support.node.running_node import exists, wait_until

pytestmark = pytest.mark.long

SECONDS_MAX = 60


def types(environment: dict[str, str], *words: str) -> list[dict[str, object]]:
    """Run a command, and return its output as rows."""
    done = CliRunner().invoke(app, [*words, "--json"], env=environment)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    return rows if isinstance(rows, list) else [rows]


NAMES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes in two racks, for all tests of this file."""
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("lib") / "cluster",
        nodes=3,
        racks=2,
        settings={"accept_weaker_sandbox": "yes"},
    )
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def connect(cluster: LocalCluster, name: str, *groups: bytes) -> dios.Node:
    """A session at one of the nodes."""
    (node,) = (node for node in cluster.nodes if node.name == name)
    return dios.connect(str(node.socket), groups=groups)


@pytest.fixture
def node(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the first node; at its end no task may be left."""
    with connect(cluster, "n1") as session:
        yield session
        wait_until(lambda: all(task.ended for task in session.tasks()), "every task has ended")


def test_functions_run_where_they_are_told(node: dios.Node) -> None:
    """Each node runs its function, whose result and exceptions come back."""
    for name in NAMES:
        with Spawner(node, host=name) as spawner:
            future = spawner.spawn(functions.joined, ("a", "b"))
            assert future.result(SECONDS_MAX) == "a b"


def test_a_recursion_spreads_over_the_nodes(node: dios.Node) -> None:
    """Spawned functions that spawn run wherever there is room, and find their program there."""
    with Spawner(node) as spawner:
        assert spawner.spawn(functions.fibonacci, 6).result(SECONDS_MAX) == 8
    ran = [task for task in node.tasks() if task.label == "fibonacci"]
    assert len(ran) == 25
    assert {task.node for task in ran} == set(NAMES)


def test_tasks_of_all_nodes_share_a_lock_and_lose_no_update(node: dios.Node) -> None:
    """Tasks on three nodes that read, add and write under one lock add up to what each has done."""
    lock = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, host="n2")
    counter = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=bytes(8), host="n3")
    futures = []
    for name in NAMES:
        with Spawner(node, host=name) as spawner:
            futures.append(spawner.spawn(functions.add_under_lock, lock, counter, 10))
    assert [future.result(SECONDS_MAX) for future in futures] == [10, 10, 10]
    assert int.from_bytes(counter.read_bytes(), "little") == 30


def test_a_lock_of_another_node_has_tokens_and_guards(node: dios.Node) -> None:
    """Fencing tokens and guarded blobs are the same for a lock that is elsewhere."""
    lock = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, host="n3")
    guarded = Guarded(node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, host="n2"))
    for text in (b"one", b"two"):
        with Mutex(lock, timeout=SECONDS_MAX) as mutex:
            guarded.write(text, mutex.token)
    assert guarded.read() == b"two"


def test_a_clock_of_another_node_ticks_for_all(node: dios.Node) -> None:
    """Tasks on two nodes that share a clock of the third see each time once."""
    clock = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, host="n3")
    futures = []
    for name in NAMES[:2]:
        with Spawner(node, host=name) as spawner:
            futures.append(spawner.spawn(functions.tick, clock, 10))
    told = [future.result(SECONDS_MAX) for future in futures]
    assert sorted(stamp.time for stamps in told for stamp in stamps) == list(range(1, 21))
    assert LamportClock(clock).tick().time == 21


def test_a_channel_reaches_another_node(node: dios.Node) -> None:
    """All that a task of another node sent arrives here, also when it ended at once; and then the end."""
    with Spawner(node, host="n2") as spawner:
        for _ in range(10):
            sender, receiver = channel(node, int)
            future = spawner.spawn(functions.numbers, sender, 100)
            with receiver:
                assert list(receiver) == list(range(100))
            future.result(SECONDS_MAX)


def test_a_web_server_spreads_over_the_nodes(node: dios.Node, cluster: LocalCluster) -> None:
    """Front-end workers on three nodes take connections from the acceptor of one, and share what is kept."""
    if find_spec("h11") is None:
        pytest.skip("h11 is not installed: make setup")
    before = {task.fingerprint for task in node.tasks()}
    with web_server(str(cluster.nodes[0].socket), cluster.directory, *NAMES) as address:
        workers = {task.node for task in node.tasks() if task.fingerprint not in before}
        assert workers == set(NAMES)
        answered: set[str | None] = set()

        def ask(method: str) -> bytes:
            connection = http.client.HTTPConnection(*address, timeout=SECONDS_MAX)
            try:
                connection.request(method, "/kv/key", b"kept" if method == "PUT" else None)
                response = connection.getresponse()
                answered.add(response.getheader("X-Worker"))
                return response.read()
            finally:
                connection.close()

        assert ask("PUT") == b""
        wait_until(lambda: ask("GET") == b"kept" and len(answered) > 1, "workers of two nodes have answered")


def test_replicas_are_told_apart(node: dios.Node) -> None:
    """Of three replicas the two on other nodes stand in two racks, and are picked apart."""
    group = node.create_group()
    with node.create(dios.DURABLE_BLOB, groups=[group], data=b"the same") as blob:
        for name in NAMES[1:]:
            blob.copy(host=name).close()
        assert blob.name is not None
        references = node.lookup(blob.name, group=group)
        assert len(references) == len(NAMES)
        others = [reference for reference in references if reference.object_id != blob.object_id]
        assert {(other.node, other.rack) for other in spread(others, 2)} == {("n2", "r2"), ("n3", "r1")}


def test_any_node_of_a_store_may_be_killed(cluster: LocalCluster) -> None:
    """Each node in turn is killed: what was acknowledged is there and writable at the others, and the dead
    one has everything when it is back and the store was repaired.
    """
    with connect(cluster, "n1") as node:
        group = node.create_group()
        store = create_store(node, group, hosts=NAMES, shards=2)
        name, inside = store.name, group.read_name()
        store.put("old", b"0")
        store.put("changing", b"0")
    for number, gone in enumerate(NAMES):
        there = [other for other in NAMES if other != gone]
        pid = cluster.running()[gone].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not exists(pid), "the node is dead")
        with connect(cluster, there[0], inside) as node:
            store = open_store(node, node.groups[-1], name)
            assert store.get("old") == b"0"
            assert store.get("changing") == b"%d" % number
            store.put("changing", b"%d" % (number + 1))
        with connect(cluster, there[1], inside) as node:
            assert open_store(node, node.groups[-1], name).get("changing") == b"%d" % (number + 1)
        local_cluster.start(cluster)
        with connect(cluster, gone, inside) as node:
            store = open_store(node, node.groups[-1], name)
            assert store.get("changing") == b"%d" % (number + 1)
            assert store.repair() == (1, 0)
            assert store.repair() == (0, 0)


def test_a_lost_host_of_a_store_is_replaced(cluster: LocalCluster, tmp_path: Path) -> None:
    """By a command, while another client has it open; then by the keeper. A host that returns is no harm."""
    keyring = tmp_path / "keyring.toml"
    person = {"DIOS_KEYRING": str(keyring), "DIOS_NODE": str(cluster.nodes[0].socket)}
    with connect(cluster, "n1") as node:
        group = node.create_group()
        inside = group.read_name()
        store = create_store(node, group, hosts=("n1", "n1", "n3"), shards=2)
        store.put("key", b"1")
        other = open_store(node, group, store.name)
        Keyring.load(keyring).add("papers", Name(inside))
        types(person, "store", "add", "papers/users", format_name(store.name))
        pid = cluster.running()["n3"].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not exists(pid), "the node is dead")
        (row,) = types(person, "store", "ls")
        assert (row["store"], row["hosts"], row["away"], row["keys"]) == (
            "papers/users",
            ["n1", "n3"],
            ["n3"],
            1,
        )
        (repaired,) = types(person, "store", "repair", "papers/users", "--replace", "n3")
        assert (repaired["by"], repaired["moved"], repaired["behind"]) == ("n2", 2, 0)
        (row,) = types(person, "store", "ls")
        assert (row["hosts"], row["away"]) == (["n1", "n2"], [])
        assert other.get("key") == b"1"
        other.put("key", b"2")
        assert list(other) == ["key"]
        assert set(other.hosts) == {"n1", "n2"}
        local_cluster.start(cluster)
        with connect(cluster, "n3", inside) as back:
            third = open_store(back, back.groups[-1], store.name)
            assert third.get("key") == b"2"
            assert set(third.hosts) == {"n1", "n2"}

        service = keep_store(node, group, other, after=0.5)
        pid = cluster.running()["n2"].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not exists(pid), "the node is dead")

        def replaced() -> bool:
            try:
                return "n3" in open_store(node, group, store.name).hosts
            except dios.DiosError:
                return False

        wait_until(replaced, "the keeper has replaced the lost host", SECONDS_MAX)
        assert other.get("key") == b"2"
        Services(node).remove(service)
        local_cluster.start(cluster)


@pytest.mark.parametrize("gone", NAMES)
def test_any_node_of_a_service_may_be_killed(cluster: LocalCluster, gone: str) -> None:
    """At the others acceptors are found, published and withdrawn; when the dead node is back, its stale list
    leads nobody to what was withdrawn.
    """
    with connect(cluster, "n1") as node:
        group = node.create_group()
        name, inside = create_service(node, group).name, group.read_name()
        assert len(node.lookup(name, group=group)) == len(NAMES)
    there = [other for other in NAMES if other != gone]
    with connect(cluster, there[0], inside) as first, connect(cluster, there[1], inside) as second:
        service, other = (open_service(node, node.groups[-1], name) for node in (first, second))
        with service.listen("127.0.0.1:0") as early:
            pid = cluster.running()[gone].pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not exists(pid), "the node is dead")
            with other.listen("127.0.0.1:0") as late:
                places = [
                    ("127.0.0.1", int(acceptor.address.rpartition(":")[2])) for acceptor in (early, late)
                ]
                assert service.places() == other.places() == places
                service.withdraw(early)
                assert service.places() == other.places() == places[1:]
                local_cluster.start(cluster)
                with connect(cluster, gone, inside) as node:
                    back = open_service(node, node.groups[-1], name)
                    wait_until(lambda: back.places() == places[1:], "the late one alone is found")
                    wait_until(lambda: other.places() == places[1:], "and by those who asked before")
