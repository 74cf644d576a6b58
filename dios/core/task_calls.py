"""run, pause, resume, select, and introspection of tasks (B.1.5, B.1.6, B.1.13).

Not for: how tasks begin and end (``dios.core.lifecycle``).
"""

from __future__ import annotations

from dios import limits
from dios.core import access, effects, groups
from dios.core.delegation import delegable, narrowed_grant
from dios.core.lifecycle import child_name, default_references, make_task
from dios.core.object_types import sources
from dios.core.object_types.rules import RULES
from dios.core.object_types.states import StreamState, TimerState
from dios.core.pending import Pending
from dios.core.references import Provenance, Reference
from dios.core.step import Step
from dios.core.tasks import Task
from dios.errors import (
    Busy,
    ClosedError,
    Code,
    InvalidError,
    NoSuchTaskError,
    NotExecutableError,
    NotPermittedError,
    OutOfMemoryError,
    TooLargeError,
    UnreachableError,
    WouldBlockError,
)
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.types import Brand, Flag, Mode, ObjectType, Permission, TaskState


# -- run ------------------------------------------------------------------------------------------
def run(step: Step, task: Task, seq: int, call: messages.Run) -> None:
    """dios_run: a child with exactly the memberships and references it is handed."""
    flags = access.flags_of(call.flags, Flag.NON_BLOCKING | Flag.SPAWN_LOCAL)
    if call.host and not flags & Flag.SPAWN_LOCAL:
        raise UnreachableError(f"no node named {call.host!r} is known here")
    brand = _brand_for(step, task, call.brand)
    executable = access.living(access.held(task, call.executable, Permission.EXECUTE))
    if not RULES[executable.object.type].executable:
        raise NotExecutableError(f"a {executable.object.type.name} cannot be run")
    names = groups.names_for_child(task, call.groups)
    handed = [(delegable(task, item.ref), item) for item in (*call.inputs, *call.outputs)]
    for reference, _ in handed:
        if reference.object.type is ObjectType.PRIVMEM_BLOB:
            raise NotPermittedError("private memory is not handed on; make a shared copy")
    if sum(len(text.encode()) for text in call.arguments) > limits.ARGUMENT_BYTES_MAX:
        raise TooLargeError(
            f"arguments take more than {limits.ARGUMENT_BYTES_MAX} bytes; use an input object"
        )
    # Ended tasks and sessions stand in the table too: it is counted only when it could be full.
    tasks = step.state.tasks
    if (
        len(tasks) >= limits.TASKS_MAX
        and sum(1 for other in tasks.values() if other.alive and not other.is_session) >= limits.TASKS_MAX
    ):
        raise OutOfMemoryError(f"{limits.TASKS_MAX} tasks run on this node already; wait for some to end")
    task.table.require_room()
    if not flags & Flag.NON_BLOCKING:
        if step.parts is not None:
            raise WouldBlockError("inside a vector, run needs NON_BLOCKING")
        step.state.pending.require_room(task)
    child = _make_child(step, task, call, brand, names)
    _welcome_child(step, child, executable, handed, len(call.inputs), call)
    reference = step.grant(task, child.object, Permission.ALL, Provenance.CREATED)
    step.audit(task, "run", "ok", child.object.fingerprint, f"{brand.name} {call.label}")
    if flags & Flag.NON_BLOCKING:
        step.answer(task, seq, messages.Created(child.name, reference.public()))
    else:
        step.wait(Pending(task, seq, call, (child.object,)))


def _brand_for(step: Step, task: Task, wanted: Brand) -> Brand:
    """Table 4.7: what may be started by run, and what restricted mode makes of it."""
    if wanted is Brand.LEGACY:
        raise InvalidError("a legacy program is started by the host, not by run")
    if wanted is Brand.LIMBO:
        if task.brand is Brand.PURE:
            raise NotPermittedError("a pure task starts pure tasks only")
        if step.state.restricted:
            return Brand.PURE
        if not _is_nodes_own(step, task):
            # Unconfined, it would have the rights of the node's user, which are not the caller's.
            raise NotPermittedError(
                "only the node's own user and root may start tasks outside the sandbox; run it pure, "
                "or start a node of your own"
            )
    return wanted


def _make_child(step: Step, parent: Task, call: messages.Run, brand: Brand, names: tuple[bytes, ...]) -> Task:
    member_of = tuple(step.state.groups[name] for name in names)  # type: ignore[index]
    if not member_of:
        member_of = (groups.fresh_group(step, parent.principal),)
    child = make_task(
        step,
        TaskId(step.state.fresh_id()),
        child_name(step, parent),
        parent.principal,
        brand,
        tuple(group.name for group in member_of if group.name is not None),
        parent=parent,
        is_session=False,
        label=call.label,
    )
    executable = parent.table.get(call.executable).object
    step.emit(effects.Spawn(child.id, brand, call.label, executable.id, call.limits))
    own, console, member_refs = default_references(step, child, member_of)
    del own, console, member_refs
    return child


def _welcome_child(
    step: Step,
    child: Task,
    executable: Reference,
    handed: list[tuple[Reference, messages.Handed]],
    input_count: int,
    call: messages.Run,
) -> None:
    default = list(child.table)
    given = [
        narrowed_grant(step, child, reference, item.permissions, item.label).public()
        for reference, item in handed
    ]
    program = step.grant(
        child, executable.object, Permission.READ | Permission.EXECUTE, Provenance.INITIAL, "executable"
    )
    for (reference, _), public in zip(handed, given, strict=True):
        step.audit(
            child, "delegate", "ok", reference.object.fingerprint, f"at start, rights {public.permissions}"
        )
    # Never inside the caller's vector: this answer is the child's first message.
    parts, step.parts = step.parts, None
    step.answer(
        child,
        0,
        messages.Welcome(
            version=PROTOCOL_VERSION,
            name=child.name,
            brand=child.brand,
            self_ref=default[0].public(),
            console=default[1].public(),
            groups=tuple(reference.public() for reference in default[2:]),
            inputs=tuple(given[:input_count]),
            outputs=tuple(given[input_count:]),
            arguments=call.arguments,
            executable=program.public(),
            label=call.label,
        ),
    )
    step.parts = parts


def finish_run(step: Step, row: Pending) -> bool:
    """Answer a waiting run once its child runs, or never will."""
    target = row.watched[0]
    child = step.state.tasks.get(TaskId(target.id))
    if child is None or child.state is TaskState.STARTING:
        return False
    step.state.pending.remove(row)
    reference = next(iter(row.task.table.holding(target)), None)
    if reference is None:
        step.refuse(row.task, row.seq, NoSuchTaskError("the reference to the child was deleted"))
    elif child.state is TaskState.ENDED and child.pid == 0:
        step.drop_reference(reference)
        step.refuse(row.task, row.seq, NotExecutableError(child.detail or "the task could not be started"))
    else:
        step.answer(row.task, row.seq, messages.Created(child.name, reference.public()))
    return True


# -- pause and resume -------------------------------------------------------------------------------
def pause(step: Step, task: Task, seq: int, call: messages.Pause) -> None:
    """dios_pause: true if the task is paused now; on the self-reference, yield."""
    flags = access.flags_of(call.flags, Flag.STAY_RUNNABLE)
    reference = access.typed(access.held(task, call.task), ObjectType.TASK)
    if reference.object is task.object:
        if not flags & Flag.STAY_RUNNABLE:
            _require_process(task)
            task.state = TaskState.PAUSED
            step.changed(task.object)
            step.emit(effects.Suspend(task.id))
        step.answer(task, seq, messages.Done(1))
        return
    if flags:
        raise InvalidError("STAY_RUNNABLE is for a task's own reference")
    victim = _controlled(step, task, call.task)
    if victim is None:
        step.answer(task, seq, messages.Done(0))
        return
    if victim.state is not TaskState.PAUSED:
        victim.state = TaskState.PAUSED
        step.changed(victim.object)
        step.emit(effects.Suspend(victim.id))
        step.audit(task, "pause", "ok", victim.object.fingerprint)
    step.answer(task, seq, messages.Done(1))


def resume(step: Step, task: Task, seq: int, call: messages.Resume) -> None:
    """dios_resume: true if a suspended task runs on; never on oneself."""
    access.flags_of(call.flags, Flag.NONE)
    reference = access.typed(access.held(task, call.task), ObjectType.TASK)
    if reference.object is task.object:
        raise InvalidError("a task cannot resume itself")
    victim = _controlled(step, task, call.task)
    if victim is None or victim.state is not TaskState.PAUSED:
        step.answer(task, seq, messages.Done(0))
        return
    victim.state = TaskState.RUNNING if victim.pid else TaskState.STARTING
    step.changed(victim.object)
    step.emit(effects.Continue(victim.id))
    step.audit(task, "resume", "ok", victim.object.fingerprint)
    step.answer(task, seq, messages.Done(1))


def _controlled(step: Step, task: Task, ref_id: int) -> Task | None:
    reference = access.held(task, ref_id, Permission.EXECUTE)
    victim = step.state.tasks.get(TaskId(reference.object.id))
    if victim is None or not victim.alive:
        return None
    _require_process(victim)
    return victim


def _require_process(task: Task) -> None:
    if task.is_session:
        raise InvalidError("a person's process is not the node's to suspend")


# -- select -----------------------------------------------------------------------------------------
def select(step: Step, task: Task, seq: int, call: messages.Select) -> None:
    """dios_select: the first reference ready for I/O; waits until one is, or the time passed."""
    access.flags_of(call.flags, Flag.NON_BLOCKING)
    right = Permission.READ if call.mode is Mode.READ else Permission.WRITE
    references = [access.held(task, ref_id, right) for ref_id in call.refs]
    index = _first_ready(step, task, references, call.mode)
    if index >= 0:
        step.answer(task, seq, messages.Selected(index))
        return
    if call.flags & Flag.NON_BLOCKING or call.timeout_ns == 0:
        step.answer(task, seq, messages.Selected(-1))
        return
    step.wait(_select_row(step, task, seq, call, references, _limit(step, call)))


def _limit(step: Step, call: messages.Select) -> int | None:
    if call.timeout_ns is None:
        return None
    return step.now + min(call.timeout_ns, limits.SELECT_TIMEOUT_MS_MAX * 1_000_000)


def _select_row(
    step: Step,
    task: Task,
    seq: int,
    call: messages.Select,
    references: list[Reference],
    limit: int | None,
) -> Pending:
    due = [
        reference.object.state.due_ns
        for reference in references
        if isinstance(reference.object.state, TimerState) and reference.object.state.due_ns > step.now
    ]
    moments = due if limit is None else [*due, limit]
    watched = tuple(dict.fromkeys(reference.object for reference in references))
    return Pending(task, seq, call, watched, min(moments, default=None), limit)


def _first_ready(step: Step, task: Task, references: list[Reference], mode: Mode) -> int:
    for index, reference in enumerate(references):
        if sources.ready(step, task, reference.object, reference, mode):
            return index
    return -1


def look_again(step: Step, row: Pending) -> bool:
    """Try a waiting select again; True when it was answered."""
    call = row.call
    if not isinstance(call, messages.Select):
        return False
    task = row.task
    if any(ref_id not in task.table for ref_id in call.refs):
        step.state.pending.remove(row)
        step.refuse(task, row.seq, InvalidError("a selected reference was deleted while the call waited"))
        return True
    references = [task.table.get(ref_id) for ref_id in call.refs]
    index = _first_ready(step, task, references, call.mode)
    late = row.limit is not None and step.now >= row.limit
    if index < 0 and not late:
        if row.deadline is not None and step.now >= row.deadline:
            step.state.pending.remove(row)
            step.state.pending.add(_select_row(step, task, row.seq, call, references, row.limit))
        return False
    step.state.pending.remove(row)
    step.answer(task, row.seq, messages.Selected(index))
    return True


# -- streams ----------------------------------------------------------------------------------------
def attach(step: Step, task: Task, seq: int, call: messages.Attach) -> None:
    """Become one end of a SHMEM_STREAM; each end is one task's, once (ADR 0004)."""
    access.flags_of(call.flags, Flag.NONE)
    reference = access.for_io(task, call.ref, call.mode)
    access.typed(reference, ObjectType.SHMEM_STREAM)
    if step.parts is not None:
        raise InvalidError("attach is not for vectors: its answer carries descriptors")
    state = reference.object.state
    if not isinstance(state, StreamState):
        raise InvalidError("not a stream")
    if call.mode in state.gone:
        raise ClosedError(f"the {call.mode.name.lower()} end was closed")
    if call.mode in state.holder:
        raise Busy(f"another reference is the {call.mode.name.lower()} end already")
    state.holder[call.mode] = (task.id, reference.id)
    step.audit(task, "attach", "ok", reference.object.fingerprint, call.mode.name)
    step.emit(effects.AnswerAttach(task.id, seq, reference.object.id, call.mode, state.ring_bytes))


# -- introspection ----------------------------------------------------------------------------------
def console_of(step: Step, task: Task, seq: int, call: messages.ConsoleOf) -> None:
    """A read-only reference to the console of a task that the caller may read."""
    reference = access.typed(access.held(task, call.task, Permission.READ), ObjectType.TASK)
    other = step.state.tasks.get(TaskId(reference.object.id))
    if other is None:
        raise NoSuchTaskError("the node no longer keeps this task's console")
    task.table.require_room()
    granted = step.grant(task, other.console, Permission.READ, Provenance.DELEGATED)
    step.answer(task, seq, messages.References((granted.public(),)))


def list_tasks(step: Step, task: Task, seq: int, call: messages.ListTasks) -> None:
    """Every task of the caller's own principal, sessions left out."""
    del call
    _refuse_pure(task)
    rows = tuple(
        other.row()
        for other in step.state.tasks.values()
        if other.principal == task.principal and not other.is_session
    )
    step.answer(task, seq, messages.Tasks(rows))


def node_info(step: Step, task: Task, seq: int, call: messages.NodeInfo) -> None:
    """Counts of this node; the host adds what it knows of the machine."""
    del call
    _refuse_pure(task)
    state = step.state
    counts = {
        "objects": len(state.objects),
        "names": len(state.names),
        "tasks": sum(1 for other in state.tasks.values() if other.alive and not other.is_session),
        "sessions": sum(1 for other in state.tasks.values() if other.is_session),
        "references": sum(len(other.table) for other in state.tasks.values()),
        "buffers": sum(len(other.buffers) for other in state.tasks.values()),
        "waiting": len(state.pending),
    }
    step.answer(task, seq, messages.Info("", "", counts, {}))


def shutdown(step: Step, task: Task, seq: int, call: messages.Shutdown) -> None:
    """End the node; for the principal that runs it, and root."""
    del call
    _refuse_pure(task)
    if not _is_nodes_own(step, task):
        raise NotPermittedError("only the node's own user and root may stop it")
    step.audit(task, "shutdown", "ok", task.object.fingerprint)
    step.answer(task, seq, messages.Done(1))
    step.emit(effects.BeginShutdown())


def cancel(step: Step, task: Task, seq: int, call: messages.Cancel) -> None:
    """Give up a waiting call; it answers ECANCELED, unless it was answered before."""
    row = task.pending.get(call.seq)
    if row is not None:
        step.state.pending.remove(row)
        step.answer(task, call.seq, messages.Failure(int(Code.ECANCELED), "cancelled by the caller"))
    step.answer(task, seq, messages.Done(0 if row is None else 1))


def _is_nodes_own(step: Step, task: Task) -> bool:
    """Whether the task is there for the principal that runs the node, or for root."""
    return task.principal in {step.state.node_owner, "uid:0"}


def _refuse_pure(task: Task) -> None:
    if task.brand is Brand.PURE:
        raise NotPermittedError("a pure task sees nothing but what it was handed")
