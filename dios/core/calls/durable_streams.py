"""DURABLE_STREAM: a log on disk with append-only writes; each reader keeps its own position.

A position is an offset in bytes at which an entry begins; the first is 0. The core stores the position of the
log's end. The answer to a read contains the position after each entry. An append is answered when it is
durable, and no reader sees it earlier. The bytes are in ``dios.store.log_files``, which divides them into
entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios import limits
from dios.core import effects
from dios.core.calls import rights
from dios.core.effects import WriteSource
from dios.core.model import disclosure
from dios.core.model.accounts import require_bytes
from dios.errors import InvalidError, StaleError, TooLargeError
from dios.wire import messages
from dios.wire.types import Flag

if TYPE_CHECKING:
    from dios.core.model.records import Reference
    from dios.core.step import Step


def append(step: Step, reference: Reference, seq: int, call: messages.WriteOnce) -> None:
    """Append one entry. The write version in the answer is the entry's number, from 1 on."""
    rights.flags_of(call.flags, Flag.NONE)
    if call.offset:
        raise InvalidError("entries are always appended to the end of a log; leave the offset out")
    if step.payload_size > limits.LOG_ENTRY_BYTES_MAX:
        raise TooLargeError(
            f"cannot append {step.payload_size} bytes: an entry has at most {limits.LOG_ENTRY_BYTES_MAX}. "
            "Write the bytes to a blob, and append its name."
        )
    target = reference.object
    position = target.size
    growth = limits.LOG_HEAD_BYTES + step.payload_size
    if position + growth > limits.BLOB_BYTES_MAX:
        raise TooLargeError(
            f"cannot append: the log would be larger than {limits.BLOB_BYTES_MAX} bytes. Create another log."
        )
    require_bytes(target.accounts, growth, volatile=False)
    step.writing = target
    target.size = position + growth
    target.v_w += 1
    target.version.resize(target.size)
    step.append(target, position, WriteSource(payload=step.payload, length=step.payload_size))
    step.writing = None
    step.changed(target)
    step.answer(
        reference.task,
        seq,
        disclosure.counters_for(reference.task, target, messages.Committed(target.v_r, target.v_w)),
    )


def require_place(step: Step, reference: Reference, call: messages.AcquireRead | messages.ReadOnce) -> None:
    """Check a read's position.

    Raise InvalidError if it is after the log's end, if the call gives a size, and in vectors.
    """
    target = reference.object
    if step.parts is not None:
        raise InvalidError("a read of a log cannot be part of a vector. Send it alone.")
    if call.size:
        raise InvalidError("a log is read in whole entries, as many as fit a message; leave the size out")
    if call.offset > target.size:
        raise InvalidError(
            f"position {call.offset} is after the log's end at {target.size}", fingerprint=target.fingerprint
        )


def deliver(
    step: Step, reference: Reference, seq: int, call: messages.AcquireRead | messages.ReadOnce
) -> None:
    """Answer with the entries from the reader's position on, with none at the end of the log.

    This sets the position of the reference, so that ``select`` waits for later entries.
    """
    target = reference.object
    if target.zombie:
        raise StaleError("the log was deleted; drop the reference", fingerprint=target.fingerprint)
    length = min(target.size - call.offset, limits.INLINE_BYTES_MAX)
    whole = call.offset + length == target.size
    reference.position = target.size if whole else call.offset
    step.depend_on(target)
    result = messages.Buffer(0, length, target.v_r, target.v_w)
    step.emit(effects.AnswerLog(reference.task.id, seq, result, target.id, call.offset, length))
