"""The steps that the calls on buffers share: checks, counters and answers.

``dios.core.model.io_requests`` decides on admission and validity.
"""

from __future__ import annotations

from dios import limits
from dios.core import effects
from dios.core.calls import rights
from dios.core.effects import WriteSource
from dios.core.model import disclosure
from dios.core.model.accounts import buffer_version, require_all, require_bytes
from dios.core.model.io_requests import admits, begin, holds, settle
from dios.core.model.records import Buffer, Holder, PhysicalObject, Reference
from dios.core.step import Step
from dios.errors import BadReferenceError, Busy, Conflict, InvalidError, TooLargeError
from dios.ids import BufferId
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Buffering,
    CommitIov,
    Flag,
    Mode,
    Permission,
    Persistence,
    Resource,
    Semantics,
)


def require_extent(target: PhysicalObject, offset: int) -> None:
    """Raise InvalidError if the offset is after the object's end, which has the object's label."""
    if offset > target.size:
        place = "" if target.secrecy else f" at {target.size}"
        raise InvalidError(
            f"offset {offset} is after the object's end{place}", fingerprint=target.fingerprint
        )


def require_admission(target: PhysicalObject, level: Semantics) -> None:
    """Raise Busy if the active requests, whose numbers have the object's label, do not admit this level."""
    if not admits(target, level):
        active = "others" if target.secrecy else f"{target.a_r} readers and {target.a_w} writers"
        raise Busy(
            f"{active} are active, so a request at level {level.name} is not admitted; try again later",
            fingerprint=target.fingerprint,
        )


def require_idle(buffer: Buffer) -> None:
    """Raise InvalidError if a request is open on the buffer."""
    if buffer.active:
        raise InvalidError("the buffer has an open request; commit it first")


def require_associated(buffer: Buffer, reference: Reference, mode: Mode) -> None:
    """Raise an error unless the buffer belongs to this reference and was acquired for this direction."""
    if buffer.reference is not reference:
        raise BadReferenceError("the buffer is associated with another reference; TAKE or BORROW it")
    if buffer.mode is not mode:
        raise InvalidError(f"the buffer was acquired to {buffer.mode.name.lower()}")


def own_buffer(step: Step, task: Holder, buffer_id: int) -> Buffer:
    """Return a buffer of the caller.

    An earlier call of the same vector must not have acquired it: a caller can guess the id of such a buffer.
    """
    buffer = rights.own_buffer(task, buffer_id)
    if buffer.id in step.opened_in_vector:
        raise InvalidError("the calls of a vector must be independent; an earlier one acquires this buffer")
    return buffer


def begin_request(step: Step, buffer: Buffer, level: Semantics) -> None:
    """Count an admitted request, and publish the new counters."""
    begin(buffer, level)
    step.depend_on(buffer.object)
    step.changed(buffer.object)


def is_known(step: Step, target: PhysicalObject) -> bool:
    """Return True if the node that has sent the call has the bytes of the object's current version.

    The bytes of a raw object change within a version.
    """
    return step.known == target.v_w and target.buffering is not Buffering.RAW


def note_in_vector(step: Step, target: PhysicalObject, buffer: Buffer | None = None) -> None:
    """Record an object that a vector reads, so that its later calls do not change it."""
    if step.parts is not None:
        step.read_in_vector.add(target.id)
        if buffer is not None:
            step.opened_in_vector.add(buffer.id)


def answer_read(step: Step, buffer: Buffer, seq: int, *, reuse: bool) -> None:
    """Answer with the buffer and the object's bytes."""
    target = buffer.object
    task = buffer.reference.task
    result = messages.Buffer(buffer.id, 0 if buffer.bare else buffer.length, target.v_r, target.v_w)
    if buffer.bare:
        step.answer(task, seq, result)
        return
    note_in_vector(step, target, buffer)
    buffer.stand_for(target.version)
    step.reply(
        effects.AnswerRead(
            task.id,
            seq,
            result,
            target.id,
            buffer.offset,
            buffer.length,
            reuse=reuse,
            known=not reuse and is_known(step, target),
        )
    )


def answer_write(
    step: Step, buffer: Buffer, seq: int, call: messages.AcquireWrite, *, committed: bool = False
) -> None:
    """Answer with a buffer to fill; ``committed`` if the call has also committed the request before."""
    target = buffer.object
    task = buffer.reference.task
    result = messages.Buffer(buffer.id, 0 if buffer.bare else buffer.length, target.v_r, target.v_w)
    result = disclosure.counters_for(task, target, result)
    if buffer.bare:
        step.answer(task, seq, result)
        return
    if task.home:
        _answer_remote_write(step, buffer, seq, call, result, committed=committed)
        return
    taken = call.iov in {AcquireIov.TAKE, AcquireIov.BORROW}
    note_in_vector(step, target, buffer)
    if buffer.raw:
        target.opened_raw(buffer.offset + buffer.length)
        buffer.stand_for(target.version)
    elif call.iov is AcquireIov.CREATE:
        buffer.stand_for(buffer_version(task.account, buffer.length))
    step.reply(
        effects.AnswerWrite(
            task.id,
            seq,
            result,
            target.id,
            buffer.offset,
            buffer.length,
            raw=buffer.raw,
            # A task that may only write must not see the present bytes.
            blank=taken
            or bool(call.flags & Flag.BLANK)
            or not buffer.reference.permissions & Permission.READ,
            reuse=taken or call.iov is AcquireIov.REUSE,
            committed=committed,
        )
    )


def _answer_remote_write(
    step: Step,
    buffer: Buffer,
    seq: int,
    call: messages.AcquireWrite,
    result: messages.Buffer,
    *,
    committed: bool,
) -> None:
    """Answer a task of another node, which fills memory of its own node; send the present bytes, if any."""
    task, target = buffer.reference.task, buffer.object
    blank = (
        call.flags & Flag.BLANK
        or call.iov in {AcquireIov.TAKE, AcquireIov.BORROW}
        or not buffer.reference.permissions & Permission.READ
        or not target.size > buffer.offset
    )
    if blank:
        step.answer(task, seq, result)
        return
    note_in_vector(step, target, buffer)
    buffer.stand_for(target.version)
    length = min(buffer.length, target.size - buffer.offset)
    step.reply(
        effects.AnswerRead(task.id, seq, result, target.id, buffer.offset, length, committed=committed)
    )


def require_growth(target: PhysicalObject, size: int) -> None:
    """Require room for a version of ``size`` bytes in every account that counts the object."""
    growth = target.growth(size)
    if growth > 0:
        require_bytes(target.accounts, growth, volatile=target.volatile, before=size - growth)
    if target.moves(size):
        require_all(target.accounts, Resource.DESCRIPTORS, limits.MEMORY_DESCRIPTORS)


def require_movable(buffer: Buffer, reference: Reference, mode: Mode, offset: int) -> None:
    """Require that the buffer can serve another reference (TAKE, BORROW and MOVE).

    Only an owned buffer with bytes of its own can.
    """
    if buffer.owner is not None or buffer.bare:
        raise InvalidError("a buffer that is borrowed or has no bytes cannot be used by another reference")
    target = reference.object
    if buffer.raw or (mode is Mode.WRITE and target.buffering is Buffering.RAW):
        raise InvalidError("a raw object can only be written in its own memory; copy the bytes there")
    if offset + buffer.length > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the object would be larger than {limits.BLOB_BYTES_MAX} bytes")
    new = [account for account in target.sharing if account not in buffer.accounts]
    require_all(new, Resource.REQUESTS, 1)


def buffer_to_commit(step: Step, reference: Reference, buffer_id: int, iov: CommitIov, mode: Mode) -> Buffer:
    """Return the caller's buffer, if it is at a stage that can be committed like this (Figure 4.8)."""
    buffer = own_buffer(step, reference.task, buffer_id)
    if buffer.bare:
        raise InvalidError("a request acquired with IOV_NONE has no bytes to commit; use MOVE or BORROW")
    if iov is CommitIov.USE:
        require_associated(buffer, reference, mode)
    elif buffer.reference is reference:
        raise InvalidError("the buffer already belongs to this reference; USE it")
    elif iov is CommitIov.MOVE:
        require_movable(buffer, reference, mode, 0)
    elif buffer.owner is not None:
        raise InvalidError("a borrowed buffer cannot be borrowed again; release it first")
    if not buffer.active and not buffer.committed:
        raise InvalidError("the buffer has no open request; acquire first")
    rights.living(buffer.reference)
    return buffer


def commit_length(step: Step, reference: Reference, buffer: Buffer, size: int) -> int:
    """Return the number of bytes to commit. Bytes that came with the message decide, then ``size``."""
    length = size or buffer.length
    if length > buffer.length:
        raise InvalidError(f"the buffer has only {buffer.length} bytes; it cannot commit {length}")
    if step.payload:
        if step.payload_size > buffer.length or (size and size != step.payload_size):
            raise InvalidError(f"{step.payload_size} bytes came for a buffer of {buffer.length}; send fewer")
        length = step.payload_size
    elif reference.task.home and length:
        raise InvalidError("a commit from another node must carry its bytes")
    step.require_unread(reference.object)
    return length


def settle_request(step: Step, buffer: Buffer, *, also: bool = True) -> bool:
    """End the request's commit stage, and return True if the request and ``also`` are valid."""
    valid = holds(buffer) and also
    settle(buffer, valid=valid)
    step.depend_on(buffer.object)
    step.changed(buffer.object)
    return valid


def apply_buffer(
    step: Step, target: PhysicalObject, buffer: Buffer, offset: int, length: int, *, replace: bool
) -> None:
    """Write ``length`` bytes of the buffer, or of the message's payload, to the object at ``offset``."""
    end = offset + length
    away = bool(buffer.reference.task.home)
    source = WriteSource(
        payload=step.payload,
        buffer=BufferId(0) if step.payload or away else buffer.id,
        offset=offset,
        length=length,
        replace=replace,
    )
    write_bytes(step, target, source, end if replace else max(target.size, end))


def write_bytes(step: Step, target: PhysicalObject, source: WriteSource, size: int) -> None:
    """Make the source's bytes part of the object; a durable object is written to the store first."""
    step.writing = target
    target.rewritten(size)
    step.changed(target)
    durable = target.persistence is Persistence.DURABLE
    if durable:
        step.put(target, source)
    else:
        step.written.add(target.id)
    step.emit(effects.ApplyWrite(target.id, source, durable=durable))
    step.writing = None


def answer_commit(step: Step, target: PhysicalObject, task: Holder, seq: int, *, valid: bool) -> None:
    """Answer a commit with the object's versions, or refuse it as a conflict."""
    if valid:
        step.answer(
            task, seq, disclosure.counters_for(task, target, messages.Committed(target.v_r, target.v_w))
        )
        return
    step.refuse(
        task,
        seq,
        Conflict(
            "another request came between acquire and commit; acquire again and retry",
            fingerprint=target.fingerprint,
        ),
    )
