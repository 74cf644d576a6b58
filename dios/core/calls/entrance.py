"""Let calls wait at the entrance while other nodes have leases on the objects that they change.

Nothing of a call has happened while it waits: it is as if its message had come later. A read under a lease
must not miss a write, the end of an object, the end of a right, or a reader that must be alone. Such a call
*closes* its object to leases until it is answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dios.core import effects
from dios.core.calls.rights import may_delete
from dios.core.model.accounts import buffer_version, require_bytes
from dios.core.model.records import Holder, Pending, PhysicalObject, Reference
from dios.core.model.type_rules import is_blob
from dios.core.remote import granted_leases
from dios.core.remote.continuations import EntranceProgress
from dios.core.step import Step
from dios.ids import PayloadId
from dios.wire import messages
from dios.wire.call_table import CALLS, GIVING_BACK, CallRow, Closing
from dios.wire.types import Buffering, Deletion, Flag, Permission, Semantics

_ALONE: Final = frozenset({Semantics.EXCL, Semantics.SRMW})
_CLOSING: Final[dict[type, CallRow]] = {
    kind: row for kind, row in CALLS.items() if row.closing is not Closing.NEVER
}


def closed_by(task: Holder, calls: Iterable[messages.AnyCall]) -> tuple[PhysicalObject, ...]:
    """Return the objects of this node that some calls of a task close to leases."""
    objects_by_id: dict[int, PhysicalObject] = {}
    for call in calls:
        row = _CLOSING.get(type(call))
        field = None if row is None else row.reference
        reference = None if field is None else task.table.find(getattr(call, field))
        if row is not None and reference is not None and _closes(reference, call, row):
            objects_by_id[reference.object.id] = reference.object
    return tuple(objects_by_id.values())


def _closes(reference: Reference, call: messages.AnyCall, row: CallRow) -> bool:
    """Return True if a call closes its object. A call without the right that it needs is refused at once."""
    target, rights = reference.object, reference.permissions
    if target.home or target.zombie or target.buffering is Buffering.RAW or not is_blob(target.type):
        return False
    if row.right not in rights:
        return False
    flags: int = getattr(call, "flags", 0)
    match row.closing:
        case Closing.ALONE:
            return call.semantics in _ALONE  # type: ignore[union-attr] # each row has it (``call_table``)
        case Closing.COMMIT:
            return bool(flags & Flag.RELEASE_COMMIT)
        case Closing.END:
            if flags & Flag.HANDLE_ONLY or not may_delete(reference.task, reference):
                return False
            return bool(flags & Flag.DESTROY) or target.deletion is Deletion.IMMEDIATE
        case Closing.RETIRE:
            return not flags & Flag.EVERYONE or bool(rights & Permission.DELETE)
        case _:
            return True


def must_wait(step: Step, objects: Iterable[PhysicalObject]) -> bool:
    """Return True if other nodes may read any of these objects under leases now."""
    cluster = step.state.cluster
    return cluster is not None and any(granted_leases.is_out(step, cluster, target) for target in objects)


def wait(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.AnyCall,
    closes: tuple[PhysicalObject, ...],
    payloads: tuple[PayloadId, ...],
    size: int,
    attached: int,
) -> None:
    """Let a call wait until no other node has a lease on the objects that it closes.

    It counts as a waiting call of its task, and its ``size`` bytes count with the task. Raise LimitError if
    there is no room for them.
    """
    step.state.pending.require_room(task)
    if size:
        require_bytes((task.account,), size, volatile=True)
    row = Pending(task, seq, call, {}, closes=closes)
    row.progress = EntranceProgress(payloads, attached)
    step.state.pending.add(row)
    if size:
        row.held = buffer_version(task.account, size).hold()
    for payload in payloads:
        step.emit(effects.KeepPayload(payload))
    cluster = step.require_cluster()
    for target in closes:
        if granted_leases.is_out(step, cluster, target):
            granted_leases.call_back(step, cluster, target, row)


def goes_on_when_cancelled(row: Pending) -> bool:
    """Return True for a waiting call that gives something back: nobody would repeat it."""
    return isinstance(row.progress, EntranceProgress) and type(row.call) in GIVING_BACK
