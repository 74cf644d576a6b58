"""Digests of a member table, one for each part of the ids, so that two nodes find where their tables differ.

Load and version are not covered: they change all the time, and travel by themselves.
"""

from __future__ import annotations

from typing import Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.ids import NodeId
from dios.wire.gossip import MemberRow

_HASH_BYTES: Final = 8
_encode: Final = msgspec.msgpack.Encoder().encode


def _hash_of(row: MemberRow) -> int:
    covered = (
        row.node,
        row.name,
        row.rack,
        row.address,
        row.epoch,
        row.incarnation,
        row.status,
        row.draining,
        row.coordinated,
    )
    return int.from_bytes(blake3(_encode(covered)).digest(_HASH_BYTES), "big") >> 1


def part_of(node: NodeId) -> int:
    """Return the part of the table that has this node's row."""
    return node % limits.GOSSIP_DIGESTS


class TableDigest:
    """The digests of all parts, kept up to date row by row."""

    __slots__ = ("_hashes", "_nodes", "_parts")

    def __init__(self) -> None:
        self._parts: Final = [0] * limits.GOSSIP_DIGESTS
        self._hashes: Final[dict[NodeId, int]] = {}
        self._nodes: Final[list[dict[NodeId, None]]] = [{} for _ in self._parts]

    def put(self, row: MemberRow) -> None:
        """Cover this row in place of an earlier one of its node."""
        self.drop(row.node)
        part, digest = part_of(row.node), _hash_of(row)
        self._hashes[row.node] = digest
        self._nodes[part][row.node] = None
        self._parts[part] ^= digest

    def drop(self, node: NodeId) -> None:
        """Cover no row of this node any more."""
        former = self._hashes.pop(node, None)
        if former is not None:
            part = part_of(node)
            self._parts[part] ^= former
            del self._nodes[part][node]

    @property
    def parts(self) -> tuple[int, ...]:
        """The digest of each part."""
        return tuple(self._parts)

    def differing(self, others: tuple[int, ...]) -> list[int]:
        """Return the parts in which another table differs."""
        return [place for place, digest in enumerate(others) if digest != self._parts[place]]

    def nodes(self, part: int) -> list[NodeId]:
        """Return the nodes of one part."""
        return list(self._nodes[part])
