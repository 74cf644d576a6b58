"""The flow of what tasks read: the only place that checks secrecy labels (thesis §9.1.3, ADR 0099).

A task's label has the tags of everything that it has read. It goes up when a read is admitted, never down. A
call by which others may learn of bytes of the task (a commit, a new object, an attach, a delegation, the
start of a child, the network) needs a target with all of the task's tags, or a right to declassify the
others. The node of the task checks this, also for objects of other nodes; these get no calls that it refused.

A session is a process of its user, which no label can confine. It may read what has tags of its own user
alone, and may write that anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Never, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from dios.core import effects
from dios.core.model.records import (
    Holder,
    LocalHolder,
    PhysicalObject,
    Reference,
    Session,
    Taint,
    Task,
)
from dios.core.model.secrecy import PUBLIC, Label, common, is_owned, missing, normal, union
from dios.core.model.type_rules import is_blob
from dios.core.model.type_states import ConsoleState
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import Code, DiosError, InvalidError, NotPermittedError, error_for
from dios.ids import NodeId, TaskId
from dios.wire import dcp, messages
from dios.wire.call_table import CALLS, Flow
from dios.wire.types import AcquireIov, Brand, Buffering, Deletion, Flag, ObjectType, Permission

_NETWORK: Final = frozenset(
    {ObjectType.NETWORK, ObjectType.TCP_STREAM, ObjectType.TCP_ACCEPT_STREAM, ObjectType.UDP_STREAM}
)
"""The types whose label is a clearance: bytes of these objects leave the cluster."""

_UNLABELLED: Final = frozenset({ObjectType.GROUP, ObjectType.TIMER_BLOB})
"""The types without bytes of a task."""

_NS_PER_S: Final = 1_000_000_000


class Rise(Struct, frozen=True):
    """The change of a task's label and ceiling by a call that was admitted."""

    tags: Label = PUBLIC
    source: str = ""
    ceiling: Label | None = None


NO_RISE: Final = Rise()

_SIZED: Final = frozenset({AcquireIov.CREATE, AcquireIov.REUSE})


# -- labels and authority ---------------------------------------------------------------------------
def label_of(step: Step, target: PhysicalObject) -> Label:
    """Return the label of an object. That of a task or a console of this node is the task's present one."""
    if target.type is ObjectType.TASK or isinstance(target.state, ConsoleState):
        holder = _holder_of(step, target)
        return PUBLIC if holder is None else holder.secrecy
    return target.secrecy


def _holder_of(step: Step, target: PhysicalObject) -> LocalHolder | None:
    state = target.state
    return step.state.tasks.get(state.task if isinstance(state, ConsoleState) else TaskId(target.id))


def may_declassify(step: Step, task: Holder, tag: str) -> bool:
    """Return True if the holder may write what has this tag to places without it.

    Sessions may with tags of their own principal, tasks with a reference that has the right DECLASSIFY.
    """
    if task.brand is Brand.LEGACY:
        return is_owned(tag, task.principal)
    step.spend(len(task.table) // 16)
    return any(
        held.permissions & Permission.DECLASSIFY
        and tag in held.object.secrecy
        and not held.object.zombie
        and task.table.find(held.id) is not None
        for held in task.table
    )


def _bound(step: Step, task: Holder, tags: Label) -> Label:
    """Return those of the tags that the holder may not declassify."""
    return tuple(tag for tag in tags if not may_declassify(step, task, tag)) if tags else PUBLIC


def require_authority(step: Step, task: Holder, tags: Label, subject: str) -> None:
    """Raise NotPermittedError unless the holder may declassify all of the tags."""
    bound = _bound(step, task, tags)
    if bound:
        raise NotPermittedError(
            f"{subject} would release what is labelled {', '.join(bound)}. Only its owner, and tasks with a "
            "reference that has the right to declassify it, may do that."
        )


def initial_rights(task: Holder, target: PhysicalObject, rights: Permission) -> Permission:
    """Return the rights of a holder that created or resolved a labelled object.

    A session of the owner of all its tags gets the right to declassify, which it can delegate.
    """
    is_owner = task.brand is Brand.LEGACY and all(is_owned(tag, task.principal) for tag in target.secrecy)
    return rights | Permission.DECLASSIFY if is_owner and rights is Permission.ALL else rights


# -- nodes that know labels --------------------------------------------------------------------------
def knows_labels(peer: Peer | None) -> bool:
    """Return True if another node enforces labels."""
    return peer is not None and peer.version >= dcp.SECRECY_VERSION


def require_knowing(step: Step, node: NodeId, label: Label) -> None:
    """Raise NotPermittedError if a labelled object would be shown to a node that would ignore the label."""
    if label and node:
        peer = step.require_cluster().peer(node)
        if not knows_labels(peer):
            raise NotPermittedError(
                f"node {peer.name or f'{node:x}'} has a release without secrecy labels, or was not met yet: "
                f"it gets nothing labelled {', '.join(label)}. Update it, or use another node."
            )


# -- the two rules -----------------------------------------------------------------------------------
def observe(step: Step, task: Holder, target: PhysicalObject, label: Label) -> Rise:
    """Check that the task may read what has this label, and return the rise of its own.

    Raises:
        NotPermittedError: it is a session of another user, or has a way to send bytes that the node cannot
            see and that does not permit the new tags.
        LimitError: the task's label would have too many tags.
    """
    fresh = missing(label, task.secrecy)
    if not fresh:
        return NO_RISE
    if isinstance(task, Session):
        if bound := _bound(step, task, fresh):
            raise NotPermittedError(
                f"cannot read {_words(target)}: it is labelled {', '.join(bound)}, and a process outside the "
                "sandbox can send it anywhere. Read it in a pure task, or ask the tag's owner for a copy "
                "without it.",
                fingerprint=target.fingerprint,
            )
        return NO_RISE
    outside = missing(fresh, common(fresh, task.ceiling))
    if bound := _bound(step, task, outside):
        raise NotPermittedError(
            f"cannot read {_words(target)}: it is labelled {', '.join(bound)}, and the task has "
            f"{_open_channel(task)}, which may not carry that. Use a stream or object with this label, or a "
            "task without it.",
            fingerprint=target.fingerprint,
        )
    union(task.secrecy, fresh)  # it raises an error for too many tags
    return Rise(fresh, target.fingerprint)


def affect(step: Step, task: Holder, target: PhysicalObject, label: Label) -> None:
    """Check that the task may write to an object with this label; raise NotPermittedError."""
    if not task.secrecy:
        return
    lacking = missing(task.secrecy, label)
    receiver = _holder_of(step, target) if lacking and not target.home else None
    if isinstance(receiver, Session) and (target is receiver.object or target is receiver.console):
        lacking = tuple(tag for tag in lacking if not is_owned(tag, receiver.principal))
    if bound := _bound(step, task, lacking):
        raise NotPermittedError(
            f"cannot write {_words(target)}: {_history(step, task, bound)}. It may write only to what has "
            f"this label, too. Create the target with {', '.join(bound)}, or start the task with a reference "
            "that may declassify it.",
            fingerprint=target.fingerprint,
        )


def without_reason(error: DiosError, rise: Rise) -> DiosError:
    """Return the refusal of a read without words about the object, whose label the task has not got by it."""
    if not rise.tags or error.code is Code.EPERM:
        return error
    reason = f"refused for a reason that is labelled {', '.join(rise.tags)}; the task has not read that"
    return error_for(error.code, reason, fingerprint=error.fingerprint)


def apply(step: Step, task: Holder, rise: Rise) -> None:
    """Raise the label of a task, and lower its ceiling."""
    if rise.ceiling is not None:
        task.ceiling = common(rise.ceiling, task.ceiling)
    if rise.tags:
        for tag in rise.tags:
            task.taints[tag] = Taint(rise.source, step.now)
        task.secrecy = union(task.secrecy, rise.tags)
        step.audit(task, "label", "ok", rise.source, ", ".join(rise.tags))
        step.show_counters(task, rise.tags)
        _label_console(step, task)


def _label_console(step: Step, task: Holder) -> None:
    """Give the counters of a task's console the label of the task, and hide them from those without it."""
    if isinstance(task, LocalHolder) and task.console.counters_label != task.secrecy:
        task.console.counters_label = task.secrecy
        for reference in task.console.references.values():
            step.spend(1)
            if not reference.task.home:
                slot = effects.BindSlot(reference.task.id, reference.public(), reference.shows_counters)
                step.emit(slot)


def receive(step: Step, task: Holder, target: PhysicalObject, label: Label) -> None:
    """Raise the label of a task that gets the status or output of a task of another node."""
    if label:
        step.state.labelled = True
        apply(step, task, observe(step, task, target, label))


def _words(target: PhysicalObject) -> str:
    return f"{target.type.name} {target.fingerprint}"


def _open_channel(task: Holder) -> str:
    if task.brand is Brand.LIMBO:
        return "no sandbox"
    if isinstance(task, Task) and task.recipe is not None and task.recipe.network:
        return "the network"
    return "mapped the memory of a stream or a raw object"


def _history(step: Step, task: Holder, tags: Label) -> str:
    """Return the reasons for tags in the label of a task."""
    parts = []
    for tag in tags:
        taint = task.taints.get(tag)
        since = "" if taint is None else f" {(step.now - taint.since_ns) // _NS_PER_S} s ago"
        source = "what" if taint is None else taint.fingerprint
        parts.append(f"{source} labelled {tag}{since}")
    return f"the task has read {', and '.join(parts)}"


# -- calls -------------------------------------------------------------------------------------------
Rule: TypeAlias = Callable[[Step, Holder, Never, Reference | None], Rise]
_FillingCall: TypeAlias = messages.AcquireWrite | messages.CommitAcquireWrite


def admit(step: Step, task: Holder, call: messages.PlainCall) -> tuple[messages.PlainCall, Rise]:
    """Check the flows of a call before it is handled or sent to another node.

    Returns:
        The call, which gives a new object its label, and the rise to apply if the call is handled.

    Raises:
        NotPermittedError: the call would carry bytes to where their label forbids it.
    """
    if task.home:
        return call, NO_RISE  # the task's own node has checked it
    if isinstance(call, messages.Create):
        return _create(step, task, call), NO_RISE
    rule, field = _RULES[type(call)]
    reference = None if field is None else task.table.find(getattr(call, field))
    return call, rule(step, task, cast("Never", call), reference)


def _no_flow(step: Step, task: Holder, call: messages.PlainCall, reference: Reference | None) -> Rise:
    """Admit a call that carries nothing of the task, or that another function checks."""
    del step, task, call, reference
    return NO_RISE


def _observe(step: Step, task: Holder, call: messages.PlainCall, reference: Reference | None) -> Rise:
    del call
    if reference is None:
        return NO_RISE
    return observe(step, task, reference.object, label_of(step, reference.object))


def _write(step: Step, task: Holder, call: messages.PlainCall, reference: Reference | None) -> Rise:
    del call
    if reference is not None and task.secrecy:
        affect(step, task, reference.object, label_of(step, reference.object))
    return NO_RISE


def _fill(step: Step, task: Holder, call: _FillingCall, reference: Reference | None) -> Rise:
    """Check a write that also shows the present bytes or size, or gives the object's own memory."""
    if reference is None:
        return NO_RISE
    target = reference.object
    affect(step, task, target, target.secrecy)
    is_raw = target.buffering is Buffering.RAW and not target.home
    is_blank = call.flags & Flag.BLANK or not reference.permissions & Permission.READ
    # A buffer as large as the object; others are as large as the caller has said, or have no bytes.
    shows_size = isinstance(call, messages.AcquireWrite) and not call.size and call.iov in _SIZED
    if not is_raw and is_blank and not shows_size:
        return NO_RISE
    rise = observe(step, task, target, target.secrecy) if is_blob(target.type) else NO_RISE
    return replace(rise, ceiling=target.secrecy) if is_raw else rise


def _attach(step: Step, task: Holder, call: messages.Attach, reference: Reference | None) -> Rise:
    """Check an attach. Each end maps memory that the other end writes, and writes memory that it reads."""
    del call
    if reference is None:
        return NO_RISE
    target = reference.object
    affect(step, task, target, target.secrecy)
    rise = observe(step, task, target, target.secrecy)
    return rise if isinstance(task, Session) else replace(rise, ceiling=target.secrecy)


def _release(step: Step, task: Holder, call: messages.ReleaseWrite, reference: Reference | None) -> Rise:
    return _write(step, task, call, reference) if call.flags & Flag.RELEASE_COMMIT else NO_RISE


def _delete(step: Step, task: Holder, call: messages.Delete, reference: Reference | None) -> Rise:
    if reference is None or call.flags & Flag.HANDLE_ONLY:
        return NO_RISE
    ends = reference.object.deletion is Deletion.IMMEDIATE and reference.permissions & Permission.DELETE
    return _write(step, task, call, reference) if ends or call.flags & Flag.DESTROY else NO_RISE


def _delegate(step: Step, task: Holder, call: messages.Copy, reference: Reference | None) -> Rise:
    """Check a delegation, by which the receiver learns what the giver chose."""
    del reference
    return _write(step, task, call, task.table.find(call.task))


def _bound_by(step: Step, task: Holder, call: messages.SetLimits, reference: Reference | None) -> Rise:
    """Check a change of the limits of a task or group, or of a principal."""
    check = _write if call.ref else _authority
    return check(step, task, call, reference)


def _authority(step: Step, task: Holder, call: messages.PlainCall, reference: Reference | None) -> Rise:
    """Check a call that changes what everybody sees."""
    del reference
    require_authority(step, task, task.secrecy, f"{type(call).__name__.lower()} by this task")
    return NO_RISE


_CHECKS: Final[dict[Flow, Rule]] = {
    Flow.NONE: _no_flow,
    Flow.FILTERED: _no_flow,
    Flow.CREATE: _no_flow,  # ``_create`` gives the new object its label
    Flow.CHILD: _no_flow,  # ``label_of_child`` gives the new task its label
    Flow.OBSERVE: _observe,
    Flow.WRITE: _write,
    Flow.FILL: _fill,
    Flow.ATTACH: _attach,
    Flow.RELEASE: _release,
    Flow.DELETE: _delete,
    Flow.DELEGATE: _delegate,
    Flow.BOUND: _bound_by,
    Flow.AUTHORITY: _authority,
}
_RULES: Final[dict[type, tuple[Rule, str | None]]] = {
    kind: (_CHECKS[row.flow], row.reference) for kind, row in CALLS.items()
}
"""The rule of each call, and the field with the reference that it concerns."""


# -- new objects and tasks ----------------------------------------------------------------------------
def _create(step: Step, task: Holder, call: messages.Create) -> messages.Create:
    """Return a create call with the label of the new object: the given one, or that of the task."""
    if not task.secrecy or call.object_type in _UNLABELLED:
        return call
    if call.object_type in _NETWORK:
        right = task.table.find(call.network) if call.network else None
        label = PUBLIC if right is None else right.object.secrecy
    elif isinstance(call, messages.CreateLabelled):
        label = normal(call.secrecy, task.principal)
        if (coined := missing(label, task.secrecy)) and _bound(step, task, task.secrecy):
            # The words of a label are seen without the label, and this task would choose them.
            raise NotPermittedError(
                f"cannot create a {call.object_type.name} labelled {', '.join(coined)}: "
                f"{_history(step, task, task.secrecy)}. Its objects may have these tags alone."
            )
    else:
        return messages.labelled(call, task.secrecy)
    if bound := _bound(step, task, missing(task.secrecy, label)):
        raise NotPermittedError(
            f"cannot create a {call.object_type.name} without {', '.join(bound)}: "
            f"{_history(step, task, bound)}. Leave the label out, or start the task with a reference that "
            "may declassify it."
        )
    return call


def label_for_creation(step: Step, task: Holder, call: messages.Create) -> Label:
    """Return the label of a new object.

    Raises:
        InvalidError: objects of this type have no label.
        NotPermittedError: a network object would get a clearance for tags that the caller may not declassify.
    """
    label = normal(call.secrecy, task.principal) if isinstance(call, messages.CreateLabelled) else PUBLIC
    if call.object_type in _NETWORK:
        right = task.table.find(call.network) if call.network else None
        if right is not None:
            label = union(label, right.object.secrecy)
            require_authority(step, task, missing(label, right.object.secrecy), "this network object")
            return label
        require_authority(step, task, label, "this network object")
    if label and (call.object_type in _UNLABELLED or call.flags & (Flag.SERVICES | Flag.KEPT)):
        raise InvalidError(
            f"a {call.object_type.name} of this kind has no secrecy label; leave the label out"
        )
    return label


def label_of_child(
    step: Step, task: Holder, program: PhysicalObject | None, recipe_label: Label, *, confined: bool
) -> Label:
    """Return the label with which a child begins: that of its parent, its recipe and its program.

    Raises:
        NotPermittedError: the child would run outside the sandbox or with the network, and the caller may
            not declassify all of these tags.
    """
    label = union(task.secrecy, recipe_label, PUBLIC if program is None else program.secrecy)
    if label and not confined:
        require_authority(step, task, label, "a task outside the sandbox, or with the network,")
    return label


def begin_child(step: Step, parent: Holder, child: Task, origin: LocalHolder | None) -> None:
    """Set the label and the ceiling of a new task; ``origin`` is the task whose memory it has, if any."""
    recipe = child.recipe
    if recipe is None:
        return
    label = recipe.secrecy if origin is None else union(recipe.secrecy, origin.secrecy)
    if child.brand is Brand.LIMBO or recipe.network:
        child.ceiling = PUBLIC
    elif origin is not None:
        child.ceiling = origin.ceiling
    if label:
        step.state.labelled = True
        child.secrecy = child.console.counters_label = label
        started = Taint(parent.object.fingerprint, step.now)
        for tag in label:
            child.taints[tag] = parent.taints.get(tag, started)
