"""A model of the nodes of a cluster: their durable objects, the cuts between them, their views of each other.

The core, the store and the membership have simulators of their own; here they are as simple as the layer
above them sees them. An object has the counters and the rules of I/O requests of the real core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final, Protocol

import trio

from dios.ids import Name
from dios.wire.messages import NodeRow
from dios.wire.types import Mode, NodeStatus, ObjectType, Semantics
from labs.sim.event_queue import S
from labs.sim.kept.history import History

SUSPECT_S: Final = 1.0
DEAD_S: Final = 3.0
"""A node that was silent for this long is suspected, and taken for dead."""
_SYNC_S: Final = 0.01
_REPAIR_S: Final = 10.0


@dataclass(slots=True, eq=False)
class StoredReplica:
    """A physical object on a node; ``write`` is the write whose bytes it has.

    The counters and ``buffers`` are those of ``dios.core.model.io_requests``. The bytes of a ``damaged``
    replica cannot be read. ``harmed_at`` is when a fault took its bytes away last.
    """

    object_id: int
    name: bytes
    node: int
    type: ObjectType
    data: bytes
    write: int
    v_w: int = 0
    v_r: int = 0
    a_r: int = 0
    a_w: int = 0
    admissions: int = 0
    dirty: int = 0
    damaged: bool = False
    harmed_at: float = float("-inf")
    buffers: dict[tuple[int, int], ModelBuffer] = field(default_factory=dict)


class BufferOwner(Protocol):
    """The session of a request, as the node of the object sees it."""

    closed: bool
    killed: bool
    in_doubt: bool

    def close(self) -> None:
        """Close the session, and release its requests."""

    @property
    def keeps(self) -> bool:
        """True if it is that of a keeper."""

    @property
    def number(self) -> int:
        """The number of its node."""

    @property
    def serial(self) -> int:
        """Its own number."""

    def forget(self, buffer: ModelBuffer) -> None:
        """Forget a request that has ended."""


@dataclass(slots=True, eq=False)
class ModelBuffer:
    """The buffer of an I/O request, with the attributes on which the core decides."""

    id: int
    object: StoredReplica
    session: BufferOwner
    mode: Mode
    semantics: Semantics
    offset: int
    size: int
    ref: int = 0
    is_dropped: bool = False
    """True if its reference was closed."""
    opened: bool = False
    committed: bool = False
    raw: bool = False
    seen_v_r: int = 0
    seen_v_w: int = 0
    seen_admissions: int = 0
    seen_dirty: int = 0

    @property
    def active(self) -> bool:
        """Return True while the request is not committed and not released."""
        return self.opened

    def exclude_readers(self, *, sole: bool) -> None:
        """Do nothing: every read is a call here."""


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A change that waits for the disk; a node that ends may have made it durable or not."""

    effect: Callable[[], None]
    is_over: bool = False


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
    stalled_until: float = 0.0
    epoch: int = 1
    replicas: dict[int, StoredReplica] = field(default_factory=dict)
    pending: list[PendingWrite] = field(default_factory=list)
    sessions: dict[BufferOwner, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the node."""
        return f"n{self.number}"

    def named(self, name: bytes) -> list[StoredReplica]:
        """Return the physical objects of a name."""
        return [replica for replica in self.replicas.values() if replica.name == name]


class ModelCluster:
    """The nodes, and who reaches whom. ``nursery`` runs what goes on when its caller has ended.

    ``delay_s`` is the time of a message at most, and ``long_delays`` the part of them that take seconds.
    """

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
        self.delay_s = random.choice((0.005, 0.02, 0.1))
        self.long_delays = random.choice((0.0, 0.0, 0.003))
        self.stored: Callable[[StoredReplica], None] = lambda _: None
        """Called after a write."""
        self.destroyed: Callable[[StoredReplica, str], None] = lambda _one, _by: None
        """Called after a durable object was destroyed."""
        self.creators: Final[dict[bytes, BufferOwner]] = {}
        """The session that has created an object, by its name."""
        self._clock: Final = trio.lowlevel.current_clock()
        self.serials: Final = count(1)
        """The numbers of sessions."""
        self._ids: Final = count(1)
        self._side: list[int] = [0] * nodes
        self._heard: Final[dict[tuple[int, int], float]] = {}

    def now(self) -> float:
        """Return the present time, on every thread."""
        return self._clock.current_time()

    # -- who reaches whom ---------------------------------------------------------------------------
    def reach(self, first: int, other: int) -> bool:
        """Return True if messages of two nodes arrive."""
        both = self.nodes[first].is_up and self.nodes[other].is_up
        return both and (first == other or self._side[first] == self._side[other])

    def cut(self, sides: list[int]) -> None:
        """Divide the nodes into sides that do not reach each other."""
        self.note_silence()
        self._side = sides
        self.note_silence()

    def note_silence(self) -> None:
        """Note since when nodes do not hear each other; to be called around each change."""
        now = trio.current_time()
        for node in self.nodes:
            for other in self.nodes:
                key = node.number, other.number
                if self.reach(*key):
                    self._heard.pop(key, None)
                else:
                    self._heard.setdefault(key, now)

    def status(self, observer: int, other: int) -> NodeStatus:
        """Return the state of another node as a node knows it."""
        since = self._heard.get((observer, other))
        silent = 0.0 if since is None else trio.current_time() - since
        if silent < SUSPECT_S:
            return NodeStatus.ALIVE
        return NodeStatus.SUSPECT if silent < DEAD_S else NodeStatus.DEAD

    def members(self, observer: int) -> Iterator[NodeRow]:
        """Yield the list of nodes as a node knows it, itself first."""
        for node in sorted(self.nodes, key=lambda node: (node.number != observer, node.name)):
            if not node.forgotten:
                yield NodeRow(
                    node.number + 1,
                    node.name,
                    node.rack,
                    "",
                    self.status(observer, node.number),
                    node.draining,
                    node.epoch,
                    0,
                    0,
                    1,
                    S,
                    node.number == observer,
                )

    def by_name(self, name: str) -> ModelNode | None:
        """Return the node of a name, or None if it was removed from the cluster."""
        return next((node for node in self.nodes if node.name == name and not node.forgotten), None)

    # -- disks --------------------------------------------------------------------------------------
    def store(
        self, name: bytes, node: int, data: bytes, write: int, *, v_w: int = 0, volatile: bool = False
    ) -> StoredReplica:
        """Make a physical object on a node."""
        replica = self.new_replica(name, node, data, write, v_w=v_w, volatile=volatile)
        self.nodes[node].replicas[replica.object_id] = replica
        return replica

    def new_replica(
        self, name: bytes, node: int, data: bytes, write: int, *, v_w: int = 0, volatile: bool = False
    ) -> StoredReplica:
        """Return a physical object that is not on its node yet."""
        kind = ObjectType.SHMEM_BLOB if volatile else ObjectType.DURABLE_BLOB
        return StoredReplica(next(self._ids), name, node, kind, data, write, v_w)

    async def commit(self, node: ModelNode, effect: Callable[[], None]) -> bool:
        """Make a change durable; return False if the node ended first, and nobody knows the outcome."""
        pending = PendingWrite(effect)
        node.pending.append(pending)
        await trio.sleep(self.random.uniform(0, _SYNC_S))
        await self.wait_disk(node)
        if pending.is_over:
            return False
        node.pending.remove(pending)
        effect()
        return True

    async def wait_disk(self, node: ModelNode) -> None:
        """Wait while the disk of a node is stalled."""
        while (left := node.stalled_until - trio.current_time()) > 0:  # noqa: ASYNC110 - a model has no events
            await trio.sleep(left)

    def named(self, name: bytes) -> list[StoredReplica]:
        """Return the durable replicas on all disks, also on lost ones."""
        return [
            replica
            for node in self.nodes
            for replica in node.replicas.values()
            if replica.name == name and replica.type is ObjectType.DURABLE_BLOB
        ]

    def living(self, name: bytes) -> list[StoredReplica]:
        """Return the durable replicas on disks that are not lost, also those of nodes that are down."""
        return [replica for replica in self.named(name) if not self.nodes[replica.node].lost]

    def crash(self, node: ModelNode, *, for_ever: bool) -> None:
        """End a node; its disk stays, or is lost with it."""
        self.note_silence()
        node.is_up = False
        node.lost = for_ever
        keeps = self.random.random() < 0.5  # the page cache
        for pending in node.pending:
            pending.is_over = True
            if keeps and self.random.random() < 0.8:
                pending.effect()
            else:
                keeps = False
        node.pending.clear()
        for session in list(node.sessions):
            session.killed = not session.keeps and self.random.random() < 0.5
            session.close()
        for replica in list(node.replicas.values()):
            replica.a_r = replica.a_w = 0
            for buffer in replica.buffers.values():
                buffer.opened = False
            replica.buffers.clear()
            if for_ever and replica.harmed_at < 0:
                replica.harmed_at = self.now()
            if replica.type is not ObjectType.DURABLE_BLOB:
                del node.replicas[replica.object_id]
        self.note_silence()
        if for_ever:
            for name in sorted(self.history.acknowledged):
                self.history.forget_lost(
                    name, [survivor.write for survivor in self.living(name) if not survivor.damaged]
                )

    def start(self, node: ModelNode) -> None:
        """Start a node again."""
        self.note_silence()
        node.is_up = True
        node.epoch += 1
        node.stalled_until = 0.0
        self.note_silence()

    def swap_disks(self, node: ModelNode, other: ModelNode) -> None:
        """Exchange the disks of the machines of two nodes that are down.

        The identity of a node is on its disk. So the nodes are on each other's machines then.
        """
        node.rack, other.rack = other.rack, node.rack
        node.clock_s, other.clock_s = other.clock_s, node.clock_s

    def damage(self, replica: StoredReplica) -> None:
        """Damage the bytes of a replica, which its node repairs from a sound one when it reaches one."""
        replica.damaged, replica.harmed_at = True, self.now()
        self.nursery.start_soon(self._repair, replica)

    async def _repair(self, replica: StoredReplica) -> None:
        while replica.damaged:
            await trio.sleep(self.random.uniform(1, _REPAIR_S))
            for other in self.living(replica.name):
                if not other.damaged and other.data == replica.data and self.reach(replica.node, other.node):
                    replica.damaged = False


def object_name(label: str) -> Name:
    """Return a name of 32 bytes for an object of the model."""
    return Name(label.encode().ljust(32, b"."))
