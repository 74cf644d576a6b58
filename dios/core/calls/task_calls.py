"""pause, resume, select, attach and cancel (B.1.6, B.1.13), the use of sandboxes, and progress of tasks."""

from __future__ import annotations

from dios import limits
from dios.core import effects
from dios.core.calls import computed_objects, entrance, network_streams, rights
from dios.core.calls.handlers import handles
from dios.core.model.accounts import charge_all
from dios.core.model.records import Holder, LocalHolder, Pending, PhysicalObject, Reference, Session, Task
from dios.core.model.type_states import SocketState, StreamState, TimerState
from dios.core.remote import cached_replies, remote_calls, requests
from dios.core.step import Step
from dios.errors import Busy, ClosedError, Code, InvalidError, NotPermittedError
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.types import Flag, Mode, ObjectType, Permission, Resource, SandboxUse, TaskState


# -- pause and resume -------------------------------------------------------------------------------
@handles(messages.Pause)
def pause(step: Step, task: Holder, seq: int, call: messages.Pause) -> None:
    """dios_pause: answer 1 if the task is now paused. On the self-reference, yield."""
    flags = rights.flags_of(call.flags, Flag.STAY_RUNNABLE)
    reference = rights.typed(rights.held(task, call.task), ObjectType.TASK)
    if reference.object is task.object:
        if not flags & Flag.STAY_RUNNABLE:
            _require_process(task)
            task.state = TaskState.PAUSED
            step.changed(task.object)
            step.emit(effects.Suspend(task.id))
        step.answer(task, seq, messages.Done(1))
        return
    if flags:
        raise InvalidError("STAY_RUNNABLE is only valid on a task's self-reference; leave it out")
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


@handles(messages.Resume)
def resume(step: Step, task: Holder, seq: int, call: messages.Resume) -> None:
    """dios_resume: answer 1 if a paused task continues. A task cannot resume itself."""
    rights.flags_of(call.flags, Flag.NONE)
    reference = rights.typed(rights.held(task, call.task), ObjectType.TASK)
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


def _controlled(step: Step, task: Holder, ref_id: int) -> LocalHolder | None:
    reference = rights.held(task, ref_id, Permission.EXECUTE)
    victim = step.state.tasks.get(TaskId(reference.object.id))
    if victim is None or not victim.alive:
        return None
    _require_process(victim)
    return victim


def _require_process(task: Holder) -> None:
    if isinstance(task, Session):
        raise InvalidError("a session cannot be paused: its process was not started by the node")


# -- sandboxes --------------------------------------------------------------------------------------
@handles(messages.RecordUse)
def record_use(step: Step, task: Holder, seq: int, call: messages.RecordUse) -> None:
    """Record that the owner of a sandbox starts a program or connects to a port in it.

    Raises:
        NotPermittedError: the reference lacks the right to write, or is the caller's own.
        NoSuchTaskError: the sandbox has ended.
        InvalidError: the program is not printable text, or a value is missing.
    """
    reference = rights.typed(rights.held(task, call.task, Permission.WRITE), ObjectType.TASK)
    if reference.object is task.object:
        raise NotPermittedError("a task records nothing about itself; its owner does")
    if not call.program.isprintable():
        raise InvalidError("the program in a record is printable text; escape other characters")
    value = call.value
    if value is None and call.use is not SandboxUse.END:
        raise InvalidError(f"a record of the use {call.use.name} has a value")
    number = f"{call.number:08x}"
    if call.use is SandboxUse.END:
        ended = "" if value is None else f" with status {value}" if value >= 0 else f" by signal {-value}"
        step.audit(task, "exec", "ended", reference.object.fingerprint, f"{number}{ended}")
    else:
        sandbox = rights.receiving(step.state, reference)
        program = f"{call.program}, arguments: {value}"
        is_program = call.use is SandboxUse.PROGRAM
        detail = f"{number} {program if is_program else f'port {value}'}"
        step.audit(task, "exec" if is_program else "forward", "ok", sandbox.object.fingerprint, detail)
    step.answer(task, seq, messages.Done())


# -- progress ---------------------------------------------------------------------------------------
@handles(messages.ReportProgress)
def report_progress(step: Step, task: Holder, seq: int, call: messages.ReportProgress) -> None:
    """Record the share of its work that a task has done.

    Readers of the submission queue get it with their next answer. None of them is woken, so that the number
    of these calls costs nobody else anything.
    """
    if not isinstance(task, Task):
        raise InvalidError("a session has no progress; only tasks that a node has started report theirs")
    task.progress = call.progress
    step.state.queue.note_task(task.id)
    step.answer(task, seq, messages.Done())


# -- select -----------------------------------------------------------------------------------------
@handles(messages.Select)
def select(step: Step, task: Holder, seq: int, call: messages.Select) -> None:
    """dios_select: answer with the first reference ready for I/O; wait for one until the timeout."""
    rights.flags_of(call.flags, Flag.NON_BLOCKING)
    right = Permission.READ if call.mode is Mode.READ else Permission.WRITE
    step.spend(len(call.refs) // 8)
    references = [rights.held(task, ref_id, right) for ref_id in call.refs]
    index = _first_ready(step, task, references, call.mode)
    if index < 0 and any(reference.object.home for reference in references):
        _select_remote(step, task, seq, call, references)
        return
    if index >= 0:
        step.answer(task, seq, messages.Selected(index))
        return
    if call.flags & Flag.NON_BLOCKING or call.timeout_ns == 0:
        step.answer(task, seq, messages.Selected(-1))
        return
    step.wait(_select_row(step, task, seq, call, references, _limit(step, call)))


def _select_remote(
    step: Step, task: Holder, seq: int, call: messages.Select, references: list[Reference]
) -> None:
    """Ask the nodes of remote objects, and watch the objects of this node."""
    may_wait = not (call.flags & Flag.NON_BLOCKING or call.timeout_ns == 0)
    if may_wait:
        row = _select_row(step, task, seq, call, references, _limit(step, call))
    else:
        row = Pending(task, seq, call, {})
    step.wait(row)
    remote_calls.ask_ready(step, row, call)


def _limit(step: Step, call: messages.Select) -> int | None:
    if call.timeout_ns is None:
        return None
    return step.now + min(call.timeout_ns, limits.SELECT_TIMEOUT_MS_MAX * 1_000_000)


def _select_row(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.Select,
    references: list[Reference],
    limit: int | None,
) -> Pending:
    places: dict[PhysicalObject, list[int]] = {}
    here = [reference for reference in references if not reference.object.home]
    for place, reference in enumerate(references):
        if not reference.object.home:
            places.setdefault(reference.object, []).append(place)
    watched = {target: tuple(indices) for target, indices in places.items()}
    return Pending(task, seq, call, watched, _deadline(step, here, limit), limit)


def _deadline(step: Step, references: list[Reference], limit: int | None) -> int | None:
    """Return the time at which a timer is ready or the call's time is over, whichever comes first."""
    due = [
        reference.object.state.due_ns
        for reference in references
        if isinstance(reference.object.state, TimerState) and reference.object.state.due_ns > step.now
    ]
    times = due if limit is None else [*due, limit]
    return min(times, default=None)


def _first_ready(step: Step, task: Holder, references: list[Reference], mode: Mode) -> int:
    for index, reference in enumerate(references):
        target = reference.object
        # Only the object's own node can answer for a remote object.
        if target.gone or (not target.home and computed_objects.ready(step, task, target, reference, mode)):
            return index
    return -1


def retry_select(step: Step, row: Pending, changed: PhysicalObject | None) -> None:
    """Try a waiting select again, with all of its references or only those to an object that has changed."""
    call = row.call
    if not isinstance(call, messages.Select):
        return
    task = row.task
    places = range(len(call.refs)) if changed is None else row.watched[changed]
    step.spend(len(places) // 16)
    references: list[Reference] = []
    for place in places:
        reference = task.table.find(call.refs[place])
        if reference is None:
            step.state.pending.remove(row)
            remote_calls.abandon(step, row)
            step.refuse(task, row.seq, InvalidError("a selected reference was deleted while the call waited"))
            return
        references.append(reference)
    ready = _first_ready(step, task, references, call.mode)
    index = -1 if ready < 0 else places[ready]
    late = row.limit is not None and step.now >= row.limit
    if index < 0 and not late:
        if changed is None and row.deadline is not None and step.now >= row.deadline:
            step.state.pending.postpone(row, _deadline(step, references, row.limit))
        return
    step.state.pending.remove(row)
    remote_calls.abandon(step, row)
    step.answer(task, row.seq, messages.Selected(index))


# -- streams ----------------------------------------------------------------------------------------
@handles(messages.Attach)
def attach(step: Step, task: Holder, seq: int, call: messages.Attach) -> None:
    """Attach the task to an end of a stream. Each end is attached once (ADR 0004)."""
    rights.flags_of(call.flags, Flag.NONE)
    reference = rights.for_io(task, call.ref, call.mode)
    if step.parts is not None and task.home:
        raise InvalidError("attach by a task of another node cannot be part of a vector. Send it alone.")
    state = reference.object.state
    if not isinstance(state, StreamState):
        raise InvalidError(f"a {reference.object.type.name} is not a stream, so it has no ends to attach to")
    if call.mode in state.gone:
        raise ClosedError(f"the {call.mode.name.lower()} end was closed already")
    if call.mode in state.holder:
        raise Busy(f"the {call.mode.name.lower()} end is attached to another reference already")
    before = reference.object.descriptors
    state.holder[call.mode] = (task.id, reference.id)
    state.attached.add(call.mode)
    # With both ends attached, the node needs fewer.
    freed = before - reference.object.descriptors
    if freed:
        charge_all(reference.object.accounts, Resource.DESCRIPTORS, -freed)
    step.audit(task, "attach", "ok", reference.object.fingerprint, call.mode.name)
    duplex = isinstance(state, SocketState)
    answer = effects.AnswerAttach(
        task.id, seq, reference.object.id, call.mode, state.ring_bytes, duplex=duplex
    )
    if step.parts is not None:
        # The ring is made when the whole vector is answered, so the object must still exist then.
        step.read_in_vector.add(reference.object.id)
        step.parts.append(answer)
        return
    cached_replies.remember(step.state, answer)
    step.emit(answer)


# -- cancellation -------------------------------------------------------------------------------------
@handles(messages.Cancel)
def cancel(step: Step, task: Holder, seq: int, call: messages.Cancel) -> None:
    """Cancel a waiting call. It answers ECANCELED, unless it was answered before.

    A change that other nodes may have made answers EHOSTUNREACH instead. A call that gives something back is
    made all the same.
    """
    row = task.pending.get(call.seq)
    if row is not None and entrance.goes_on_when_cancelled(row):
        row = None
    if row is not None:
        failure = messages.Failure(int(Code.ECANCELED), "cancelled by the caller")
        if row.requests and not requests.is_reading(row.call):
            failure = messages.Failure(
                int(Code.EHOSTUNREACH), f"cancelled before the answer of another node came. {requests.MAYBE}"
            )
        step.state.pending.remove(row)
        remote_calls.abandon(step, row)
        network_streams.drop_cancelled_create(step, row)
        step.answer(task, call.seq, failure)
    step.answer(task, seq, messages.Done(0 if row is None else 1))
