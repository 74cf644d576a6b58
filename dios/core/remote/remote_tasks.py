"""Remote tasks: the records of tasks of other nodes that refer to objects of this one (§4.5.3, §4.8).

A remote task has no process here. Its table holds the references that count, so that every check, counter,
limit and retirement is as for any task of this node.
"""

from __future__ import annotations

from dios import limits
from dios.core import effects
from dios.core.calls import lifecycle
from dios.core.model.accounts import Account, charge_all, require_all
from dios.core.model.records import PhysicalObject, Provenance, Reference, RemoteTask
from dios.core.model.state import State
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import DiosError, LimitError, ProtocolError, UnreachableError
from dios.ids import NodeId, ObjectId, Principal, RefId
from dios.wire import dcp
from dios.wire.types import Brand, Deletion, ObjectType, Permission, Persistence, Resource, Scope, TaskState


def remote_task_for(step: Step, peer: Peer, caller: dcp.Caller, *, guessed: bool = False) -> RemoteTask:
    """The remote task of another node's task; made when it is needed first.

    ``guessed``: whom the task acts for is not known yet; its own node will say it.
    """
    state = step.state
    found = state.remote_tasks.get(caller.task)
    if found is not None:
        if found.home != peer.node:
            raise ProtocolError("a task is said to be on two nodes")
        if found.guessed and not guessed:
            _set_principal(step, found, caller)
        return found
    if caller.task in state.tasks:
        raise ProtocolError("a task of this node is said to be on another")
    principal = Principal(caller.principal)
    _require_room(state, peer, principal)
    own = PhysicalObject(
        ObjectId(caller.task),
        ObjectType.TASK,
        None,
        (),
        principal,
        deletion=Deletion.REFERENCE_COUNTED,
        shown=caller.fingerprint,
    )
    account = Account(Scope.TASK, caller.fingerprint, (), state.account_of(principal))
    remote_task = RemoteTask(
        own,
        principal,
        caller.brand,
        account,
        home=peer.node,
        guessed=guessed,
        label=caller.label,
        now=step.now,
    )
    state.remote_tasks[remote_task.id] = remote_task
    peer.remote_tasks[remote_task.id] = remote_task
    if peer.dead_since is not None and state.cluster is not None:
        # Should it never come back, this goes as what it had before does.
        state.cluster.grace_ends.setdefault(peer.node, step.now + limits.REMOTE_TASK_GRACE_MS * 1_000_000)
    step.emit(effects.OpenRemoteTask(remote_task.id, peer.node, principal))
    return remote_task


def _set_principal(step: Step, remote_task: RemoteTask, caller: dcp.Caller) -> None:
    """Its own node says for whom the task acts: what it holds is counted with that principal from now on."""
    principal = Principal(caller.principal)
    held = len(remote_task.table)
    account = Account(Scope.TASK, caller.fingerprint, (), step.state.account_of(principal))
    account.require(Resource.REFERENCES, held)
    charge_all((remote_task.account,), Resource.REFERENCES, -held)
    charge_all((account,), Resource.REFERENCES, held)
    remote_task.account, remote_task.principal = account, principal
    remote_task.brand, remote_task.label = caller.brand, caller.label
    remote_task.guessed = False
    step.emit(effects.OpenRemoteTask(remote_task.id, remote_task.home, principal))


def _require_room(state: State, peer: Peer, principal: Principal) -> None:
    if len(peer.remote_tasks) >= limits.REMOTE_TASKS_PER_NODE_MAX:
        raise LimitError(f"{len(peer.remote_tasks)} tasks of node {peer.name} hold something here; end some")
    if principal not in state.principals and len(state.principals) >= limits.PRINCIPALS_MAX:
        raise LimitError(f"this node knows {len(state.principals)} principals, and takes no more")


def peer_named(cluster: Cluster, node: NodeId) -> Peer:
    """The node that another one says a task is on; EHOSTUNREACH for one that nobody has heard of."""
    peer = cluster.peers.get(node)
    if peer is None:
        raise UnreachableError("no such node is known here; see `dios node ls`")
    return peer


def can_restore(remote_task: RemoteTask, target: PhysicalObject, ref: RefId) -> bool:
    """Whether a reference of before a new start can be granted again, as it was, and counted."""
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
    """The task is over, or its node: all that it held here goes, and children that nobody else knows."""
    remote_task.state = TaskState.ENDED
    remote_task.ended_ns = step.now
    lifecycle.release_everything(step, remote_task)
    if remote_task.brand is not Brand.LEGACY:
        # What a person's process has started lives on, wherever it is.
        lifecycle.end_orphans(step, remote_task)
    peer.remote_tasks.pop(remote_task.id, None)
    step.state.remote_tasks.pop(remote_task.id, None)
    step.emit(effects.CloseRemoteTask(remote_task.id))


def restore(
    step: Step, remote_task: RemoteTask, target: PhysicalObject, ref: RefId, permissions: Permission
) -> Reference:
    """A reference that this node knew before it was started anew."""
    reference = step.state.add_reference(
        remote_task, target, permissions, Provenance.RESOLVED, ref_id=ref, now=step.now
    )
    step.depend_on(target)
    step.audit(remote_task, "claim", "ok", target.fingerprint)
    return reference
