"""Maintain remote tasks: the records of other nodes' tasks that refer to objects of this node (§4.5.3, §4.8).

A remote task has no process here. Its table holds its references to local objects, so that checks, counters,
limits and retirement work as for local tasks.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import effects
from dios.core.calls import lifecycle
from dios.core.model.accounts import Account, charge_all, require_all
from dios.core.model.records import Holder, PhysicalObject, Provenance, Reference, RemoteTask
from dios.core.model.state import State
from dios.core.model.work_items import EndingHolder
from dios.core.remote import authority
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import DiosError, LimitError, ProtocolError, UnreachableError
from dios.ids import NodeId, ObjectId, Principal, RefId
from dios.wire import dcp
from dios.wire.mandates import Purpose
from dios.wire.types import Brand, Deletion, ObjectType, Permission, Persistence, Resource, Scope, TaskState

GUESSES_MAX: Final = limits.REMOTE_TASKS_PER_NODE_MAX // 4
"""The records of one node's tasks that rest on the word of other nodes: the others are for its own word."""


def remote_task_for(step: Step, peer: Peer, caller: dcp.Caller, *, guessed: bool = False) -> RemoteTask:
    """Return the record of another node's task. Create it on first use.

    With ``guessed``, the caller's principal is not known yet; the task's own node will report it. Raise
    ProtocolError if the task's own node names another principal than before, whom its record acts for.
    """
    state = step.state
    known = peer.remote_tasks.get(caller.task)
    if known is not None:
        if known.guessed and not guessed:
            _set_principal(step, known, caller)
        elif not guessed and known.principal != caller.principal:
            raise ProtocolError("cannot accept the request: its task has another principal")
        if state.expiries.due(step.now) is not None:
            known.table.now = step.now  # its own references may be among those that wait for a step
        return known
    principal = Principal(caller.principal)
    _require_room(state, peer, principal, guessed=guessed)
    task_object = PhysicalObject(
        ObjectId(state.holder_id(peer.node, caller.task)),
        ObjectType.TASK,
        None,
        (),
        principal,
        deletion=Deletion.REFERENCE_COUNTED,
        shown=caller.fingerprint,
    )
    account = Account(Scope.TASK, caller.fingerprint, (), state.account_of(principal))
    remote_task = RemoteTask(
        task_object,
        principal,
        caller.brand,
        account,
        home=peer.node,
        home_id=caller.task,
        guessed=guessed,
        label=caller.label,
        now=step.now,
    )
    state.remote_tasks[remote_task.id] = remote_task
    peer.remote_tasks[remote_task.home_id] = remote_task
    peer.guesses += guessed
    if peer.dead_since is not None and state.cluster is not None:
        # If the node never returns, this record ends with the node's other remote tasks.
        state.cluster.grace_ends.setdefault(peer.node, step.now + limits.REMOTE_TASK_GRACE_MS * 1_000_000)
    step.emit(effects.OpenRemoteTask(remote_task.id, peer.node, principal, caller.task))
    return remote_task


def remote_task_named(
    step: Step, peer: Peer, receiver: dcp.Caller, *, asker: NodeId, giver: Holder
) -> RemoteTask:
    """Return the record of a task of ``peer`` that node ``asker`` names as the receiver of a reference.

    Principal, brand and label of a task are believed of its own node only. Until that node reports them, the
    task counts as a pure task of the giver's principal.
    """
    is_vouched = not authority.why_not(step, peer, Principal(receiver.principal), Purpose.OBJECTS)
    if asker == peer.node and receiver.principal and is_vouched:
        return remote_task_for(step, peer, receiver)
    named = dcp.Caller(receiver.task, giver.principal, receiver.fingerprint, Brand.PURE)
    return remote_task_for(step, peer, named, guessed=True)


def _set_principal(step: Step, remote_task: RemoteTask, caller: dcp.Caller) -> None:
    """Set the principal that the task's own node has reported, and move the task's charges to it."""
    principal = Principal(caller.principal)
    held = len(remote_task.table)
    account = Account(Scope.TASK, caller.fingerprint, (), step.state.account_of(principal))
    account.require(Resource.REFERENCES, held)
    charge_all((remote_task.account,), Resource.REFERENCES, -held)
    charge_all((account,), Resource.REFERENCES, held)
    remote_task.account, remote_task.principal = account, principal
    remote_task.brand, remote_task.label = caller.brand, caller.label
    remote_task.guessed = False
    step.require_cluster().peer(remote_task.home).guesses -= 1
    step.emit(effects.OpenRemoteTask(remote_task.id, remote_task.home, principal, remote_task.home_id))


def _require_room(state: State, peer: Peer, principal: Principal, *, guessed: bool) -> None:
    if guessed and peer.guesses >= GUESSES_MAX:
        raise LimitError(
            f"{peer.guesses} tasks of node {peer.name} were named by others and have made no call, the "
            "maximum. Try again later."
        )
    if len(peer.remote_tasks) >= limits.REMOTE_TASKS_PER_NODE_MAX:
        raise LimitError(
            f"{len(peer.remote_tasks)} tasks of node {peer.name} hold references here, the maximum. End some."
        )
    if principal not in state.principals and len(state.principals) >= limits.PRINCIPALS_MAX:
        raise LimitError(f"this node has {len(state.principals)} principals, the maximum")


def peer_named(cluster: Cluster, node: NodeId) -> Peer:
    """Return the node with this id; raise UnreachableError if it is not known here."""
    peer = cluster.peers.get(node)
    if peer is None:
        raise UnreachableError("a node of the request is not known here. `dios node ls` lists the nodes.")
    return peer


def can_restore(remote_task: RemoteTask, target: PhysicalObject, ref: RefId) -> bool:
    """Return True if a reference from before a restart of this node can be granted again with its old id."""
    if target.persistence is not Persistence.DURABLE or not ref or ref in target.references:
        return False
    try:
        remote_task.table.require_room()
        remote_task.account.require(Resource.REFERENCES, 1)
        require_all(target.sharing, Resource.REFERENCES, 1)
    except DiosError:
        return False
    return True


def end(step: Step, peer: Peer, remote_task: RemoteTask) -> None:
    """End a remote task: drop its references, and end its children that no other task refers to.

    The record leaves the tables at once, so that a later message of the task begins another one.
    """
    if remote_task.ended_ns:
        return
    remote_task.ended_ns = step.now
    step.start(EndingHolder(remote_task, ends=True))
    if peer.remote_tasks.pop(remote_task.home_id, None) is not None:
        peer.guesses -= remote_task.guessed
    step.state.remote_tasks.pop(remote_task.id, None)
    step.emit(effects.CloseRemoteTask(remote_task.id))


def finish(step: Step, remote_task: RemoteTask) -> None:
    """Note that a remote task has ended and holds nothing any more."""
    remote_task.state = TaskState.ENDED
    lifecycle.end_orphans(step, remote_task)


def restore(
    step: Step, remote_task: RemoteTask, target: PhysicalObject, ref: RefId, permissions: Permission
) -> Reference:
    """Grant a reference again that existed before this node restarted."""
    reference = step.state.add_reference(
        remote_task, target, permissions, Provenance.RESOLVED, ref_id=ref, now=step.now
    )
    step.depend_on(target)
    step.audit(remote_task, "claim", "ok", target.fingerprint)
    return reference
