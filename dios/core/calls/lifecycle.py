"""The beginning and end of sessions and tasks (thesis §4.4 Bootstrap, §4.5.2, B.1.4, B.1.5).

The host runs the processes; ``dios.core.calls.run_calls`` handles the run call.
"""

from __future__ import annotations

from collections.abc import Iterator

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import groups, moves, submissions, waiting_starts
from dios.core.events import Disconnected, SessionOpened, TaskEnded, TaskStarted
from dios.core.model.accounts import Account, charge_all
from dios.core.model.names import child_task_name, logs_group
from dios.core.model.records import (
    ChildIdentity,
    Holder,
    LocalHolder,
    Pending,
    PhysicalObject,
    Provenance,
    Reference,
    Reserved,
    Session,
    Task,
    last_value,
)
from dios.core.model.type_states import ConsoleState
from dios.core.model.work_items import EndingHolder, OrphanedTasks
from dios.core.remote import authority, notices, requests
from dios.core.step import Step
from dios.errors import Code
from dios.ids import Name, ObjectId, Principal, TaskId
from dios.wire import dcp, messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.nametext import fingerprint
from dios.wire.types import Brand, Cause, Deletion, ObjectType, Permission, Resource, Scope, TaskState

_SELF_RIGHTS = Permission.READ | Permission.WRITE | Permission.DELEGATE | Permission.DELETE
_CONSOLE_RIGHTS = Permission.READ | Permission.WRITE | Permission.DELEGATE


def own_objects(
    step: Step, task: TaskId, name: Name, principal: Principal
) -> tuple[PhysicalObject, PhysicalObject]:
    """Create the object and the console of a new task or session."""
    home = groups.home_of(step, principal)
    in_groups = (home.name,) if home.name is not None else ()
    own = PhysicalObject(
        ObjectId(task), ObjectType.TASK, name, in_groups, principal, deletion=Deletion.REFERENCE_COUNTED
    )
    console = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        ObjectType.CONSOLE_STREAM,
        None,
        (),
        principal,
        deletion=Deletion.IMMORTAL,
    )
    console.state = ConsoleState(task)
    return own, console


def enter_task(step: Step, task: LocalHolder) -> None:
    """Enter a new task or session into the node's tables."""
    task.object.pinned = task.console.pinned = 1
    step.state.add_object(task.object)
    step.state.add_object(task.console)
    step.state.tasks[task.id] = task
    for group in task.memberships:
        step.state.enter_member(task, group)


def default_references(
    step: Step, task: LocalHolder, member_of: tuple[PhysicalObject, ...]
) -> tuple[Reference, Reference, tuple[Reference, ...]]:
    """Grant references to the task itself, to its console and to each group that it is a member of."""
    own = lifetimes.grant(step, task, task.object, _SELF_RIGHTS, Provenance.INITIAL)
    task.self_ref = own.id
    console = lifetimes.grant(step, task, task.console, _CONSOLE_RIGHTS, Provenance.INITIAL)
    member_refs = tuple(
        lifetimes.grant(step, task, group, Permission.ALL, Provenance.INITIAL) for group in member_of
    )
    return own, console, member_refs


def open_session(step: Step, event: SessionOpened) -> None:
    """Begin a session of a user's process.

    It is a root task of the principal, a member of the principal's home group and of its keyring's groups.
    """
    home = groups.home_of(step, event.principal)
    presented = groups.owned_by(step, event.groups, event.principal)
    member_of = (home, *(group for group in presented if group is not home))
    names = tuple(group.name for group in member_of if group.name is not None)
    if home.name is not None:
        names = (*names, logs_group(home.name))
    name = step.state.fresh_name()
    own_object, console_object = own_objects(step, event.task, name, event.principal)
    task = Session(
        own_object,
        console_object,
        name,
        event.principal,
        names,
        Account(Scope.TASK, fingerprint(name), (), step.state.account_of(event.principal)),
        label=event.label,
        now=step.now,
    )
    enter_task(step, task)
    task.pid = event.pid
    own, console, member_refs = default_references(step, task, member_of)
    step.audit(task, "session", "ok", task.object.fingerprint, f"{len(member_of)} groups")
    refused = len(set(event.groups)) - len(presented)
    if refused:
        step.audit(task, "session", "denied", task.object.fingerprint, f"{refused} groups refused")
    step.answer(
        task,
        event.seq,
        messages.Welcome(
            version=PROTOCOL_VERSION,
            name=task.name,
            brand=task.brand,
            self_ref=own.public(),
            console=console.public(),
            groups=tuple(reference.public() for reference in member_refs),
            inputs=(),
            outputs=(),
            arguments=(),
            executable=None,
            label=task.label,
            home=member_refs[0].public(),
            mandate=authority.terms(step, event.principal),
        ),
    )


def fresh_identity(step: Step, parent: LocalHolder) -> ChildIdentity:
    """Return the id and the name of the next task that ``parent`` starts."""
    return ChildIdentity(TaskId(step.state.fresh_id()), child_name(step, parent))


def child_name(step: Step, parent: LocalHolder) -> Name:
    """Return a random name for a child of a session, a deterministic name for a child of a task (replay)."""
    if isinstance(parent, Session):
        return step.state.fresh_name()
    name = child_task_name(parent.name, parent.spawn_count)
    parent.spawn_count += 1
    return name


def task_started(step: Step, event: TaskStarted) -> None:
    """Note that the process runs, so that the parent's run call is answered."""
    task = step.state.tasks.get(event.task)
    if task is None or not task.alive:
        return
    task.pid = event.pid
    if isinstance(task, Task):
        moves.bound_time(step, task)
    # It may have been paused meanwhile.
    if task.state is TaskState.STARTING:
        task.state = TaskState.RUNNING
        if isinstance(task, Task):
            submissions.note_task(step, task)
    step.changed(task.object)


def task_ended(step: Step, event: TaskEnded) -> None:
    """Note that the process has ended: release all that the task held, and keep its status."""
    task = step.state.tasks.get(event.task)
    if task is None or task.ended_ns:
        return
    if task.cause is Cause.NONE:
        task.cause = event.cause
        task.detail = event.detail
    elif event.detail:
        task.detail = f"{task.detail}\n{event.detail}" if task.detail else event.detail
    if isinstance(task, Task):
        task.cpu_ms, task.memory_bytes = event.cpu_ms, event.memory_bytes
        if task.cause is not Cause.EXITED or event.cause is Cause.EXITED:
            task.exit_code = event.exit_code
            task.signal = event.signal
    _end(step, task)


def disconnected(step: Step, event: Disconnected) -> None:
    """Note a lost connection: end a session, but only release a task's references until its process ends."""
    task = step.state.tasks.get(event.task)
    if task is None or task.ended_ns:
        return
    if isinstance(task, Session):
        task.cause = Cause.PROTOCOL if event.reason else Cause.EXITED
        task.detail = event.reason
        if event.reason:
            step.audit(task, "disconnect", "denied", task.object.fingerprint, event.reason)
        _end(step, task)
        return
    if event.reason:
        if task.cause is Cause.NONE:
            task.cause, task.detail = Cause.PROTOCOL, event.reason
        step.audit(task, "disconnect", "denied", task.object.fingerprint, event.reason)
        step.emit(effects.Kill(task.id))
    step.start(EndingHolder(task, ends=False))


def end_task_by(step: Step, victim: LocalHolder, by: Holder, why: str) -> None:
    """Terminate a task. It makes no more calls; its object stays until its process has ended."""
    step.audit(by, "end", "ok", victim.object.fingerprint, why)
    if victim.cause is Cause.NONE:
        victim.cause = Cause.KILLED if victim is not by else Cause.EXITED
        victim.detail = why
    if isinstance(victim, Session):
        _end(step, victim)
        step.emit(effects.CloseConnection(victim.id, why))
    else:
        step.emit(effects.Kill(victim.id))


def end_after_defect(step: Step, victim: LocalHolder, why: str) -> None:
    """Begin the end of a task or session for which this node could not do its work."""
    if victim.cause is Cause.NONE:
        victim.cause, victim.detail = Cause.NODE, why
    if isinstance(victim, Session):
        _end(step, victim)
        step.emit(effects.CloseConnection(victim.id, why))
    else:
        step.emit(effects.Kill(victim.id))
        step.start(EndingHolder(victim, ends=False))


def release_some(step: Step, task: Holder) -> bool:
    """Give up waiting calls, buffers and references of an ending task (B.1.4); return True if none is left.

    Retirements that it asked for come first, because they need its references.
    """
    if task.retirements:
        return False
    for row in _removed_calls(step, task):
        requests.give_up_all(step, row)
    if task.pending:
        return False
    while task.buffers:
        if step.exhausted:
            return False
        step.spend(1)
        lifetimes.close_buffer(step, last_value(task.buffers))
    while task.remote_buffers:
        if step.exhausted:
            return False
        step.spend(1)
        lifetimes.close_remote_buffer(step, last_value(task.remote_buffers))
    while task.table:
        if step.exhausted:
            return False
        lifetimes.drop_reference(step, task.table.last())
    # No task can read the events any more, but the records of the children still refer to this record.
    if isinstance(task, LocalHolder):
        task.events.clear()
        task.lost_events = 0
    return True


def _removed_calls(step: Step, task: Holder) -> Iterator[Pending]:
    """Remove a task's waiting calls and yield each, the newest first, as many as fit into the step."""
    while task.pending and not step.exhausted:
        row = last_value(task.pending)
        step.spend(1 + len(row.watched) // 16)
        step.state.pending.remove(row)
        yield row


def _end(step: Step, task: LocalHolder) -> None:
    """Begin the end of a task. Its end is seen when all that it held is released."""
    if task.ended_ns:
        return
    task.ended_ns = step.now
    if isinstance(task, Task):
        ends, cause = step.state.ends, task.cause.name.lower()
        ends[cause] = ends.get(cause, 0) + 1
    step.audit(task, "ended", task.cause.name.lower(), task.object.fingerprint, _audited_detail(task))
    step.start(EndingHolder(task, ends=True))


def finish(step: Step, task: LocalHolder) -> None:
    """Note that a task has ended and holds nothing any more, and keep its status."""
    task.state = TaskState.ENDED
    if isinstance(task, Task):
        step.state.moves.forget(task.id)
        _return_reservation(task)
        waiting_starts.serve(step)
        _keep_failed_program(step, task)
        # These refer to the task: without them its records are freed when the last of them is dropped.
        task.defaults = ()
    console = task.console
    if isinstance(console.state, ConsoleState):
        console.state.closed = True
    step.changed(console)
    step.changed(task.object)
    submissions.note_end(step, task)
    if isinstance(task, Task):
        _notify_parent(step, task)
    end_orphans(step, task)
    _notify_other_nodes(step, task)
    if not isinstance(task, Task):
        forget_task(step, task)
        return
    principal, job, state = task.principal, task.job, step.state
    state.recipes.keep(principal, job, task)
    for other in state.recipes.excess(principal, limits.RECIPES_KEPT, limits.RECIPES_KEPT):
        other.recipe = None
    state.ended.keep(principal, job, task)
    for other in state.ended.excess(principal, limits.ENDED_TASKS_KEPT, limits.ENDED_TASKS_KEPT_MAX):
        forget_task(step, other)


def reserve(task: Task, parent: Holder, reserved: Reserved) -> None:
    """Count a new task, and reserve its memory and CPU time."""
    task.bounds = task.reserved = reserved
    charge_all((parent.account, *task.member_accounts), Resource.TASKS, 1)
    charge_all((task.account, *task.member_accounts), Resource.MEMORY_BYTES, reserved.memory_bytes)
    charge_all((task.account, *task.member_accounts), Resource.CPU_MS, reserved.cpu_ms)


def _return_reservation(task: Task) -> None:
    """Return the reservation of a task that has ended, except for the CPU time that it used."""
    reserved, task.reserved = task.reserved, Reserved()
    charge_all((task.parent.account, *task.member_accounts), Resource.TASKS, -1)
    charge_all((task.account, *task.member_accounts), Resource.MEMORY_BYTES, -reserved.memory_bytes)
    charge_all((task.account, *task.member_accounts), Resource.CPU_MS, task.cpu_ms - reserved.cpu_ms)


def _keep_failed_program(step: Step, task: Task) -> None:
    """Keep the program of a failed task for a while, so that the run can be repeated.

    Only a program without a name is kept, because no task can observe that it still exists. A program with a
    name goes with its last reference. That of a labelled task is kept however the task ended: the number of
    objects, which others see, would show its exit code.
    """
    if task.recipe is None:
        return
    program = task.recipe.executable
    succeeded = task.cause is Cause.EXITED and task.exit_code == 0 and not task.secrecy
    too_big = program.size > limits.FAILED_PROGRAM_BYTES_MAX
    # A program of another node cannot be kept by this node.
    if succeeded or program.zombie or program.name is not None or too_big or program.home:
        unpin(step, program)
        return
    kept, most = step.state.failed_programs, limits.FAILED_PROGRAMS_KEPT
    kept.keep(task.principal, task.job, program)
    for other in kept.excess(task.principal, most, most):
        unpin(step, other)
    lifetimes.maybe_collect(step, program)


def _audited_detail(task: LocalHolder) -> str:
    """Return the detail of a task's end as the audit log may contain it.

    An exception's text comes from the program and may contain names, so it is left out.
    """
    return "" if task.cause is Cause.EXCEPTION else task.detail.split("\n", 1)[0][:200]


def _notify_parent(step: Step, task: Task) -> None:
    parent = task.parent
    parent.children.pop(task.id, None)
    if parent.alive:
        notices.notify(step, parent, messages.ChildEnded(task.object.id, task.row(step.state.place)))


def end_orphans(step: Step, task: Holder) -> None:
    """End a task's children unless another task has a reference to them.

    Of a session's children, on every node, only those end that were not detached from it.
    """
    if task.children:
        step.start(OrphanedTasks(task, list(reversed(task.children.values()))))


def end_some_orphans(step: Step, item: OrphanedTasks) -> bool:
    """End some children of a task that has ended; return True if none is left."""
    is_session = item.parent.brand is Brand.LEGACY
    while item.children:
        if step.exhausted:
            return False
        step.spend(1)
        child = item.children.pop()
        ends = child.ends_with_session if is_session else True
        if ends and child.alive and len(child.object.references) <= 1:
            end_task_by(step, child, item.parent, "its parent ended and no other task refers to it")
    return True


def _notify_other_nodes(step: Step, task: Holder) -> None:
    """Notify the other nodes that the task has ended, so that they release what it held there."""
    nodes, task.remote_nodes = task.remote_nodes, set()
    for node in sorted(nodes):
        requests.notify_node(step, node, dcp.TasksEnded((task.id,)))


def forget_task(step: Step, task: LocalHolder) -> None:
    """Drop the node's own pin on an ended task; its status goes with the last reference."""
    step.state.tasks.pop(task.id, None)
    step.state.forget_member(task)
    for target in (task.object, task.console):
        unpin(step, target)


def unpin(step: Step, target: PhysicalObject) -> None:
    """Remove one of the node's own pins from an object."""
    target.pinned -= 1
    lifetimes.maybe_collect(step, target)


def shut_down_some(step: Step, task: LocalHolder) -> bool:
    """Answer a task's waiting calls because the node stops, then end the task; return True if it is done."""
    for row in _removed_calls(step, task):
        step.answer(task, row.seq, ended_by_shutdown(row))
    if task.pending:
        return False
    step.spend(1)
    if isinstance(task, Session):
        step.emit(effects.CloseConnection(task.id, "the node is shutting down"))
    elif task.alive:
        if task.cause is Cause.NONE:
            task.cause, task.detail = Cause.NODE, "the node was shut down"
        step.emit(effects.Kill(task.id))
    return True


def refused_for_shutdown() -> messages.Failure:
    """Return the answer to every new call while the node stops."""
    return messages.Failure(
        int(Code.EHOSTUNREACH), "the node is shutting down, so that nothing was changed; connect again later"
    )


def ended_by_shutdown(row: Pending) -> messages.Failure:
    """Return the answer to a call that still waits when the node stops."""
    asked = row.requests and not requests.is_reading(row.call)
    return messages.Failure(
        int(Code.EHOSTUNREACH),
        f"the node is shutting down. {requests.MAYBE if asked else 'Connect again later.'}",
    )
