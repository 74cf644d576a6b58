"""Streams between nodes: rings at both ends, and a data connection of its own between them (thesis §4.7.4).

Not for: rings inside one node (``dios.host.streams``), or who may take an end (the core).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from dios.core.effects import AnswerAttachAway
from dios.errors import NotSupportedError, ProtocolError
from dios.host.peers.standing import Standing
from dios.ids import NodeId
from dios.transport.memory import close_all
from dios.wire.dcp_frames import Channel
from dios.wire.messages import Attached


class StreamsBetween:
    """Every stream between this node and another."""

    def keep(self, node: NodeId, number: int, fds: Sequence[int], ring_bytes: int) -> None:
        """Take over one end of a ring, until the node connects for it or is gone."""
        del node, number, ring_bytes
        close_all(fds)

    def fetch(self, effect: AnswerAttachAway) -> tuple[Attached, tuple[int, ...]]:
        """Make a ring for a task here; raises OutOfMemoryError, OSError."""
        raise NotSupportedError(f"streams of other nodes are not carried yet ({effect.mode})")

    def accept(self, node: NodeId, channel: Channel, sock: socket.socket, standing: Standing) -> None:
        """A node connects for an end that was kept; raises ProtocolError when there is none."""
        del node, sock, standing
        raise ProtocolError(f"no stream {channel.stream} was asked for")
