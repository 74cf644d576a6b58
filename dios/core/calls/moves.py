"""Tasks that the node ends: those that have to leave it, and those that have used up their time.

Asked by its node, a task saves its state and ends, and its run continues elsewhere.

The node asks a task with a grace period when the scheduler takes its place, and when the node is drained. It
ends the task if the task has not ended by the end of that period. The program that started the run starts it
again (``dios.lib.movable``), so this node keeps nothing about it.
"""

from __future__ import annotations

from typing import Final

from dios.core import effects
from dios.core.calls import submissions
from dios.core.calls.handlers import handles
from dios.core.model.records import Holder, Pending, Task
from dios.core.step import Step
from dios.errors import InvalidError
from dios.wire import messages
from dios.wire.types import Cause

_MS: Final = 1_000_000


def ask(step: Step, task: Task, reason: str) -> None:
    """Ask a restartable task to leave the node; end it at once if it has no grace period."""
    if task.leave_ns:
        return
    grace = 0 if task.recipe is None else task.recipe.work.grace_ms
    if not grace:
        _end(step, task, Cause.PREEMPTED, f"preempted: {reason}")
        return
    task.leave_ns = step.now + grace * _MS
    task.leave_reason = reason
    step.state.moves.add(task.id, task.leave_ns)
    submissions.note_task(step, task)
    for row in task.pending.values():
        if isinstance(row.call, messages.AwaitMove):
            step.woken[row.key] = row


def ask_all(step: Step, reason: str) -> None:
    """Ask each task of this node that has a grace period to leave."""
    for task in list(step.state.living_tasks()):
        work = None if task.recipe is None else task.recipe.work
        step.spend(1)
        if work is not None and work.grace_ms and task.cause is Cause.NONE:
            ask(step, task, reason)


@handles(messages.AwaitMove)
def await_move(step: Step, task: Holder, seq: int, call: messages.AwaitMove) -> None:
    """Answer when the node asks the task to leave, or when the time of waiting is over."""
    asked = _moving(task)
    if asked.leave_ns or not call.wait_ms:
        step.answer(task, seq, messages.Done(_left_ms(step, asked)))
        return
    step.wait(Pending(task, seq, call, {}, step.now + call.wait_ms * _MS))


def retry(step: Step, row: Pending) -> None:
    """Answer a waiting call if the node has asked the task to leave, or if the time of waiting is over."""
    asked = _moving(row.task)
    if asked.leave_ns or (row.deadline is not None and step.now >= row.deadline):
        step.state.pending.remove(row)
        step.answer(row.task, row.seq, messages.Done(_left_ms(step, asked)))


@handles(messages.Leave)
def leave(step: Step, task: Holder, seq: int, call: messages.Leave) -> None:
    """End a task after it has saved its state. It makes no more calls, so this one has no answer."""
    del seq
    asked = _moving(task)
    if not asked.leave_ns:
        raise InvalidError("nothing asks this task to leave its node; let it go on, or end it")
    if call.failure:
        # The text of the program is not on the first line, which goes into the audit log.
        why = f"{_asked_because(asked)}; it could not save its state\n{call.failure}"
        _end(step, asked, Cause.PREEMPTED, why)
    else:
        _end(step, asked, Cause.MOVED, f"moved: {asked.leave_reason}")


def bound_time(step: Step, task: Task) -> None:
    """Note when a task whose process has begun is ended, if its run has a bound of its time."""
    time_ms = 0 if task.recipe is None else task.recipe.work.time_ms
    if time_ms:
        step.state.moves.add(task.id, step.now + time_ms * _MS)


def end_late(step: Step) -> None:
    """End the tasks that have not ended in time, as many as fit into the step."""
    while not step.exhausted and (late := step.state.moves.take_due(step.now)) is not None:
        step.spend(1)
        task = step.state.tasks.get(late)
        if not isinstance(task, Task) or not task.alive or task.cause is not Cause.NONE:
            continue
        if task.leave_ns and task.leave_ns <= step.now:
            _end(step, task, Cause.PREEMPTED, f"{_asked_because(task)}; it did not leave in time")
        else:
            time_ms = 0 if task.recipe is None else task.recipe.work.time_ms
            _end(step, task, Cause.TIME, f"it ran for {time_ms / 1000:g} s, all the time that it was given")


def _asked_because(task: Task) -> str:
    return f"preempted: {task.leave_reason}"


def _end(step: Step, task: Task, cause: Cause, detail: str) -> None:
    step.state.moves.forget(task.id)
    task.cause, task.detail = cause, detail
    step.audit_node("end", "ok", task.object.fingerprint, detail.split("\n", 1)[0])
    step.emit(effects.Kill(task.id))


def _moving(task: Holder) -> Task:
    if not isinstance(task, Task):
        raise InvalidError("only a task that a node has started can be asked to leave it")
    return task


def _left_ms(step: Step, task: Task) -> int:
    """Return the time that a task has left, at least 1 ms; 0 if nothing asks it to leave."""
    return max(1, (task.leave_ns - step.now) // _MS) if task.leave_ns else 0
