"""Delegation: a new, never wider reference in another task's table (thesis §4.5.3, Table 4.3, B.1.3).

Not for: handing references to a task at its start (``dios.core.run_calls``), or taking them back
(``dios.core.retirement``).
"""

from __future__ import annotations

from dios import limits
from dios.core import access, effects
from dios.core.accounts import require_all, require_bytes
from dios.core.effects import WriteSource
from dios.core.io_steps import note_in_vector
from dios.core.object_types.rules import RULES, is_blob
from dios.core.objects import PhysicalObject
from dios.core.references import Provenance, Reference, narrowed
from dios.core.step import Step
from dios.core.tasks import Task
from dios.errors import (
    InvalidError,
    NoSuchTaskError,
    NotPermittedError,
    UnreachableError,
)
from dios.ids import ObjectId, TaskId
from dios.wire import messages
from dios.wire.types import (
    Buffering,
    Flag,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Resource,
)


def copy(step: Step, task: Task, seq: int, call: messages.Copy) -> None:
    """dios_copy: delegate, and where an attribute asks for it, copy the object's data."""
    access.flags_of(call.flags, Flag.NONE)
    reference = delegable(task, call.ref)
    receiver = _receiver(step, task, call.task)
    kind = _kind_wanted(reference.object, call)
    if kind is reference.object.type and reference.object.type is ObjectType.PRIVMEM_BLOB:
        _refuse_private(reference, receiver is task)
    expires_ns = end_of(step, call.lifetime_ns)
    target = reference.object
    copied = kind is not target.type or (
        call.buffering is not None and call.buffering is not target.buffering
    )
    require_room(receiver, target)
    if copied:
        _require_unwritten(step, target)
        _require_room_for_copy(task, target, kind)
        target = _duplicate(step, task, target, kind, call.buffering)
    step.seen(reference.object)
    fresh = step.grant(
        receiver,
        target,
        narrowed(reference.permissions, call.permissions),
        Provenance.DELEGATED,
        # A copy of the data is another object: taking back what was delegated leaves it alone.
        origin=None if copied else reference,
        expires_ns=expires_ns,
    )
    public = fresh.public()
    receiver.push_event(messages.Delegated(public, task.object.fingerprint))
    step.changed(receiver.object)
    step.audit(task, "delegate", "ok", target.fingerprint, f"to {receiver.object.fingerprint}")
    if receiver is task:
        step.answer(task, seq, messages.References((public,)))
    else:
        step.answer(task, seq, messages.Done(1))


def delegable(task: Task, ref_id: int) -> Reference:
    """A reference the caller may hand on: it has the right, lives, and is to no group (§4.4)."""
    reference = access.living(access.held(task, ref_id))
    if reference.object.type is ObjectType.GROUP:
        raise NotPermittedError(
            "references to groups are never delegated; start the other task as a member instead",
            fingerprint=reference.object.fingerprint,
        )
    return access.held(task, reference.id, Permission.DELEGATE)


def end_of(step: Step, lifetime_ns: int) -> int:
    """When a reference with this lifetime goes by itself; 0 for never."""
    if lifetime_ns > limits.LIFETIME_NS_MAX:
        days = limits.LIFETIME_NS_MAX // (24 * 3600 * 1_000_000_000)
        raise InvalidError(f"a lifetime is at most {days} days; give none for a reference without an end")
    return step.now + lifetime_ns if lifetime_ns else 0


def require_room(receiver: Task, target: PhysicalObject) -> None:
    """The receiver's table, its account and those of the object's groups take one more reference."""
    receiver.table.require_room()
    receiver.account.require(Resource.REFERENCES, 1)
    require_all(target.sharing, Resource.REFERENCES, 1)


def _require_unwritten(step: Step, origin: PhysicalObject) -> None:
    """No call of the same vector writes what is copied: the host stores before it writes volatile bytes.

    Refused there, the whole step would fail, and with it whatever others have asked to be stored since.
    """
    if step.parts is None:
        return
    written = (one.object for one in step.after if isinstance(one, effects.ApplyWrite) and not one.durable)
    if origin.id in written:
        raise InvalidError("the calls of a vector must be independent; this object is written before")
    note_in_vector(step, origin)


def _require_room_for_copy(task: Task, origin: PhysicalObject, kind: ObjectType) -> None:
    accounts = (task.account, *origin.sharing)
    require_all(accounts, Resource.OBJECTS, 1)
    require_bytes(accounts, origin.size, volatile=kind is not ObjectType.DURABLE_BLOB)


def _receiver(step: Step, task: Task, ref_id: int) -> Task:
    # To write to a task is to put something before it.
    reference = access.typed(access.held(task, ref_id, Permission.WRITE), ObjectType.TASK)
    receiver = step.state.tasks.get(TaskId(reference.object.id))
    if receiver is None or not receiver.alive:
        raise NoSuchTaskError("the receiving task has ended", fingerprint=reference.object.fingerprint)
    return receiver


def _kind_wanted(target: PhysicalObject, call: messages.Copy) -> ObjectType:
    """Table 4.3, last rows: persistence and proximity can be asked for, and then copy the data."""
    kind = target.type
    asks = call.persistence is not None or call.proximity is not None or call.buffering is not None
    if asks and not is_blob(kind):
        raise InvalidError(f"a {kind.name} cannot be copied, only delegated", fingerprint=target.fingerprint)
    if call.proximity in {Proximity.RACK, Proximity.CLUSTER}:
        raise UnreachableError("no other node is known here")
    if call.persistence is not None and call.persistence is not target.persistence:
        durable = call.persistence is Persistence.DURABLE
        kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
    if call.proximity is not None and call.proximity is not RULES[kind].proximity:
        if kind is ObjectType.DURABLE_BLOB:
            raise InvalidError("a durable copy is on the node's disk; it cannot be in the process")
        near = call.proximity is Proximity.PROCESS
        kind = ObjectType.PRIVMEM_BLOB if near else ObjectType.SHMEM_BLOB
    if call.buffering is Buffering.RAW and kind is not ObjectType.SHMEM_BLOB:
        raise InvalidError(f"raw buffering is for SHMEM_BLOB, not {kind.name}")
    return kind


def _refuse_private(reference: Reference, to_self: bool) -> None:  # noqa: FBT001 - one internal caller
    if not to_self:
        raise NotPermittedError(
            "private memory stays with its task; ask for proximity NODE to delegate a shared copy",
            fingerprint=reference.object.fingerprint,
        )


def _duplicate(
    step: Step, task: Task, origin: PhysicalObject, kind: ObjectType, buffering: Buffering | None
) -> PhysicalObject:
    """A new physical object of the same logical object, with the same bytes and versions."""
    raw = Buffering.RAW if buffering is Buffering.RAW and kind is ObjectType.SHMEM_BLOB else Buffering.DOUBLE
    made = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        kind,
        origin.name,
        origin.groups,
        origin.owner,
        deletion=RULES[kind].deletion,
        buffering=raw,
        proximity=RULES[kind].proximity,
        accounts=(task.account, *origin.sharing),
    )
    made.version.resize(origin.size)
    made.size, made.v_r, made.v_w = origin.size, origin.v_r, origin.v_w
    step.state.add_object(made)
    step.seen(origin)
    if RULES[kind].persistence is Persistence.DURABLE:
        source = WriteSource(content_of=origin.id, length=origin.size)
        step.put(made, source)
        step.emit(effects.ApplyWrite(made.id, source, durable=True))
    else:
        step.emit(effects.DuplicateContent(made.id, origin.id))
    return made
