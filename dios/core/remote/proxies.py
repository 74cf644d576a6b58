"""Maintain proxies: the records of other nodes' objects that tasks of this node refer to (§4.5, §4.8).

A proxy has no bytes and no name. Its counters are those that the object's node sent last. A reference to a
proxy has the same id as the remote task's reference on the object's node.
"""

from __future__ import annotations

from msgspec.structs import replace

from dios import limits
from dios.core import effects, lifetimes
from dios.core.model.records import Holder, Provenance, Reference
from dios.core.remote import requests
from dios.core.remote.peers import Cluster, Peer, Proxy
from dios.core.step import Step
from dios.errors import ProtocolError
from dios.ids import NodeId, ObjectId
from dios.wire import dcp, messages
from dios.wire.types import Permission


def proxy_for(step: Step, peer: Peer, public: messages.Reference) -> Proxy:
    """Return the proxy for an object of another node. Create it on first use."""
    if step.state.chose_id(public.object):
        raise ProtocolError("cannot accept the reference: its object's id belongs to an object of this node")
    target = peer.proxies.get(ObjectId(public.object))
    if target is None:
        cluster = step.require_cluster()
        target = peer.proxies[ObjectId(public.object)] = Proxy(peer, public, cluster.proximity_of(peer.node))
        peer.reconciled_epoch = peer.reconciled_epoch or peer.epoch
        if target.secrecy:
            step.state.labelled = True
    return target


def require_unknown(step: Step, peer: Peer, public: messages.Reference) -> None:
    """Raise ProtocolError unless the ids of the reference and its object are free on this node."""
    held = peer.proxies.get(ObjectId(public.object))
    if not public.ref or (held is not None and public.ref in held.references):
        raise ProtocolError("cannot accept the reference: its id is 0 or already in use on this node")
    if step.state.chose_id(public.object):
        raise ProtocolError("cannot accept the reference: its object's id belongs to an object of this node")


def adopt(
    step: Step,
    task: Holder,
    node: NodeId,
    public: messages.Reference,
    provenance: Provenance,
    label: str | None = None,
    *,
    hearsay: bool = False,
    origin: Reference | None = None,
) -> Reference:
    """Add a reference to an object of another node to a task's table. The caller has checked for room.

    ``origin`` is the reference to the record of the share by which the object was found. With ``hearsay``, a
    third node described the object: that changes nothing for tasks that refer to it already, and is replaced
    by what the object's node says.
    """
    cluster = step.require_cluster()
    peer = cluster.peer(node)
    if public.ref in task.table:
        raise ProtocolError("cannot accept the reference: its id is already in use in the task's table")
    require_unknown(step, peer, public)
    if not hearsay:
        _drop_misdescribed(step, peer, public)
    target = proxy_for(step, peer, public)
    if target.references and not hearsay:
        target.learn(public)
        step.changed(target)
    # Clocks differ between nodes, so the message has the remaining time.
    remaining_ns = min(public.expires_ns, limits.LIFETIME_NS_MAX)
    expires_ns = step.now + remaining_ns if remaining_ns else 0
    reference = step.state.add_reference(
        task,
        target,
        Permission(public.permissions) & Permission.EVERY,
        provenance,
        public.label if label is None else label,
        origin,
        expires_ns,
        ref_id=public.ref,
        now=step.now,
    )
    task.remote_nodes.add(node)
    step.emit(effects.BindSlot(task.id, reference.public(), reference.shows_counters))
    return reference


def _drop_misdescribed(step: Step, peer: Peer, public: messages.Reference) -> None:
    """Drop the references to an object that a third node described as an object of another kind."""
    held = peer.proxies.get(ObjectId(public.object))
    described = (public.type, public.deletion, public.buffering, public.secrecy)
    if held is not None and (held.type, held.deletion, held.buffering, held.secrecy) != described:
        for reference in list(held.references.values()):
            drop_lost(step, reference)
        peer.proxies.pop(ObjectId(public.object), None)


def public_part(step: Step, reference: Reference) -> messages.Reference:
    """Return the public part of a remote task's reference with the remaining time instead of its end."""
    public = reference.public()
    return replace(public, expires_ns=max(1, public.expires_ns - step.now)) if public.expires_ns else public


def published(step: Step, peer: Peer, message: dcp.Published) -> None:
    """Update the counters of a proxy."""
    target = peer.proxies.get(message.object)
    if target is None or target.zombie or (peer.epoch, message.order) <= (target.epoch, target.order):
        return
    target.epoch, target.order = peer.epoch, message.order
    target.size, target.v_r, target.v_w = message.size, message.v_r, message.v_w
    target.a_r, target.a_w, target.dirty = message.a_r, message.a_w, message.dirty
    target.zombie = message.zombie
    if target.zombie:
        lifetimes.end_shares(step, target)
    step.changed(target)
    cluster = step.require_cluster()
    for versions in (cluster.versions, cluster.small_versions):
        for payload in versions.note_version(peer.node, message.object, message.v_w, zombie=message.zombie):
            step.emit(effects.DropPayload(payload))


def release(step: Step, cluster: Cluster) -> None:
    """Send the collected Release messages to the nodes of the objects."""
    dropped, cluster.to_release = cluster.to_release, {}
    for (node, task), refs in dropped.items():
        try:
            requests.notify_node(step, node, dcp.Release(task, tuple(refs)))
        except Exception as error:  # noqa: BLE001 - it is reported, and a reconciliation releases them
            step.note_defect(step.state.tasks.get(task), error)


def drop_lost(step: Step, reference: Reference) -> None:
    """Drop a reference that its object's node no longer has, without a Release message."""
    cluster = step.require_cluster()
    target, task = reference.object, reference.task
    lifetimes.drop_reference(step, reference)
    refs = cluster.to_release.get((target.home, task.id))
    if refs and refs[-1] == reference.id:
        refs.pop()
        if not refs:
            del cluster.to_release[target.home, task.id]
