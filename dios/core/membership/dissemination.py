"""News that still has to be sent, and how often: each piece rides on a bounded number of messages.

About 3 log n sends by each node that hears of it make it rare that a piece of news misses a node; the next
exchange of tables repairs that.
"""

from __future__ import annotations

from dios import limits
from dios.ids import NodeId


class Spreading:
    """Nodes of which something new is to be told, with the number of sends that are left."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[NodeId, int] = {}

    def add(self, node: NodeId, others: int) -> None:
        """There is news of this node, in a cluster with this many others; it replaces older news."""
        self._left[node] = limits.GOSSIP_RETRANSMIT_FACTOR * max(1, others.bit_length())

    def drop(self, node: NodeId) -> None:
        """There is nothing to be said of it any more."""
        self._left.pop(node, None)

    def take(self, count: int) -> list[NodeId]:
        """Up to ``count`` nodes whose news goes with the next message: what was told least, first."""
        if not self._left:
            return []
        chosen = sorted(self._left, key=lambda node: -self._left[node])[:count]
        for node in chosen:
            self._left[node] -= 1
            if not self._left[node]:
                del self._left[node]
        return chosen
