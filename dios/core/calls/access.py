"""The checks that every call makes before it changes anything.

Each function returns what the call asked for, or raises the refusal.
"""

from __future__ import annotations

from dios.core.model.records import Buffer, Holder, LocalHolder, Provenance, Reference
from dios.core.model.state import State
from dios.errors import (
    BadReferenceError,
    InvalidError,
    NoSuchTaskError,
    NotPermittedError,
    StaleError,
)
from dios.ids import BufferId, TaskId
from dios.wire.types import Brand, Flag, Mode, ObjectType, Permission

_RIGHT_OF_MODE = {Mode.READ: Permission.READ, Mode.WRITE: Permission.WRITE}


def flags_of(given: int, allowed: Flag) -> Flag:
    """The call's flags; a flag that means nothing to it is EINVAL."""
    if given & ~int(allowed):
        raise InvalidError(f"flags {given & ~int(allowed):#x} mean nothing to this call")
    return Flag(given)


def held(task: Holder, ref_id: int, right: Permission = Permission.NONE) -> Reference:
    """The caller's reference, with a right on it; EBADF and EPERM otherwise."""
    reference = task.table.get(ref_id)
    if right and not reference.permissions & right:
        raise NotPermittedError(
            f"the reference lacks the right to {right.name.lower() if right.name else right}; "
            "ask its giver to delegate one that has it",
            fingerprint=reference.object.fingerprint,
        )
    return reference


def living(reference: Reference) -> Reference:
    """A reference whose object is no zombie; ESTALE otherwise."""
    if reference.object.zombie:
        raise StaleError(
            "the object was deleted; drop the reference", fingerprint=reference.object.fingerprint
        )
    return reference


def for_io(task: Holder, ref_id: int, mode: Mode) -> Reference:
    """A reference that may be read or written now."""
    return living(held(task, ref_id, _RIGHT_OF_MODE[mode]))


def typed(reference: Reference, kind: ObjectType) -> Reference:
    """A reference to an object of one type; EINVAL otherwise."""
    if reference.object.type is not kind:
        raise InvalidError(
            f"needs a reference to a {kind.name}, not to a {reference.object.type.name}",
            fingerprint=reference.object.fingerprint,
        )
    return reference


def own_buffer(task: Holder, buffer_id: int) -> Buffer:
    """A buffer of the caller; EBADF for everything else alike."""
    buffer = task.buffers.get(BufferId(buffer_id))
    if buffer is None:
        raise BadReferenceError("no such buffer in this task; it was released, or is another task's")
    return buffer


def receiving(state: State, reference: Reference) -> Holder:
    """The task of this node behind a reference, as long as it lives; ESRCH otherwise."""
    receiver = state.tasks.get(TaskId(reference.object.id))
    if receiver is None or not receiver.alive:
        raise NoSuchTaskError("the receiving task has ended", fingerprint=reference.object.fingerprint)
    return receiver


def is_member(task: Holder, reference: Reference) -> bool:
    """Table 4.2, first row."""
    name = reference.object.name
    return name is not None and name in task.memberships


def may_grant(task: Holder, reference: Reference) -> bool:
    """Table 4.2, last column: members and creators grant, who merely resolved the name does not."""
    name = reference.object.name
    if name is None:
        return False
    return name in task.memberships or (
        name in task.created_groups and reference.provenance is not Provenance.DELEGATED
    )


def is_nodes_own(state: State, task: Holder) -> bool:
    """Whether the task is there for the principal that runs the node, or for root."""
    return task.principal in {state.node_owner, "uid:0"}


def local(task: Holder) -> LocalHolder:
    """A task or session of this node; EINVAL for a task of another, whose own node makes such calls."""
    if not isinstance(task, LocalHolder):
        raise InvalidError("a task makes this call on its own node")
    return task


def require_nodes_own(state: State, task: Holder, action: str) -> None:
    """EPERM for everybody but the node's own user and root."""
    refuse_pure(task)
    if not is_nodes_own(state, task):
        raise NotPermittedError(f"only the node's own user and root may {action}")


def refuse_pure(task: Holder) -> None:
    """EPERM for a pure task: it sees nothing of the node."""
    if task.brand is Brand.PURE:
        raise NotPermittedError("a pure task sees nothing but what it was handed")


def may_delete(task: Holder, reference: Reference) -> bool:
    """The right to delete; a group is not destroyed by who merely resolved its name (Table 4.2)."""
    if not reference.permissions & Permission.DELETE:
        return False
    return reference.object.type is not ObjectType.GROUP or may_grant(task, reference)


def delegable(task: Holder, ref_id: int) -> Reference:
    """A reference the caller may hand on: it has the right, lives, and is to no group (§4.4)."""
    reference = living(held(task, ref_id))
    if reference.object.type is ObjectType.GROUP:
        raise NotPermittedError(
            "references to groups are never delegated; start the other task as a member instead",
            fingerprint=reference.object.fingerprint,
        )
    return held(task, reference.id, Permission.DELEGATE)
