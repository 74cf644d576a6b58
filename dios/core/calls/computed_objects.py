"""Reading and writing objects whose bytes the core computes: timers, groups, tasks, consoles.

The bytes of blobs are stored by the host. The bytes of streams pass through shared memory, not through the
core.
"""

from __future__ import annotations

from typing import TypeAlias

from dios.core import effects
from dios.core.calls import durable_streams, flows, network_streams
from dios.core.effects import WriteSource
from dios.core.model.records import Holder, LocalHolder, Pending, PhysicalObject, Reference
from dios.core.model.secrecy import PUBLIC, Label
from dios.core.model.type_states import AcceptState, ConsoleState, StreamState, TimerState
from dios.core.step import Step
from dios.errors import DiosError, EndOfStreamError, InvalidError, NoSuchTaskError, WouldBlockError
from dios.ids import TaskId
from dios.limits import CONSOLE_TAIL_BYTES, INLINE_BYTES_MAX
from dios.wire import messages
from dios.wire.codec import encode_event, encode_status
from dios.wire.types import AcquireIov, Flag, Mode, ObjectType, TaskState

ReadCall: TypeAlias = messages.AcquireRead | messages.ReadOnce


def ready(step: Step, task: Holder, target: PhysicalObject, reference: Reference, mode: Mode) -> bool:
    """Return True if I/O in ``mode`` would not wait (B.1.13)."""
    if target.zombie:
        return True
    state = target.state
    if isinstance(state, ConsoleState):
        return mode is Mode.WRITE or state.closed or state.arrived > reference.position
    if isinstance(state, TimerState):
        return state.due_ns <= step.now
    if isinstance(state, StreamState):
        return bool(state.gone)
    if isinstance(state, AcceptState):
        return bool(state.arrived)
    if target.type is ObjectType.DURABLE_STREAM:
        return mode is Mode.WRITE or target.size != reference.position
    if target.type is ObjectType.TASK:
        if target is task.object and isinstance(task, LocalHolder):
            return task.has_event
        other = step.state.tasks.get(TaskId(target.id))
        return other is None or other.state is TaskState.ENDED
    return True


def acquire(step: Step, reference: Reference, seq: int, call: ReadCall | messages.AcquireWrite) -> None:
    """Acquire on a type whose bytes are not in the host; wait if there is nothing to read yet."""
    target = reference.object
    if isinstance(target.state, StreamState):
        raise InvalidError("a stream is not read or written with system calls; attach to it and use its ring")
    if isinstance(call, messages.AcquireWrite):
        raise InvalidError(f"a {target.type.name} has no write buffers; use write_once if its type allows it")
    if isinstance(call, messages.AcquireRead) and call.iov is not AcquireIov.CREATE:
        raise InvalidError(f"a read of a {target.type.name} has no buffer to take, borrow or reuse")
    task = reference.task
    if target.type is ObjectType.DURABLE_STREAM:
        durable_streams.require_place(step, reference, call)
    if _is_readable(step, reference, call) or target.type is ObjectType.TIMER_BLOB:
        deliver(step, reference, seq, call)
        return
    if call.flags & Flag.NON_BLOCKING:
        if target.type is ObjectType.TASK and target is not task.object:
            deliver(step, reference, seq, call)  # the task's present status instead of its final status
            return
        raise WouldBlockError("nothing to read yet", fingerprint=target.fingerprint)
    step.wait(Pending(task, seq, call, {target: ()}))


def _is_readable(step: Step, reference: Reference, call: ReadCall) -> bool:
    """Return True if this read need not wait. A log is read from the caller's offset."""
    target = reference.object
    if target.type is ObjectType.DURABLE_STREAM:
        return target.zombie or target.size > call.offset or bool(call.flags & Flag.NON_BLOCKING)
    return ready(step, reference.task, target, reference, Mode.READ)


def deliver(step: Step, reference: Reference, seq: int, call: ReadCall) -> None:
    """Answer a read that is ready."""
    task, target = reference.task, reference.object
    state = target.state
    if isinstance(state, AcceptState):
        network_streams.hand_out(step, reference, state, seq)
        return
    if target.type is ObjectType.DURABLE_STREAM:
        durable_streams.deliver(step, reference, seq, call)
        return
    if isinstance(state, ConsoleState):
        _deliver_console(step, reference, state, seq, call)
        return
    label = _shown_label(step, reference)
    data = _computed_bytes(step, reference)
    target.v_r += 1
    step.changed(target)
    result = messages.Buffer(0, len(data), target.v_r, target.v_w, secrecy=label)
    step.reply(effects.AnswerBytes(task.id, seq, result, data))


def _shown_label(step: Step, reference: Reference) -> Label:
    """Return the label of a status or console that goes to another node, whose task it will raise."""
    task, target = reference.task, reference.object
    if not (task.home and step.state.labelled):
        return PUBLIC
    label = flows.label_of(step, target)
    flows.require_knowing(step, task.home, label)
    return label


def _deliver_console(step: Step, reference: Reference, state: ConsoleState, seq: int, call: ReadCall) -> None:
    # Earlier bytes are gone; a new reader of a long output does not ask for them part by part.
    reference.position = max(reference.position, state.arrived - CONSOLE_TAIL_BYTES)
    waiting = state.arrived - reference.position
    if waiting <= 0:
        raise EndOfStreamError("the console is closed, and all of its bytes were read")
    length = min(waiting, call.size or INLINE_BYTES_MAX, INLINE_BYTES_MAX)
    label = _shown_label(step, reference)
    position = reference.position
    reference.position += length
    target = reference.object
    target.v_r += 1
    step.changed(target)
    result = messages.Buffer(0, length, target.v_r, target.v_w, secrecy=label)
    step.reply(effects.AnswerConsole(reference.task.id, seq, result, state.task, position, length))


def _computed_bytes(step: Step, reference: Reference) -> bytes:
    task, target = reference.task, reference.object
    if isinstance(target.state, TimerState):
        return step.now.to_bytes(8, "little")
    if target.type is ObjectType.GROUP:
        return target.name or b""
    if target.type is ObjectType.NETWORK:
        return b""
    if target is task.object and isinstance(task, LocalHolder):
        event = task.pop_event()
        return b"" if event is None else encode_event(event)
    other = step.state.tasks.get(TaskId(target.id))
    if other is None:
        raise NoSuchTaskError("the node no longer stores this task's status", fingerprint=target.fingerprint)
    return encode_status(other.row(step.state.place))


def commit(step: Step, reference: Reference, seq: int, call: messages.CommitWrite) -> None:
    """Refuse a commit, because these types have no buffers. A console is written with write_once."""
    del step, seq, call
    raise InvalidError(f"a {reference.object.type.name} has no buffer to commit")


def write_console(step: Step, reference: Reference, seq: int) -> None:
    """Append the message's bytes to the console."""
    target = reference.object
    state = target.state
    if not isinstance(state, ConsoleState):
        raise InvalidError("not a console")
    if state.closed:
        raise EndOfStreamError("the console's task has ended")
    step.emit(effects.WriteConsole(state.task, WriteSource(payload=step.payload, length=step.payload_size)))
    target.v_w += 1
    step.changed(target)
    step.answer(reference.task, seq, messages.Committed(target.v_r, target.v_w))


def resume_read(step: Step, row: Pending) -> bool:
    """Try a waiting read again. Return True if it was answered."""
    call = row.call
    if not isinstance(call, messages.AcquireRead | messages.ReadOnce):
        return False
    task = row.task
    if call.ref not in task.table:
        step.state.pending.remove(row)
        step.refuse(task, row.seq, InvalidError("the reference was deleted while the call waited"))
        return True
    reference = task.table.get(call.ref)
    if not _is_readable(step, reference, call):
        return False
    step.state.pending.remove(row)
    try:
        if step.state.labelled:
            # The label of a task or console may have gone up while the call waited.
            _, rise = flows.admit(step, task, call)
            deliver(step, reference, row.seq, call)
            flows.apply(step, task, rise)
        else:
            deliver(step, reference, row.seq, call)
    except DiosError as error:
        step.refuse(task, row.seq, error)
    return True
