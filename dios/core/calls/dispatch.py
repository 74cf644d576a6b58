"""The interface of the core: find the function that handles a call (Table 4.4, appendix B).

A DiosError becomes a Failure here, and an access denial becomes an audit record in addition.
"""

from __future__ import annotations

from typing import Final, cast

from dios import limits
from dios.core.calls import (  # noqa: F401 - each module binds its functions to calls
    compound_calls,
    delegation,
    entrance,
    flows,
    groups,
    introspection,
    io_calls,
    limit_calls,
    moves,
    network_streams,
    node_calls,
    object_calls,
    rate_calls,
    resolution,
    retirement,
    run_calls,
    scheduling_calls,
    sharing,
    tables,
    task_calls,
    tokens,
    user_keys,
)
from dios.core.calls.handlers import handlers
from dios.core.effects import AnswerVector, DropPayload, Reply
from dios.core.model.records import Holder, LocalHolder, Pending, PhysicalObject
from dios.core.model.work_items import AdmittedCalls
from dios.core.remote import cached_reads, forwarding, remote_calls
from dios.core.remote.continuations import EntranceProgress, GatherAnswer, GatheredAnswer, VectorPlan
from dios.core.remote.peers import Proxy
from dios.core.step import Step
from dios.errors import BadReferenceError, Code, DiosError, InvalidError, LimitError
from dios.ids import PayloadId
from dios.wire import dcp, messages
from dios.wire.call_table import CALLS, CARRYING, Effect, Exemption, carried_bytes, kinds
from dios.wire.types import Cause

_HANDLERS: Final = handlers()
_DENIALS: Final = frozenset({Code.EPERM, Code.EBADF, Code.EDQUOT})
_TOO_MUCH: Final = (
    "the earlier calls of this vector took all the work of one message. Send this call in another."
)
_IN_VECTORS: Final = kinds(lambda row: Exemption.VECTOR in row.exemptions)
_WITH_ATTACHED_BYTES: Final = kinds(lambda row: row.effect in {Effect.COMMITS, Effect.ENDS_WRITE})
"""The calls whose bytes may have come next to the message."""
_REFERENCE_FIELDS: Final = {kind: row.reference for kind, row in CALLS.items()}


def enter(
    step: Step, task: Holder, seq: int, call: messages.AnyCall, payload: PayloadId, attached: int = 0
) -> None:
    """Handle a call or a vector, or let it wait until other nodes have no lease on its objects.

    The arguments are those of ``dispatch``.
    """
    cluster = step.state.cluster
    if cluster is not None and (cluster.leases.granted or step.now < cluster.leases.restart_ends):
        closes = entrance.closed_by(task, messages.calls_of(call))
        if closes and entrance.must_wait(step, closes):
            _wait(step, task, seq, call, closes, payload, attached)
            return
    if isinstance(call, messages.Vector):
        dispatch_vector(step, task, seq, call, payload, attached)
    else:
        dispatch(step, task, seq, call, payload, attached)  # type: ignore[arg-type] # a Hello never comes here


def _wait(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.AnyCall,
    closes: tuple[PhysicalObject, ...],
    payload: PayloadId,
    attached: int,
) -> None:
    carried = messages.payloads_of(call)
    payloads = tuple(PayloadId(payload + place) for place in range(max(len(carried), 1 if attached else 0)))
    size = sum(len(data) for data in carried) + attached
    try:
        entrance.wait(step, task, seq, call, closes, payloads, size, attached)
    except LimitError as error:
        if cached_reads.yield_room(step, task):
            _wait(step, task, seq, call, closes, payload, attached)
        else:
            step.audit(task, type(call).__name__.lower(), "denied", error.fingerprint, error.message)
            step.refuse(task, seq, error)


def admit_one(step: Step, item: AdmittedCalls) -> bool:
    """Handle a call that has waited for the end of leases; return True if it was the last one."""
    while item.rows:
        row = item.rows.pop()
        progress = row.progress
        if not step.state.pending.has(row) or not isinstance(progress, EntranceProgress):
            continue
        step.state.pending.remove(row)
        try:
            _admit(step, row, progress)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported and ends the party
            step.note_defect(row.task, error)
        for payload in progress.payloads:
            step.emit(DropPayload(payload))
        break
    return not item.rows


def _admit(step: Step, row: Pending, progress: EntranceProgress) -> None:
    task, cluster = row.task, step.require_cluster()
    if isinstance(task, LocalHolder) and task.cause is not Cause.NONE:
        return  # the last calls of a task that is ending
    former = step.payload, step.payload_size, step.served, step.units_max
    peer = cluster.peers.get(task.home)
    step.served = None if peer is None else (peer, row.seq)
    first = progress.payloads[0] if progress.payloads else PayloadId(0)
    try:
        enter(step, task, row.seq, row.call, first, progress.attached)
    finally:
        step.payload, step.payload_size, step.served, step.units_max = former


def dispatch(
    step: Step, task: Holder, seq: int, call: messages.PlainCall, payload: PayloadId, attached: int = 0
) -> None:
    """Handle one call. A refused call changes nothing.

    The host stores the call's inline bytes under ``payload``. A call without inline bytes may have
    ``attached`` bytes that came next to it. A call on an object of another node is forwarded to that node.
    """
    field = _REFERENCE_FIELDS[type(call)]
    reference = None if field is None else task.table.find(getattr(call, field))
    touched = "" if reference is None else reference.object.fingerprint
    step.state.story.append((step.now, type(call).__name__, task.object.fingerprint, touched, seq))
    # As ``carried_bytes``, without a call on the hot path.
    data: bytes | None = getattr(call, "data", None) if type(call) in CARRYING else None
    if data is None:
        step.payload, step.payload_size = (payload if attached else PayloadId(0)), attached
    else:
        step.payload, step.payload_size = payload, len(data)
    try:
        if step.state.labelled:
            call, rise = flows.admit(step, task, call)
            try:
                _handle(step, task, seq, call)
            except DiosError as error:
                raise flows.without_reason(error, rise) from error
            flows.apply(step, task, rise)
        else:
            _handle(step, task, seq, call)
    except DiosError as error:
        if error.code is Code.EDQUOT and cached_reads.yield_room(step, task):
            dispatch(step, task, seq, call, payload, attached)
            return
        if error.code in _DENIALS:
            step.audit(task, type(call).__name__.lower(), "denied", error.fingerprint, error.message)
        step.refuse(task, seq, error)


def _handle(step: Step, task: Holder, seq: int, call: messages.PlainCall) -> None:
    if task.remote_nodes:
        target = forwarding.proxy_of(task, call)
        if target is not None:
            _remote(step, task, seq, call, target)
            return
    _HANDLERS[type(call)](step, task, seq, call)


def dispatch_vector(
    step: Step, task: Holder, seq: int, vector: messages.Vector, payload: PayloadId, attached: int = 0
) -> None:
    """Handle the calls of a vector in order and answer them in one message.

    The host stores the inline bytes of the calls under consecutive ids from ``payload`` on. Alternatively the
    bytes of the vector's only commit came next to the message: ``attached`` is their number.
    """
    if task.remote_nodes:
        places = [
            None if forwarding.only_drops(call) else forwarding.proxy_of(task, call) for call in vector.calls
        ]
        if any(places):
            _remote_vector(step, task, seq, vector, places)
            return
    step.emit_answer(
        AnswerVector(task.id, seq, tuple(_answers(step, task, seq, vector.calls, payload, attached)))
    )


def _answers(
    step: Step,
    task: Holder,
    seq: int,
    calls: tuple[messages.PlainCall, ...],
    payload: PayloadId,
    attached: int = 0,
) -> list[Reply]:
    """Handle calls in order and collect their answers."""
    step.parts = []
    step.units_max = limits.VECTOR_UNITS_MAX
    for call in calls:
        if step.exhausted:
            step.refuse(task, seq, LimitError(_TOO_MUCH))
            continue
        step.spend(1)
        if type(call) not in _IN_VECTORS:
            step.refuse(task, seq, InvalidError(f"{type(call).__name__.lower()} cannot be part of a vector"))
            continue
        dispatch(step, task, seq, call, payload, attached if type(call) in _WITH_ATTACHED_BYTES else 0)
        if carried_bytes(call) is not None:
            payload = PayloadId(payload + 1)
    parts, step.parts = step.parts, None
    step.units_max = limits.STEP_UNITS
    return parts


def _remote(step: Step, task: Holder, seq: int, call: messages.PlainCall, target: Proxy) -> None:
    if isinstance(call, messages.Copy):
        remote_calls.copy(step, task, seq, call, target)
    elif cached_reads.concerns(step, call, target):
        cached_reads.read(step, task, seq, cast("cached_reads.Read", call), target)
    else:
        forwarding.forward(step, task, seq, call, target)


def _remote_vector(
    step: Step,
    task: Holder,
    seq: int,
    vector: messages.Vector,
    places: list[Proxy | None],
) -> None:
    """Handle a vector with calls for other nodes. The local calls are handled after those are answered."""
    try:
        for call, target in zip(vector.calls, places, strict=True):
            # The payload lives only as long as the event that brought it, and the vector waits longer.
            if target is None and carried_bytes(call) is not None:
                raise InvalidError(
                    "the calls of a vector that carry bytes must all be for this node or all for other nodes"
                )
        own = (call for call, target in zip(vector.calls, places, strict=True) if target is None)
        refused = remote_calls.vector(step, task, seq, vector, places, entrance.closed_by(task, own))
        if refused is not None:
            _finish_vector(step, *refused, [])
    except DiosError as error:
        step.refuse(task, seq, error)


def take_gathered(step: Step, then: GatherAnswer, answer: dcp.Answer) -> None:
    """Continue with a vector, or with a list of tasks, when every node has answered."""
    complete = remote_calls.take_gathered(step, then, answer)
    if complete is None:
        return
    row, progress = complete
    try:
        if isinstance(progress.plan, VectorPlan):
            _finish_vector(step, row, progress.plan, progress.answers)
        else:
            remote_calls.finish_list(step, row, progress.plan, progress.answers)
    except DiosError as error:
        step.refuse(row.task, row.seq, error)
    for payload in progress.kept:
        step.emit(DropPayload(payload))


def _finish_vector(step: Step, row: Pending, plan: VectorPlan, answers: list[GatheredAnswer | None]) -> None:
    task, seq, call = row.task, row.seq, cast("messages.Vector", row.call)
    parts = remote_calls.remote_parts(step, row, call, plan, answers)
    calls = tuple(call.calls[place] for place in plan.local)
    if entrance.must_wait(step, entrance.closed_by(task, calls)):
        # The vector has closed its objects, so this object is behind a reference that came since.
        raise BadReferenceError("a call of the vector names a reference that this task did not have")
    own = _answers(step, task, seq, calls, PayloadId(0))
    parts.update(zip(plan.local, own, strict=True))
    step.emit_answer(AnswerVector(task.id, seq, tuple(parts[place] for place in range(len(call.calls)))))
