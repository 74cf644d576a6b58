"""The cluster of a chaos run: real local nodes, their faults, and what is left of them on the machine."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import dios
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalNode
from tests.support.node.running_node import exists, wait_until

NODES: Final = 3
KINDS: Final = ("kill", "kill", "freeze", "stop")
LASTING_S: Final = (0.0, 0.2, 1.0, 3.0, 7.0)
"""The lengths of faults: shorter and longer than the cluster needs to notice that a node is dead."""
_SETTLED_S: Final = 60.0
_COUNTED: Final = ("sessions", "tasks", "references", "buffers", "waiting")
_COMMAND_S: Final = 120.0


class Fault(NamedTuple):
    """One fault of a node: a kill, an orderly stop, or a freeze, for a time; ``calls`` come before it."""

    kind: str
    node: int
    lasting_s: float
    calls: int


def planned(seed: int) -> Iterator[Fault]:
    """Yield the faults of a seed, without end. The first ones are of each kind and on each node."""
    rng = random.Random(f"faults {seed}")  # noqa: S311 - it chooses faults, it guards nothing
    for node, kind in enumerate(dict.fromkeys(KINDS)):
        yield Fault(kind, node, 0.2, 40)
    while True:
        yield Fault(rng.choice(KINDS), rng.randrange(NODES), rng.choice(LASTING_S), rng.randint(20, 120))


class ChaosCluster:
    """Three nodes in a folder. At the end of the block they are ended, whatever happened."""

    def __init__(self, folder: Path) -> None:
        settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
        self.local: Final = local_cluster.make(folder, nodes=NODES, keep=True, settings=settings)
        self.nodes: Final = self.local.nodes
        self.processes: Final[set[int]] = set()
        self.daemons: Final[set[int]] = set()
        self._mounts: Final = _mounts()

    def __enter__(self) -> Self:
        local_cluster.start(self.local)
        self._note_processes()
        return self

    def __exit__(self, *error: object) -> None:
        self._note_processes()
        for pid in self.processes:
            if exists(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def connect(self, number: int) -> dios.Node:
        """Open a session with a node."""
        return dios.connect(str(self.nodes[number].socket), groups=())

    # -- faults ---------------------------------------------------------------------------------------
    def suffer(self, fault: Fault) -> None:
        """Carry out a fault, from its beginning to its end."""
        node = self.nodes[fault.node]
        running = daemon.find(node.socket)
        assert running is not None, f"{node.name} does not run"
        self._note_processes()
        if fault.kind == "freeze":
            os.kill(running.pid, signal.SIGSTOP)
            time.sleep(fault.lasting_s)
            os.kill(running.pid, signal.SIGCONT)
            return
        os.kill(running.pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
        wait_until(lambda: not exists(running.pid), f"{node.name} has ended")
        wait_until(lambda: daemon.find(node.socket) is None, f"the socket of {node.name} is dead")
        time.sleep(fault.lasting_s)
        self._start(node)

    def _start(self, node: LocalNode) -> None:
        daemon.start_detached(node.data, flags=node.flags())
        self._note_processes()

    def wait_agreed(self) -> None:
        """Wait until each node sees all nodes alive."""
        local_cluster.wait_ready(self.nodes)

    # -- what is left ---------------------------------------------------------------------------------
    def counts(self) -> list[dict[str, int]]:
        """Return each node's counts of what clients hold, those of this question included."""
        node_counts = []
        for number in range(NODES):
            with self.connect(number) as session:
                counts = session.info().counts
                node_counts.append({name: counts.get(name, 0) for name in _COUNTED})
        return node_counts

    def wait_counts(self, expected: list[dict[str, int]], description: str) -> None:
        """Wait until the nodes hold for clients what they held before."""
        try:
            wait_until(lambda: self.counts() == expected, description, _SETTLED_S)
        except AssertionError:
            raise AssertionError(f"{description}: expected {expected}, there are {self.counts()}") from None

    def stop(self) -> None:
        """Stop every node in an orderly way; then nothing of them may be left on the machine."""
        self._note_processes()
        local_cluster.stop(self.local)
        wait_until(lambda: not self._living(), "every process of the nodes has ended")
        folders = [path for path in Path("/sys/fs/cgroup").rglob("dios-*") if self._is_ours(path)]
        assert not folders, f"control groups are left: {folders}"
        assert _mounts() <= self._mounts, f"mounts are left: {_mounts() - self._mounts}"
        for node in self.nodes:
            self._check(node)

    def _check(self, node: LocalNode) -> None:
        """Let the command line verify a node's data: records, contents, files, and the audit log."""
        checked = subprocess.run(
            [sys.executable, "-m", "dios.cli.nodes.daemon", "check", "--data", str(node.data)],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert checked.returncode == 0, f"{node.name}: {checked.stdout}{checked.stderr}"

    def _note_processes(self) -> None:
        running = {process.pid for process in self.local.running().values()}
        self.daemons.update(running)
        self.processes.update(running)
        parents = _parents()
        below = set(self.daemons)
        while new := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= new
        self.processes.update(below)

    def _living(self) -> set[int]:
        return {pid for pid in self.processes if exists(pid) and _is_node_process(pid)}

    def _is_ours(self, path: Path) -> bool:
        number = path.name.split("-")[1]
        return number.isdecimal() and int(number) in self.daemons


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _is_node_process(pid: int) -> bool:
    """Return True unless the number belongs to a process of somebody else by now."""
    try:
        return b"dios" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines if "dios" in line}


def repeat_until(work: Callable[[], bool], stopped: Callable[[], bool]) -> bool:
    """Repeat ``work`` with short pauses until it succeeds; False if it was stopped before."""
    while not stopped():
        if work():
            return True
        time.sleep(0.05)
    return False
