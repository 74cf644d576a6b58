"""The tasks of a program that ended: they end with its connection unless they were detached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import dios
from tests.support.node.running_node import RunningNode, running_node, wait_until

DRIVER = """
import sys, time, dios
node = dios.connect(sys.argv[1], groups=())
program = b"import time; time.sleep(600)"
node.run(program, label="attached")
node.run(program, label="detached", detach=True)
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("sessions") / "node") as node:
        yield node


def _running(session: dios.Node) -> set[str]:
    return {task.label for task in session.tasks() if not task.ended}


def test_the_tasks_of_a_killed_program_end(started: RunningNode) -> None:
    """After kill -9 of a driver the node ends its tasks; the detached one goes on until it is ended."""
    with (
        dios.connect(started.place, groups=()) as watcher,
        subprocess.Popen([sys.executable, "-c", DRIVER, started.place], stdout=subprocess.PIPE) as driver,
    ):
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"started\n"
        assert _running(watcher) == {"attached", "detached"}
        os.kill(driver.pid, signal.SIGKILL)
        wait_until(lambda: _running(watcher) == {"detached"}, "the attached task has ended")
        (left,) = [task for task in watcher.tasks() if not task.ended]
        assert left.name is not None
        watched = watcher.find(left.name)
        assert isinstance(watched, dios.Task)
        watched.kill()
        wait_until(lambda: not _running(watcher), "the detached task was ended")
