"""The setting ``sandbox_limits`` bounds each session of a sandbox, its forks, and no other task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from tests.support.node.running_node import RunningNode

PATIENCE_S = 60.0
OBJECTS = 30
CREATE = """
import dios
node, kept = dios.connect(), []
try:
    while len(kept) < 100:
        kept.append(node.create(dios.SHMEM_BLOB, data=b"x"))
except dios.LimitError as error:
    print(error.message)
"""
TASKS = """
import dios
first = node.run(b"import time; time.sleep(1000)")
try:
    node.run(b"pass")
except dios.LimitError as error:
    print(error.message)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with a lower limit of objects."""
    running = RunningNode(tmp_path_factory.mktemp("node") / "data", {"sandbox_limits": f"objects={OBJECTS}"})
    yield running
    running.stop()


def test_a_session_has_the_limits_of_the_setting(node: RunningNode) -> None:
    """It gets no more objects than the setting has, and one task at a time by default; another is served."""
    with (
        dios.Sandbox(node=node.place, timeout=PATIENCE_S) as box,
        dios.Sandbox(node=node.place, timeout=PATIENCE_S) as other,
    ):
        assert f"the limit of {OBJECTS} objects" in box.run(CREATE).stdout
        assert "the limit of 1 tasks" in other.run(CREATE.partition("try:")[0] + TASKS).stdout
        box.reset()
        assert f"the limit of {OBJECTS} objects" in box.run(CREATE).stdout


def test_a_fork_has_them_too(node: RunningNode) -> None:
    """The fork has as many as its origin, and does not share them."""
    listeners = probe()[FORKS]
    if not listeners.available:
        pytest.skip(f"sessions cannot be forked here: {listeners.detail}")
    with dios.Sandbox(node=node.place, timeout=PATIENCE_S, forkable=True) as box, box.fork() as fork:
        for session in (box, fork):
            assert f"the limit of {OBJECTS} objects" in session.run(CREATE).stdout


def test_other_tasks_do_not_have_them(node: RunningNode) -> None:
    """A task that is no session has the limits of tasks alone."""
    source = CREATE + "print(len(kept))"
    with dios.connect(node.place, groups=()) as session, session.run(source.encode()) as task:
        assert task.wait(PATIENCE_S).ok
        assert b"".join(task.console()) == b"100\n"
