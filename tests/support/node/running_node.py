"""A real node as a process of its own, for tests that kill, flood or watch it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from dios.node import daemon
from dios.node.daemon import DaemonProcess, find, start_detached

DEADLINE_SECONDS = 30.0


class RunningNode:
    """A started node: its process, its socket, and what the system says of it."""

    def __init__(self, data: Path, flags: dict[str, str], module: str = "") -> None:
        self.data = data
        self.flags = {"accept_weaker_sandbox": "yes", **flags}
        with daemon_of(module):
            self.running: DaemonProcess = start_detached(data, flags=self.flags)

    @property
    def place(self) -> str:
        """What ``dios.connect`` takes."""
        return str(self.running.socket)

    def kill(self) -> None:
        """Kill -9, and wait until the process is gone."""
        os.kill(self.running.pid, signal.SIGKILL)
        # The first thread of a killed process may be gone while another still holds its sockets.
        wait_until(lambda: find(self.running.socket) is None, "the daemon's socket is dead")
        wait_until(lambda: not exists(self.running.pid), "the daemon is gone")

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        os.kill(self.running.pid, signal.SIGTERM)
        wait_until(lambda: not exists(self.running.pid), "the daemon has ended")

    def restart(self) -> None:
        """Start it again on the same data."""
        self.running = start_detached(self.data, flags=self.flags)

    def descendants(self) -> set[int]:
        """Every process below the daemon."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        pids: set[int] = set()
        todo = [self.running.pid]
        while todo:
            above = todo.pop()
            below = [pid for pid, parent in parents.items() if parent == above]
            pids.update(below)
            todo.extend(below)
        return pids

    def descriptors(self) -> int:
        """How many descriptors the daemon holds."""
        return len(list(Path(f"/proc/{self.running.pid}/fd").iterdir()))

    def mappings(self) -> int:
        """How many mappings the daemon holds."""
        return len(Path(f"/proc/{self.running.pid}/maps").read_text().splitlines())


def exists(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: object, goal: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for a condition with a deadline."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {goal}"
        time.sleep(0.01)


@contextmanager
def daemon_of(module: str) -> Iterator[None]:
    """Start nodes by another module than the daemon's, such as one that breaks a rule; "" for its own."""
    honest = daemon.command

    def command(
        data: Path,
        *,
        config: Path | None,
        flags: Mapping[str, str] | None,
        ready: int | None = None,
        accept_lost_audit: bool = False,
    ) -> list[str]:
        line = honest(data, config=config, flags=flags, ready=ready, accept_lost_audit=accept_lost_audit)
        line[line.index("-m") + 1] = module
        return line

    with patch.object(daemon, "command", command if module else honest):
        yield


@contextmanager
def running_node(data: Path, *, module: str = "", **flags: str) -> Iterator[RunningNode]:
    """A node for the length of a block; killed at the end, whatever happened.

    ``module`` runs in place of the daemon's.
    """
    node = RunningNode(data, flags, module)
    try:
        yield node
    finally:
        children = node.descendants()
        if exists(node.running.pid):
            node.kill()
        wait_until(lambda: not any(exists(pid) for pid in children), "its processes are gone")
