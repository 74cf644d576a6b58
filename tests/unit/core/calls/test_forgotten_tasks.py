"""The records of a task that the node forgets are freed at once, without a pass of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from dios import limits
from dios.core import events
from dios.core.model.records import Session, Task
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import Cause, Flag
from tests.support.core.harness import Node


def test_forgotten_tasks_are_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many ended tasks, whose references are dropped, no more records exist than the node keeps."""
    monkeypatch.setattr(limits, "ENDED_TASKS_KEPT", 5)
    monkeypatch.setattr(limits, "RECIPES_KEPT", 5)
    node = Node()
    session = node.session(Principal("uid:2000"))
    gc.collect()
    before = sum(type(tracked) is Task for tracked in gc.get_objects())
    gc.disable()
    try:
        for _ in range(30):
            task = session.run()
            node.step(events.TaskEnded(node.now, task.task, Cause.EXITED))
            session.ask(messages.Done, messages.Delete(task.reference.ref, int(Flag.HANDLE_ONLY)))
        after = sum(type(tracked) is Task for tracked in gc.get_objects())
    finally:
        gc.enable()
    assert after - before == 5


def test_a_closed_session_is_no_garbage() -> None:
    """A session's records are freed with its connection."""
    node = Node()
    gc.collect()
    before = sum(type(tracked) is Session for tracked in gc.get_objects())
    gc.disable()
    try:
        for _ in range(10):
            session = node.session(Principal("uid:2000"))
            node.step(events.Disconnected(node.now, session.task))
        after = sum(type(tracked) is Session for tracked in gc.get_objects())
    finally:
        gc.enable()
    assert after == before
