"""What the core keeps of a task that has ended."""

from __future__ import annotations

from dios.core import events
from dios.core.model.records import Session, Task
from tests.support.core.harness import Node


def test_ended_session_keeps_no_events(node: Node) -> None:
    """Events that a session left unread are gone with it, though records of its children still name it."""
    session = node.session()
    child = session.run()
    node.end(child.task)
    (ended,) = [task for task in node.core.state.tasks.values() if task.id == child.task]
    assert isinstance(ended, Task)
    assert isinstance(ended.parent, Session)
    assert ended.parent.has_event
    node.step(events.Disconnected(node.now, session.task, ""))
    assert not ended.parent.alive
    assert not ended.parent.has_event
