from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lib_functions as functions
import pytest

import dios
from dios.lib.channels import decode
from dios.lib.keyvalue import Plan, create_store, open_store
from dios.lib.spawn import Spawner
from tests.support.node.running_node import RunningNode, running_node

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "keyvalue.py"
SECONDS_MAX = 60
THREE = ("", "", "")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("keyvalue") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session of a person."""
    with dios.connect(started.place, groups=()) as session:
        yield session


def copies_of(node: dios.Node, group: dios.Group, name: bytes) -> list[list[dios.Reference]]:
    """For each part of a store's index the objects that are its copies."""
    (plan,) = node.lookup(name, group=group)
    shards = decode(plan.read_bytes(), Plan).shards
    return [[copy for part in names for copy in node.lookup(part, group=group)] for names in shards]


@pytest.mark.parametrize("durable", [True, False])
def test_values_are_kept(node: dios.Node, durable: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """What was put is read by everybody who opens the store, small and large values alike."""
    group = node.create_group()
    store = create_store(node, group, hosts=THREE, shards=2, durable=durable)
    large = bytes(range(256)) * 1024
    values = {f"key {number}": b"%d" % number for number in range(8)} | {"large": large, "empty": b""}
    for key, value in values.items():
        store.put(key, value)
    other = open_store(node, group, store.name)
    assert {key: other.get(key) for key in other} == values
    other.delete("large")
    assert store.get("large") is None
    assert {len(copies) for copies in copies_of(node, group, store.name)} == {3}


def test_replaced_values_leave_nothing_behind(node: dios.Node) -> None:
    """The node has as many objects after a hundred writes of a key as after one."""
    group = node.create_group()
    store = create_store(node, group, hosts=THREE, shards=1, durable=False)
    store.put("key", b"first")
    before = node.info().counts["objects"]
    for number in range(100):
        store.put("key", b"%d" % number)
    assert node.info().counts["objects"] == before


def test_a_copy_that_is_lost_for_good_is_done_without(node: dios.Node) -> None:
    """Without one of three copies of the index everything is there and writable; without two, nothing is."""
    group = node.create_group()
    store = create_store(node, group, hosts=THREE, shards=1)
    store.put("key", b"1")
    ((first, second, _),) = copies_of(node, group, store.name)
    first.destroy()
    assert store.get("key") == b"1"
    store.put("key", b"2")
    assert open_store(node, group, store.name).get("key") == b"2"
    assert store.repair() == (0, 1)
    second.destroy()
    with pytest.raises(dios.UnreachableError, match="1 of 3 copies"):
        store.get("key")


def test_a_value_is_served_by_whatever_replica_is_left(node: dios.Node) -> None:
    """Replicas of a value are interchangeable: with the first one destroyed another has the same bytes."""
    group = node.create_group()
    store = create_store(node, group)
    store.put("key", b"the value")
    plan = open_store(node, group, store.name)
    entry = plan._shard("key").get("key")
    assert entry is not None
    assert entry.name is not None
    (first,) = node.lookup(entry.name, group=group)
    second = first.copy(persistence=dios.Persistence.VOLATILE)
    assert len(node.lookup(entry.name, group=group)) == 2
    first.destroy()
    assert store.get("key") == b"the value"
    second.destroy()
    with pytest.raises(dios.UnreachableError, match="no replica"):
        store.get("key")


def test_tasks_that_write_at_once_lose_nothing(node: dios.Node) -> None:
    """Four tasks write keys of their own into one part of the index, and all of them are there."""
    group = node.create_group()
    store = create_store(node, group, hosts=THREE, shards=1, durable=False)
    with Spawner(node, groups=[group]) as spawner:
        futures = [spawner.spawn(functions.fill_store, store.name, f"of {n}", 10) for n in range(4)]
        for future in futures:
            future.result(SECONDS_MAX)
    assert sorted(store) == sorted(f"of {n}/{turn}" for n in range(4) for turn in range(10))


def test_an_acknowledged_value_survives_a_power_cut(tmp_path: Path) -> None:
    """After kill -9 and a new start a durable store has what was acknowledged."""
    with running_node(tmp_path / "node") as started:
        with dios.connect(started.place, groups=()) as node:
            group = node.create_group()
            store = create_store(node, group, hosts=THREE, shards=2)
            store.put("key", b"acknowledged")
            name, inside = store.name, group.read_name()
        started.kill()
        started.restart()
        with dios.connect(started.place, groups=[inside]) as node:
            store = open_store(node, node.groups[-1], name)
            assert store.get("key") == b"acknowledged"


def test_numbers_that_cannot_be_are_refused(node: dios.Node) -> None:
    """No hosts, too many of them, and no shards; and a name that no store has."""
    group = node.create_group()
    for hosts, shards in (((), 1), (("",) * 10, 1), (("",), 0), (("",), 5000)):
        with pytest.raises(dios.InvalidError):
            create_store(node, group, hosts=hosts, shards=shards)
    with pytest.raises(dios.UnreachableError, match="no such store"):
        open_store(node, group, bytes(31) + b"x")
    with node.create(dios.SHMEM_BLOB, groups=[group], data=b"no plan") as blob:
        assert blob.name is not None
        with pytest.raises(dios.DamagedError):
            open_store(node, group, blob.name)


def test_the_example_goes_on(started: RunningNode) -> None:
    """The example on one node loses a copy and prints what docs/libraries.md shows."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={"DIOS_NODE": started.place, "PATH": "/usr/bin:/bin", "HOME": str(started.data.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = Path(__file__).resolve().parents[2] / "docs" / "libraries.md"
    assert done.stdout in pages.read_text()
