"""A cluster of three nodes without a scheduler, and a person who keeps jobs there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.command_user import Person
from tests.support.node.running_node import exists, wait_until

PATIENCE_S = 90
_SETTINGS = {"accept_weaker_sandbox": "yes", "coordinator": "off", "pool_size": "1"}


def running_cluster(folder: Path) -> Iterator[LocalCluster]:
    """Three nodes, which a fixture yields and which are killed after it."""
    cluster = local_cluster.make(folder / "cluster", nodes=3, keep=True, settings=_SETTINGS)
    try:
        local_cluster.start(cluster)
        yield cluster
    finally:
        for node in cluster.nodes:
            kill(node.socket)


def person_at(cluster: LocalCluster, folder: Path, programs: Mapping[str, str]) -> Person:
    """Somebody whose commands go to the first node, with these programs by name."""
    home = folder / "person"
    home.mkdir()
    person = Person(home)
    person.environment["DIOS_NODE"] = str(cluster.nodes[0].data)
    for name, text in programs.items():
        person.writes(f"{name}.py", text)
    return person


def kill(socket: Path) -> None:
    """Kill -9 the node at a socket, if it runs."""
    running = daemon.find(socket)
    if running is not None:
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: daemon.find(socket) is None, "the node is silent")
        wait_until(lambda: not exists(running.pid), "the node is gone")


def job(person: Person, name: str) -> dict[str, object]:
    """The answer of `dios job describe`."""
    described: dict[str, object] = json.loads(person.types(f"dios job describe {name} --json").stdout)
    return described
