"""I/O requests: admission, validity and the four counters (thesis §3.7, §4.7, Table 4.5).

Everything here is arithmetic on one object and one buffer, so that it can be compared with the table of the
semantics line by line. ``dios.core.calls.io_calls`` has the system calls.
"""

from __future__ import annotations

from typing import Final

from dios.core.model.records import Buffer, PhysicalObject, Reference
from dios.wire.types import Mode, Semantics

_SOLE: Final = frozenset({Semantics.EXCL, Semantics.SRMW})
"""The levels whose validity depends on the reads of others. While one of their requests has its buffer,
nobody reads the object without a call.
"""


def associate(buffer: Buffer, reference: Reference, mode: Mode, *, borrow: bool) -> None:
    """Associate an idle buffer with another reference, for good or until it is given back."""
    if borrow:
        buffer.owner = buffer.reference
        buffer.lent = (buffer.mode, buffer.offset, buffer.length)
    else:
        buffer.reference.buffers.pop(buffer.id, None)
    buffer.exclude_readers(sole=False)
    buffer.reference = reference
    buffer.object = reference.object
    buffer.mode = mode
    buffer.committed = False  # the last commit was on another object
    reference.buffers[buffer.id] = buffer
    buffer.recount()


def give_back(buffer: Buffer) -> None:
    """Return a borrowed buffer to its owner with its former mode and range, but without a request.

    The counters that its last request saw are those of another object, so they are dropped.
    """
    owner = buffer.owner
    if owner is None or buffer.lent is None:
        return
    abort(buffer)
    buffer.exclude_readers(sole=False)
    buffer.reference.buffers.pop(buffer.id, None)
    buffer.reference, buffer.object = owner, owner.object
    buffer.mode, buffer.offset, buffer.length = buffer.lent
    buffer.owner, buffer.lent = None, None
    buffer.committed = False
    buffer.recount()


def admits(target: PhysicalObject, level: Semantics) -> bool:
    """Return True if an acquire at ``level``, to read or to write, may run with the active requests."""
    if level is Semantics.ANY:
        return True
    if level is Semantics.EXCL:
        return target.a_r == 0 and target.a_w == 0
    if level is Semantics.MRSW:
        return target.a_w == 0
    return target.a_r == 0


def begin(buffer: Buffer, level: Semantics) -> None:
    """Count an admitted request as active and record the counters that it starts from."""
    target = buffer.object
    target.admissions += 1
    if buffer.mode is Mode.READ:
        target.a_r += 1
    else:
        target.a_w += 1
    buffer.exclude_readers(sole=level in _SOLE)
    buffer.semantics = level
    buffer.opened = True
    buffer.committed = False
    _remember(buffer)


def _remember(buffer: Buffer) -> None:
    target = buffer.object
    buffer.seen_v_r = target.v_r
    buffer.seen_v_w = target.v_w
    buffer.seen_admissions = target.admissions
    buffer.seen_dirty = target.dirty


def holds(buffer: Buffer) -> bool:
    """Return True if the semantics held from the acquire until now, which is the result of a commit."""
    target = buffer.object
    if buffer.seen_dirty != target.dirty:
        return False
    level = buffer.semantics
    if level is Semantics.ANY:
        return True
    reading = buffer.mode is Mode.READ
    other_readers = target.a_r - (1 if buffer.active and reading else 0)
    other_writers = target.a_w - (1 if buffer.active and not reading else 0)
    if level is Semantics.EXCL:
        return (
            other_readers == 0
            and other_writers == 0
            and buffer.seen_admissions == target.admissions
            and buffer.seen_v_r == target.v_r
            and buffer.seen_v_w == target.v_w
        )
    if level is Semantics.MRSW:
        return buffer.seen_v_w == target.v_w and other_writers == 0
    return buffer.seen_v_r == target.v_r and other_readers == 0


def settle(buffer: Buffer, *, valid: bool) -> None:
    """End the commit stage: correct the active counters, and count a version if the commit is valid."""
    deactivate(buffer)
    buffer.committed = True
    target = buffer.object
    if valid:
        if buffer.mode is Mode.READ:
            target.v_r += 1
        else:
            target.v_w += 1
        _remember(buffer)
    elif buffer.raw:
        target.dirty += 1


def abort(buffer: Buffer) -> None:
    """End an active request that will not commit: it was released, its task ended or its object is gone."""
    if buffer.active:
        deactivate(buffer)
        if buffer.raw:
            # The bytes may have been changed already: requests that are active now must not trust them.
            buffer.object.dirty += 1


def deactivate(buffer: Buffer) -> None:
    """Remove the request from the active counters; a second call has no effect."""
    if not buffer.active:
        return
    buffer.opened = False
    if buffer.mode is Mode.READ:
        buffer.object.a_r -= 1
    else:
        buffer.object.a_w -= 1
