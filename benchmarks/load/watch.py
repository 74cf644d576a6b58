"""Watch a cluster during a burst: a neighbour's short calls, and the processor time by kind of process."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

import trio

import dios
from benchmarks.cluster import BenchCluster, processor_ns
from dios.client.aio.node import open_node
from dios.errors import DiosError
from dios.wire.types import NameKind, ObjectType

NODES: Final = 3
_PAUSE_S: Final = 0.01
_WHOLE_S: Final = 900.0
_COORDINATOR: Final = "coordinator"


@dataclass
class Neighbour:
    """The milliseconds of each call of a client that does nothing else, and its refused calls."""

    calls: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def work(self, cluster: BenchCluster, number: int) -> None:
        """Make short calls on a node, one after the other, until cancelled."""
        async with open_node(cluster.made.nodes[number].socket, groups=()) as node:
            own = await node.create(ObjectType.SHMEM_BLOB, data=b"neighbour", naming=NameKind.ANONYMOUS)
            while True:
                began = time.perf_counter()
                try:
                    await own.stat()
                except DiosError as error:
                    self.refused.append(str(error))
                self.calls.append((time.perf_counter() - began) * 1000)
                await trio.sleep(_PAUSE_S)


def wait_until_scheduled(cluster: BenchCluster) -> int:
    """Wait until one coordinator schedules for all nodes; return its process id."""
    deadline = time.monotonic() + _WHOLE_S
    with cluster.at(0) as node:
        while time.monotonic() < deadline:
            try:
                told = json.loads(node.ask_scheduler(b'{"ask": "status"}'))
            except DiosError:
                told = {}
            whole = [row for row in told.get("nodes", ()) if row["coordinator"]]
            if len(whole) == len(told.get("attends", ())) == NODES and told["placed_by"] == "flow":
                return _process_of(node, str(told["coordinator"]))
            time.sleep(0.2)
    raise TimeoutError("no coordinator schedules for all nodes. Are the scheduler's kernels compiled?")


def _process_of(node: dios.Node, name: str) -> int:
    here = next(member.name for member in node.nodes() if member.here)
    rows = node.board("" if name == here else name).tasks
    return next(row.pid for row in rows if row.label == _COORDINATOR)


class ProcessorTime(NamedTuple):
    """The seconds of processor that each kind of process of the cluster has used, in user and system mode."""

    clients: float = 0.0
    """This process, which has all clients."""
    daemons: float = 0.0
    zygotes: float = 0.0
    tasks: float = 0.0
    """The processes of the tasks that have ended: from the fork to the exit."""
    coordinator: float = 0.0

    @classmethod
    def read(cls, cluster: BenchCluster, coordinator: int) -> Self:
        """Return the processor time until now."""
        zygotes = [pid for daemon in cluster.pids() for pid in _children_of(daemon)]
        return cls(
            sum(os.times()[:2]),
            sum(processor_ns(pid) for pid in cluster.pids()) / 1e9,
            sum(processor_ns(pid) for pid in zygotes) / 1e9,
            sum(_reaped_s(pid) for pid in zygotes),
            processor_ns(coordinator) / 1e9,
        )

    def since(self, before: Self) -> Self:
        """Return the processor time that was used after ``before`` was read."""
        return type(self)(*(now - then for now, then in zip(self, before, strict=True)))


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def _reaped_s(pid: int) -> float:
    """Return the seconds of processor of the children for whose end a process has waited."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
