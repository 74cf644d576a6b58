"""acquire, commit and release (B.1.7 to B.1.12, Figure 4.8).

The compound requests are in ``dios.core.calls.compound_calls``, the rules of validity in
``dios.core.model.io_requests``, and the types whose bytes the core computes in
``dios.core.calls.computed_objects``.
"""

from __future__ import annotations

from dios import limits
from dios.core import lifetimes
from dios.core.calls import computed_objects, io_steps, rights
from dios.core.calls.handlers import handles
from dios.core.model.accounts import charge_all, require_all, require_bytes
from dios.core.model.io_requests import abort, associate, give_back, holds
from dios.core.model.records import Buffer, Holder, PhysicalObject, Reference, files_of
from dios.core.model.type_rules import is_blob
from dios.core.step import Step
from dios.errors import InvalidError, LimitError, TooLargeError
from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    Buffering,
    CommitIov,
    Flag,
    Mode,
    Permission,
    Resource,
)

_BUFFER_BYTES_DEFAULT = 4096


# -- acquire --------------------------------------------------------------------------------------
@handles(messages.AcquireRead)
def acquire_read(step: Step, task: Holder, seq: int, call: messages.AcquireRead) -> None:
    """dios_acquire_read: register the request and return a buffer with the object's bytes."""
    rights.flags_of(call.flags, Flag.NON_BLOCKING)
    reference = rights.for_io(task, call.ref, Mode.READ)
    if not is_blob(reference.object.type):
        computed_objects.acquire(step, reference, seq, call)
        return
    io_steps.require_extent(reference.object, call.offset)
    available = reference.object.size - call.offset
    length = min(call.size, available) if call.size else available
    buffer = _admitted(step, reference, Mode.READ, call)
    buffer.offset, buffer.length = call.offset, length
    if call.counted:
        reference.object.count_reads(call.counted)
    io_steps.begin_request(step, buffer, call.semantics)
    io_steps.answer_read(step, buffer, seq, reuse=call.iov is AcquireIov.REUSE)


@handles(messages.AcquireWrite)
def acquire_write(step: Step, task: Holder, seq: int, call: messages.AcquireWrite) -> None:
    """dios_acquire_write: register the request and return a buffer to fill."""
    rights.flags_of(call.flags, Flag.NON_BLOCKING | Flag.BLANK)
    reference = rights.for_io(task, call.ref, Mode.WRITE)
    target = reference.object
    if not is_blob(target.type):
        computed_objects.acquire(step, reference, seq, call)
        return
    if target.buffering is Buffering.RAW:
        rights.held(task, call.ref, Permission.READ)  # raw memory shows the object's present bytes
    io_steps.require_extent(target, call.offset)
    length = _length_to_write(target, call)
    if call.offset + length > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the object would be larger than {limits.BLOB_BYTES_MAX} bytes")
    if target.buffering is Buffering.RAW and call.iov in {AcquireIov.CREATE, AcquireIov.REUSE}:
        io_steps.require_growth(target, max(target.size, call.offset + length))
    buffer = _admitted(step, reference, Mode.WRITE, call)
    taken = call.iov in {AcquireIov.TAKE, AcquireIov.BORROW}
    buffer.offset = call.offset
    if taken:
        length = buffer.length
    elif call.iov is AcquireIov.REUSE and length > buffer.length:
        raise InvalidError(
            f"the buffer has only {buffer.length} bytes; release it and acquire another of {length} bytes"
        )
    buffer.length = length
    io_steps.begin_request(step, buffer, call.semantics)
    io_steps.answer_write(step, buffer, seq, call)


def _admitted(
    step: Step, reference: Reference, mode: Mode, call: messages.AcquireRead | messages.AcquireWrite
) -> Buffer:
    """Check an acquire completely, then associate its buffer (Figure 4.8, first stage)."""
    task = reference.task
    existing: Buffer | None = None
    if call.iov in {AcquireIov.TAKE, AcquireIov.BORROW, AcquireIov.REUSE}:
        existing = io_steps.own_buffer(step, task, call.buffer)
        io_steps.require_idle(existing)
        if call.iov is AcquireIov.REUSE:
            io_steps.require_associated(existing, reference, mode)
        else:
            io_steps.require_movable(existing, reference, mode, call.offset)
            if call.iov is AcquireIov.BORROW and existing.reference is reference:
                raise InvalidError("the buffer already belongs to this reference; REUSE it")
    elif call.buffer:
        raise InvalidError("only TAKE, BORROW and REUSE accept a buffer; leave it out")
    else:
        _require_room(reference, mode, call)
    io_steps.require_admission(reference.object, call.semantics)
    if existing is not None:
        if call.iov is not AcquireIov.REUSE:
            step.changed(existing.object)
            associate(existing, reference, mode, borrow=call.iov is AcquireIov.BORROW)
        return existing
    buffer = Buffer(step.state.fresh_buffer(), reference, mode, bare=call.iov is AcquireIov.NONE)
    charge_all(buffer.accounts, Resource.REQUESTS, 1)
    task.buffers[buffer.id] = buffer
    reference.buffers[buffer.id] = buffer
    return buffer


def _require_room(
    reference: Reference, mode: Mode, call: messages.AcquireRead | messages.AcquireWrite
) -> None:
    """Require room for one more buffer in the task's table and in every account that counts it."""
    task, target = reference.task, reference.object
    if len(task.buffers) >= limits.BUFFERS_PER_TASK_MAX:
        raise LimitError(f"the task already has {limits.BUFFERS_PER_TASK_MAX} buffers; release some")
    require_all((task.account, *target.sharing), Resource.REQUESTS, 1)
    if mode is Mode.READ:
        task.account.require(Resource.DESCRIPTORS, files_of(target.size, volatile=target.volatile))
    if mode is Mode.WRITE and call.iov is AcquireIov.CREATE and target.buffering is not Buffering.RAW:
        require_bytes((task.account,), _length_to_write(target, call), volatile=True)


def _length_to_write(target: PhysicalObject, call: messages.AcquireRead | messages.AcquireWrite) -> int:
    return call.size or max(target.size - call.offset, 0) or _BUFFER_BYTES_DEFAULT


# -- commit ---------------------------------------------------------------------------------------
@handles(messages.CommitRead)
def commit_read(step: Step, task: Holder, seq: int, call: messages.CommitRead) -> None:
    """dios_commit_read: report whether the bytes were valid until now."""
    rights.flags_of(call.flags, Flag.NONE)
    if call.iov is CommitIov.BORROW:
        raise InvalidError("a read cannot be committed with BORROW; use USE or MOVE")
    reference = rights.for_io(task, call.ref, Mode.READ)
    buffer = io_steps.buffer_to_commit(step, reference, call.buffer, call.iov, Mode.READ)
    if buffer.mode is not Mode.READ:
        raise InvalidError("the buffer was acquired for writing; commit the write instead")
    valid = io_steps.settle_request(step, buffer)
    if call.iov is CommitIov.MOVE:
        associate(buffer, reference, Mode.READ, borrow=False)
    io_steps.answer_commit(step, buffer.object, task, seq, valid=valid)


@handles(messages.CommitWrite)
def commit_write(step: Step, task: Holder, seq: int, call: messages.CommitWrite) -> None:
    """dios_commit_write: if the request is valid, write the buffer's bytes to the object."""
    flags = rights.flags_of(call.flags, Flag.REPLACE)
    reference = rights.for_io(task, call.ref, Mode.WRITE)
    if not is_blob(reference.object.type):
        computed_objects.commit(step, reference, seq, call)
        return
    buffer = io_steps.buffer_to_commit(step, reference, call.buffer, call.iov, Mode.WRITE)
    length = io_steps.commit_length(step, reference, buffer, call.size)
    replace = bool(flags & Flag.REPLACE)
    _require_growth(step, reference, buffer, call.iov, length, replace=replace)
    if call.iov is CommitIov.USE:
        valid = io_steps.settle_request(step, buffer)
        if valid:
            io_steps.apply_buffer(step, buffer.object, buffer, buffer.offset, length, replace=replace)
    else:
        valid = _commit_to_other_object(step, reference, buffer, call.iov, length)
    io_steps.answer_commit(step, reference.object, task, seq, valid=valid)


def _require_growth(
    step: Step, reference: Reference, buffer: Buffer, iov: CommitIov, length: int, *, replace: bool
) -> None:
    """Require room in the object's accounts for its size after this commit."""
    target = reference.object
    if iov is CommitIov.USE:
        end = buffer.offset + length
    else:
        bare = _bare_request(step, reference)
        end = (0 if bare is None else bare.offset) + length
        replace = False
    io_steps.require_growth(target, end if replace else max(target.size, end))


def _bare_request(step: Step, reference: Reference) -> Buffer | None:
    """Return the reference's own request without bytes, which a MOVE or BORROW completes, or None."""
    step.spend(len(reference.buffers) // 32)
    for other in reference.buffers.values():
        if other.bare and other.active and other.mode is Mode.WRITE:
            return other
    return None


def _commit_to_other_object(
    step: Step, reference: Reference, buffer: Buffer, iov: CommitIov, length: int
) -> bool:
    """Write the bytes of another reference's buffer to this reference's object (MOVE and BORROW).

    The commit is valid if the buffer's original request is valid. If this reference acquired a request with
    IOV_NONE, that request must be valid as well (B.1.8).
    """
    bare = _bare_request(step, reference)
    if buffer.mode is Mode.READ:
        valid = io_steps.settle_request(step, buffer)
    else:
        # The buffer's own object is not written, so it gets no new version.
        valid = holds(buffer)
        abort(buffer)
        buffer.committed = True
        step.changed(buffer.object)
    if bare is not None:
        valid = io_steps.settle_request(step, bare, also=valid)
    elif valid:
        reference.object.v_w += 1
    if valid:
        offset = bare.offset if bare is not None else 0
        io_steps.apply_buffer(step, reference.object, buffer, offset, length, replace=False)
    if iov is CommitIov.MOVE:
        associate(buffer, reference, Mode.WRITE, borrow=False)
    return valid


# -- release --------------------------------------------------------------------------------------
def release(step: Step, task: Holder, seq: int, call: messages.ReleaseRead | messages.ReleaseWrite) -> None:
    """dios_release_read and dios_release_write: release a buffer, exactly once."""
    flags = rights.flags_of(call.flags, Flag.RELEASE_COMMIT)
    reference = rights.held(task, call.ref)
    buffer = io_steps.own_buffer(step, task, call.buffer)
    mode = Mode.READ if isinstance(call, messages.ReleaseRead) else Mode.WRITE
    io_steps.require_associated(buffer, reference, mode)
    valid = True
    if flags & Flag.RELEASE_COMMIT:
        if buffer.bare or not buffer.active:
            raise InvalidError("cannot commit on release: the buffer has no bytes or no open request")
        rights.living(reference)
        if mode is Mode.WRITE:
            step.require_unread(buffer.object)
            end = max(buffer.object.size, buffer.offset + buffer.length)
            io_steps.require_growth(buffer.object, end)
        valid = io_steps.settle_request(step, buffer)
        if valid and mode is Mode.WRITE:
            io_steps.apply_buffer(step, buffer.object, buffer, buffer.offset, buffer.length, replace=False)
    if buffer.owner is None:
        lifetimes.close_buffer(step, buffer)
    else:
        step.changed(buffer.object)
        give_back(buffer)
    if valid:
        step.answer(task, seq, messages.Done(1))
    else:
        io_steps.answer_commit(step, reference.object, task, seq, valid=False)


handles(messages.ReleaseRead)(release)
handles(messages.ReleaseWrite)(release)
