"""Real nodes for a measurement: a cluster on this machine, with its data below a temporary directory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import dios
from dios.host.confinement.mechanisms import obstacle_to_pure, probe
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster

_PRIVATE: Final = {"XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "config"}
"""Environment variables that lead to the user's own node and keyring, and their folders here."""


class Nodes(NamedTuple):
    """Running nodes, counted from 0, and why their tasks have a weaker sandbox (empty if they do not)."""

    local: LocalCluster
    weaker: str

    def connect(self, number: int) -> dios.Node:
        """Return a session at one node, as its user."""
        return dios.connect(self.local.nodes[number].socket, groups=())

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for the figure if the sandbox is weaker."""
        return (f"This machine cannot confine tasks fully: {self.weaker}.",) if self.weaker else ()


@contextlib.contextmanager
def running_nodes(count: int, **settings: str) -> Iterator[Nodes]:
    """Start a new cluster of ``count`` nodes; stop it at the end of the context."""
    weaker = obstacle_to_pure(probe())
    if weaker:
        settings = {"accept_weaker_sandbox": "yes", **settings}
    with tempfile.TemporaryDirectory(prefix="dios-repro-") as folder, _private(Path(folder)):
        local = local_cluster.make(Path(folder) / "cluster", nodes=count, settings=settings)
        try:
            local_cluster.start(local)
            yield Nodes(local, weaker)
        finally:
            pids = [int(text) for node in local.nodes if (text := _pid_text(node.data))]
            local_cluster.stop(local)
            for pid in pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _pid_text(data: Path) -> str:
    with contextlib.suppress(OSError):
        return (data / "node.pid").read_text()
    return ""


@contextlib.contextmanager
def _private(folder: Path) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in _PRIVATE}
    os.environ.update({key: str(folder / name) for key, name in _PRIVATE.items()})
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def known(name: bytes | None) -> bytes:
    """Return the name of an object that has one."""
    if name is None:
        raise AssertionError("an object in a group has a name")
    return name


def home_of(node: dios.Node) -> dios.Reference:
    """Return the home group of the user of a session."""
    if node.home is None:
        raise AssertionError("the session of a user has a home group")
    return node.home
