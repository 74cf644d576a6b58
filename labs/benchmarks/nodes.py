"""A node for a benchmark section: its process, optionally pinned, stopped at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios.node.daemon import command
from labs.benchmarks.measure import clock, pin

DISK: Final = "BENCH_DISK"
"""The environment variable with the folder for the sections' files."""

STARTS: Final = "BENCH_STARTS"
"""The environment variable with the file of the times of starts, for a traced node."""

_DISK: Final = "/var/tmp"  # noqa: S108 - the one folder for temporary files that is never kept in memory


@dataclass(frozen=True, slots=True)
class BenchNode:
    """A running node."""

    pid: int
    data: Path
    start_seconds: float


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Create a temporary folder, on a disk if there is one, because commits to memory are meaningless.

    The folder of a section is inside that of the whole run, which also removes the files of killed sections.
    """
    disk = Path(os.environ.get(DISK, _DISK))
    with tempfile.TemporaryDirectory(prefix="dios-bench-", dir=disk if disk.is_dir() else None) as folder:
        yield Path(folder)


@contextlib.contextmanager
def running_node(
    cpu: int | None = None, *, without: str = "", module: str = "", **settings: str
) -> Iterator[BenchNode]:
    """Start a new node and stop it at the end of the context; ``cpu`` binds its threads, but not its tasks.

    ``without`` removes one part of it, see ``labs.benchmarks.weakened_node``. ``module`` runs in place of
    the daemon's, see ``labs.benchmarks.traced_node``.
    """
    with workspace() as folder, node_in(folder, cpu, without=without, module=module, **settings) as node:
        yield node


@contextlib.contextmanager
def node_in(
    folder: Path, cpu: int | None = None, *, without: str = "", module: str = "", **settings: str
) -> Iterator[BenchNode]:
    """Start a node in an existing folder, which remains; its log is the file ``log`` in it."""
    with private_environment(folder) as environment:
        data = folder / "node"
        ready, far = os.pipe()
        line = command(data, config=None, flags=settings, ready=far)
        if without:
            line[2:4] = ["-m", "labs.benchmarks.weakened_node", without]
        if module:
            line[2:4] = ["-m", module]
        began = clock()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(far,),
                env={**environment, STARTS: str(data.with_name("starts"))},
                # Ctrl-C is for the benchmark, which then stops the node.
                start_new_session=True,
            )
        os.close(far)
        try:
            said = os.read(ready, 4096)
            if said != b"ready\n":
                raise RuntimeError(f"the node did not start: {said.decode(errors='replace').strip()}")
            taken = (clock() - began) / 1e9
            if cpu is not None:
                pin(cpu, process.pid)
            yield BenchNode(process.pid, data, taken)
        finally:
            os.close(ready)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def private_environment(folder: Path) -> Iterator[Mapping[str, str]]:
    """Hide the user's default node and keyring."""
    own = {"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CONFIG_HOME": str(folder / "config")}
    before = {key: os.environ.get(key) for key in own}
    os.environ.update(own)
    try:
        # Otherwise a node that cannot write compiled modules would compile them during the measurement.
        yield {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
