"""Grant leases on this node's objects to other nodes, and call them back (docs/adr/0061).

A node with a lease answers reads itself. So a call that such a read must not miss waits until no lease is
left. ``dios.core.calls.entrance`` knows these calls; ``dios.core.remote.held_leases`` has the other side.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import effects
from dios.core.calls import logs
from dios.core.model.records import Pending, PhysicalObject, Reference
from dios.core.model.work_items import AdmittedCalls
from dios.core.remote import requests
from dios.core.remote.continuations import LeaseReturned
from dios.core.remote.lease_table import HERE, LeasedObject
from dios.core.remote.peers import Cluster
from dios.core.step import Step
from dios.ids import NodeId, ObjectId
from dios.wire import dcp, messages

_MS: Final = 1_000_000


# -- grants -------------------------------------------------------------------------------------------
def grant(step: Step, reference: Reference) -> None:
    """Grant the lease that the request of this step wants, if that is possible.

    The notice comes before the answer, so both wait for the same operations of the disk.
    """
    if not step.wants_lease or step.served is None or step.parts is not None:
        return
    peer, number = step.served
    target, leases = reference.object, step.require_cluster().leases
    if not (leases.enabled and may_have(target) and not reference.expires_ns):
        return
    if logs.is_log(step.state, target):
        return  # the node itself deletes old logs, without a call
    record = leases.granted.get(target.id)
    if record is not None:
        _drop_ended(step, target.id, record)
        if record.round or step.now < record.pause_ends:
            return
    if leases.is_distrusted(peer.node, step.now) or not leases.has_room(target.id, peer.node):
        return
    leases.add(target.id, peer.node, step.now + limits.LEASE_GRANTED_MS * _MS)
    step.emit(effects.Send(peer.node, dcp.Leased(number), epoch=peer.epoch))


def may_have(target: PhysicalObject) -> bool:
    """Return True if an object is open to reads without a call, and no call closes it."""
    return target.direct and not target.closed


# -- call-backs ---------------------------------------------------------------------------------------
def is_out(step: Step, cluster: Cluster, target: PhysicalObject) -> bool:
    """Return True if another node may read an object under a lease now."""
    record = cluster.leases.granted.get(target.id)
    if record is not None:
        _drop_ended(step, target.id, record)
    return bool(record is not None and record.nodes) or is_from_before(step, cluster, target)


def is_from_before(step: Step, cluster: Cluster, target: PhysicalObject) -> bool:
    """Return True if an earlier start of this node may have granted a lease that has not ended yet."""
    return step.now < cluster.leases.restart_ends and target.recorded is not None


def note_start(step: Step, cluster: Cluster) -> None:
    """Note that this node has started: nobody knows what an earlier start has granted."""
    if cluster.here.epoch > 1:
        cluster.leases.restart_ends = step.now + limits.LEASE_GRANTED_MS * _MS


def call_back(step: Step, cluster: Cluster, target: PhysicalObject, row: Pending) -> None:
    """Call the leases on an object back; the call waits until all are returned or have ended."""
    leases = cluster.leases
    if is_from_before(step, cluster, target):
        leases.add(target.id, HERE, leases.restart_ends)
    record = leases.granted[target.id]
    record.waiting[row.key] = row
    if record.round:
        return
    record.round = leases.next_round
    leases.next_round += 1
    record.called_back = step.now
    leases.look_at(target.id, record)
    for node in list(record.nodes):
        if node != HERE:
            then = LeaseReturned(node, target.id, record.round)
            requests.ask(step, node, dcp.CallBack(target.id), then)


def returned(step: Step, then: LeaseReturned, answer: dcp.Answer) -> None:
    """Note that a node has returned its leases on an object. An answer to an earlier call-back is void."""
    leases = step.require_cluster().leases
    record = leases.granted.get(then.object)
    if record is None or record.round != then.round or isinstance(answer, messages.Failure):
        return
    leases.remove(record, then.node)
    _judge(step, record, then.node)
    _let_go_on(step, then.object, record)


def time_passed(step: Step, cluster: Cluster) -> None:
    """Let calls go on for which the leases have ended, and forget objects without leases."""
    leases = cluster.leases
    for _ in range(limits.STEP_UNITS // 4):
        target = leases.due(step.now)
        if target is None:
            return
        record = leases.granted[target]
        _drop_ended(step, target, record)
        if record.nodes or step.now < record.pause_ends:
            leases.look_at(target, record)
        else:
            del leases.granted[target]


def _drop_ended(step: Step, target: ObjectId, record: LeasedObject) -> None:
    """Drop the leases that have ended."""
    leases = step.require_cluster().leases
    ended = [node for node, ends in record.nodes.items() if ends <= step.now]
    for node in ended:
        leases.remove(record, node)
        _judge(step, record, node)
    if ended:
        _let_go_on(step, target, record)


def _judge(step: Step, record: LeasedObject, node: NodeId) -> None:
    """Grant a node no lease for a while if calls have waited longer for its lease than a return takes.

    It makes no difference if the lease has ended, or has come back late.
    """
    if record.round and step.now - record.called_back >= limits.LEASE_RETURN_MS * _MS:
        step.require_cluster().leases.distrust(node, step.now)


def _let_go_on(step: Step, target: ObjectId, record: LeasedObject) -> None:
    """Admit the calls that wait for leases on no other object."""
    if record.nodes:
        return
    record.round = 0
    rows, record.waiting = list(record.waiting.values()), {}
    leases = step.require_cluster().leases
    leases.look_at(target, record)
    ready = [
        row for row in rows if not any(_waits(leases.granted.get(closing.id), row) for closing in row.closes)
    ]
    if ready:
        step.state.work.put(AdmittedCalls(ready[::-1]))


def _waits(record: LeasedObject | None, row: Pending) -> bool:
    return record is not None and row.key in record.waiting
