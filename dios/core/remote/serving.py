"""Handle requests of other nodes on behalf of their tasks (thesis §4.8).

An invalid request raises ProtocolError before anything has changed. A refused request is answered with a
Failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Never, TypeAlias, cast

from dios import limits
from dios.core import containment, lifetimes
from dios.core.calls import (
    delegation,
    dispatch,
    flows,
    groups,
    logs,
    object_calls,
    rights,
    submissions,
    user_records,
)
from dios.core.model import disclosure
from dios.core.model.accounts import require_each
from dios.core.model.names import logs_group
from dios.core.model.records import Holder, PhysicalObject, Provenance, RemoteTask, narrowed
from dios.core.model.type_rules import may_be_shared
from dios.core.model.work_items import EndingRemoteTasks, ReleasedReferences
from dios.core.remote import (
    authority,
    held_leases,
    keepers,
    notices,
    proxies,
    reconciliation,
    registration,
    remote_run,
    remote_tasks,
    removals,
    replication,
    requests,
    validation,
)
from dios.core.remote.continuations import AnswerRequest
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import DiosError, NoSuchTaskError, NotPermittedError, ProtocolError, StaleError
from dios.ids import ObjectId, Principal, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.dcp_table import for_each_request
from dios.wire.mandates import Purpose
from dios.wire.types import ObjectType, Permission, Resource

Handler: TypeAlias = Callable[[Step, Peer, int, Never], None]


def serve(step: Step, peer: Peer, message: dcp.Ask) -> None:
    """Handle a request, unless it is a repeat."""
    body = message.body
    validation.require_request(step.state, step.require_cluster(), peer, body)
    settled = peer.settled.has(message.number)  # a settled request may still be pending here
    if isinstance(body, dcp.Forward) and message.number not in peer.answers and not settled:
        known = peer.remote_tasks.get(body.caller.task)
        if known is not None and message.number in known.pending:
            raise ProtocolError(f"cannot accept request {message.number}: a request with this number waits")
    if not requests.is_new(step, peer, message):
        return
    try:
        if step.state.defects.total:
            containment.require_few(step, peer, body)
        if message.mandates or message.extensions:
            authority.receive(step, peer, message)
        authority.require(step, peer, body)
        here = step.require_cluster().here
        keepers.require(body, here.name, here.roles)
        step.served = peer, message.number
        _HANDLERS[type(body)](step, peer, message.number, cast("Never", body))
    except DiosError as error:
        if isinstance(error, ProtocolError) and not (step.after or step.persist):
            # So far only the request's number and its report of settled requests were stored.
            peer.answers.pop(message.number, None)
            raise
        failure = messages.Failure(int(error.code), error.message, error.fingerprint)
        requests.reply(step, peer, message.number, failure)
    finally:
        step.served, step.known, step.wants_lease = None, None, False


def _forward(step: Step, peer: Peer, number: int, body: dcp.Forward) -> None:
    remote_task = remote_tasks.remote_task_for(step, peer, body.caller)
    call = body.call
    attached = step.payload_size
    if isinstance(call, messages.ReadOnce | messages.WriteOnce):
        step.informed = peer.node
    if isinstance(call, messages.ReadOnce | messages.AcquireRead):
        step.known, step.wants_lease = body.known, body.lease
    if isinstance(call, messages.Create):
        if call.data is not None:
            step.payload_size = len(call.data)
        authority.require_groups(step, peer, body.groups, remote_task.principal, Purpose.OBJECTS)
        names = groups.names_for(step, body.groups)
        if len(names) < len(body.groups):
            raise StaleError("cannot create the object: one of its groups was destroyed. Use another group.")
        object_calls.create_in(step, remote_task, number, call, names)
    else:
        dispatch.enter(step, remote_task, number, call, step.payload, attached)


def _resolve(step: Step, peer: Peer, number: int, body: dcp.Resolve) -> None:
    remote_task = remote_tasks.remote_task_for(step, peer, body.caller)
    most = min(body.limit, limits.LOOKUP_REFERENCES_MAX)
    candidates: dict[ObjectId, PhysicalObject] = {}
    refused = ""
    permissions = narrowed(Permission.ALL, body.permissions)
    for target in step.state.find_named(body.names):
        if target.secrecy and not flows.knows_labels(peer):
            continue
        reason = _why_not_found(step, peer, remote_task.principal, target, body)
        if reason:
            refused = refused or f"{target.owner}: {reason}"
            continue
        if target.type is not ObjectType.PRIVMEM_BLOB and (
            permissions is Permission.ALL or may_be_shared(target.type)
        ):
            candidates[target.id] = target
            if len(candidates) >= most:
                break
    if refused:
        step.audit_node("mandate", "denied", peer.name, refused)
    targets = list(candidates.values())
    expires_ns = delegation.end_of(step, body.lifetime_ns)
    remote_task.table.require_room(len(targets))
    remote_task.account.require(Resource.REFERENCES, len(targets))
    require_each((account for target in targets for account in target.sharing), Resource.REFERENCES)
    owners: list[tuple[ObjectId, str]] = []
    references: list[messages.Reference] = []
    for target in targets:
        reference = lifetimes.grant(
            step, remote_task, target, permissions, Provenance.RESOLVED, expires_ns=expires_ns
        )
        references.append(proxies.public_part(step, reference))
        if target.type is ObjectType.GROUP:
            owners.append((target.id, target.owner))
    if references:
        step.audit(remote_task, "lookup", "ok", references[0].fingerprint, f"for node {peer.name}")
    requests.reply(step, peer, number, dcp.Found(tuple(references), tuple(owners)))


def _why_not_found(
    step: Step, peer: Peer, caller: Principal, target: PhysicalObject, body: dcp.Resolve
) -> str:
    """Return why a request of a node for one user may not find an object, of another one; else nothing.

    A reader of a share may only read, for a time. The names of the group and of the record of
    the share are random, so that no secret gives them away, unlike those of records of services and replicas.
    """
    cluster = step.require_cluster()
    if target.owner == caller or not (cluster.enrolled or cluster.here.signed):
        return ""
    if user_records.is_record(step.state, target.name, target.owner):
        return "only the user's own sessions find these records"
    if body.permissions == Permission.READ and body.lifetime_ns and may_be_shared(target.type):
        return ""
    return authority.why_not_of(step, peer, target.owner, caller, Purpose.OBJECTS)


def _offer(step: Step, peer: Peer, number: int, body: dcp.Offer) -> None:
    """Grant references to a task that is about to be started on another node."""
    giver = remote_tasks.remote_task_for(step, peer, body.caller)
    references = [rights.delegable(giver, sharing.ref) for sharing in body.shared]
    home = remote_tasks.peer_named(step.require_cluster(), body.node)
    known = home.remote_tasks.get(body.receiver.task)
    if home is not peer and known is not None and not known.guessed:
        raise NotPermittedError("cannot offer references: the task was started before")
    receiver = remote_tasks.remote_task_named(step, home, body.receiver, asker=peer.node, giver=giver)
    receiver.table.require_room(len(references))
    offered = [
        remote_run.offer(step, receiver, reference, sharing)
        for reference, sharing in zip(references, body.shared, strict=True)
    ]
    requests.reply(step, peer, number, dcp.Offered(tuple(offered)))


def _delegate(step: Step, peer: Peer, number: int, body: dcp.Delegate) -> None:
    giver = remote_tasks.remote_task_for(step, peer, body.caller)
    then = AnswerRequest(peer.node, number, peer.epoch)
    delegation.delegate_remote(step, giver, body.call, body.node, body.receiver, then, asker=peer.node)


def _accept_reference(step: Step, peer: Peer, number: int, body: dcp.ReferenceGiven) -> None:
    task = step.state.tasks.get(body.receiver)
    if task is None or not task.alive:
        raise NoSuchTaskError("cannot delegate: the receiver has ended")
    if body.held.node != peer.node:
        raise ProtocolError("cannot accept the reference: its object is on a third node")
    proxies.require_unknown(step, peer, body.held.reference)
    if not _may_give(step, peer, task, body):
        raise NotPermittedError("cannot delegate: the giver may not write to the receiving task")
    task.table.require_room()
    task.account.require(Resource.REFERENCES, 1)
    reference = proxies.adopt(step, task, peer.node, body.held.reference, Provenance.DELEGATED, label="")
    notices.notify(step, task, messages.Delegated(reference.public(), body.giver))
    requests.reply(step, peer, number, messages.Done(1))


def _may_give(step: Step, peer: Peer, task: Holder, body: dcp.ReferenceGiven) -> bool:
    """Return True if the giving task holds a reference here with which it may give to the receiver."""
    home = step.require_cluster().peers.get(body.home or peer.node)
    giver = None if home is None else home.remote_tasks.get(body.by)
    return giver is not None and any(
        held.permissions & Permission.WRITE for held in task.object.held_by(giver)
    )


def _release(step: Step, peer: Peer, number: int, body: dcp.Release) -> None:
    """Drop references. The sender is the task's node, or a node that withdraws an offer to the task."""
    for home in step.require_cluster().peers.values():
        remote_task = home.remote_tasks.get(body.task)
        if remote_task is not None:
            refs = [ref for ref in reversed(body.refs) if _may_release(peer, remote_task, ref)]
            step.start(ReleasedReferences(remote_task, refs))
    requests.reply(step, peer, number, messages.Done(1))


def _may_release(peer: Peer, remote_task: RemoteTask, ref: RefId) -> bool:
    """Return True if the peer is the node of the task, or of the task that gave it the reference."""
    if remote_task.home == peer.node:
        return True
    held = remote_task.table.find(ref)
    return held is not None and held.origin is not None and held.origin.task.home == peer.node


def _tasks_ended(step: Step, peer: Peer, number: int, body: dcp.TasksEnded) -> None:
    ended = (peer.remote_tasks.get(task) for task in reversed(body.tasks))
    step.start(EndingRemoteTasks(peer.node, [task for task in ended if task is not None]))
    requests.reply(step, peer, number, messages.Done(1))


def _deliver_event(step: Step, peer: Peer, number: int, body: dcp.DeliverEvent) -> None:
    task = step.state.tasks.get(body.task)
    event = body.event
    if task is not None:
        is_valid = False
        if isinstance(event, messages.Retired):
            reference = task.table.find(event.ref)
            if reference is not None and reference.object.home == peer.node:
                is_valid = True
                event = messages.Retired(
                    event.ref, event.object, event.fingerprint, reference.label, event.expired
                )
                proxies.drop_lost(step, reference)
        elif isinstance(event, messages.ChildEnded):
            # The end of a lost child was reported before. Only the child's node may report its end.
            place = task.remote_children.get(TaskId(event.object))
            if place is not None and place[0] == peer.node:
                del task.remote_children[TaskId(event.object)]
                is_valid = True
                remote_run.note_ended(peer, task, event)
        if task.alive and is_valid:
            notices.notify(step, task, event)
    requests.reply(step, peer, number, messages.Done(1))


def _disband(step: Step, peer: Peer, number: int, body: dcp.Disband) -> None:
    groups.disband(step, body.group)
    requests.reply(step, peer, number, messages.Done(1))


def _list_tasks(step: Step, peer: Peer, number: int, body: dcp.Rows) -> None:
    rows = submissions.task_rows(step, Principal(body.caller.principal))
    if not flows.knows_labels(peer):
        rows = tuple(disclosure.concealed(row) if row.secrecy else row for row in rows)
    requests.reply(step, peer, number, messages.Tasks(rows))


def _keep_output(step: Step, peer: Peer, number: int, body: dcp.KeepOutput) -> None:
    if body.size != step.payload_size or body.size > limits.LOG_BYTES_MAX:
        raise ProtocolError("cannot store the log: its size is wrong or above the limit")
    principal = Principal(body.principal)
    home = step.state.homes.get(principal)
    if home is None or home.name is None or body.group != logs_group(home.name):
        # The parent of the task is, or was, at home here, and all its logs are in one group.
        raise NotPermittedError("cannot store the log: its principal has no such group for logs here")
    logs.make(step, principal, logs.UNKNOWN_JOB, body.name, body.group, step.payload, body.size, body.secrecy)
    requests.reply(step, peer, number, messages.Done(1))


def _call_back(step: Step, peer: Peer, number: int, body: dcp.CallBack) -> None:
    held_leases.called_back(step, peer, body.object)
    requests.reply(step, peer, number, messages.Done(1))


_HANDLERS: Final[Mapping[type, Handler]] = for_each_request(
    {
        dcp.Forward: _forward,
        dcp.Resolve: _resolve,
        dcp.Offer: _offer,
        dcp.Delegate: _delegate,
        dcp.ReferenceGiven: _accept_reference,
        dcp.Start: remote_run.start_requested,
        dcp.CreateReplica: replication.replica_requested,
        dcp.Release: _release,
        dcp.TasksEnded: _tasks_ended,
        dcp.DeliverEvent: _deliver_event,
        dcp.ReconcileReferences: reconciliation.reconcile_requested,
        dcp.Disband: _disband,
        dcp.Rows: _list_tasks,
        dcp.KeepOutput: _keep_output,
        dcp.ConfirmRemoval: removals.confirm,
        dcp.Register: registration.register,
        dcp.FindNames: registration.find_names,
        dcp.CallBack: _call_back,
    }
)
