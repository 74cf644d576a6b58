"""Two real nodes that keep each other's audit heads: a node cannot lose its log unnoticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dios
from dios.host.audit.heads import FOLDER, read_heads
from dios.host.audit.reader import read, verify
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalNode
from dios.transport.identity import identity
from tests.support.node.command_user import Person
from tests.support.node.kept_cluster import kill
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

SETTINGS = {"accept_weaker_sandbox": "yes", "coordinator": "off", "pool_size": "0"}


def file_of(node: LocalNode, keeper: LocalNode) -> Path:
    """The file with a node's heads at another one."""
    own = identity.load(node.data)
    assert own is not None
    return keeper.data / FOLDER / f"{own.node:x}"


def create_groups(node: LocalNode, count: int) -> None:
    """Make a node write audit records."""
    with dios.connect(str(node.socket), groups=()) as session:
        for _ in range(count):
            session.create_group()


def newest(path: Path) -> int:
    """The number of records in the newest head of a file."""
    head = read_heads(path).newest
    return 0 if head is None else head.records


def test_a_node_that_lost_its_log_is_refused_by_the_heads_that_another_keeps(tmp_path: Path) -> None:
    """An older copy of a data directory does not start, and the accepted loss is recorded elsewhere."""
    person = Person(tmp_path)
    cluster = local_cluster.make(tmp_path / "cluster", nodes=2, keep=True, settings=SETTINGS)
    n1, n2 = cluster.nodes
    try:
        local_cluster.start(cluster)
        create_groups(n1, 3)
        kept = file_of(n1, n2)
        wait_until(lambda: newest(kept) >= 3, "the other node keeps a head")
        person.types(f"dios-node stop --data {n1.data}")
        shutil.copytree(n1.data, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
        daemon.start_detached(n1.data, flags=n1.flags())
        create_groups(n1, 3)
        person.types(f"dios-node stop --data {n1.data}")
        records = verify(n1.data / "audit").records
        wait_until(lambda: newest(kept) == records, "the last head was sent before the end")

        verdict = json.loads(person.types(f"dios audit verify --json --data {n1.data}").stdout)
        assert verdict["ok"]
        assert verdict["heads"] > len(read_heads(n1.data / FOLDER / "own").heads)

        shutil.rmtree(n1.data)
        shutil.copytree(tmp_path / "copy", n1.data)
        told = person.types(f"dios audit verify --data {n1.data}", status=1).stdout
        assert "kept by n2" in told
        refused = person.types(
            f"dios-node start --detach --data {n1.data} --accept-weaker-sandbox yes", status=1
        ).stderr
        assert f"the head of {records} (kept by" in refused
        assert daemon.find(n1.socket) is None

        person.types(
            f"dios-node start --detach --accept-lost-audit --data {n1.data} --accept-weaker-sandbox yes"
        )
        wait_until(
            lambda: any(
                entry.record.outcome == "lost" and entry.record.principal == "node:n1"
                for entry in read(n2.data / "audit")
            ),
            "the other node records the loss",
        )
        told = person.types(f"dios audit verify --data {n1.data}").stderr
        assert f"the loss of records up to {records}" in told
    finally:
        for node in cluster.nodes:
            kill(node.socket)
