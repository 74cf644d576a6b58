"""A session that loses its node connects again with the next call."""

from __future__ import annotations

from typing import cast

import pytest

from dios.client.sync.node import Node
from dios.errors import ClosedError, NotPermittedError
from dios.web.observation.session import ClusterSession


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
