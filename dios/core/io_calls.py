"""acquire, commit and release, and their compounds (B.1.7 to B.1.12, Figure 4.8, §5.2.3).

Not for: the arithmetic of validity (``dios.core.iorequests``) or types whose bytes the core makes itself
(``dios.core.object_types.sources``).
"""

from __future__ import annotations

from dios import limits
from dios.core import access, effects
from dios.core.effects import WriteSource
from dios.core.iorequests import Buffer, abort, admits, associate, begin, give_back, holds, settle
from dios.core.object_types import sources
from dios.core.object_types.rules import is_blob
from dios.core.objects import PhysicalObject
from dios.core.references import Reference
from dios.core.step import Step
from dios.core.tasks import Task
from dios.errors import BadReferenceError, Busy, Conflict, InvalidError, OutOfMemoryError, TooLargeError
from dios.ids import BufferId
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Buffering,
    CommitIov,
    Flag,
    Mode,
    ObjectType,
    Persistence,
    Semantics,
)

_BUFFER_BYTES_DEFAULT = 4096


# -- acquire --------------------------------------------------------------------------------------
def acquire_read(step: Step, task: Task, seq: int, call: messages.AcquireRead) -> None:
    """dios_acquire_read: register the request and hand out a buffer with the object's bytes."""
    access.flags_of(call.flags, Flag.NON_BLOCKING)
    reference = access.for_io(task, call.ref, Mode.READ)
    if not is_blob(reference.object.type):
        sources.acquire(step, reference, seq, call)
        return
    _require_extent(reference.object, call.offset)
    available = reference.object.size - call.offset
    length = min(call.size, available) if call.size else available
    buffer = _admitted(step, reference, Mode.READ, call)
    buffer.offset, buffer.length = call.offset, length
    _begin(step, buffer, call.semantics)
    _answer_read(step, buffer, seq, reuse=call.iov is AcquireIov.REUSE)


def _answer_read(step: Step, buffer: Buffer, seq: int, *, reuse: bool) -> None:
    target = buffer.object
    task = buffer.reference.task
    result = messages.Buffer(buffer.id, 0 if buffer.bare else buffer.length, target.v_r, target.v_w)
    if buffer.bare:
        step.answer(task, seq, result)
        return
    _note_in_vector(step, target, buffer)
    step.reply(effects.AnswerRead(task.id, seq, result, target.id, buffer.offset, buffer.length, reuse=reuse))


def acquire_write(step: Step, task: Task, seq: int, call: messages.AcquireWrite) -> None:
    """dios_acquire_write: register the request and hand out a buffer to fill."""
    access.flags_of(call.flags, Flag.NON_BLOCKING | Flag.BLANK)
    reference = access.for_io(task, call.ref, Mode.WRITE)
    target = reference.object
    if not is_blob(target.type):
        sources.acquire(step, reference, seq, call)
        return
    _require_extent(target, call.offset)
    length = call.size or max(target.size - call.offset, 0) or _BUFFER_BYTES_DEFAULT
    if call.offset + length > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the object would pass {limits.BLOB_BYTES_MAX} bytes")
    buffer = _admitted(step, reference, Mode.WRITE, call)
    taken = call.iov in {AcquireIov.TAKE, AcquireIov.BORROW}
    buffer.offset = call.offset
    if taken:
        length = buffer.length
    elif call.iov is AcquireIov.REUSE and length > buffer.length:
        raise InvalidError(f"the buffer has {buffer.length} bytes; release it and acquire {length} anew")
    buffer.length = length
    _begin(step, buffer, call.semantics)
    _answer_write(step, buffer, seq, call)


def _answer_write(step: Step, buffer: Buffer, seq: int, call: messages.AcquireWrite) -> None:
    target = buffer.object
    task = buffer.reference.task
    result = messages.Buffer(buffer.id, 0 if buffer.bare else buffer.length, target.v_r, target.v_w)
    if buffer.bare:
        step.answer(task, seq, result)
        return
    taken = call.iov in {AcquireIov.TAKE, AcquireIov.BORROW}
    _note_in_vector(step, target, buffer)
    step.reply(
        effects.AnswerWrite(
            task.id,
            seq,
            result,
            target.id,
            buffer.offset,
            buffer.length,
            raw=buffer.raw,
            blank=taken or bool(call.flags & Flag.BLANK),
            reuse=taken or call.iov is AcquireIov.REUSE,
        )
    )


def _require_extent(target: PhysicalObject, offset: int) -> None:
    if offset > target.size:
        raise InvalidError(
            f"offset {offset} is behind the object's end at {target.size}", fingerprint=target.fingerprint
        )


def _require_admission(target: PhysicalObject, level: Semantics) -> None:
    if not admits(target, level):
        raise Busy(
            f"{target.a_r} readers and {target.a_w} writers are active; not admitted at {level.name}",
            fingerprint=target.fingerprint,
        )


def _admitted(
    step: Step, reference: Reference, mode: Mode, call: messages.AcquireRead | messages.AcquireWrite
) -> Buffer:
    """Check everything about an acquire, then associate its buffer (Figure 4.8, first stage)."""
    task = reference.task
    existing: Buffer | None = None
    if call.iov in {AcquireIov.TAKE, AcquireIov.BORROW, AcquireIov.REUSE}:
        existing = _own_buffer(step, task, call.buffer)
        _require_idle(existing)
        if call.iov is AcquireIov.REUSE:
            _require_associated(existing, reference, mode)
        else:
            _require_movable(existing, reference, mode, call.offset)
            if call.iov is AcquireIov.BORROW and existing.reference is reference:
                raise InvalidError("the buffer is this reference's own; REUSE it")
    elif call.buffer:
        raise InvalidError("only TAKE, BORROW and REUSE name a buffer")
    elif len(task.buffers) >= limits.BUFFERS_PER_TASK_MAX:
        raise OutOfMemoryError(f"the task holds {limits.BUFFERS_PER_TASK_MAX} buffers; release some")
    _require_admission(reference.object, call.semantics)
    if existing is not None:
        if call.iov is not AcquireIov.REUSE:
            associate(existing, reference, mode, borrow=call.iov is AcquireIov.BORROW)
        return existing
    buffer = Buffer(step.state.fresh_buffer(), reference, mode, bare=call.iov is AcquireIov.NONE)
    task.buffers[buffer.id] = buffer
    reference.buffers[buffer.id] = buffer
    return buffer


def _require_idle(buffer: Buffer) -> None:
    if buffer.active:
        raise InvalidError("the request on this buffer is not committed yet")


def _require_associated(buffer: Buffer, reference: Reference, mode: Mode) -> None:
    if buffer.reference is not reference:
        raise BadReferenceError("the buffer is associated with another reference; TAKE or BORROW it")
    if buffer.mode is not mode:
        raise InvalidError(f"the buffer was acquired to {buffer.mode.name.lower()}")


def _require_movable(buffer: Buffer, reference: Reference, mode: Mode, offset: int) -> None:
    """TAKE, BORROW and MOVE: only an owned buffer with bytes of its own serves another reference."""
    if buffer.owner is not None or buffer.bare:
        raise InvalidError("the buffer is borrowed, or has no bytes; it cannot move on")
    target = reference.object
    if buffer.raw or (mode is Mode.WRITE and target.buffering is Buffering.RAW):
        raise InvalidError("a raw object is written in its own memory, by no other buffer; copy the bytes")
    if offset + buffer.length > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the object would pass {limits.BLOB_BYTES_MAX} bytes")


def _own_buffer(step: Step, task: Task, buffer_id: int) -> Buffer:
    """A buffer of the caller, not one that an earlier call of the same vector makes: ids are no secret."""
    buffer = access.own_buffer(task, buffer_id)
    if buffer.id in step.opened_in_vector:
        raise InvalidError("the calls of a vector must be independent; this buffer is acquired before")
    return buffer


def _begin(step: Step, buffer: Buffer, level: Semantics) -> None:
    begin(buffer, level)
    step.seen(buffer.object)
    step.changed(buffer.object)


def _note_in_vector(step: Step, target: PhysicalObject, buffer: Buffer | None = None) -> None:
    if step.parts is not None:
        step.read_in_vector.add(target.id)
        if buffer is not None:
            step.opened_in_vector.add(buffer.id)


# -- commit ---------------------------------------------------------------------------------------
def commit_read(step: Step, task: Task, seq: int, call: messages.CommitRead) -> None:
    """dios_commit_read: say whether the bytes were valid until now."""
    access.flags_of(call.flags, Flag.NONE)
    if call.iov is CommitIov.BORROW:
        raise InvalidError("a read is committed with USE or MOVE")
    reference = access.for_io(task, call.ref, Mode.READ)
    buffer = _buffer_to_commit(step, reference, call.buffer, call.iov, Mode.READ)
    if buffer.mode is not Mode.READ:
        raise InvalidError("the buffer was acquired to write; commit the write")
    valid = _settle(step, buffer)
    if call.iov is CommitIov.MOVE:
        associate(buffer, reference, Mode.READ, borrow=False)
    _answer_commit(step, buffer.object, task, seq, valid=valid)


def commit_write(step: Step, task: Task, seq: int, call: messages.CommitWrite) -> None:
    """dios_commit_write: if the semantics held, the buffer's bytes become the object's."""
    flags = access.flags_of(call.flags, Flag.REPLACE)
    reference = access.for_io(task, call.ref, Mode.WRITE)
    if not is_blob(reference.object.type):
        sources.commit(step, reference, seq, call)
        return
    buffer = _buffer_to_commit(step, reference, call.buffer, call.iov, Mode.WRITE)
    length = _commit_length(step, reference, buffer, call.size)
    if call.iov is CommitIov.USE:
        valid = _settle(step, buffer)
        if valid:
            _apply(step, buffer.object, buffer, buffer.offset, length, replace=bool(flags & Flag.REPLACE))
    else:
        valid = _commit_elsewhere(step, reference, buffer, call.iov, length)
    _answer_commit(step, reference.object, task, seq, valid=valid)


def _buffer_to_commit(step: Step, reference: Reference, buffer_id: int, iov: CommitIov, mode: Mode) -> Buffer:
    buffer = _own_buffer(step, reference.task, buffer_id)
    if buffer.bare:
        raise InvalidError("a request acquired with IOV_NONE has no bytes of its own to commit")
    if iov is CommitIov.USE:
        _require_associated(buffer, reference, mode)
    elif buffer.reference is reference:
        raise InvalidError("the buffer is this reference's own; USE it")
    elif iov is CommitIov.MOVE:
        _require_movable(buffer, reference, mode, 0)
    elif buffer.owner is not None:
        raise InvalidError("a borrowed buffer cannot be lent on")
    if not buffer.active and not buffer.committed:
        raise InvalidError("the buffer has no request; acquire first")
    access.living(buffer.reference)
    return buffer


def _commit_length(step: Step, reference: Reference, buffer: Buffer, size: int) -> int:
    length = size or buffer.length
    if length > buffer.length:
        raise InvalidError(f"the buffer has {buffer.length} bytes, not {length}")
    if step.payload:
        if step.payload_size > buffer.length or (size and size != step.payload_size):
            raise InvalidError(f"{step.payload_size} bytes came for a buffer of {buffer.length}")
        length = step.payload_size
    step.require_unread(reference.object)
    return length


def _settle(step: Step, buffer: Buffer, *, also: bool = True) -> bool:
    """End the request's commit stage; it holds only if what it depends on does ``also``."""
    valid = holds(buffer) and also
    settle(buffer, valid=valid)
    step.seen(buffer.object)
    step.changed(buffer.object)
    return valid


def _commit_elsewhere(step: Step, reference: Reference, buffer: Buffer, iov: CommitIov, length: int) -> bool:
    """MOVE and BORROW: the bytes of another reference's buffer are written to this one's object.

    The answer speaks of the buffer's original request, and of this reference's own bare request where
    one was acquired with IOV_NONE (B.1.8).
    """
    bare = next(
        (
            other
            for other in reference.buffers.values()
            if other.bare and other.active and other.mode is Mode.WRITE
        ),
        None,
    )
    if buffer.mode is Mode.READ:
        valid = _settle(step, buffer)
    else:
        # Its own object gets nothing of this write, and so no new version.
        valid = holds(buffer)
        abort(buffer)
        buffer.committed = True
        step.changed(buffer.object)
    if bare is not None:
        valid = _settle(step, bare, also=valid)
    elif valid:
        reference.object.v_w += 1
    if valid:
        offset = bare.offset if bare is not None else 0
        _apply(step, reference.object, buffer, offset, length, replace=False)
    if iov is CommitIov.MOVE:
        associate(buffer, reference, Mode.WRITE, borrow=False)
    return valid


def _apply(
    step: Step, target: PhysicalObject, buffer: Buffer, offset: int, length: int, *, replace: bool
) -> None:
    end = offset + length
    source = WriteSource(
        payload=step.payload,
        buffer=BufferId(0) if step.payload else buffer.id,
        offset=offset,
        length=length,
        replace=replace,
    )
    in_place = buffer.raw and buffer.object is target and not step.payload
    _write(step, target, source, end if replace else max(target.size, end), raw=in_place)


def _write(step: Step, target: PhysicalObject, source: WriteSource, size: int, *, raw: bool) -> None:
    target.size = size
    step.changed(target)
    durable = target.persistence is Persistence.DURABLE
    if durable:
        step.put(target, source)
    step.emit(effects.ApplyWrite(target.id, source, raw=raw, durable=durable))


def _answer_commit(step: Step, target: PhysicalObject, task: Task, seq: int, *, valid: bool) -> None:
    if valid:
        step.answer(task, seq, messages.Committed(target.v_r, target.v_w))
        return
    step.refuse(
        task,
        seq,
        Conflict(
            "another request came between acquire and commit; acquire again and retry",
            fingerprint=target.fingerprint,
        ),
    )


# -- release --------------------------------------------------------------------------------------
def release(step: Step, task: Task, seq: int, call: messages.ReleaseRead | messages.ReleaseWrite) -> None:
    """dios_release_read and dios_release_write: give the buffer back, exactly once."""
    flags = access.flags_of(call.flags, Flag.RELEASE_COMMIT)
    reference = access.held(task, call.ref)
    buffer = _own_buffer(step, task, call.buffer)
    mode = Mode.READ if isinstance(call, messages.ReleaseRead) else Mode.WRITE
    _require_associated(buffer, reference, mode)
    valid = True
    if flags & Flag.RELEASE_COMMIT:
        if buffer.bare or not buffer.active:
            raise InvalidError("nothing to commit on this buffer")
        access.living(reference)
        if mode is Mode.WRITE:
            step.require_unread(buffer.object)
        valid = _settle(step, buffer)
        if valid and mode is Mode.WRITE:
            _apply(step, buffer.object, buffer, buffer.offset, buffer.length, replace=False)
    if buffer.owner is None:
        step.close_buffer(buffer)
    else:
        step.changed(buffer.object)
        give_back(buffer)
    if valid:
        step.answer(task, seq, messages.Done(1))
    else:
        _answer_commit(step, reference.object, task, seq, valid=False)


# -- compounds ------------------------------------------------------------------------------------
def read_once(step: Step, task: Task, seq: int, call: messages.ReadOnce) -> None:
    """Acquire, commit and release a read: valid at one instant, so its commit always holds."""
    if call.flags:
        access.flags_of(call.flags, Flag.NON_BLOCKING)
    reference = access.for_io(task, call.ref, Mode.READ)
    target = reference.object
    if not is_blob(target.type):
        sources.acquire(step, reference, seq, call)
        return
    _require_extent(target, call.offset)
    _require_admission(target, call.semantics)
    available = target.size - call.offset
    length = min(call.size, available) if call.size else available
    target.admissions += 1
    target.v_r += 1
    step.seen(target)
    step.changed(target)
    _note_in_vector(step, target)
    result = messages.Buffer(0, length, target.v_r, target.v_w)
    step.reply(effects.AnswerRead(task.id, seq, result, target.id, call.offset, length))


def write_once(step: Step, task: Task, seq: int, call: messages.WriteOnce) -> None:
    """Acquire, fill, commit and release a write in one instant."""
    flags = access.flags_of(call.flags, Flag.REPLACE)
    reference = access.for_io(task, call.ref, Mode.WRITE)
    target = reference.object
    if target.type is ObjectType.CONSOLE_STREAM:
        sources.write_console(step, reference, seq)
        return
    if not is_blob(target.type):
        raise InvalidError(f"a {target.type.name} is not written in one message")
    _require_extent(target, call.offset)
    _require_admission(target, call.semantics)
    end = call.offset + step.payload_size
    if end > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the object would pass {limits.BLOB_BYTES_MAX} bytes")
    step.require_unread(target)
    target.admissions += 1
    target.v_w += 1
    replace = bool(flags & Flag.REPLACE)
    source = WriteSource(payload=step.payload, offset=call.offset, length=step.payload_size, replace=replace)
    _write(step, target, source, end if replace else max(target.size, end), raw=False)
    step.answer(task, seq, messages.Committed(target.v_r, target.v_w))


def commit_acquire_read(step: Step, task: Task, seq: int, call: messages.CommitAcquireRead) -> None:
    """Commit a read and at once start the next on the same buffer and range."""
    access.flags_of(call.flags, Flag.NONE)
    reference = access.for_io(task, call.ref, Mode.READ)
    buffer = _buffer_to_commit(step, reference, call.buffer, CommitIov.USE, Mode.READ)
    valid = _settle(step, buffer)
    if not valid:
        _answer_commit(step, buffer.object, task, seq, valid=False)
        return
    if not admits(buffer.object, call.semantics):
        # Busy, and not the commit's own Conflict: what was read is good, only nothing new was begun.
        said = "the read held, but the next is not admitted beside the requests active now; acquire again"
        step.refuse(task, seq, Busy(said, fingerprint=buffer.object.fingerprint))
        return
    buffer.length = min(buffer.length, max(buffer.object.size - buffer.offset, 0))
    _begin(step, buffer, call.semantics)
    _answer_read(step, buffer, seq, reuse=True)


def commit_acquire_write(step: Step, task: Task, seq: int, call: messages.CommitAcquireWrite) -> None:
    """Commit a write and at once start the next on the same buffer and range."""
    flags = access.flags_of(call.flags, Flag.REPLACE | Flag.BLANK)
    reference = access.for_io(task, call.ref, Mode.WRITE)
    buffer = _buffer_to_commit(step, reference, call.buffer, CommitIov.USE, Mode.WRITE)
    length = _commit_length(step, reference, buffer, call.size)
    valid = _settle(step, buffer)
    if not valid:
        _answer_commit(step, buffer.object, task, seq, valid=False)
        return
    _apply(step, buffer.object, buffer, buffer.offset, length, replace=bool(flags & Flag.REPLACE))
    if not admits(buffer.object, call.semantics):
        _answer_commit(step, buffer.object, task, seq, valid=True)
        return
    _begin(step, buffer, call.semantics)
    again = messages.AcquireWrite(
        call.ref, iov=AcquireIov.REUSE, flags=call.flags & int(Flag.BLANK), buffer=buffer.id
    )
    _answer_write(step, buffer, seq, again)
