"""The nodes that this node takes for living, in an order and with a digest that every node computes alike."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3
from msgspec import Struct

from dios.ids import NodeId
from dios.wire.gossip import MemberRow
from dios.wire.types import NodeStatus

_LIVING = frozenset({NodeStatus.ALIVE, NodeStatus.SUSPECT})


class LiveView(Struct, frozen=True):
    """The living nodes with their epochs, sorted by id; suspects are living.

    Two nodes have the same ``digest`` if they have the same view. A restart of a node changes it. ``version``
    counts the changes that this node saw, and has no meaning on another node.
    """

    nodes: tuple[NodeId, ...]
    epochs: tuple[int, ...]
    digest: bytes
    version: int


def is_living(status: NodeStatus) -> bool:
    """Return True if a node with this status belongs to the live view."""
    return status in _LIVING


def live_view(rows: Iterable[MemberRow], version: int = 0) -> LiveView:
    """Return the view of the living nodes among ``rows``, which has one row for each node."""
    living = sorted((row.node, row.epoch) for row in rows if row.status in _LIVING)
    digest = blake3()
    for node, epoch in living:
        digest.update(node.to_bytes(8, "big") + epoch.to_bytes(8, "big"))
    nodes, epochs = tuple(node for node, _ in living), tuple(epoch for _, epoch in living)
    return LiveView(nodes, epochs, digest.digest(16), version)
