"""Delegation: a new reference in another task's table, with at most the same rights (Table 4.3, B.1.3).

``dios.core.calls.retirement`` retires delegated references.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import rights
from dios.core.calls.handlers import handles
from dios.core.calls.io_steps import note_in_vector
from dios.core.effects import WriteSource
from dios.core.model.accounts import require_all, require_bytes
from dios.core.model.records import Holder, Pending, PhysicalObject, Provenance, Reference, narrowed
from dios.core.model.type_rules import RULES, is_blob
from dios.core.remote import notices, proxies, remote_calls, remote_tasks, replication, requests
from dios.core.remote.continuations import AnswerRequest, FitCopied, HandedOver
from dios.core.remote.peers import Cluster
from dios.core.step import Step
from dios.errors import (
    DiosError,
    InvalidError,
    NoSuchTaskError,
    NotPermittedError,
    ProtocolError,
    UnreachableError,
    WouldBlockError,
)
from dios.ids import NodeId, ObjectId
from dios.wire import dcp, messages
from dios.wire.types import (
    Buffering,
    Flag,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Resource,
)


@handles(messages.Copy)
def copy(step: Step, task: Holder, seq: int, call: messages.Copy) -> None:
    """dios_copy: delegate a reference, and copy the object's data if an attribute requires that."""
    rights.flags_of(call.flags, Flag.NONE)
    rights.delegable(task, call.ref)
    held = rights.typed(rights.held(task, call.task, Permission.WRITE), ObjectType.TASK)
    node = place_for_copy(step, held, call)
    if node or held.object.home:
        if step.parts is not None:
            raise InvalidError("a copy to another node cannot be part of a vector. Send it alone.")
        _copy_remote(step, task, seq, call)
        return
    receiver = rights.receiving(step.state, held)
    fresh = delegate(step, task, receiver, call)
    public = fresh.public()
    notices.notify(step, receiver, messages.Delegated(public, task.object.fingerprint))
    if receiver is task:
        step.answer(task, seq, messages.References((public,)))
    else:
        step.answer(task, seq, messages.Done(1))


def delegate(step: Step, task: Holder, receiver: Holder, call: messages.Copy) -> Reference:
    """Delegate a reference to a task of this node, or to the remote task record of another node's task."""
    reference = rights.delegable(task, call.ref)
    kind = _type_of_copy(reference.object, call)
    if kind is reference.object.type and reference.object.type is ObjectType.PRIVMEM_BLOB:
        _refuse_private(reference, receiver is task)
    expires_ns = end_of(step, call.lifetime_ns)
    target = reference.object
    copied = kind is not target.type or (
        call.buffering is not None and call.buffering is not target.buffering
    )
    require_room(receiver, target)
    if copied:
        _require_unwritten(step, target)
        _require_room_for_copy(task, target, kind)
        target = _duplicate(step, task, target, kind, call.buffering)
    step.depend_on(reference.object)
    fresh = lifetimes.grant(
        step,
        receiver,
        target,
        narrowed(reference.permissions, call.permissions),
        Provenance.DELEGATED,
        # A copy of the data is another object: retiring the delegated references does not affect it.
        origin=None if copied else reference,
        expires_ns=expires_ns,
    )
    step.audit(task, "delegate", "ok", target.fingerprint, f"to {receiver.object.fingerprint}")
    return fresh


# -- to other nodes ---------------------------------------------------------------------------------
def place_for_copy(step: Step, receiver: Reference, call: messages.Copy) -> NodeId:
    """Return the other node that gets a copy of the data; 0 for no copy, or for a copy on this node.

    Proximity is relative to the receiver's node (§4.5.1).
    """
    cluster = step.state.cluster
    if call.host:
        peer = remote_calls.peer_named(step, call.host)
        return NodeId(0) if peer is None else peer.node
    if call.proximity in {Proximity.RACK, Proximity.CLUSTER}:
        if cluster is None:
            raise UnreachableError("this node belongs to no cluster, so it knows no other node")
        for peer in cluster.living():
            if cluster.proximity_of(peer.node) is call.proximity:
                return peer.node
        raise UnreachableError(f"no living node has proximity {call.proximity} to this node")
    copies = call.proximity is not None or call.persistence is not None or call.buffering is not None
    return receiver.object.home if copies else NodeId(0)


def _copy_remote(step: Step, task: Holder, seq: int, call: messages.Copy) -> None:
    """Delegate an object of this node to a task of another node, or copy it to another node."""
    cluster = step.require_cluster()
    node, receiver = remote_calls.receiver_of(step, cluster, task, call.task)
    row = Pending(task, seq, call, {})
    step.wait(row)

    try:
        delegate_remote(step, task, call, node, receiver, FitCopied(row.id), asker=cluster.here.node)
    except DiosError:
        step.state.pending.remove(row)
        raise


def fit_copied(step: Step, row: Pending, then: FitCopied, answer: dcp.Answer) -> None:
    """Answer a copy call for an object of this node."""
    del then
    if isinstance(answer, dcp.ReplicaCreated):
        remote_calls.finish_copy(step, row.task, row.seq, answer)
    elif isinstance(answer, messages.Done | messages.Failure):
        step.answer(row.task, row.seq, answer)
    else:
        raise ProtocolError("the other node sent an unexpected answer to a copy")


HANDING_OVER_MAX: Final = 1_024
"""The references from one node's tasks that the nodes of their receivers have not confirmed."""


def delegate_remote(
    step: Step,
    giver: Holder,
    call: messages.Copy,
    node: NodeId,
    receiver: dcp.Caller,
    then: AnswerRequest | FitCopied,
    *,
    asker: NodeId,
) -> None:
    """Delegate an object of this node to a task of any node, or copy it to any node.

    ``giver`` is a task or a remote task. ``then`` continues with the answer. ``asker`` is the node that waits
    for the answer; it enters references for its own tasks itself.
    """
    cluster = step.require_cluster()
    place = NodeId(0)
    if call.host or call.proximity is not None or call.persistence is not None or call.buffering is not None:
        place = _node_for_copy(cluster, node, call)
    if place and place != cluster.here.node:
        if receiver.task != giver.home_id:
            raise InvalidError(
                "a copy on another node can only be made for the caller. Copy the object, then delegate it."
            )
        replication.create_replica(step, giver, call, place, then)
        return
    if node == cluster.here.node:
        taker = step.state.tasks.get(receiver.task)
        if taker is None or not taker.alive:
            raise NoSuchTaskError("the receiving task has ended")
        fresh = delegate(step, giver, taker, _without_place(call))
        notices.notify(step, taker, messages.Delegated(fresh.public(), giver.object.fingerprint))
        step.continue_with(then, messages.Done(1))
        return
    sender = cluster.peers.get(asker)
    if node != asker and sender is not None and sender.handing_over >= HANDING_OVER_MAX:
        raise WouldBlockError(
            f"{sender.handing_over} references from tasks of node {sender.name} wait until the nodes of "
            "their receivers confirm them. Try again later."
        )
    remote_task = remote_tasks.remote_task_named(
        step, remote_tasks.peer_named(cluster, node), receiver, asker=asker, giver=giver
    )
    fresh = delegate(step, giver, remote_task, _without_place(call))
    offered = proxies.public_part(step, fresh)
    if node == asker:
        step.continue_with(then, dcp.Offered((offered,)))
        return
    give = dcp.ReferenceGiven(
        receiver.task,
        giver.object.fingerprint,
        dcp.HeldReference(cluster.here.node, offered),
        giver.home_id,
        giver.home or cluster.here.node,
    )

    requests.ask(step, node, give, HandedOver(remote_task.id, fresh.id, then, asker))
    if sender is not None:
        sender.handing_over += 1


def handed_over(step: Step, then: HandedOver, answer: dcp.Answer) -> None:
    """Drop a reference that the receiver's node refused, and continue."""
    sender = step.require_cluster().peers.get(then.asker)
    if sender is not None:
        sender.handing_over -= 1
    remote_task = step.state.remote_tasks.get(then.task)
    if remote_task is not None and not isinstance(answer, messages.Done):
        reference = remote_task.table.find(then.ref)
        if reference is not None:
            lifetimes.drop_reference(step, reference)
    step.continue_with(then.then, answer)


def _node_for_copy(cluster: Cluster, node: NodeId, call: messages.Copy) -> NodeId:
    """Return the node for a copy of the data, given that a task of node ``node`` requests it."""
    if call.host:
        return remote_calls.member_named(cluster, call.host)
    if call.proximity in {None, Proximity.NODE, Proximity.PROCESS}:
        return node if call.proximity is not None else cluster.here.node
    racks = {member.node: member.rack for member in (cluster.membership.own, *cluster.membership.alive())}
    own = racks.get(node, "")
    for other, rack in racks.items():
        near = bool(own) and rack == own
        if other != node and near is (call.proximity is Proximity.RACK):
            return other
    raise UnreachableError(f"no living node has proximity {call.proximity} to the receiver's node")


def _without_place(call: messages.Copy) -> messages.Copy:
    return replace(call, host="", proximity=None) if call.host or call.proximity else call


def end_of(step: Step, lifetime_ns: int) -> int:
    """Return the time in nanoseconds at which a reference with this lifetime expires; 0 for never."""
    if lifetime_ns > limits.LIFETIME_NS_MAX:
        days = limits.LIFETIME_NS_MAX // (24 * 3600 * 1_000_000_000)
        raise InvalidError(f"a lifetime is at most {days} days; leave it out for a reference without an end")
    return step.now + lifetime_ns if lifetime_ns else 0


def require_room(receiver: Holder, target: PhysicalObject) -> None:
    """Require room for one more reference in the receiver's table and in all accounts that count it."""
    receiver.table.require_room()
    receiver.account.require(Resource.REFERENCES, 1)
    require_all(target.sharing, Resource.REFERENCES, 1)


def _require_unwritten(step: Step, origin: PhysicalObject) -> None:
    """Require that no call of the same vector writes the object that is copied.

    The host stores a copy before it applies writes to volatile memory. It would find the contradiction too
    late: the whole step would fail, and with it all other writes that wait for the store.
    """
    if step.parts is None:
        return
    if origin.id in step.written:
        raise InvalidError("the calls of a vector must be independent; an earlier one writes this object")
    note_in_vector(step, origin)


def _require_room_for_copy(task: Holder, origin: PhysicalObject, kind: ObjectType) -> None:
    accounts = (task.account, *origin.sharing)
    require_all(accounts, Resource.OBJECTS, 1)
    require_bytes(accounts, origin.size, volatile=kind is not ObjectType.DURABLE_BLOB)


def _type_of_copy(target: PhysicalObject, call: messages.Copy) -> ObjectType:
    """Return the type of the new object. Persistence and proximity require a copy (Table 4.3, last rows)."""
    kind = target.type
    asks = call.persistence is not None or call.proximity is not None or call.buffering is not None
    if asks and not is_blob(kind):
        raise InvalidError(f"a {kind.name} cannot be copied, only delegated", fingerprint=target.fingerprint)
    if call.persistence is not None and call.persistence is not target.persistence:
        durable = call.persistence is Persistence.DURABLE
        kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    if call.proximity is not None and call.proximity is not RULES[kind].proximity:
        if kind is ObjectType.DURABLE_BLOB:
            raise InvalidError("a durable object cannot have proximity PROCESS; leave out one of the two")
        near = call.proximity is Proximity.PROCESS
        kind = ObjectType.PRIVMEM_BLOB if near else ObjectType.SHMEM_BLOB
    if call.buffering is Buffering.RAW and kind is not ObjectType.SHMEM_BLOB:
        raise InvalidError(f"raw buffering is only possible for SHMEM_BLOB, not for {kind.name}")
    return kind


def _refuse_private(reference: Reference, to_self: bool) -> None:  # noqa: FBT001 - one internal caller
    if not to_self:
        raise NotPermittedError(
            "private memory cannot be delegated; ask for proximity NODE to delegate a shared copy",
            fingerprint=reference.object.fingerprint,
        )


def _duplicate(
    step: Step, task: Holder, origin: PhysicalObject, kind: ObjectType, buffering: Buffering | None
) -> PhysicalObject:
    """Create a physical object of the same logical object, with the same bytes and versions."""
    raw = Buffering.RAW if buffering is Buffering.RAW and kind is ObjectType.SHMEM_BLOB else Buffering.DOUBLE
    duplicate = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        kind,
        origin.name,
        origin.groups,
        origin.owner,
        deletion=RULES[kind].deletion,
        buffering=raw,
        proximity=RULES[kind].proximity,
        accounts=(task.account, *origin.sharing),
        secrecy=origin.secrecy,
    )
    duplicate.version.resize(origin.size)
    duplicate.size, duplicate.v_r, duplicate.v_w = origin.size, origin.v_r, origin.v_w
    step.state.add_object(duplicate)
    step.depend_on(origin)
    if RULES[kind].persistence is Persistence.DURABLE:
        source = WriteSource(content_of=origin.id, length=origin.size)
        step.put(duplicate, source)
        step.emit(effects.ApplyWrite(duplicate.id, source, durable=True))
    else:
        step.emit(effects.DuplicateContent(duplicate.id, origin.id))
    return duplicate
