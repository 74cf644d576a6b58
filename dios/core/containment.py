"""Contain defects: an exception in the work for one task or one node ends that task or connection alone.

A step notes each exception with the party that it worked for, and goes on with the work for others. At its
end the party is ended in the ordinary way, the derived counts are computed again from the tables, and the
invariants are checked. If they do not hold, the exception leaves the step and the node ends; its promises
hold over a restart. Nothing that the step changed was sent, stored or answered by then.
"""

from __future__ import annotations

import traceback
from typing import Final

from dios.core import effects, events, lifetimes
from dios.core.calls import lifecycle
from dios.core.effects import ApplyWrite, DropObject, PutObject
from dios.core.model import invariants
from dios.core.model.records import Holder, LocalHolder, PhysicalObject, RemoteTask, Task
from dios.core.model.state import State
from dios.core.model.work_items import EndingHolder
from dios.core.remote import requests
from dios.core.remote.peers import Peer
from dios.core.step import Defect, Party, Step
from dios.errors import Code, InvariantError, LimitError, ProtocolError
from dios.ids import NodeId, TaskId
from dios.wire import dcp, messages
from dios.wire.dcp_table import RequestFlag, requests_with
from dios.wire.types import Brand, Cause, Deletion, TaskState

REASON: Final = "an internal error ended it; see the node's log"
_FAILURE: Final = messages.Failure(
    int(Code.EIO), "the node failed to carry out this call; see the node's log"
)
_TRACE_CHARS_MAX: Final = 4_096
_REPEATED: Final = requests_with(RequestFlag.REPEATED)


# -- the party ----------------------------------------------------------------------------------------
def party_of(state: State, event: events.Event) -> Party:
    """Return the party that an event is about: a task, a node, an object, or None for the node itself."""
    match event:
        case events.Received():
            return _party_of_message(state, event)
        case events.PeerUp() | events.PeerDown() | events.PeerPaused() | events.UnderWay():
            return _peer(state, event.node)
        case events.NetworkOpened() | events.NetworkFailed() | events.ConnectionArrived():
            return state.objects.get(event.object)
        case events.DatagramsDropped():
            return state.objects.get(event.object)
        case (
            events.Called()
            | events.SessionOpened()
            | events.Disconnected()
            | events.TaskStarted()
            | events.TaskEnded()
            | events.ConsoleArrived()
            | events.EffectFailed()
            | events.LogLeft()
        ):
            return holder(state, event.task)
        case _:
            return None


def _party_of_message(state: State, event: events.Received) -> Party:
    message = event.message
    if isinstance(message, dcp.Ask):
        caller = getattr(message.body, "caller", None)
        if caller is not None:
            # The task may ask through a node that does what it should.
            peer = _peer(state, event.node)
            return None if peer is None else peer.remote_tasks.get(caller.task)
    return _peer(state, event.node)


def holder(state: State, task: TaskId) -> Holder | None:
    """Return a task of this node, or the record of a task of another node."""
    return state.tasks.get(task) or state.remote_tasks.get(task)


def _peer(state: State, node: NodeId) -> Peer | None:
    return None if state.cluster is None else state.cluster.peers.get(node)


# -- the end ------------------------------------------------------------------------------------------
def end_parties(step: Step, event: events.Event) -> None:
    """End the parties of the defects of this step. Raise the first defect that has no party to end."""
    defects, step.defects = step.defects, []
    step.abandon_vector()
    _settle_writes(step)
    for defect in defects:
        request = event if isinstance(event, events.Received) and isinstance(event.message, dcp.Ask) else None
        task = getattr(event, "task", None)
        if defect.party is None and request is None and task is None:
            raise defect.error
        _report(step, defect, request)
        if request is not None:
            _answer_request(step, request)
        if defect.party is None and task is not None:
            # The session was not entered into the tables yet, or the task is gone from them already.
            step.emit(effects.CloseConnection(task, REASON))
            step.emit(effects.Kill(task))
        _end(step, defect.party)
    _continue_ends(step)
    _collect_orphans(step)


def _continue_ends(step: Step) -> None:
    """Continue the ends of tasks that were begun and are not under way, and end tasks that nobody starts."""
    state = step.state
    finished = {id(task) for task in state.ended}
    under_way = {id(ending) for ending in state.work.ending()}
    under_way.update(id(item.holder) for item in step.started if isinstance(item, EndingHolder) and item.ends)
    spawned = {effect.task for effect in step.after if isinstance(effect, effects.Spawn)}
    for task in list(state.everybody()):
        if task.ended_ns and id(task) not in finished and id(task) not in under_way:
            step.start(EndingHolder(task, ends=True))
        elif _is_new(step, task) and task.id not in spawned:
            step.emit(effects.Kill(task.id))
            lifecycle.task_ended(step, events.TaskEnded(step.now, task.id, Cause.NODE, detail=REASON))


def _is_new(step: Step, task: Holder) -> bool:
    return isinstance(task, Task) and task.state is TaskState.STARTING and task.started_ns == step.now


def _collect_orphans(step: Step) -> None:
    """Destroy objects that a call has created and given to nobody, or has begun to destroy."""
    for target in list(step.state.objects.values()):
        recovered = target.recorded is not None and not target.ticket
        if target.zombie:
            lifetimes.destroy(step, target)
        elif target.deletion is Deletion.REFERENCE_COUNTED and not target.references and not recovered:
            lifetimes.maybe_collect(step, target)
    cluster = step.state.cluster
    for peer in () if cluster is None else cluster.peers.values():
        for proxy in [proxy for proxy in peer.proxies.values() if not proxy.references]:
            lifetimes.maybe_collect(step, proxy)


def require_sound(step: Step, first: Defect) -> None:
    """Compute the derived counts again and check the tables. Raise the first defect if they are wrong."""
    if step.defects:
        raise step.defects[0].error
    try:
        invariants.recount(step.state)
        invariants.check(step.state)
    except (Exception, InvariantError) as broken:  # noqa: BLE001 - tables that cannot be examined are wrong
        raise InvariantError(f"after an internal error the tables are wrong: {broken}") from first.error


def _settle_writes(step: Step) -> None:
    """Undo the write that was begun, and complete those that were given to the store.

    A volatile object has no earlier record to return to, so nobody may use it any more.
    """
    target, step.writing = step.writing, None
    stored = {
        operation.object if isinstance(operation, DropObject) else operation.record.object
        for operation in step.persist
    }
    if target is not None and target.id not in stored:
        if target.recorded is not None:
            target.restore(target.recorded)
        else:
            lifetimes.destroy(step, target)
    applied = {effect.object for effect in step.after if isinstance(effect, ApplyWrite) and effect.durable}
    for operation in step.persist:
        if not isinstance(operation, PutObject) or operation.source is None:
            continue
        if operation.record.object not in applied:
            step.emit(ApplyWrite(operation.record.object, operation.source, durable=True))


def _report(step: Step, defect: Defect, request: events.Received | None) -> None:
    step.state.defects.total += 1
    party, principal, subject = defect.party, step.state.node_owner, ""
    if isinstance(party, Holder):
        principal, subject = party.principal, party.object.fingerprint
    elif isinstance(party, PhysicalObject):
        principal, subject = party.owner, party.fingerprint
    elif isinstance(party, Peer):
        subject = party.name
    for key in _keys(party, request):
        step.state.defects.note(key, step.now)
    error_name = type(defect.error).__name__
    step.emit(effects.Audit(step.now, "defect", "contained", principal, "", subject, error_name))
    trace = "".join(traceback.format_exception(defect.error))
    step.emit(effects.LogDefect(subject, trace[-_TRACE_CHARS_MAX:]))


def _keys(party: Party, request: events.Received | None) -> tuple[str, ...]:
    """Return the accounts in which a defect is counted."""
    if isinstance(party, RemoteTask):
        return (_remote_key(party.home, party.principal),)
    if isinstance(party, LocalHolder):
        return (party.principal,)
    if isinstance(party, PhysicalObject):
        return (party.owner,)
    if isinstance(party, Peer):
        return (_remote_key(party.node),)
    return () if request is None else (_remote_key(request.node),)


def _remote_key(node: NodeId, principal: str = "") -> str:
    return f"{node:x} {principal}"


def _answer_request(step: Step, event: events.Received) -> None:
    peer = _peer(step.state, event.node)
    if peer is None or not isinstance(event.message, dcp.Ask):
        return
    if type(event.message.body) in _REPEATED:
        peer.answers.pop(event.message.number, None)
    else:
        requests.reply(step, peer, event.message.number, _FAILURE)


def _end(step: Step, party: Party) -> None:
    if isinstance(party, RemoteTask):
        if party.ended_ns:
            step.start(EndingHolder(party, ends=True))
            return
        # The task itself is on the other node. Its calls fail, and a reconciliation takes what they left.
        for row in list(party.pending.values()):
            step.state.pending.remove(row)
            requests.give_up_all(step, row)
            step.answer(party, row.seq, _FAILURE)
    elif isinstance(party, LocalHolder):
        lifecycle.end_after_defect(step, party, REASON)
    elif isinstance(party, PhysicalObject):
        if party.id in step.state.objects:
            lifetimes.destroy(step, party)
    elif isinstance(party, Peer):
        step.emit(effects.EndConnection(party.node, REASON))


def found_by_host(step: Step, event: events.DefectFound) -> None:
    """End the task, the connection or the object for which the host could not carry out an effect."""
    state = step.state
    target = state.objects.get(event.object)
    if target is not None and event.ends_object:
        _end(step, target)
    party = holder(state, event.task) or _peer(state, event.node)
    state.defects.total += 1
    for key in _keys(party, None):
        state.defects.note(key, step.now)
    subject = party.object.fingerprint if isinstance(party, Holder) else ""
    step.audit_node("defect", "contained", subject, event.description)
    _end(step, party)


# -- too many defects ----------------------------------------------------------------------------
def has_too_many(step: Step, task: Holder) -> bool:
    """Return True if work for a task's user has ended in too many defects, so that its calls are refused.

    Programs of the node's own user and of root are exempt, so that an operator can look for the reason.
    """
    state = step.state
    if isinstance(task, RemoteTask):
        return state.defects.has_too_many(_remote_key(task.home, task.principal), step.now)
    if task.brand is not Brand.PURE and task.principal in {state.node_owner, "uid:0"}:
        return False
    return state.defects.has_too_many(task.principal, step.now)


def require_few(step: Step, peer: Peer, body: dcp.RequestBody) -> None:
    """Raise LimitError if work for a task of another node has ended in too many defects.

    Raise ProtocolError if work for the node itself has: that ends the connection.
    """
    defects = step.state.defects
    if defects.has_too_many(_remote_key(peer.node), step.now):
        raise ProtocolError("cannot accept the message: work for this node caused too many internal errors")
    caller = getattr(body, "caller", None)
    if caller is not None and defects.has_too_many(_remote_key(peer.node, caller.principal), step.now):
        raise too_many()


def too_many() -> LimitError:
    """Return the error for a call that is refused because of defects."""
    return LimitError(
        "cannot make the call: this user's calls caused too many internal errors of the node. Try again in "
        "ten minutes, and report the errors in the node's log."
    )
