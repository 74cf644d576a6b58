"""Five machines on one: their nodes, the commands that are typed on them, and their deaths."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from dios.node import daemon, local_cluster

NODES: Final = 5
RACKS: Final = 3
SMALL_DISK: Final = "n5"
"""The node whose disk becomes full."""

DISK_BYTES: Final = 512 * 1024 * 1024
_MODULES: Final = {"dios": "dios.cli.main", "dios-node": "dios.cli.nodes.daemon"}
_COMMAND_S: Final = 600.0
_POLL_S: Final = 0.2
_END_S: Final = 30.0


class Typed(NamedTuple):
    """The end of a command."""

    status: int
    output: str
    errors: str


class Site:
    """The machines, by the names of their nodes. At the end of the block everything is ended and deleted."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder: Final = folder
        self.home: Final = folder / "home"
        self.data: Final[dict[str, Path]] = {}
        self.lost: Final[set[str]] = set()
        """Nodes that are down on purpose: dead, stopped, or not replaced yet."""
        self.typed = 0
        self._settings: Final = dict(settings)
        self._mounted: Path | None = None
        self._generation = 1
        self._made: Final = local_cluster.make(
            folder / "cluster", nodes=NODES, racks=RACKS, keep=True, settings=self._settings
        )
        self._started: Final[set[Path]] = set()
        for node in self._made.nodes:
            self.data[node.name] = node.data
            self._started.add(node.data)
        self.home.mkdir()

    def __enter__(self) -> Self:
        self._mount_disk(self.data[SMALL_DISK])
        local_cluster.start(self._made)
        return self

    def __exit__(self, *error: object) -> None:
        for data in self._started:
            self._kill(data)
        if self._mounted is not None:
            subprocess.run(["umount", "--recursive", "--lazy", str(self._mounted)], check=False)

    # -- commands -----------------------------------------------------------------------------------
    def environment(self, node: str) -> dict[str, str]:
        """Return the environment of a user at a node."""
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        place = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home), "DIOS_NODE": str(self.data[node])}
        return {
            **inherited,
            **place,
            **{f"DIOS_{key.upper()}": value for key, value in self._settings.items()},
        }

    def type(self, line: str, *, at: str = "", own: Mapping[str, str] | None = None) -> Typed:
        """Run a command at a node, by default at any that runs, and return its end."""
        program, *words = shlex.split(line)
        node = at or self.anywhere()
        self.typed += 1
        done = subprocess.run(
            [sys.executable, "-m", _MODULES[program], *words],
            cwd=self.home,
            env={**self.environment(node), **(own or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        return Typed(done.returncode, done.stdout, done.stderr)

    def must(self, line: str, *, at: str = "") -> str:
        """Run a command that has to succeed, and return its output."""
        done = self.type(line, at=at)
        if done.status:
            raise AssertionError(
                f"{line}: status {done.status}: {done.errors.strip() or done.output.strip()}"
            )
        return done.output

    def anywhere(self) -> str:
        """Return the name of a node that runs, chosen at random."""
        living = [name for name in self.data if name not in self.lost]
        return random.choice(living)  # noqa: S311 - it guards nothing

    def has_command(self, line: str) -> bool:
        """Return True if this release has a command."""
        return self.type(f"{line} --help").status == 0

    # -- machines -----------------------------------------------------------------------------------
    def kill(self, name: str) -> None:
        """Kill a node with SIGKILL, as a power cut does."""
        self.lost.add(name)
        self._kill(self.data[name])

    def boot(self, name: str) -> None:
        """Start a node again, as its unit does after a boot."""
        self.must(f"dios-node start --data {self.data[name]} --detach", at=name)
        self.lost.discard(name)

    def destroy(self, name: str) -> None:
        """Kill a node, and delete its disk."""
        self.kill(name)
        shutil.rmtree(self.data[name])

    def new_machine(self, name: str, join: str) -> None:
        """Type the line of `dios node replace` on a new machine."""
        self._generation += 1
        self.data[name] = self.folder / f"{name}-machine-{self._generation}"
        self._started.add(self.data[name])
        typed = self.type(join.replace("./dios-data", str(self.data[name])), at=name)
        if typed.status:
            raise AssertionError(f"{name} did not join: {typed.errors}")
        self.lost.discard(name)

    def fill_disk(self) -> Path | None:
        """Fill the small disk to its last byte; return the file, or None without such a disk."""
        if self._mounted is None:
            return None
        filler = self._mounted / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        return filler

    def _mount_disk(self, data: Path) -> None:
        """Put a node's data on a small disk of its own, where the machine permits that."""
        aside = data.with_name(f"{data.name}.aside")
        data.rename(aside)
        data.mkdir(mode=0o700)
        options = f"size={DISK_BYTES},mode=0700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(data)], capture_output=True, check=False
        )
        if not done.returncode:
            self._mounted = data
        for path in aside.iterdir():
            shutil.move(path, data / path.name)
        aside.rmdir()

    def _kill(self, data: Path) -> None:
        running = daemon.find(data / "node.sock")
        if running is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL)
        self.wait(lambda: daemon.find(data / "node.sock") is None, f"{data.name} is dead", _END_S)

    # -- state --------------------------------------------------------------------------------------
    def statuses(self) -> dict[str, str]:
        """Return the status of each node, as a node that runs sees it."""
        return {row["name"]: row["status"] for row in json.loads(self.must("dios node ls --json"))}

    def wait(self, holds: Callable[[], bool], condition: str, seconds: float) -> float:
        """Wait until a condition holds, and return the seconds; AssertionError if it does not."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > seconds:
                raise AssertionError(f"after {seconds:.0f} s it is not true that {condition}")
            time.sleep(_POLL_S)
        return time.monotonic() - began
