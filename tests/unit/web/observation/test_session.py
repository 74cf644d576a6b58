"""A session that loses its node connects again with the next call, and keeps no references."""

from __future__ import annotations

import asyncio
from typing import cast
from unittest import mock

import pytest

from dios.client.ops.status import Status
from dios.client.sync.node import Node, Task
from dios.errors import ClosedError, NotPermittedError
from dios.web.observation.session import ClusterSession
from dios.wire.types import TaskState


class Place:
    """A node that ends after a while, and comes back."""

    def __init__(self) -> None:
        self.sessions = 0

    def connect(self) -> Node:
        """Open a further session."""
        self.sessions += 1
        return cast("Node", self)

    def close(self) -> None:
        """Do nothing."""


def lost(node: Node) -> None:
    """Fail as a call at a node that has ended."""
    del node
    raise ClosedError("the node is gone")


def refused(node: Node) -> None:
    """Fail as a call that the node refuses."""
    del node
    raise NotPermittedError("no")


def test_a_lost_session_is_opened_again_and_a_refusal_keeps_it() -> None:
    """After a refusal the session is used again; after the end of the node there is a new one."""
    place = Place()
    session = ClusterSession(place.connect)
    try:
        for action, error, sessions in ((refused, NotPermittedError, 1), (lost, ClosedError, 1)):
            with pytest.raises(error):
                session._call(action)
            assert place.sessions == sessions
        assert session._call(id) == id(place)
        assert place.sessions == 2
    finally:
        session.close()


def test_an_action_on_a_task_leaves_no_reference() -> None:
    """The handle of a task is closed after each action on it."""
    node = mock.MagicMock(spec=Node)
    task = mock.MagicMock(spec=Task)
    node.find.return_value = task
    session = ClusterSession(lambda: cast("Node", node))
    try:
        status = Status("ab", "", TaskState.RUNNING, name=b"n")
        asyncio.run(session.act_on_task(status, lambda task: task.kill()))
    finally:
        session.close()
    task.kill.assert_called_once_with()
    task.__exit__.assert_called_once()
