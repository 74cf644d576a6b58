"""The engine of ``make docker-test`` leaves nothing on the machine."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import container_engine
from tests.lab.container_engine import private_engine

WAIT_MS = 30_000
RUNS_UNTIL_KILLED = """
from tests.lab.container_engine import private_engine
with private_engine() as address:
    print(address, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def _packages() -> None:
    """Skip where no engine can be started."""
    if reason := container_engine.missing():
        pytest.skip(reason)


def folder_of(address: str) -> Path:
    """The folder of an engine, whose name no other process has in its command line."""
    return Path(address.removeprefix("unix://")).parent


def processes(folder: Path) -> list[int]:
    """The processes of an engine."""
    running = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.name in path.read_text():
                running.append(int(path.parent.name))
        except OSError:
            continue
    return running


def test_an_engine_ends_with_all_that_it_made() -> None:
    """Its networks are not those of the machine, and its processes, control groups and files end with it."""
    links = socket.if_nameindex()
    with private_engine() as address:
        subprocess.run(["docker", "--host", address, "network", "create", "apart"], check=True)
        assert processes(folder_of(address))
        assert socket.if_nameindex() == links
    assert not processes(folder_of(address))
    assert not folder_of(address).exists()
    assert not list(container_engine.CGROUPS.glob(f"*/{folder_of(address).name}"))


def test_an_engine_ends_when_its_program_is_killed() -> None:
    """SIGKILL leaves the program no time to stop its engine, and all processes of it end."""
    command = [sys.executable, "-c", RUNS_UNTIL_KILLED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        folder = folder_of(program.stdout.readline().strip())
        ends = [os.pidfd_open(process) for process in processes(folder)]
        program.kill()
    for end in ends:
        waiting = select.poll()
        waiting.register(end, select.POLLIN)
        assert waiting.poll(WAIT_MS)
        os.close(end)
    assert not processes(folder)
    container_engine.remove_cgroups(folder.name)
    shutil.rmtree(folder)
