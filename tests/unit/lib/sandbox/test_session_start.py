"""The start of a session on a busy node, which is late and has not failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dios.client.ops.status import Status
from dios.errors import TimeLimitError
from dios.lib.sandbox import link
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.link import SessionLink
from dios.wire.types import TaskState

if TYPE_CHECKING:
    from dios.client.sync.node import Task


class Clock:
    """A clock by which an hour passes between two looks."""

    hours = 0

    def monotonic(self) -> float:
        """The seconds."""
        self.hours += 1
        return 3600.0 * self.hours


@pytest.mark.parametrize("state", [TaskState.STARTING, TaskState.RUNNING])
def test_a_session_whose_process_does_not_exist_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, state: TaskState
) -> None:
    """Hours are no failure while the node has not started it; a process that says nothing is one."""
    session = SessionLink(SandboxBounds())
    session.task = cast("Task", SimpleNamespace(status_op=lambda: None))
    looks = 0

    def receive(pause_s: float) -> None:
        nonlocal looks
        looks += 1
        session._ready = looks > 5
        if not session._ready:
            raise TimeLimitError(f"nothing came within {pause_s} s")

    def receive_steps(pause_s: float) -> object:
        receive(pause_s)
        yield from ()

    monkeypatch.setattr(link, "time", Clock())
    monkeypatch.setattr(session, "_receive", receive_steps)
    steps = session._wait_until_ready()
    outcome = ""
    try:
        next(steps)
        while True:
            steps.send(Status("f", "sandbox", state))
    except StopIteration:
        outcome = "started"
    except TimeLimitError:
        outcome = "late"
    assert outcome == {TaskState.STARTING: "started", TaskState.RUNNING: "late"}[state]
