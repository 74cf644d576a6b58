"""Proxies: the records of objects of other nodes that tasks of this node refer to (§4.5, §4.8).

A proxy has no bytes and no name, and its counters are those that the object's node sent last. A reference to
it has the same id as the reference of the remote task on that node.
"""

from __future__ import annotations

from msgspec.structs import replace

from dios.core import effects, lifetimes
from dios.core.model.records import Holder, Provenance, Reference
from dios.core.remote import requests
from dios.core.remote.peers import Cluster, Peer, Proxy
from dios.core.step import Step
from dios.errors import ProtocolError
from dios.ids import NodeId, ObjectId
from dios.wire import dcp, messages
from dios.wire.types import Permission


def proxy_for(step: Step, peer: Peer, told: messages.Reference) -> Proxy:
    """The proxy for an object that another node told of; made when it is the first time."""
    if told.object in step.state.objects:
        raise ProtocolError("an object of another node has the id of one that is here")
    target = peer.proxies.get(ObjectId(told.object))
    if target is None:
        cluster = step.require_cluster()
        target = peer.proxies[ObjectId(told.object)] = Proxy(peer, told, cluster.proximity_of(peer.node))
        peer.reconciled_epoch = peer.reconciled_epoch or peer.epoch
    return target


def require_unknown(step: Step, peer: Peer, told: messages.Reference) -> None:
    """It can be entered into a table: neither reference nor object have the id of another one."""
    held = peer.proxies.get(ObjectId(told.object))
    if not told.ref or (held is not None and told.ref in held.references):
        raise ProtocolError("a reference to another node's object has the id of one that is here, or none")
    if told.object in step.state.objects:
        raise ProtocolError("an object of another node has the id of one that is here")


def adopt(
    step: Step,
    task: Holder,
    node: NodeId,
    told: messages.Reference,
    provenance: Provenance,
    label: str | None = None,
) -> Reference:
    """Enter a reference to an object of another node into a task's table; there is room."""
    cluster = step.require_cluster()
    peer = cluster.peer(node)
    if told.ref in task.table:
        raise ProtocolError("a reference to another node's object has the id of one that is here")
    require_unknown(step, peer, told)
    target = proxy_for(step, peer, told)
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
    task.remote_nodes.add(node)
    step.emit(effects.BindSlot(task.id, reference.public()))
    return reference


def public_part(step: Step, reference: Reference) -> messages.Reference:
    """The public part of a remote task's reference as it travels: with the time it has left."""
    told = reference.public()
    return replace(told, expires_ns=max(1, told.expires_ns - step.now)) if told.expires_ns else told


def published(step: Step, peer: Peer, told: dcp.Published) -> None:
    """Bring a proxy's counters up to date."""
    target = peer.proxies.get(told.object)
    if target is None or target.zombie or told.order <= target.order:
        return
    target.order = told.order
    target.size, target.v_r, target.v_w = told.size, told.v_r, told.v_w
    target.a_r, target.a_w, target.dirty = told.a_r, told.a_w, told.dirty
    target.zombie = told.zombie
    step.changed(target)


def release(step: Step, cluster: Cluster) -> None:
    """Tell the nodes that have the objects which references were dropped."""
    dropped, cluster.to_release = cluster.to_release, {}
    for (node, task), refs in dropped.items():
        requests.notify_node(step, node, dcp.Release(task, tuple(refs)))


def drop_lost(step: Step, reference: Reference) -> None:
    """The reference is gone over there already: drop it without a word."""
    cluster = step.require_cluster()
    target, task = reference.object, reference.task
    lifetimes.drop_reference(step, reference)
    refs = cluster.to_release.get((target.home, task.id))
    if refs and refs[-1] == reference.id:
        refs.pop()
        if not refs:
            del cluster.to_release[target.home, task.id]
