"""Kept replicas on real nodes: their number comes back after a loss, and files stay readable and writable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from dios.node import daemon, local_cluster
from dios.node.doctor.replicas import examine_replicas
from dios.node.local_cluster import LocalCluster
from tests.support.node.command_user import Person
from tests.support.node.running_node import exists, wait_until

pytestmark = pytest.mark.long

PATIENCE_S = 90
SETTINGS = {"accept_weaker_sandbox": "yes", "coordinator": "off", "pool_size": "0", "replica_grace": "1s"}
FILES = {"a.txt": "one", "b.txt": "two", "c.txt": "three"}


T = TypeVar("T")


class PromiseRow(msgspec.Struct):
    """A promise as `dios group describe --json` shows it."""

    objects: int
    short: int
    since: int
    leader: str
    checked: bool


class ShortRow(msgspec.Struct):
    """An object that is short of its promise."""

    wanted: int
    current: int
    reason: str


class GroupRow(msgspec.Struct):
    """A group with its promise."""

    promise: PromiseRow | None
    short: list[ShortRow]


class ReplicaRow(msgspec.Struct):
    """A replica of an object."""

    node: str


class ObjectRow(msgspec.Struct):
    """An object as `dios stat --json` shows it."""

    replicas: list[ReplicaRow]
    short: ShortRow | None


class FileRow(msgspec.Struct):
    """A file as `dios ls --json` shows it."""

    file: str


class NodeLine(msgspec.Struct):
    """A node as `dios node ls --json` shows it."""

    name: str
    status: str
    rack: str
    labels: dict[str, str]
    epoch: int


class Keeping:
    """A cluster and a user who keeps files there; commands go to the first node that runs."""

    def __init__(self, live_cluster: LocalCluster, home: Path) -> None:
        home.mkdir()
        self.local = live_cluster
        self.person = Person(home)

    def types(self, command: str) -> str:
        """Type a command."""
        running = self.local.running()
        place = next(node for node in self.local.nodes if node.name in running)
        self.person.environment["DIOS_NODE"] = str(place.data)
        return self.person.types(command).stdout

    def puts(self, file: str) -> None:
        """Put a file, again while the list of files lacks a node that has just been killed."""

        def put() -> bool:
            try:
                self.types(f"dios put {file} --group papers")
            except AssertionError:
                return False
            return True

        wait_until(put, f"{file} to be stored", PATIENCE_S)

    def asks(self, command: str, kind: type[T]) -> T:
        """Type a command, and return its JSON."""
        return msgspec.json.decode(self.types(f"{command} --json"), type=kind)

    def group(self) -> GroupRow:
        """The description of the group."""
        return self.asks("dios group describe papers", GroupRow)

    def nodes_of(self, file: str) -> set[str]:
        """The nodes with a durable replica of a file."""
        return {replica.node for replica in self.asks(f"dios stat {file}", ObjectRow).replicas}

    def kill(self, name: str) -> None:
        """Kill -9 a node."""
        place = next(node for node in self.local.nodes if node.name == name)
        running = daemon.find(place.socket)
        if running is not None:
            os.kill(running.pid, signal.SIGKILL)
            wait_until(lambda: daemon.find(place.socket) is None, f"{name} is silent")
            wait_until(lambda: not exists(running.pid), f"{name} is gone")

    def until(self, holds: Callable[[GroupRow], bool], description: str) -> GroupRow:
        """The description of the group once a condition holds."""
        seen: list[GroupRow] = []

        def now() -> bool:
            try:
                seen.append(self.group())
            except AssertionError:
                return False  # a node that has just been killed did not answer
            return holds(seen[-1])

        try:
            wait_until(now, description, PATIENCE_S)
        except AssertionError as late:
            raise AssertionError(f"{late}: {seen[-1] if seen else None}") from None
        return seen[-1]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Keeping]:
    """Three nodes, killed at the end whatever happened."""
    live_cluster = local_cluster.make(tmp_path / "cluster", nodes=3, keep=True, settings=SETTINGS)
    keeping = Keeping(live_cluster, tmp_path / "person")
    try:
        local_cluster.start(live_cluster)
        yield keeping
    finally:
        for node in live_cluster.nodes:
            keeping.kill(node.name)


def is_kept(objects: int) -> Callable[[GroupRow], bool]:
    """Return a condition: this number of objects has been looked at, and none is short of the promise."""

    def holds(group_row: GroupRow) -> bool:
        promise = group_row.promise
        return promise is not None and promise.checked and (promise.objects, promise.short) == (objects, 0)

    return holds


@pytest.mark.extended
def test_the_number_of_replicas_comes_back_after_each_loss(three: Keeping) -> None:
    """After the death of the keeper's own node and of another one; files are read and put all the while."""
    for name, text in FILES.items():
        three.person.writes(name, text)
    three.types("dios group create papers")
    three.types(f"dios put {' '.join(FILES)} --group papers")
    assert three.group().promise is None
    three.types("dios group set papers --replicas 2")
    group_row = three.until(is_kept(len(FILES) + 1), "two replicas of each file and of their list")
    for file in FILES:
        assert len(three.nodes_of(file)) == 2

    files = dict(FILES)
    assert group_row.promise is not None
    leader = group_row.promise.leader
    for lost in (leader, "n1" if leader == "n3" else "n3"):
        three.kill(lost)
        three.person.writes(f"after-{lost}.txt", lost)
        three.puts(f"after-{lost}.txt")
        files[f"after-{lost}.txt"] = lost
        three.until(is_kept(len(files) + 1), f"two replicas of each file without {lost}")
        for file, text in files.items():
            assert len(three.nodes_of(file)) == 2
            assert lost not in three.nodes_of(file)
            assert three.types(f"dios get {file}") == text
        local_cluster.start(three.local)
        three.until(is_kept(len(files) + 1), f"two replicas of each file with {lost}")
        wait_until(
            lambda: all(len(three.nodes_of(file)) == 2 for file in files),
            "surplus replicas are dropped",
            PATIENCE_S,
        )
    assert {line.file for line in three.asks("dios ls", list[FileRow])} == set(files)

    three.types(f"dios node drain n2 --wait --timeout {PATIENCE_S}s")
    assert all("n2" not in three.nodes_of(file) for file in files), "the wait has ended when n2 is empty"
    group_row = three.until(is_kept(len(files) + 1), "two replicas of each file off the draining node")
    assert group_row.short == []


def test_a_promise_that_cannot_be_kept_is_shown(three: Keeping) -> None:
    """Four replicas on three nodes: the group, the file and the doctor say so, until the promise ends."""
    three.person.writes("a.txt", "one")
    three.types("dios group create papers")
    three.types("dios put a.txt --group papers")
    three.types("dios group set papers --replicas 4")
    group_row = three.until(
        lambda told: [shortage.current for shortage in told.short] == [3, 3],
        "both objects are one replica short",
    )
    assert group_row.short[0].reason == "3 of the nodes can have replicas"
    assert group_row.promise is not None
    assert group_row.promise.since > 0
    short = three.asks("dios stat a.txt", ObjectRow).short
    assert short is not None
    assert (short.current, short.wanted) == (3, 4)
    assert "3 of 4 promised replicas" in three.person.types("dios stat a.txt").stderr
    looked = examine_replicas(three.local.nodes[0].data)
    assert looked is not None
    assert looked.advice
    assert "papers: 2 of 2 objects since" in looked.detail
    three.types("dios group set papers --replicas 0")
    assert three.group().promise is None
    assert len(three.nodes_of("a.txt")) == 3


def test_a_put_that_two_disks_acknowledge_survives_the_loss_of_its_node(three: Keeping) -> None:
    """The file and the list are on two disks when the command ends; four disks there are not.

    A new machine then takes the place of the lost one, with one command here and one there.
    """
    three.person.writes("a.txt", "one")
    three.types("dios group create papers")
    three.types("dios put a.txt --group papers --acknowledge 2 --replicas 2")
    assert len(three.nodes_of("a.txt")) == 2
    refused = three.person.types("dios put a.txt --group papers --as b.txt --acknowledge 4", status=1)
    assert "3 of 4 disks took" in refused.stderr
    three.person.types("dios put a.txt --group papers --as b.txt --replicas 1000", status=1)
    three.types("dios node label n1 rack=r7 ssd=yes")
    three.kill("n1")
    assert three.types("dios get a.txt") == "one"
    assert [line.file for line in three.asks("dios ls", list[FileRow])] == ["a.txt"]

    alive = three.person.types("dios node replace n3 --yes", status=1).stderr
    assert "it is alive" in alive
    line = three.types("dios node replace n1 --yes").strip()
    data = three.local.nodes[0].data
    data.rename(data.with_name("the-lost-machine"))
    three.person.types(line.replace("./dios-data", str(data)).replace("'", ""))
    wait_until(lambda: len(three.nodes_of("a.txt")) == 2, "the lost replica is made again", PATIENCE_S)
    new = {row.name: row for row in three.asks("dios node ls", list[NodeLine])}["n1"]
    assert (new.status, new.rack, new.labels, new.epoch) == ("alive", "r7", {"ssd": "yes"}, 1)


REPLICAS = """
import sys
from pathlib import Path
import dios
from dios.client.keyring import Keyring
from dios.lib import catalogue

ring = Keyring.load()
with dios.connect(sys.argv[1], groups=[bytes(ring.groups["papers"])]) as node:
    listed = node.lookup(bytes(ring.objects["catalogue/papers"]))[0]
    file = next(one for one in catalogue.decode(listed.read_bytes()) if one.file.endswith("thesis.txt"))
    found = node.lookup(file.name)
    if len(sys.argv) > 2:
        next(one for one in found if one.node == sys.argv[2]).write_bytes(b"not the thesis " * 20_000)
    right = Path("thesis.txt").read_bytes()
    print(*sorted(f"{one.node} {one.read_bytes() == right}" for one in found), sep="; ")
"""


def test_a_replica_that_a_program_overwrites_is_put_right_by_the_others(three: Keeping) -> None:
    """Its version is the highest, but the list has the digest of the file; the group says what happened."""
    three.person.writes("thesis.txt", "the thesis " * 30_000)
    three.person.writes("replicas.py", REPLICAS)
    three.types("dios group create papers")
    three.types("dios put thesis.txt --group papers")
    three.types("dios group set papers --replicas 3")
    three.until(is_kept(2), "three replicas of the file and of the list")

    def replicas(*overwritten: str) -> str:
        socket = three.local.nodes[2].socket
        done = three.person.pastes(f"python replicas.py {socket} {' '.join(overwritten)}")
        return done.stdout.strip() or done.stderr

    assert replicas() == "n1 True; n2 True; n3 True"
    replicas("n3")
    wait_until(lambda: replicas() == "n1 True; n2 True; n3 True", "the bytes of n3 are right", PATIENCE_S)
    group_row = three.until(
        lambda told: bool(told.short) and is_kept(2)(told), "the group says what happened"
    )
    assert "the replica on n3 had other bytes than those that were put" in group_row.short[0].reason
    assert three.types("dios get thesis.txt") == "the thesis " * 30_000
