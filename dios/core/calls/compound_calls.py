"""Compound requests: several stages of an I/O request in one message (§5.2.3).

The single stages are in ``dios.core.calls.io_calls``.
"""

from __future__ import annotations

from dios import limits
from dios.core import effects
from dios.core.calls import computed_objects, durable_streams, io_steps, rights
from dios.core.calls.handlers import handles
from dios.core.effects import WriteSource
from dios.core.model import disclosure
from dios.core.model.io_requests import admits
from dios.core.model.records import Holder
from dios.core.model.type_rules import is_blob
from dios.core.remote import granted_leases
from dios.core.step import Step
from dios.errors import Busy, InvalidError, TooLargeError
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    CommitIov,
    Flag,
    Mode,
    ObjectType,
)


@handles(messages.ReadOnce)
def read_once(step: Step, task: Holder, seq: int, call: messages.ReadOnce) -> None:
    """Acquire, commit and release a read at one instant, so that its commit always succeeds."""
    if call.flags:
        rights.flags_of(call.flags, Flag.NON_BLOCKING)
    reference = rights.for_io(task, call.ref, Mode.READ)
    target = reference.object
    if not is_blob(target.type):
        computed_objects.acquire(step, reference, seq, call)
        return
    io_steps.require_extent(target, call.offset)
    io_steps.require_admission(target, call.semantics)
    available = target.size - call.offset
    length = min(call.size, available) if call.size else available
    target.admissions += 1
    target.v_r += 1
    if call.counted:
        target.count_reads(call.counted)
    step.depend_on(target)
    step.changed(target)
    io_steps.note_in_vector(step, target)
    result = messages.Buffer(0, length, target.v_r, target.v_w)
    if io_steps.is_known(step, target):
        granted_leases.grant(step, reference)
        step.answer(task, seq, result)
        return
    step.reply(effects.AnswerRead(task.id, seq, result, target.id, call.offset, length))


@handles(messages.WriteOnce)
def write_once(step: Step, task: Holder, seq: int, call: messages.WriteOnce) -> None:
    """Acquire, fill, commit and release a write at one instant."""
    flags = rights.flags_of(call.flags, Flag.REPLACE)
    reference = rights.for_io(task, call.ref, Mode.WRITE)
    target = reference.object
    if target.type is ObjectType.CONSOLE_STREAM:
        computed_objects.write_console(step, reference, seq)
        return
    if target.type is ObjectType.DURABLE_STREAM:
        durable_streams.append(step, reference, seq, call)
        return
    if not is_blob(target.type):
        raise InvalidError(f"a {target.type.name} cannot be written with write_once")
    io_steps.require_extent(target, call.offset)
    io_steps.require_admission(target, call.semantics)
    end = call.offset + step.payload_size
    if end > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the object would be larger than {limits.BLOB_BYTES_MAX} bytes")
    step.require_unread(target)
    replace = bool(flags & Flag.REPLACE)
    size = end if replace else max(target.size, end)
    io_steps.require_growth(target, size)
    target.admissions += 1
    target.v_w += 1
    source = WriteSource(payload=step.payload, offset=call.offset, length=step.payload_size, replace=replace)
    io_steps.write_bytes(step, target, source, size)
    step.answer(task, seq, disclosure.counters_for(task, target, messages.Committed(target.v_r, target.v_w)))


@handles(messages.CommitAcquireRead)
def commit_acquire_read(step: Step, task: Holder, seq: int, call: messages.CommitAcquireRead) -> None:
    """Commit a read, and acquire the next on the same buffer and range."""
    rights.flags_of(call.flags, Flag.NONE)
    reference = rights.for_io(task, call.ref, Mode.READ)
    buffer = io_steps.buffer_to_commit(step, reference, call.buffer, CommitIov.USE, Mode.READ)
    valid = io_steps.settle_request(step, buffer)
    if not valid:
        io_steps.answer_commit(step, buffer.object, task, seq, valid=False)
        return
    if not admits(buffer.object, call.semantics):
        # Busy instead of the commit's Conflict: the bytes read are valid, only no new request was begun.
        message = "the read is valid, but active requests do not admit the next one; acquire again later"
        step.refuse(task, seq, Busy(message, fingerprint=buffer.object.fingerprint))
        return
    buffer.length = min(buffer.length, max(buffer.object.size - buffer.offset, 0))
    io_steps.begin_request(step, buffer, call.semantics)
    io_steps.answer_read(step, buffer, seq, reuse=True)


@handles(messages.CommitAcquireWrite)
def commit_acquire_write(step: Step, task: Holder, seq: int, call: messages.CommitAcquireWrite) -> None:
    """Commit a write, and acquire the next on the same buffer and range."""
    flags = rights.flags_of(call.flags, Flag.REPLACE | Flag.BLANK)
    reference = rights.for_io(task, call.ref, Mode.WRITE)
    buffer = io_steps.buffer_to_commit(step, reference, call.buffer, CommitIov.USE, Mode.WRITE)
    length = io_steps.commit_length(step, reference, buffer, call.size)
    replace = bool(flags & Flag.REPLACE)
    end = buffer.offset + length
    io_steps.require_growth(buffer.object, end if replace else max(buffer.object.size, end))
    valid = io_steps.settle_request(step, buffer)
    if not valid:
        io_steps.answer_commit(step, buffer.object, task, seq, valid=False)
        return
    io_steps.apply_buffer(step, buffer.object, buffer, buffer.offset, length, replace=replace)
    if not admits(buffer.object, call.semantics):
        io_steps.answer_commit(step, buffer.object, task, seq, valid=True)
        return
    io_steps.begin_request(step, buffer, call.semantics)
    again = messages.AcquireWrite(
        call.ref, iov=AcquireIov.REUSE, flags=call.flags & int(Flag.BLANK), buffer=buffer.id
    )
    io_steps.answer_write(step, buffer, seq, again, committed=True)
