"""The dissemination of news: each piece of news travels with a bounded number of messages.

If each node that receives it sends it about 3 log n times, a piece of news rarely misses a node. The next
exchange of whole tables repairs that.
"""

from __future__ import annotations

from dios import limits
from dios.ids import NodeId


class Dissemination:
    """The nodes with unsent news, and the number of sends left for each."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[NodeId, int] = {}

    def add(self, node: NodeId, others: int) -> None:
        """Spread news of this node among ``others`` nodes; it replaces older news of it."""
        self._left[node] = limits.GOSSIP_RETRANSMIT_FACTOR * max(1, others.bit_length())

    def drop(self, node: NodeId) -> None:
        """Stop spreading news of this node."""
        self._left.pop(node, None)

    def take(self, count: int) -> list[NodeId]:
        """Return up to ``count`` nodes whose news goes with the next message, the least sent first."""
        if not self._left:
            return []
        chosen = sorted(self._left, key=lambda node: -self._left[node])[:count]
        for node in chosen:
            self._left[node] -= 1
            if not self._left[node]:
                del self._left[node]
        return chosen
