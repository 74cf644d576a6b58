"""The leases of other nodes on this node's objects, and those that this node holds on objects of others.

This is data and its bookkeeping. ``dios.core.remote.granted_leases`` and ``dios.core.remote.held_leases``
use it.
"""

from __future__ import annotations

import heapq
from typing import Final

from dios import limits
from dios.core.model.records import Pending
from dios.ids import NodeId, ObjectId, RefId

HERE: Final = NodeId(0)
"""The holder of the leases that an earlier start of this node may have granted."""

_MS: Final = 1_000_000


class LeasedObject:
    """An object of this node on which other nodes have leases, or had some lately.

    ``nodes`` has the end of each node's leases. ``waiting`` are the calls that wait for all of them to end.
    ``round`` is the number of the call-back that is under way, or 0; the last one began at ``called_back``.
    The object is looked at again at ``due_at``.
    """

    __slots__ = ("called_back", "due_at", "nodes", "round", "waiting")

    def __init__(self) -> None:
        self.nodes: dict[NodeId, int] = {}
        self.waiting: dict[tuple[int, int], Pending] = {}
        self.round = 0
        self.called_back = -limits.LEASE_PAUSE_MS * _MS
        self.due_at: int | None = None

    @property
    def pause_ends(self) -> int:
        """The time before which no lease is granted, because of the last call-back."""
        return self.called_back + limits.LEASE_PAUSE_MS * _MS


class HeldLease:
    """A lease of a task of this node: reads through one reference return version ``v_w`` until ``ends``.

    ``reads`` are those that the object's node has not counted yet. They are kept after the lease is over.
    """

    __slots__ = ("ends", "epoch", "object", "reads", "v_w")

    def __init__(self, target: ObjectId, epoch: int, v_w: int, ends: int) -> None:
        self.object: Final = target
        self.epoch = epoch
        self.v_w = v_w
        self.ends = ends
        self.reads = 0


class LeaseTable:
    """All leases that this node has granted, and all that it holds.

    ``restart_ends`` is the time until which leases of an earlier start of this node may be in use. A node
    in ``distrusted`` gets no lease before the time there. ``taken`` is the number of leases that this node
    got, and ``served`` the number of reads that it answered under one.
    """

    __slots__ = (
        "_moments",
        "_of_objects",
        "distrusted",
        "enabled",
        "granted",
        "held",
        "next_round",
        "of_nodes",
        "restart_ends",
        "served",
        "taken",
    )

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.granted: dict[ObjectId, LeasedObject] = {}
        self.of_nodes: dict[NodeId, int] = {}
        self.distrusted: dict[NodeId, int] = {}
        self.restart_ends = 0
        self.next_round = 1
        self.held: dict[tuple[NodeId, RefId], HeldLease] = {}
        self.taken = 0
        self.served = 0
        self._of_objects: dict[tuple[NodeId, ObjectId], dict[RefId, None]] = {}
        self._moments: list[tuple[int, ObjectId]] = []

    # -- granted leases -----------------------------------------------------------------------------
    def has_room(self, target: ObjectId, node: NodeId) -> bool:
        """Return True if a node may have a lease on an object, as far as the bounds are concerned."""
        record = self.granted.get(target)
        if record is None:
            if len(self.granted) >= limits.LEASE_OBJECTS_MAX:
                return False
        elif node in record.nodes:
            return True
        elif len(record.nodes) >= limits.LEASE_NODES_MAX:
            return False
        return self.of_nodes.get(node, 0) < limits.LEASES_PER_NODE_MAX

    def add(self, target: ObjectId, node: NodeId, ends: int) -> LeasedObject:
        """Note a lease of a node. A lease that it has already lasts until the new end."""
        record = self.granted.get(target)
        if record is None:
            record = self.granted[target] = LeasedObject()
        if node not in record.nodes and node != HERE:
            self.of_nodes[node] = self.of_nodes.get(node, 0) + 1
        record.nodes[node] = ends
        self.look_at(target, record)
        return record

    def remove(self, record: LeasedObject, node: NodeId) -> None:
        """Note that a node has no lease on an object any more."""
        if record.nodes.pop(node, None) is None or node == HERE:
            return
        self.of_nodes[node] -= 1
        if not self.of_nodes[node]:
            del self.of_nodes[node]

    def forget_waiting(self, row: Pending) -> None:
        """Forget a call that waits no more, because it is over."""
        for target in row.closes:
            record = self.granted.get(target.id)
            if record is not None and record.waiting.get(row.key) is row:
                del record.waiting[row.key]

    def look_at(self, target: ObjectId, record: LeasedObject) -> None:
        """Schedule the next look at an object: when its leases end, or when it can be forgotten."""
        due_at = max(record.nodes.values()) if record.nodes else record.pause_ends
        if record.due_at is None or due_at < record.due_at:
            record.due_at = due_at
            heapq.heappush(self._moments, (due_at, target))

    def due(self, now: int) -> ObjectId | None:
        """Return an object whose time has come, or None. It must be scheduled again if it stays."""
        moment = self.next_moment()
        if moment is None or moment > now:
            return None
        target = heapq.heappop(self._moments)[1]
        self.granted[target].due_at = None
        return target

    def next_moment(self) -> int | None:
        """Return the time of the next look at an object, or None."""
        while self._moments and not self._is_current(self._moments[0]):
            heapq.heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def _is_current(self, entry: tuple[int, ObjectId]) -> bool:
        record = self.granted.get(entry[1])
        return record is not None and record.due_at == entry[0]

    def is_distrusted(self, node: NodeId, now: int) -> bool:
        """Return True if a node has failed to return a lease lately."""
        until = self.distrusted.get(node)
        if until is not None and until <= now:
            del self.distrusted[node]
            return False
        return until is not None

    def distrust(self, node: NodeId, now: int) -> None:
        """Grant no lease to a node for some time."""
        if node != HERE:
            self.distrusted[node] = now + limits.LEASE_UNRETURNED_MS * _MS

    # -- held leases --------------------------------------------------------------------------------
    def hold(self, node: NodeId, ref: RefId, lease: HeldLease) -> None:
        """Note a lease on an object of another node. The oldest lease is dropped when there are too many."""
        former = self.held.get((node, ref))
        if former is not None:
            lease.reads = former.reads
        elif len(self.held) >= limits.LEASES_HELD_MAX:
            self.drop(*next(iter(self.held)))
        self.held[node, ref] = lease
        self._of_objects.setdefault((node, lease.object), {})[ref] = None
        self.taken += 1

    def drop(self, node: NodeId, ref: RefId) -> None:
        """Forget the lease of a reference, if it has one."""
        lease = self.held.pop((node, ref), None)
        if lease is None:
            return
        refs = self._of_objects[node, lease.object]
        del refs[ref]
        if not refs:
            del self._of_objects[node, lease.object]

    def end(self, node: NodeId, target: ObjectId) -> None:
        """End every lease on an object."""
        for ref in self._of_objects.get((node, target), ()):
            self.held[node, ref].ends = 0

    def forget_node(self, node: NodeId) -> None:
        """Forget the leases on objects of a node that has restarted or was removed."""
        for held in [held for held in self.held if held[0] == node]:
            self.drop(*held)
