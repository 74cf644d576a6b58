"""The dissemination of news: each piece of news travels with a bounded number of messages.

If each node that receives it sends it about 3 log n times, a piece of news rarely misses a node. The next
comparison of digests repairs that.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.ids import NodeId


class Dissemination:
    """The nodes with unsent news, and the number of sends left for each."""

    __slots__ = ("_by_left", "_factor", "_left")

    def __init__(self, factor: int = limits.GOSSIP_RETRANSMIT_FACTOR) -> None:
        self._factor: Final = factor
        self._left: Final[dict[NodeId, int]] = {}
        self._by_left: Final[dict[int, dict[NodeId, None]]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, node: NodeId, others: int) -> None:
        """Spread news of this node among ``others`` nodes; it replaces older news of it."""
        self.drop(node)
        wanted = self._factor * max(1, others.bit_length())
        self._put(node, min(wanted, limits.GOSSIP_RETRANSMIT_MAX))

    def drop(self, node: NodeId) -> None:
        """Stop spreading news of this node."""
        left = self._left.pop(node, None)
        if left is not None:
            del self._by_left[left][node]
            if not self._by_left[left]:
                del self._by_left[left]

    def take(self, count: int) -> list[NodeId]:
        """Return up to ``count`` nodes whose news goes with the next message, the least sent first."""
        chosen: list[NodeId] = []
        for left in sorted(self._by_left, reverse=True):
            for node in self._by_left[left]:
                if len(chosen) == count:
                    break
                chosen.append(node)
        for node in chosen:
            left = self._left[node]
            self.drop(node)
            if left > 1:
                self._put(node, left - 1)
        return chosen

    def _put(self, node: NodeId, left: int) -> None:
        self._left[node] = left
        self._by_left.setdefault(left, {})[node] = None
