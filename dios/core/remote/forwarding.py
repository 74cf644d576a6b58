"""Forward calls on objects of other nodes, and translate the answers for the local task (§4.8).

Calls that are not about a single reference are in ``remote_calls``, ``remote_run`` and ``remote_lookup``. The
other node handles a forwarded call in ``dios.core.remote.serving``.
"""

from __future__ import annotations

from typing import Final, TypeAlias, cast

from msgspec.structs import replace

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import flows, rights
from dios.core.effects import WriteSource
from dios.core.model import disclosure
from dios.core.model.accounts import buffer_version, require_bytes
from dios.core.model.records import Holder, Pending, Provenance, Reference, RemoteBuffer
from dios.core.remote import held_leases, proxies, requests
from dios.core.remote.continuations import AnswerCaller, FitAnswer, FitAttached
from dios.core.remote.peers import Peer, Proxy
from dios.core.step import Step
from dios.errors import (
    BadReferenceError,
    Code,
    InvalidError,
    LimitError,
    ProtocolError,
    StaleError,
)
from dios.ids import BufferId, NodeId
from dios.wire import dcp, messages
from dios.wire.call_table import CALLS, COMMITTING, Exemption, Route, carried_bytes, kinds, kinds_with
from dios.wire.codec import encode_status
from dios.wire.types import Brand, Cause, Flag, Mode, ObjectType, Permission, Resource, TaskState

_REFERENCE_FIELDS: Final[dict[type, str]] = {
    kind: row.reference
    for kind, row in CALLS.items()
    if row.reference is not None and row.route in {Route.OBJECT, Route.REQUEST}
}
"""The calls that concern the node of an object, and the field with the reference to that object."""

_BUFFER_CALLS: Final = kinds_with("buffer")
_WRITES: Final = (messages.AcquireWrite, messages.CommitAcquireWrite)
_STALE: Final = kinds(lambda row: Exemption.STALE in row.exemptions)

Part: TypeAlias = "effects.Answer | effects.AnswerReceived | effects.AnswerBytes"


def proxy_of(task: Holder, call: messages.PlainCall) -> Proxy | None:
    """Return the proxy that a call is about.

    Return None if this node handles the call, which includes calls with an unknown reference.
    """
    field = _REFERENCE_FIELDS.get(type(call))
    if field is None:
        return None
    reference = task.table.find(getattr(call, field))
    if reference is None or not reference.object.home:
        return None
    return cast("Proxy", reference.object)


def only_drops(call: messages.PlainCall) -> bool:
    """Return True if a call only drops a reference: this node does that, wherever the object is."""
    return isinstance(call, messages.Delete) and bool(call.flags & Flag.HANDLE_ONLY)


def forward(step: Step, task: Holder, seq: int, call: messages.PlainCall, target: Proxy) -> None:
    """Forward a call to the node of its object, on behalf of the task."""
    if only_drops(call) or (isinstance(call, messages.Delete) and target.zombie):
        lifetimes.drop_reference(step, task.table.get(cast("messages.Delete", call).ref))
        step.answer(task, seq, messages.Done(0 if target.zombie else 1))
        return
    if (target.lost or target.ended) and isinstance(call, messages.ReadOnce | messages.AcquireRead):
        step.reply(_lost_status(step, task, seq, rights.held(task, call.ref, Permission.READ)))
        return
    if target.zombie and type(call) not in _STALE:
        raise StaleError("the object was deleted. Drop the reference.", fingerprint=target.fingerprint)
    if isinstance(call, messages.Attach):
        _forward_attach(step, task, seq, call, target)
        return
    remote_call, source = translate(task, call)
    remote_call = held_leases.with_count(step, remote_call, target)
    send(step, task, seq, call, target.home, dcp.Forward(task.caller(), remote_call), source)


def _forward_attach(step: Step, task: Holder, seq: int, call: messages.Attach, target: Proxy) -> None:
    """Attach on the other node on behalf of the task; the bytes use a connection of their own."""
    if step.parts is not None:
        raise InvalidError("cannot attach in a vector: the answer has descriptors. Send the attach alone.")
    number = step.require_cluster().peer(target.home).next_number
    row = wait(step, task, seq, call, target.home)
    body = dcp.Forward(task.caller(), call)
    requests.ask_for_call(step, row, target.home, body, FitAttached(row.id, number))


def wait(step: Step, task: Holder, seq: int, call: messages.AnyCall, node: NodeId) -> Pending:
    """Add a pending call that waits for the answer of another node."""
    row = Pending(task, seq, call, {})
    step.wait(row)
    task.remote_nodes.add(node)
    return row


def send(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.PlainCall,
    node: NodeId,
    body: dcp.RequestBody,
    source: WriteSource | None = None,
) -> None:
    """Send a request for a task's call. The call waits for the answer, which is translated for the task."""
    row = wait(step, task, seq, call, node)
    requests.ask_for_call(step, row, node, body, FitAnswer(row.id), source=source)


def fit_answer(step: Step, row: Pending, then: FitAnswer, answer: dcp.Answer) -> None:
    """Answer a call with the other node's answer, translated for the task."""
    del then
    step.reply(fit(step, row.task, row.seq, cast("messages.PlainCall", row.call), answer))


def fit_attached(step: Step, row: Pending, then: FitAttached, answer: dcp.Answer) -> None:
    """Answer an attach call; the task then has the end of a stream on another node."""
    call, task = cast("messages.Attach", row.call), row.task
    reference = task.table.find(call.ref)
    if isinstance(answer, messages.Attached) and reference is not None:
        target = cast("Proxy", reference.object)
        target.ends[reference.id] = call.mode
        step.emit(
            effects.AnswerAttachRemote(
                task.id, row.seq, target.id, call.mode, answer.ring_bytes, target.home, then.request
            )
        )
    else:
        step.reply(fit(step, task, row.seq, call, answer))


def pass_on(step: Step, task: Holder, seq: int, call: messages.PlainCall, peer: Peer) -> None:
    """Forward a call that names another node, and let that node answer it."""
    remote_call = call
    if isinstance(call, messages.NodeInfo):
        remote_call = messages.NodeInfo()
    elif isinstance(call, messages.ReadTable):
        remote_call = messages.ReadTable(call.table.partition("@")[0], call.start)
    row = wait(step, task, seq, call, peer.node)
    body = dcp.Forward(task.caller(), remote_call)
    requests.ask_for_call(step, row, peer.node, body, AnswerCaller(row.id))


def answer_caller(step: Step, row: Pending, then: AnswerCaller, answer: dcp.Answer) -> None:
    """Answer a call that ``pass_on`` forwarded."""
    del then
    if isinstance(answer, messages.TableRows) and isinstance(row.call, messages.ReadTable):
        # The name with the node in it says to the host that the rows are complete.
        answer = replace(answer, table=row.call.table)
    step.answer(row.task, row.seq, cast("messages.AnyResult", answer))


# -- outgoing calls -----------------------------------------------------------------------------------
def translate(task: Holder, call: messages.PlainCall) -> tuple[messages.PlainCall, WriteSource | None]:
    """Return the call with the other node's buffer id, and the bytes to send with it.

    References have the same id on both nodes; buffers do not.
    """
    buffer_id = _buffer_of(call)
    if not buffer_id:
        if isinstance(call, messages.AcquireRead | messages.AcquireWrite):
            _require_room(task, call)
        return call, None
    buffer = remote_buffer(task, buffer_id)
    source = None
    releases = isinstance(call, messages.ReleaseWrite) and call.flags & Flag.RELEASE_COMMIT
    commits = releases or (type(call) in COMMITTING and carried_bytes(call) is None)
    # The object's node refuses to commit a buffer that was acquired to read; this node has no bytes of it.
    if commits and buffer.mode is Mode.WRITE:
        asked = call.size if isinstance(call, messages.CommitWrite | messages.CommitAcquireWrite) else 0
        length = asked or buffer.length
        if length > buffer.length:
            raise InvalidError(
                f"cannot commit: the buffer has {buffer.length} bytes, the call wants {length}"
            )
        if length:
            source = WriteSource(buffer=buffer.id, length=length)
    return replace(call, buffer=buffer.remote), source


def _buffer_of(call: messages.PlainCall) -> int:
    """Return the id of the buffer that a call names, or 0."""
    number: int = getattr(call, "buffer", 0) if type(call) in _BUFFER_CALLS else 0
    return number


def remote_buffer(task: Holder, buffer_id: int) -> RemoteBuffer:
    """Return the caller's buffer for an object of another node; raise BadReferenceError if there is none."""
    buffer = task.remote_buffers.get(BufferId(buffer_id))
    if buffer is not None:
        return buffer
    if buffer_id in task.buffers:
        raise InvalidError("cannot use this buffer for an object of another node. Copy the bytes instead.")
    raise BadReferenceError("there is no such buffer in this task: it was released, or another task has it")


def _require_room(task: Holder, call: messages.AcquireRead | messages.AcquireWrite) -> None:
    if len(task.buffers) + len(task.remote_buffers) >= limits.BUFFERS_PER_TASK_MAX:
        raise LimitError(f"the task holds {limits.BUFFERS_PER_TASK_MAX} buffers, the maximum. Release some.")
    task.account.require(Resource.REQUESTS, 2)  # one for the waiting call, one for the buffer
    if call.size:
        require_bytes((task.account,), call.size, volatile=True)


# -- incoming answers ---------------------------------------------------------------------------------
def fit(
    step: Step, task: Holder, seq: int, call: messages.PlainCall, answer: dcp.Answer, offset: int = 0
) -> Part:
    """Return the task's answer: the other node's, with local buffer ids, slots and counters.

    ``offset`` is the start of this answer's bytes in the payload of the message.
    """
    if isinstance(answer, messages.Failure):
        return _lost_child(step, task, seq, call, answer) or effects.Answer(task.id, seq, answer)
    field = _REFERENCE_FIELDS.get(type(call))
    reference = None if field is None else task.table.find(getattr(call, field))
    if reference is None:
        return effects.Answer(task.id, seq, _without_reference(call, answer))
    target = cast("Proxy", reference.object)
    match answer:
        case messages.Buffer():
            flows.receive(step, task, target, answer.secrecy)
            return _fit_buffer(step, reference, seq, call, answer, offset)
        case messages.Committed():
            target.v_r, target.v_w = answer.v_r, answer.v_w
            _fit_size(task, target, call)
            step.changed(target)
            answer = disclosure.counters_for(task, target, answer)
        case messages.Done():
            _fit_done(step, task, reference, call)
        case messages.References():
            return _fit_references(step, task, seq, reference, call, answer)
        case messages.TaskDetail():
            flows.receive(step, task, target, answer.status.secrecy)
        case messages.LimitRows():
            return effects.Answer(task.id, seq, disclosure.shown(task, answer))
        case messages.Info():
            pass
        case _:
            raise ProtocolError(f"cannot accept the answer: a {type(answer).__name__} does not fit the call")
    return effects.Answer(task.id, seq, answer)


def _without_reference(call: messages.PlainCall, answer: dcp.Answer) -> messages.AnyResult:
    """Return the answer for a task that lost the reference during the call; the change stands."""
    is_next = isinstance(answer, messages.Buffer) and isinstance(call, messages.CommitAcquireWrite)
    if is_next or isinstance(answer, messages.Committed):
        return messages.Committed(0, 0)  # the label that the counters have is not known any more
    if isinstance(answer, messages.Done):
        return answer
    raise BadReferenceError("the reference was retired or deleted while the call was in progress")


def _lost_child(
    step: Step, task: Holder, seq: int, call: messages.PlainCall, failure: messages.Failure
) -> Part | None:
    """Return the exit status "node lost" if the call reads a task whose node is dead, else None (§4.6)."""
    if failure.code != Code.EHOSTUNREACH or not isinstance(call, messages.ReadOnce | messages.AcquireRead):
        return None
    reference = task.table.find(call.ref)
    if reference is None or reference.object.type is not ObjectType.TASK:
        return None
    if step.require_cluster().peer(reference.object.home).dead_since is None:
        return None
    return _lost_status(step, task, seq, reference)


def _lost_status(step: Step, task: Holder, seq: int, reference: Reference) -> Part:
    target = cast("Proxy", reference.object)
    peer = step.require_cluster().peer(target.home)
    row = target.ended or lost_row(target.fingerprint, peer.name, reference.label, task)
    flows.receive(step, task, target, row.secrecy)
    data = encode_status(row)
    return effects.AnswerBytes(task.id, seq, messages.Buffer(0, len(data), 0, 0), data)


def lost_row(fingerprint: str, node: str, label: str, parent: Holder) -> messages.TaskRow:
    """Return the row of a task whose node is dead."""
    return messages.TaskRow(
        name=None,
        fingerprint=fingerprint,
        label=label,
        state=TaskState.ENDED,
        brand=Brand.PURE,
        principal=parent.principal,
        pid=0,
        started_ns=0,
        ended_ns=0,
        cause=Cause.NODE_LOST,
        exit_code=0,
        signal=0,
        detail=f"node {node}, which ran it, is dead or out of reach; it may have succeeded before",
        parent=parent.object.fingerprint,
        node=node,
    )


def _fit_buffer(
    step: Step, reference: Reference, seq: int, call: messages.PlainCall, answer: messages.Buffer, offset: int
) -> Part:
    task, target = reference.task, reference.object
    if target.home and (answer.v_r, answer.v_w) != (target.v_r, target.v_w) and target.state is None:
        target.v_r, target.v_w = answer.v_r, answer.v_w
        step.changed(target)
    answer = disclosure.counters_for(task, target, answer)
    writable = isinstance(call, _WRITES)
    if not answer.buffer:
        if answer.data is not None or not answer.size:
            return effects.Answer(task.id, seq, answer)
        return effects.AnswerReceived(task.id, seq, answer, step.payload, answer.size, offset=offset)
    if isinstance(call, messages.AcquireWrite) and call.size > answer.size:
        # The object is shorter than the buffer. The bytes after its end are for a write that extends it.
        answer = replace(answer, size=call.size)
    # A call that names a buffer keeps that buffer. The other node's buffer ids have no meaning here.
    buffer = task.remote_buffers.get(BufferId(_buffer_of(call)))
    reuse = buffer is not None
    if buffer is None:
        mode = Mode.WRITE if writable else Mode.READ
        start = call.offset if isinstance(call, messages.AcquireRead | messages.AcquireWrite) else 0
        held = buffer_version(task.account, answer.size)
        buffer = RemoteBuffer(step.state.fresh_buffer(), answer.buffer, reference, mode, start, held)
        task.remote_buffers[buffer.id] = buffer
        task.account.charge(Resource.REQUESTS, 1)
    else:
        buffer.reference, buffer.mode = reference, Mode.WRITE if writable else buffer.mode
        if isinstance(call, messages.AcquireRead | messages.AcquireWrite) and not call.buffer:
            buffer.offset = call.offset
        writable = writable or buffer.mode is Mode.WRITE
        if answer.size > buffer.length:
            raise ProtocolError("cannot accept the answer: its bytes exceed the buffer of the call")
    result = replace(answer, buffer=buffer.id)
    length = buffer.length
    return effects.AnswerReceived(
        task.id,
        seq,
        result,
        step.payload,
        length,
        writable=writable,
        reuse=reuse,
        offset=offset,
        committed=isinstance(call, messages.CommitAcquireWrite),
    )


def _fit_size(task: Holder, target: Proxy, call: messages.PlainCall) -> None:
    """Set the proxy's size after the task's own write. Sizes after other writes are published later."""
    if isinstance(call, messages.WriteOnce):
        end = call.offset + len(call.data)
    elif isinstance(call, messages.CommitWrite):
        buffer = task.remote_buffers.get(BufferId(call.buffer))
        if buffer is None:
            return
        length = len(call.data) if call.data is not None else call.size or buffer.length
        end = buffer.offset + length
    else:
        return
    target.size = end if call.flags & Flag.REPLACE else max(target.size, end)


def _fit_done(step: Step, task: Holder, reference: Reference, call: messages.PlainCall) -> None:
    if isinstance(call, messages.ReleaseRead | messages.ReleaseWrite):
        buffer = task.remote_buffers.get(BufferId(call.buffer))
        if buffer is not None:
            lifetimes.close_remote_buffer(step, buffer)
    elif isinstance(call, messages.Delete):
        ended = call.flags & Flag.DESTROY and reference.object.type is ObjectType.TASK
        if not ended:
            proxies.drop_lost(step, reference)


def _fit_references(
    step: Step,
    task: Holder,
    seq: int,
    reference: Reference,
    call: messages.PlainCall,
    answer: messages.References,
) -> Part:
    node = reference.object.home
    if isinstance(call, messages.Stat):
        target = cast("Proxy", reference.object)
        for public in answer.references:
            target.learn(public)
            step.changed(target)
        return effects.Answer(task.id, seq, messages.References((reference.public(),)))
    task.table.require_room(len(answer.references))
    references = tuple(
        proxies.adopt(step, task, node, public, Provenance.DELEGATED).public() for public in answer.references
    )
    return effects.Answer(task.id, seq, messages.References(references, answer.incomplete))
