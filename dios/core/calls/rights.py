"""The checks that every call makes before it changes anything.

Each function returns the checked value, or raises the error that refuses the call.
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
from dios.wire.node_roles import NodeRight, has_right, refusal
from dios.wire.types import Brand, Flag, Mode, ObjectType, Permission

_RIGHT_OF_MODE = {Mode.READ: Permission.READ, Mode.WRITE: Permission.WRITE}


def flags_of(given: int, allowed: Flag) -> Flag:
    """Return the call's flags. Raise InvalidError if the call does not know one of them."""
    if not given:
        return Flag.NONE
    if given & ~int(allowed):
        raise InvalidError(f"this call does not accept the flags {given & ~int(allowed):#x}")
    return Flag(given)


def held(task: Holder, ref_id: int, right: Permission = Permission.NONE) -> Reference:
    """Return the caller's reference.

    Raises:
        BadReferenceError: the caller has no reference with this id.
        NotPermittedError: the reference lacks ``right``.
    """
    reference = task.table.get(ref_id)
    if right and right not in reference.permissions:
        raise NotPermittedError(
            f"the reference lacks the right to {right.name.lower() if right.name else right}; "
            "ask its giver to delegate one that has it",
            fingerprint=reference.object.fingerprint,
        )
    return reference


def living(reference: Reference) -> Reference:
    """Return the reference. Raise StaleError if its object is a zombie."""
    if reference.object.zombie:
        raise StaleError(
            "the object was deleted; drop the reference", fingerprint=reference.object.fingerprint
        )
    return reference


def for_io(task: Holder, ref_id: int, mode: Mode) -> Reference:
    """Return the caller's reference, checked for I/O in ``mode``."""
    return living(held(task, ref_id, _RIGHT_OF_MODE[mode]))


def typed(reference: Reference, kind: ObjectType) -> Reference:
    """Return the reference. Raise InvalidError if its object has another type."""
    if reference.object.type is not kind:
        raise InvalidError(
            f"needs a reference to a {kind.name}, not to a {reference.object.type.name}",
            fingerprint=reference.object.fingerprint,
        )
    return reference


def own_buffer(task: Holder, buffer_id: int) -> Buffer:
    """Return a buffer of the caller.

    Raise BadReferenceError for every other id, so that the caller cannot find out which buffers exist.
    """
    buffer = task.buffers.get(BufferId(buffer_id))
    if buffer is None:
        raise BadReferenceError("this task has no such buffer: it was released, or belongs to another task")
    return buffer


def receiving(state: State, reference: Reference) -> Holder:
    """Return the task of this node that a reference denotes. Raise NoSuchTaskError if it has ended."""
    receiver = state.tasks.get(TaskId(reference.object.id))
    if receiver is None or not receiver.alive:
        raise NoSuchTaskError("the receiving task has ended", fingerprint=reference.object.fingerprint)
    return receiver


def is_member(task: Holder, reference: Reference) -> bool:
    """Return True if the task is a member of the group (Table 4.2, first row)."""
    name = reference.object.name
    return name is not None and name in task.memberships


def may_grant(task: Holder, reference: Reference) -> bool:
    """Return True if the task may grant membership of the group (Table 4.2, last column).

    Members and creators may. A task that only resolved the group's name may not.
    """
    name = reference.object.name
    if name is None:
        return False
    return name in task.memberships or (
        reference.object.creator == task.id and reference.provenance is not Provenance.DELEGATED
    )


def is_nodes_own(state: State, task: Holder, right: NodeRight = NodeRight.ADMINISTER) -> bool:
    """Return True if the task acts for the principal that runs the node, or for root.

    A task of another node does only if the roles of that node give it a ``right``.
    """
    return task.principal in {state.node_owner, "uid:0"} and not _why_not(state, task, right)


def _why_not(state: State, task: Holder, right: NodeRight) -> str:
    """Return why the roles of a task's node do not let it act as the nodes' own; empty if they do."""
    if not task.home or state.cluster is None:
        return ""
    peer = state.cluster.peers.get(task.home)
    if peer is None or not peer.roles:
        return "this node does not know the roles of the caller's node"
    return "" if has_right(peer.roles, right) else refusal(peer.name, peer.roles, right)


def sees_exact_sums(state: State, task: Holder) -> bool:
    """Return True if the holder may know sums to which tasks with labels contribute.

    A process of the node's own user could read the node's memory.
    """
    return not state.labelled or (task.brand is Brand.LEGACY and is_nodes_own(state, task))


def local(task: Holder) -> LocalHolder:
    """Return a task or session of this node. Raise InvalidError for a task of another node."""
    if not isinstance(task, LocalHolder):
        raise InvalidError("a task can make this call only on its own node")
    return task


def require_nodes_own(
    state: State, task: Holder, action: str, right: NodeRight = NodeRight.ADMINISTER
) -> None:
    """Raise NotPermittedError unless the caller acts for the node's own user or for root."""
    refuse_pure(task)
    if not is_nodes_own(state, task, right):
        reason = _why_not(state, task, right)
        at = f" here: {reason}" if reason else ""
        raise NotPermittedError(f"only the node's own user and root may {action}{at}")


def refuse_pure(task: Holder) -> None:
    """Raise NotPermittedError for a pure task, because such a task sees nothing of the node."""
    if task.brand is Brand.PURE:
        raise NotPermittedError("a pure task may use only the references that it was started with")


def may_delete(task: Holder, reference: Reference) -> bool:
    """Return True if the task has the right to delete the object.

    A task that only resolved a group's name may not destroy the group (Table 4.2).
    """
    if Permission.DELETE not in reference.permissions:
        return False
    return reference.object.type is not ObjectType.GROUP or may_grant(task, reference)


def delegable(task: Holder, ref_id: int) -> Reference:
    """Return a reference that the caller may delegate (§4.4).

    The object must exist and must not be a group, and the reference must have the right to delegate.
    """
    reference = living(held(task, ref_id))
    if reference.object.type is ObjectType.GROUP:
        raise NotPermittedError(
            "references to groups are never delegated; start the other task as a member instead",
            fingerprint=reference.object.fingerprint,
        )
    return held(task, reference.id, Permission.DELEGATE)
