"""A model of the nodes of a cluster: their durable objects, the cuts between them, their views of each other.

The core, the store and the membership have simulators of their own; here they are as simple as the keeper
sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import trio

from dios.client.ops.cluster import Member
from dios.ids import Name
from dios.sim.event_queue import S
from dios.sim.kept.history import History
from dios.wire.types import NodeStatus, ObjectType

SUSPECT_S: Final = 1.0
DEAD_S: Final = 3.0
"""A node that was silent for this long is suspected, and taken for dead."""


@dataclass(slots=True, eq=False)
class StoredReplica:
    """A physical object on a node; ``write`` is the write whose bytes it has."""

    object_id: int
    name: bytes
    node: int
    type: ObjectType
    data: bytes
    write: int
    v_w: int = 0
    held_by: object = None
    """The request that excludes all others, or None."""


@dataclass(slots=True, eq=False)
class ModelNode:
    """A node. One that is ``lost`` never comes back; ``clock_s`` is the error of its clock of the day."""

    number: int
    rack: str
    clock_s: float
    is_up: bool = True
    lost: bool = False
    full: bool = False
    draining: bool = False
    forgotten: bool = False
    epoch: int = 1
    replicas: dict[int, StoredReplica] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the node."""
        return f"n{self.number}"


class ModelCluster:
    """The nodes, and who reaches whom. ``nursery`` runs the copies that are under way."""

    def __init__(
        self, random: Random, nodes: int, racks: int, history: History, nursery: trio.Nursery
    ) -> None:
        self.random: Final = random
        self.history: Final = history
        self.nursery: Final = nursery
        self.nodes: Final = [
            ModelNode(number, f"r{number % racks}" if racks else "", random.uniform(-86_400, 86_400))
            for number in range(nodes)
        ]
        self._ids: Final = count(1)
        self._side: list[int] = [0] * nodes
        self._heard: Final[dict[tuple[int, int], float]] = {}

    # -- who reaches whom ---------------------------------------------------------------------------
    def reach(self, one: int, other: int) -> bool:
        """Return True if messages of two nodes arrive."""
        both = self.nodes[one].is_up and self.nodes[other].is_up
        return both and (one == other or self._side[one] == self._side[other])

    def cut(self, sides: list[int]) -> None:
        """Divide the nodes into sides that do not reach each other."""
        self.note_silence()
        self._side = sides
        self.note_silence()

    def note_silence(self) -> None:
        """Note since when nodes do not hear each other; to be called around each change."""
        now = trio.current_time()
        for one in self.nodes:
            for other in self.nodes:
                key = one.number, other.number
                if self.reach(*key):
                    self._heard.pop(key, None)
                else:
                    self._heard.setdefault(key, now)

    def status(self, one: int, other: int) -> NodeStatus:
        """Return the state of another node as a node knows it."""
        since = self._heard.get((one, other))
        silent = 0.0 if since is None else trio.current_time() - since
        if silent < SUSPECT_S:
            return NodeStatus.ALIVE
        return NodeStatus.SUSPECT if silent < DEAD_S else NodeStatus.DEAD

    def members(self, one: int) -> list[Member]:
        """Return the list of nodes as a node knows it."""
        return [
            Member(
                node.number,
                node.name,
                node.rack,
                "",
                self.status(one, node.number),
                node.draining,
                node.epoch,
                0,
                0,
                1,
                S,
                here=node.number == one,
            )
            for node in self.nodes
            if not node.forgotten
        ]

    def by_name(self, name: str) -> ModelNode:
        """Return the node of a name."""
        return next(node for node in self.nodes if node.name == name)

    # -- replicas -----------------------------------------------------------------------------------
    def store(
        self, name: bytes, node: int, data: bytes, write: int, *, v_w: int = 0, volatile: bool = False
    ) -> StoredReplica:
        """Make a physical object on a node."""
        kind = ObjectType.SHMEM_BLOB if volatile else ObjectType.DURABLE_BLOB
        made = StoredReplica(next(self._ids), name, node, kind, data, write, v_w)
        self.nodes[node].replicas[made.object_id] = made
        return made

    def living(self, name: bytes) -> list[StoredReplica]:
        """Return the durable replicas on disks that are not lost, also those of nodes that are down."""
        return [
            one
            for node in self.nodes
            if not node.lost
            for one in node.replicas.values()
            if one.name == name and one.type is ObjectType.DURABLE_BLOB
        ]

    def crash(self, node: ModelNode, *, for_ever: bool) -> None:
        """End a node; its disk stays, or is lost with it."""
        self.note_silence()
        node.is_up = False
        node.lost = for_ever
        for one in list(node.replicas.values()):
            one.held_by = None
            if one.type is not ObjectType.DURABLE_BLOB:
                del node.replicas[one.object_id]
        self.note_silence()
        if for_ever:
            for name in sorted(self.history.acknowledged):
                self.history.forget_lost(name, [one.write for one in self.living(name)])

    def start(self, node: ModelNode) -> None:
        """Start a node again."""
        self.note_silence()
        node.is_up = True
        node.epoch += 1
        self.note_silence()


def object_name(label: str) -> Name:
    """Return a name of 32 bytes for an object of the model."""
    return Name(label.encode().ljust(32, b"."))
