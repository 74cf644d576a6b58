"""The few nodes that a node probes, and with which it therefore keeps a connection.

Each node has two kinds of them, which change as little as possible when nodes come and go:

- its *successor*, the next living node by id, so that every node is probed by exactly one predecessor;
- its *partners*, the GOSSIP_PARTNERS living nodes with the lowest hash of both ids. A pair has one hash, so
  that most partners are mutual, and the graph of all of them is a random one with short paths.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Final

from blake3 import blake3

from dios import limits
from dios.ids import NodeId

_HASH_BYTES: Final = 8


def _score(node: NodeId, other: NodeId) -> int:
    """Return a number that is the same for both nodes of a pair, and random otherwise."""
    low, high = min(node, other), max(node, other)
    pair = low.to_bytes(8, "big") + high.to_bytes(8, "big")
    return int.from_bytes(blake3(pair).digest(_HASH_BYTES), "big")


class Partners:
    """The other living nodes in the order of their ids, and in that of their hashes with this node's id."""

    __slots__ = ("_own", "_ring", "_scores")

    def __init__(self, own: NodeId) -> None:
        self._own: Final = own
        self._ring: Final[list[NodeId]] = []
        self._scores: Final[list[tuple[int, NodeId]]] = []

    def add(self, node: NodeId) -> None:
        """Add a node that lives."""
        insort(self._ring, node)
        insort(self._scores, (_score(self._own, node), node))

    def remove(self, node: NodeId) -> None:
        """Remove a node that does not live any more."""
        del self._ring[bisect_left(self._ring, node)]
        del self._scores[bisect_left(self._scores, (_score(self._own, node), node))]

    def chosen(self, accepts: Callable[[NodeId], bool]) -> list[NodeId]:
        """Return the partners among the accepted nodes, in a fixed order."""
        partners: list[NodeId] = []
        for _, node in self._scores:
            if len(partners) == limits.GOSSIP_PARTNERS:
                break
            if accepts(node):
                partners.append(node)
        return partners

    def successor(self, accepts: Callable[[NodeId], bool]) -> NodeId | None:
        """Return the first accepted node after the own id, around the ring of ids; None if there is none."""
        first = bisect_right(self._ring, self._own)
        for place in range(len(self._ring)):
            node = self._ring[(first + place) % len(self._ring)]
            if accepts(node):
                return node
        return None
