"""Calls between a node and its scheduler: the submission queue, placements, questions (thesis §6.5.1).

Only the node's own user and root may make them, except that every task may ask a question unless it is pure.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core.calls import devices, moves, rights, run_calls, run_orders, submissions, waiting_starts
from dios.core.calls.handlers import handles
from dios.core.model import scheduler_leases
from dios.core.model.quotas import Admission
from dios.core.model.records import Holder, Pending, Task
from dios.core.model.submission_queue import QueuedRun, SchedulerQuestion
from dios.core.remote import forwarding, node_list, remote_calls
from dios.core.step import Step
from dios.errors import (
    DiosError,
    InvalidError,
    LimitError,
    NoSuchTaskError,
    NotPermittedError,
    NotSupportedError,
    UnreachableError,
)
from dios.ids import TaskId
from dios.wire import messages
from dios.wire.codec import ADMISSION_VERSION
from dios.wire.node_labels import NO_LIMBO
from dios.wire.node_roles import NodeRight
from dios.wire.types import Brand, Cause, Operator

_MS: Final = 1_000_000
_ROW_BYTES: Final = 96
"""The approximate size of a row without its texts."""
_LIMBO: Final = messages.Constraint(NO_LIMBO, Operator.ABSENT)
"""The condition on nodes for a limbo task that may leave its node."""


# -- placement --------------------------------------------------------------------------------------
@handles(messages.Place)
def place(step: Step, task: Holder, seq: int, call: messages.Place) -> None:
    """Start submissions on the nodes that the scheduler chose, and stop preempted tasks."""
    require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    step.state.queue.tidy(step.state.pending.has)
    version = step.state.queue.version
    refused: list[tuple[int, str]] = []
    for victim in call.preempted:
        try:
            _preempt(step, task, TaskId(victim))
        except DiosError as error:
            refused.append((victim, error.message))
    if call.placements:
        table = step.state.queue
        table.schedulers = scheduler_leases.renewed(table.schedulers, task.home, step.now)
    for placement in call.placements:
        try:
            _place(step, task, placement)
        except DiosError as error:
            refused.append((placement.submission, error.message))
    step.answer(task, seq, messages.Placed(tuple(refused), version))


def _place(step: Step, task: Holder, placement: messages.Placement) -> None:
    table = step.state.queue
    if table.is_barred(task.home, step.now):
        raise NotPermittedError("this scheduler started no run of the node for too long and is barred there")
    queued = table.waiting.get(TaskId(placement.submission))
    if queued is None:
        raise NoSuchTaskError("the submission is placed already, or its call was cancelled")
    only_node = _only_node(step, queued)
    if only_node not in {"", placement.node}:
        raise InvalidError(f"the run may start at {only_node} alone")
    remote_calls.peer_named(step, placement.node)  # raises for a dead node, so that the submission waits on
    run_calls.take(step, queued)
    step.audit(task, "place", "ok", queued.fingerprint, f"on {placement.node}")
    work = replace(queued.call.work, threads=placement.threads)
    call = replace(queued.call, host=placement.node, work=work)
    run_calls.start_submission(step, queued, call, task.home)


@handles(messages.KeepRooms)
def keep_rooms(step: Step, task: Holder, seq: int, call: messages.KeepRooms) -> None:
    """Note the promised starts of submissions."""
    require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        if 0 < peer.version < ADMISSION_VERSION:
            raise NotSupportedError(f"node {peer.name} has an earlier release, which keeps no rooms")
        forwarding.pass_on(step, task, seq, call, peer)
        return
    table = step.state.queue
    table.tidy(step.state.pending.has)
    version = table.version
    refused: list[tuple[int, str]] = []
    for promised in call.promised:
        try:
            _promise(step, promised)
        except DiosError as error:
            refused.append((promised.submission, error.message))
    submissions.changed(step)
    step.answer(task, seq, messages.Placed(tuple(refused), version))


def _promise(step: Step, promised: messages.PromisedStart) -> None:
    """Note the node that is kept for a submission; one that does not wait any more needs none."""
    table, submission = step.state.queue, TaskId(promised.submission)
    if submission not in table.waiting:
        return
    if promised.node:
        remote_calls.peer_named(step, promised.node)  # raises for a dead node
    if submission not in table.kept and len(table.kept) >= limits.RESERVATIONS_MAX:
        raise LimitError(f"room is kept for {limits.RESERVATIONS_MAX} submissions of this node already")
    table.keep(submission, promised.node, step.now + promised.in_ms * _MS)


def _preempt(step: Step, task: Holder, victim: TaskId) -> None:
    victim_task = step.state.tasks.get(victim)
    if not isinstance(victim_task, Task) or not victim_task.alive or victim_task.cause is not Cause.NONE:
        raise NoSuchTaskError("the task has ended")
    if victim_task.recipe is None or not victim_task.recipe.work.restartable:
        raise NotPermittedError("the task is not restartable, so it cannot be preempted")
    late = victim_task.recipe.work.reservation
    reason = "the time of its job is over" if late else "the scheduler needs its place, or has a better one"
    step.audit(task, "preempt", "ok", victim_task.object.fingerprint, reason)
    moves.ask(step, victim_task, reason)


# -- the submission queue ---------------------------------------------------------------------------
@handles(messages.ReadQueue)
def read_queue(step: Step, task: Holder, seq: int, call: messages.ReadQueue) -> None:
    """Answer with a node's submission queue as soon as it is newer than the caller's version."""
    require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    cluster = step.state.cluster
    if cluster is None:
        raise InvalidError("this node is in no cluster, so it has no scheduler; `dios-node init` creates one")
    table = step.state.queue
    table.renew(step.now, call, task)
    if call.own:
        node_list.note_coordinator(step)
    if table.version > call.since or _continues(call) or not call.wait_ms:
        step.answer(task, seq, _rows(step, call))
        return
    row = Pending(task, seq, call, {}, step.now + call.wait_ms * _MS)
    step.wait(row)
    table.note_reader(row)


def retry(step: Step, row: Pending) -> None:
    """Answer a waiting read of the queue, or a question, if it is ready or its time is over."""
    if isinstance(row.call, messages.ReadQueue):
        late = row.deadline is not None and step.now >= row.deadline
        if late or step.state.queue.version > row.call.since:
            step.state.queue.renew(step.now, row.call, row.task)
            step.state.pending.remove(row)
            step.answer(row.task, row.seq, _rows(step, row.call))
    elif isinstance(row.call, messages.AskScheduler):
        step.state.pending.remove(row)
        step.refuse(row.task, row.seq, UnreachableError("the scheduler did not answer in time; try again"))


def _continues(call: messages.ReadQueue) -> bool:
    """Return True if the caller has a partial answer and asks for the rest."""
    return bool(call.listed or call.tasks_listed)


def _rows(step: Step, call: messages.ReadQueue) -> messages.QueueRows:
    state = step.state
    table = state.queue
    cluster = step.require_cluster()
    table.tidy(state.pending.has)
    newer = table.version > call.since
    whole = not call.changes or (call.since < table.complete_since) or not (call.since or _continues(call))
    has_rows = newer or _continues(call)
    waiting, partial = _submissions(step, call, whole=whole) if has_rows else ([], False)
    tasks, tasks_listed = _tasks(step, call, whole=whole) if has_rows else ([], 0)
    ended, gone = _ends(step, call, whole=whole) if newer else ([], [])
    units = (len(waiting) + len(tasks) + len(ended)) // 2 + len(gone) // 64
    step.spend(min(limits.STEP_UNITS // 2, 1 + units))
    return messages.QueueRows(
        table.version,
        cluster.here.node,
        cluster.here.name,
        cluster.here.rack,
        cluster.here.cpus,
        cluster.here.memory_bytes,
        cluster.here.slots,
        cluster.here.labels,
        cluster.membership.own.draining,
        table.coordinated(step.now),
        tuple(waiting),
        (*tasks, *ended),
        tuple(question.asked for question in table.questions.values()) if has_rows else (),
        tuple(
            (number, data)
            for number, version, data in table.reports
            if newer and (whole or version > call.since)
        ),
        partial or tasks_listed > 0,
        table.shares_version if call.own else 0,
        table.shares if call.own and table.shares_since >= call.since else b"",
        whole,
        table.waiting[TaskId(waiting[-1].id)].version if partial else 0,
        tuple(gone),
        tasks_listed,
        cluster.here.disk_io,
        cluster.here.network,
        cluster.here.enforcement,
        devices.kinds_of(cluster.here),
        cluster.here.threads if whole else (),
        step.state.fitness,
        _kept(step) if has_rows and (whole or table.kept_version > call.since) else None,
        cluster.here.limbo_from_nodes,
    )


def _kept(step: Step) -> tuple[messages.KeptRoom, ...]:
    """Return the promised starts of waiting runs that are not void, and whose nodes have not died."""
    rows: list[messages.KeptRoom] = []
    for queued, node, start in step.state.queue.kept_rooms(step.now):
        try:
            remote_calls.peer_named(step, node)
        except UnreachableError:
            continue
        in_ms, waited_ms = max(0, start - step.now) // _MS, (step.now - queued.since) // _MS
        work, label = submissions.needs(queued.call.work), queued.row.task.secrecy
        rows.append(messages.KeptRoom(queued.chosen.task, node, in_ms, waited_ms, work, label))
    return tuple(rows)


def _tasks(step: Step, call: messages.ReadQueue, *, whole: bool) -> tuple[list[messages.Occupant], int]:
    """Return living tasks, those first that have not changed for the longest time, and the mark for the next
    call: 0 if no others are left.
    """
    table = step.state.queue
    changed = table.tasks_since(0 if whole else call.tasks_listed or call.since)
    step.spend(len(changed) // 64)
    part = changed[: limits.QUEUE_TASKS_MAX]
    holders = [step.state.tasks.get(task) for task in part]
    living = [
        submissions.occupant(task, step.now) for task in holders if isinstance(task, Task) and task.alive
    ]
    return living, table.tasks[part[-1]] if len(part) < len(changed) else 0


def _ends(
    step: Step, call: messages.ReadQueue, *, whole: bool
) -> tuple[list[messages.Occupant], list[TaskId]]:
    """Return the tasks that have ended, and the ids that have left the queue or the node."""
    table = step.state.queue
    if whole:
        return [row for _, row in table.ended], []
    return table.ended_since(call.since), table.gone_since(call.since)


def _submissions(
    step: Step, call: messages.ReadQueue, *, whole: bool
) -> tuple[list[messages.Submission], bool]:
    """Return waiting runs in their order, and True if there are more than one answer holds."""
    after = 0 if whole else call.listed or call.since
    queued = step.state.queue.runs_since(after, limits.QUEUE_ROWS_MAX + 1)
    rows: list[messages.Submission] = []
    room = limits.QUEUE_REPLY_BYTES_MAX
    for run in queued[: limits.QUEUE_ROWS_MAX]:
        row = _submission(step, run)
        room -= _ROW_BYTES + len(row.label) + _size(row.work)
        if room < 0:
            break
        rows.append(row)
    return rows, len(rows) < len(queued)


def _only_node(step: Step, queued: QueuedRun) -> str:
    """Return the name of the only node on which a run may start; empty if it may leave this node."""
    if not queued.call.host and run_orders.stays_here(step.state, queued.call.brand):
        return step.require_cluster().here.name
    return queued.call.host


def _submission(step: Step, queued: QueuedRun) -> messages.Submission:
    task, work = queued.row.task, queued.call.work
    pure = queued.call.brand is Brand.PURE or step.state.restricted
    only_node = _only_node(step, queued)
    place = messages.Constraint("node", value=only_node) if only_node else _LIMBO
    if only_node or not pure:
        work = replace(work, constraints=(place, *work.constraints)[: limits.WORK_CONSTRAINTS_MAX])
    return messages.Submission(
        queued.chosen.task,
        queued.fingerprint,
        queued.call.label[: limits.QUEUE_LABEL_CHARS_MAX],
        task.principal,
        (step.now - queued.since) // _MS,
        work,
        step.state.place,
        pure,
        task.secrecy,
    )


def _size(work: messages.Work) -> int:
    return _ROW_BYTES * (len(work.near) + len(work.constraints))


# -- quotas and reasons to wait -----------------------------------------------------------------------
@handles(messages.SetAdmission)
def set_admission(step: Step, task: Holder, seq: int, call: messages.SetAdmission) -> None:
    """Use the quotas of the cluster on this node, and note why the caller leaves runs waiting."""
    require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        if 0 < peer.version < ADMISSION_VERSION:
            raise NotSupportedError(f"node {peer.name} has an earlier release, which enforces no quotas")
        forwarding.pass_on(step, task, seq, call, peer)
        return
    table, former = step.state.queue, step.state.admission
    if call.quotas is not None:
        step.spend(len(call.quotas) // 16)
        quotas = {quota.principal: quota for quota in call.quotas}
        step.state.admission = Admission(quotas, step.now, call.waiting)
        if former is None or former.quotas != quotas:
            waiting_starts.serve(step)
    if call.hold_ms:
        until = step.now + call.hold_ms * _MS
        table.schedulers = scheduler_leases.holding(table.schedulers, task.home, until)
    step.answer(task, seq, messages.Done(1))


# -- questions and reports --------------------------------------------------------------------------
@handles(messages.AskScheduler)
def ask(step: Step, task: Holder, seq: int, call: messages.AskScheduler) -> None:
    """Queue a question for the scheduler."""
    rights.refuse_pure(task)
    table = step.state.queue
    if step.state.cluster is None:
        raise InvalidError("this node is in no cluster, so it has no scheduler; `dios-node init` creates one")
    if not table.attended(step.now):
        if _is_coordinator_starting(step):
            raise UnreachableError("this node's scheduler is starting. Try again in a moment.")
        raise UnreachableError(run_calls.NO_SCHEDULER)
    table.tidy(step.state.pending.has)
    waiting = sum(len(question.asked.question) for question in table.questions.values())
    if (
        len(table.questions) >= limits.SCHEDULER_QUESTIONS_MAX
        or waiting + len(call.question) > limits.SCHEDULER_QUESTIONS_BYTES_MAX
    ):
        raise LimitError("too many questions wait for the scheduler; try again later")
    row = Pending(task, seq, call, {}, step.now + limits.SCHEDULER_TIMEOUT_MS * _MS)
    step.wait(row)
    number = table.next_question
    table.next_question += 1
    privileged = rights.is_nodes_own(step.state, task)
    asked = messages.Asked(number, task.principal, privileged, call.question)
    table.questions[number] = SchedulerQuestion(row, asked)
    submissions.changed(step)


def _is_coordinator_starting(step: Step) -> bool:
    cluster = step.state.cluster
    return cluster is not None and cluster.here.coordinator


@handles(messages.Advise)
def advise(step: Step, task: Holder, seq: int, call: messages.Advise) -> None:
    """Answer a question. An answer in parts ends with the first part that does not announce another."""
    require_cluster_user(step, task)
    peer = remote_calls.peer_named(step, call.host) if call.host else None
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    table = step.state.queue
    table.tidy(step.state.pending.has)
    question = table.questions.get(call.number)
    if question is None:
        raise NoSuchTaskError("the question has no caller any more: it was cancelled, or its time is over")
    parts = table.answers.setdefault(call.number, [])
    parts.append(call.answer)
    if sum(map(len, parts)) > limits.ADVICE_BYTES_MAX:
        raise LimitError(f"an answer may have at most {limits.ADVICE_BYTES_MAX} bytes")
    if not call.more:
        del table.questions[call.number], table.answers[call.number]
        step.state.pending.remove(question.row)
        step.answer(question.row.task, question.row.seq, messages.Advice(b"".join(parts)))
    step.answer(task, seq, messages.Done(1))


@handles(messages.Report)
def report(step: Step, task: Holder, seq: int, call: messages.Report) -> None:
    """Keep the measurements of this node's coordinator until the scheduler has read them."""
    require_cluster_user(step, task)
    table = step.state.queue
    table.reports.append((table.next_report, table.version + 1, call.data))
    table.next_report += 1
    submissions.changed(step)
    step.answer(task, seq, messages.Done(1))


def require_cluster_user(step: Step, task: Holder) -> None:
    """Raise NotPermittedError unless the caller acts for the nodes' own user or for root, at a scheduler."""
    rights.require_nodes_own(step.state, task, "make calls of the scheduler", NodeRight.SCHEDULE)
