"""Watch a cluster during a burst: a neighbour's short calls, and the processor time by kind of process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

import trio
from msgspec import json

import dios
from dios.errors import DiosError
from labs.benchmarks.cluster import BenchCluster, processor_ns
from labs.benchmarks.load.neighbour import Told

NODES: Final = 3
_WHOLE_S: Final = 900.0
_COORDINATOR: Final = "coordinator"


@dataclass
class Neighbour:
    """A client that does nothing else: the milliseconds of its calls and echoes, and its refused calls."""

    calls: list[float] = field(default_factory=list)
    echoes: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def work(
        self,
        cluster: BenchCluster,
        number: int,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Make short calls on a node in a process of its own, until cancelled."""
        line = [
            sys.executable,
            "-m",
            "labs.benchmarks.load.neighbour",
            str(cluster.local.nodes[number].socket),
        ]
        process = await trio.lowlevel.open_process(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if await process.stdout.receive_some(1) != b"\n":
            raise RuntimeError("the neighbour's process did not start")
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await process.stdin.aclose()
                told = b"".join([part async for part in process.stdout])
                await process.wait()
            report = json.decode(told, type=Told)
            self.calls, self.echoes, self.refused = report.calls, report.echoes, report.refused


def wait_until_scheduled(cluster: BenchCluster) -> int:
    """Wait until one coordinator schedules for all nodes; return its process id."""
    deadline = time.monotonic() + _WHOLE_S
    with cluster.at(0) as node:
        while time.monotonic() < deadline:
            try:
                told = json.decode(node.ask_scheduler(b'{"ask": "status"}'))
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
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += map(int, (thread / "children").read_text().split())
    return children


def _reaped_s(pid: int) -> float:
    """Return the seconds of processor of the children for whose end a process has waited."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
