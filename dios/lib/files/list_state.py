"""The state of a group's list of files: the nodes with a replica of it, and if these are equal."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from dios.errors import DamagedError
from dios.lib.files.catalogue_record import CatalogueRecord


class ReplicaHealth(StrEnum):
    """The state of one replica of a list."""

    CURRENT = "current"
    EARLIER = "earlier"
    """It was read, and has an earlier version."""
    DAMAGED = "damaged"
    MISSING = "missing"
    """Its node does not answer, or has lost it."""


class ListState(NamedTuple):
    """The replicas of a list, by the names of their nodes; ``divided`` ones differ and have no history."""

    replicas: dict[str, ReplicaHealth]
    divided: bool

    @property
    def nodes(self) -> list[str]:
        """The nodes that have the latest version."""
        return [node for node, health in self.replicas.items() if health is ReplicaHealth.CURRENT]


def list_state(record: CatalogueRecord) -> ListState:
    """Read all replicas of a list. Raises as ``CatalogueRecord.read``."""
    reading = record.read_record()
    holders = {member.node for member in reading.holders}
    sound = {member.node for member in reading.sound}

    def health(node: str) -> ReplicaHealth:
        if node in holders:
            return ReplicaHealth.CURRENT
        if node in sound:
            return ReplicaHealth.EARLIER
        damaged = isinstance(reading.unread.get(node), DamagedError)
        return ReplicaHealth.DAMAGED if damaged else ReplicaHealth.MISSING

    nodes = sorted({member.node for member in reading.value.members})
    return ListState({node: health(node) for node in nodes}, bool(reading.divided))
