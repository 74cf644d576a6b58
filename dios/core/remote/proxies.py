"""Stand-ins: what stands here for objects of other nodes that tasks of this one refer to (§4.5, §4.8).

Not for: calls on them (``dios.core.remote.forwarding``). A stand-in has no bytes and no name, and its
counters are
what the object's node told last. A reference to it has the id that its deputy's has over there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from dios.core import effects
from dios.core.model.objects import PhysicalObject
from dios.core.model.references import Provenance, Reference
from dios.core.remote import requests
from dios.errors import ProtocolError
from dios.ids import NodeId, ObjectId, Principal, RefId
from dios.wire import dcp, messages
from dios.wire.types import Mode, Permission, Persistence

if TYPE_CHECKING:
    from dios.core.model.tasks import Task
    from dios.core.remote.peers import Cluster, Peer
    from dios.core.step import Step


class Proxy(PhysicalObject):
    """What is known of an object of another node. ``order`` is of the newest message about it."""

    __slots__ = ("ends", "lost", "order", "stored")

    def __init__(self, peer: Peer, told: messages.Reference, near: Cluster) -> None:
        super().__init__(
            ObjectId(told.object),
            told.type,
            None,
            (),
            Principal(""),
            deletion=told.deletion,
            buffering=told.buffering,
            proximity=near.proximity_of(peer.node),
            shown=told.fingerprint,
        )
        self.home = peer.node
        self.place = (peer.name, peer.rack)
        self.order = 0
        self.ends: dict[RefId, Mode] = {}  # of a stream: those taken by references of here
        self.stored = told.persistence
        self.lost = False  # a task that was taken for lost: it is, whatever its node says later
        self.learn(told)

    @property
    def persistence(self) -> Persistence:
        """As its node says."""
        return self.stored

    @property
    def gone(self) -> bool:
        """A lost task's end can be read."""
        return self.zombie or self.lost

    def learn(self, told: messages.Reference) -> None:
        """Take over the counters that an answer told."""
        self.size, self.v_r, self.v_w = told.size, told.v_r, told.v_w
        self.a_r, self.a_w = told.a_r, told.a_w
        self.stored = told.persistence
        self.address = told.address


def known(step: Step, peer: Peer, told: messages.Reference) -> Proxy:
    """The stand-in for an object that another node told of; made when it is the first time."""
    if told.object in step.state.objects:
        raise ProtocolError("an object of another node has the id of one that is here")
    target = peer.stand_ins.get(ObjectId(told.object))
    if target is None:
        cluster = requests.cluster_of(step)
        target = peer.stand_ins[ObjectId(told.object)] = Proxy(peer, told, cluster)
        peer.claim_epoch = peer.claim_epoch or peer.epoch
    return target


def require_unknown(step: Step, peer: Peer, told: messages.Reference) -> None:
    """It can be entered into a table: neither reference nor object have the id of another one."""
    held = peer.stand_ins.get(ObjectId(told.object))
    if not told.ref or (held is not None and told.ref in held.references):
        raise ProtocolError("a reference to another node's object has the id of one that is here, or none")
    if told.object in step.state.objects:
        raise ProtocolError("an object of another node has the id of one that is here")


def adopt(
    step: Step,
    task: Task,
    node: NodeId,
    told: messages.Reference,
    provenance: Provenance,
    label: str | None = None,
) -> Reference:
    """Enter a reference to an object of another node into a task's table; there is room."""
    cluster = requests.cluster_of(step)
    peer = cluster.peer(node)
    if told.ref in task.table:
        raise ProtocolError("a reference to another node's object has the id of one that is here")
    require_unknown(step, peer, told)
    target = known(step, peer, told)
    if target.references:
        target.learn(told)
        step.changed(target)
    # Its clock may be another: what travels is how much time is left.
    expires_ns = step.now + told.expires_ns if told.expires_ns else 0
    reference = step.state.add_reference(
        task,
        target,
        Permission(told.permissions) & Permission.ALL,
        provenance,
        told.label if label is None else label,
        expires_ns=expires_ns,
        ref_id=told.ref,
        now=step.now,
    )
    task.abroad.add(node)
    step.emit(effects.BindSlot(task.id, reference.public()))
    return reference


def abroad(step: Step, reference: Reference) -> messages.Reference:
    """The public part of a deputy's reference as it travels: with the time it has left."""
    told = reference.public()
    return replace(told, expires_ns=max(1, told.expires_ns - step.now)) if told.expires_ns else told


def forget(step: Step, target: PhysicalObject) -> None:
    """Nobody here refers to the object any more."""
    cluster = requests.cluster_of(step)
    known_there = cluster.peer(target.home).stand_ins
    if known_there.get(target.id) is target:  # another may stand for the object by now
        del known_there[target.id]


def release(step: Step, cluster: Cluster) -> None:
    """Tell the nodes that have the objects which references were dropped."""
    dropped, cluster.to_release = cluster.to_release, {}
    for (node, task), refs in dropped.items():
        requests.tell(step, node, dcp.Release(task, tuple(refs)))


def lose(step: Step, reference: Reference) -> None:
    """The reference is gone over there already: drop it without a word."""
    cluster = requests.cluster_of(step)
    target, task = reference.object, reference.task
    step.drop_reference(reference)
    refs = cluster.to_release.get((target.home, task.id))
    if refs and refs[-1] == reference.id:
        refs.pop()
        if not refs:
            del cluster.to_release[target.home, task.id]


def taken_back(step: Step, task: Task, ref: RefId) -> None:
    """The node that has the object took a reference back."""
    if ref in task.table:
        lose(step, task.table.get(ref))


def end_of(reference: Reference) -> Mode | None:
    """Which end of a stream the reference was, if it was one."""
    target = reference.object
    return target.ends.pop(reference.id, None) if isinstance(target, Proxy) else None
