"""A cluster for a benchmark section: nodes on this machine, optionally pinned, stopped at the end.

The measurements are in ``labs.benchmarks.cluster_calls`` and the other ``cluster_`` sections.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dios
from dios.client.session import Answer, expect_buffer
from dios.client.sync.connection import Connection
from dios.errors import DiosError
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from dios.transport.unix.client import ClientChannel, close_all, connect
from dios.wire.messages import PlainCall
from labs.benchmarks.measure import ALL_CPUS, once, pin
from labs.benchmarks.nodes import private_environment, workspace

NO_COMPILED: Final = "PYTHONDONTWRITEBYTECODE"

QUIET: Final = {"pool_size": "0", "measure": "no"}
"""Settings of nodes that do nothing by themselves. Otherwise a node starts tasks for its pool, and measures
its disk by writing to it, for seconds at its start and repeatedly if the machine is busy."""


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """Running nodes, counted from 0."""

    local: LocalCluster
    start_seconds: float

    def at(self, number: int) -> dios.Node:
        """Return a session at one node, as its user."""
        return dios.connect(self.local.nodes[number].socket, groups=())

    def pid(self, number: int) -> int:
        """Return the process id of one node."""
        return int((self.local.nodes[number].data / "node.pid").read_text())

    def pids(self) -> list[int]:
        """Return the process ids of all nodes."""
        return [self.pid(number) for number in range(len(self.local.nodes))]

    def pin(self, cpus: Sequence[int]) -> None:
        """Bind all threads of each node to a processor."""
        for number, cpu in enumerate(cpus):
            pin(cpu, self.pid(number))

    def spread(self) -> None:
        """Let every node run on all processors again."""
        for pid in self.pids():
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), ALL_CPUS)


@contextlib.contextmanager
def running_cluster(count: int, **settings: str) -> Iterator[BenchCluster]:
    """Start a new cluster of ``count`` nodes; stop it at the end of the context."""
    with workspace() as folder, private_environment(folder), writing_compiled():
        # The scheduler is switched off, because its rounds have a section of their own.
        settings = {"coordinator": "off", **settings}
        local = local_cluster.make(folder / "cluster", nodes=count, settings=settings)
        pids: list[int] = []
        try:
            cluster = BenchCluster(local, once(lambda: local_cluster.start(local)))
            pids = cluster.pids()
            yield cluster
        finally:
            local_cluster.stop(local)
            for pid in pids:
                reap(pid)


@contextlib.contextmanager
def writing_compiled() -> Iterator[None]:
    """Let nodes write compiled modules; otherwise their compilation would be measured."""
    before = os.environ.pop(NO_COMPILED, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[NO_COMPILED] = before


def reap(pid: int) -> None:
    """Wait for a node that has ended, if this process started it."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def processor_ns(pid: int) -> int:
    """Return the nanoseconds that the living threads of a process have run."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total


def bytes_of(answer: Answer | DiosError) -> int:
    """Return the number of bytes of a small or large read, and release them."""
    if isinstance(answer, DiosError):
        raise answer
    result, fd = expect_buffer(answer)
    if fd is not None:
        close_all((fd,))
    return result.size


class Pipeline:
    """One connection to a node with several requests in flight at a time."""

    def __init__(self, socket: Path) -> None:
        self._channel: Final = ClientChannel(connect(socket))
        connection = Connection(self._channel)
        self._session: Final = connection.session
        self.node: Final = dios.Node(connection, connection.hello((), "pipeline"))

    def reads(self, calls: Sequence[PlainCall]) -> int:
        """Send all requests, then receive all answers in any order; return the number of bytes."""
        asked = set()
        for call in calls:
            seq, frame = self._session.request(call)
            self._channel.send(frame)
            asked.add(seq)
        total = 0
        while asked:
            body, fds = self._channel.receive()
            seq, result = self._session.reply(body, fds)
            asked.remove(seq)
            total += bytes_of((result, fds))
        return total


def blobs(node: dios.Node, contents: Sequence[bytes]) -> list[bytes]:
    """Return the names of new objects of this session's node, which live as long as the session."""
    assert node.home is not None
    references = [node.create(dios.SHMEM_BLOB, data=data, groups=[node.home]) for data in contents]
    return [blob.name for blob in references if blob.name is not None]


def lookup_all(node: dios.Node, names: Sequence[bytes]) -> list[dios.Reference]:
    """Return references to the only object of each name."""
    references = [node.lookup(name) for name in names]
    assert all(len(matches) == 1 for matches in references)
    return [matches[0] for matches in references]
