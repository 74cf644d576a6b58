"""DURABLE_STREAM: a log on disk that is appended to, and whose readers keep their own places.

Not for: its bytes, which the host stores and cuts into entries (``dios.store.log_files``).

A place is a position in bytes at which an entry begins, 0 for the first. The core knows where the log ends,
and that is an entry's end; a reader is told the place after each entry that it got. An append is answered
when it is durable, and until then nobody reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios import limits
from dios.core import effects
from dios.core.calls import access
from dios.core.effects import WriteSource
from dios.core.model.accounts import require_bytes
from dios.errors import InvalidError, StaleError, TooLargeError
from dios.wire import messages
from dios.wire.types import Flag

if TYPE_CHECKING:
    from dios.core.model.records import Reference
    from dios.core.step import Step


def append(step: Step, reference: Reference, seq: int, call: messages.WriteOnce) -> None:
    """Add one entry; the answer's write version is its number, from 1 on."""
    access.flags_of(call.flags, Flag.NONE)
    if call.offset:
        raise InvalidError("a log is written at its end; leave the offset out")
    if step.payload_size > limits.LOG_ENTRY_BYTES_MAX:
        raise TooLargeError(
            f"an entry of {step.payload_size} bytes is over {limits.LOG_ENTRY_BYTES_MAX}; "
            "put the bytes into a blob, and append its name"
        )
    target = reference.object
    position = target.size
    growth = limits.LOG_HEAD_BYTES + step.payload_size
    if position + growth > limits.BLOB_BYTES_MAX:
        raise TooLargeError(f"the log would pass {limits.BLOB_BYTES_MAX} bytes; begin another")
    require_bytes(target.accounts, growth, volatile=False)
    target.size = position + growth
    target.v_w += 1
    target.version.resize(target.size)
    step.append(target, position, WriteSource(payload=step.payload, length=step.payload_size))
    step.changed(target)
    step.answer(reference.task, seq, messages.Committed(target.v_r, target.v_w))


def require_place(step: Step, reference: Reference, call: messages.AcquireRead | messages.ReadOnce) -> None:
    """The reader's place is not behind the log's end; EINVAL otherwise, and in vectors."""
    target = reference.object
    if step.parts is not None:
        raise InvalidError("a log is read in a message of its own")
    if call.size:
        raise InvalidError("a log is read in whole entries, as many as a message holds; leave the size out")
    if call.offset > target.size:
        raise InvalidError(
            f"position {call.offset} is behind the log's end at {target.size}", fingerprint=target.fingerprint
        )


def deliver(
    step: Step, reference: Reference, seq: int, call: messages.AcquireRead | messages.ReadOnce
) -> None:
    """Answer with entries from the reader's place on, none at the end; ``select`` finds what comes after."""
    target = reference.object
    if target.zombie:
        raise StaleError("the log was deleted; drop the reference", fingerprint=target.fingerprint)
    length = min(target.size - call.offset, limits.INLINE_BYTES_MAX)
    whole = call.offset + length == target.size
    reference.position = target.size if whole else call.offset
    step.depend_on(target)
    result = messages.Buffer(0, length, target.v_r, target.v_w)
    step.emit(effects.AnswerLog(reference.task.id, seq, result, target.id, call.offset, length))
