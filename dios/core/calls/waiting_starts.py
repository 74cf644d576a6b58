"""Runs that wait in the start queue, because their node has no room for them now (B.1.5).

Only the runs of sessions wait. A task's own run is refused at once if there is no room: the tasks that hold
all places might otherwise wait for each other for ever. ``dios.core.calls.run_calls`` starts the runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from dios import limits
from dios.core.calls.admission import NoRoomError
from dios.core.model.accounts import Account
from dios.core.model.records import ChildIdentity, Holder, Pending
from dios.core.model.start_queue import QueuedStart
from dios.core.model.state import State
from dios.core.model.work_items import QueuedStarts
from dios.core.remote.continuations import StartProgress
from dios.core.step import Step
from dios.errors import TooManyCallsError
from dios.ids import NodeId, Principal, TaskId
from dios.wire import dcp, messages
from dios.wire.nametext import fingerprint
from dios.wire.types import Brand, Cause, Flag, Resource, TaskState


def may_wait(step: Step, task: Holder, call: messages.Run) -> bool:
    """Return True if a run is one that waits for room: of a session that waits for the answer."""
    return task.brand is Brand.LEGACY and not call.flags & Flag.NON_BLOCKING and step.parts is None


def require_turn(step: Step, task: Holder, call: messages.Run) -> None:
    """Raise NoRoomError if a new run must wait because earlier ones of its principal wait."""
    if step.state.starts.count_of(task.principal) and may_wait(step, task, call):
        raise NoRoomError("earlier runs wait for the room that is left")


def require_place(step: Step, principal: Principal) -> None:
    """Raise TooManyCallsError if the queue has no place for another run of a principal.

    A principal may use half of the queue, or an equal part of it if more principals have runs in it. So a
    principal without waiting runs always has room for some, although the queue may become longer by them.
    """
    queue = step.state.starts
    own, principals = queue.count_of(principal), len(queue.by_principal.keys() | {principal})
    if own >= max(limits.STARTS_WAITING_MAX // max(principals, 2), 1):
        raise TooManyCallsError(
            f"cannot start the task now: {own} runs of {principal} and {len(queue)} of all wait on this node "
            "for a place. Make the call again later; the Python clients do so."
        )


def wait(
    step: Step,
    row: Pending,
    chosen: ChildIdentity,
    node: NodeId = NodeId(0),  # noqa: B008 - an int
    body: dcp.Start | None = None,
) -> None:
    """Let a waiting call wait for room. If too many do, raise TooManyCallsError, and change nothing."""
    require_place(step, row.task.principal)
    step.state.starts.put(QueuedStart(row, chosen, fingerprint(chosen.name), step.now, node, body))
    serve(step)


def serve(step: Step) -> None:
    """Start the waiting runs that fit now. Call this when the room may have grown."""
    queue = step.state.starts
    if queue and not queue.is_served:
        queue.is_served = True
        step.start(QueuedStarts())


def waiting_rows(state: State, principal: Principal) -> Iterator[messages.TaskRow]:
    """Return the waiting runs of a principal, as `dios ps` shows them; the first one with its reason."""
    for place, queued in enumerate(state.starts.waiting_of(principal), 1):
        call = queued.row.call
        reason = f": {_reason(queued)}" if place == 1 else ""
        if not isinstance(call, messages.Run):
            continue
        label = queued.body.call.label if queued.body is not None else call.label
        yield messages.TaskRow(
            None,
            queued.fingerprint,
            label,
            TaskState.WAITING,
            call.brand,
            principal,
            0,
            queued.since,
            0,
            Cause.NONE,
            0,
            0,
            f"place {place} of {state.starts.count_of(principal)} in the start queue{reason}",
            queued.row.task.object.fingerprint,
            state.place,
            secrecy=queued.row.task.secrecy,
        )


def starting_rows(state: State, principal: Principal) -> Iterator[messages.TaskRow]:
    """Return the runs of a principal that this node starts with others, without those in the start queue."""
    for task, seq in state.starts.starting:
        row = state.tasks[TaskId(task)].pending[seq]
        start = row.progress
        if row.task.principal != principal or state.starts.has(row) or not isinstance(start, StartProgress):
            continue
        host = "this node" if state.cluster is None or not start.node else state.cluster.name_of(start.node)
        yield messages.TaskRow(
            None,
            start.child.fingerprint,
            start.label,
            TaskState.WAITING,
            start.recipe.brand,
            principal,
            0,
            start.since,
            0,
            Cause.NONE,
            0,
            0,
            f"{host} starts it",
            row.task.object.fingerprint,
            state.place,
            secrecy=start.recipe.secrecy,
        )


def _reason(queued: QueuedStart) -> str:
    """Return why the first run of a principal waits now."""
    account: Account | None = queued.row.task.account
    while account is not None:
        if account.used[Resource.TASKS] >= account.bounds[Resource.TASKS]:
            return account.refusal(Resource.TASKS, 1).message
        account = account.parent
    return queued.reason or "it starts in a moment"
