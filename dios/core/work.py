"""Carry out long work in parts that each fit into a step: see ``dios.core.model.work_items``.

A step begins the work that its event causes. If it does not finish, the core asks the host for another event
at once, and the steps of these events continue all unfinished work in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Never, TypeAlias, cast

from dios import limits
from dios.core.calls import (
    computed_objects,
    dispatch,
    lifecycle,
    moves,
    network_streams,
    node_calls,
    retirement,
    run_calls,
    scheduling_calls,
    starting,
    task_calls,
)
from dios.core.model.records import LocalHolder, Pending, PhysicalObject, RemoteTask, Waking
from dios.core.model.work_items import (
    AdmittedCalls,
    EndingHolder,
    EndingRemoteTasks,
    HoldingsReport,
    LostPeer,
    LostReferences,
    NameHandover,
    NodeEnd,
    OrphanedTasks,
    QueuedStarts,
    ReceivedReport,
    ReleasedReferences,
    RepeatedNotices,
    Retirement,
    RetriedCalls,
    WokenCalls,
    WorkItem,
)
from dios.core.remote import cluster_events, reconciliation, registration, remote_tasks, requests
from dios.core.step import Party, Step
from dios.wire import messages

Handler: TypeAlias = Callable[[Step, Never], bool]

_TURN_UNITS: Final = limits.STEP_UNITS // 8


def begin(step: Step) -> None:
    """Begin the work that this step has caused; leave the rest to further steps."""
    while step.started or step.woken:
        if step.woken:
            woken, step.woken = step.woken, {}
            step.started.appendleft(RetriedCalls(list(reversed(woken.values()))))
        item = step.started.popleft()
        if step.exhausted or not _advance(step, item):
            step.state.work.put(item)


def resume(step: Step) -> None:
    """Continue the work of earlier steps: each item has its turn, until the work of a step is done."""
    queue = step.state.work
    for _ in range(len(queue)):
        if step.exhausted:
            return
        item = queue.take()
        if isinstance(item, AdmittedCalls):
            _admit_one(step, item)
            return
        step.units_max = min(step.units + _TURN_UNITS, limits.STEP_UNITS)
        is_done = _advance(step, item)
        step.units_max = limits.STEP_UNITS
        if not is_done:
            queue.put(item)


def _admit_one(step: Step, item: AdmittedCalls) -> None:
    """Handle one call that has waited at the entrance, alone in its step, as if it had come now.

    If anything in the step waits for the disk already, the next step handles it: the bytes of its answer
    would wait as well, while later steps might change them.
    """
    if step.waits_for:
        step.state.work.put_first(item)
    elif not _advance(step, item):
        step.state.work.put(item)


def _advance(step: Step, item: WorkItem) -> bool:
    """Do a part of an item; return True if it is done, or if it was given up because of a defect."""
    try:
        return _HANDLERS[type(item)](step, cast("Never", item))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported and ends the party
        step.note_defect(_give_up(step, item), error)
        return True


def _give_up(step: Step, item: WorkItem) -> Party:
    """Forget an item that met a defect, and return the party that it was for."""
    if isinstance(item, EndingHolder):
        return item.holder
    if isinstance(item, Retirement):
        item.row.task.retirements -= 1
        for root in item.roots:
            root.retiring = False
        return item.row.task
    if isinstance(item, WokenCalls):
        item.target.waking = Waking.NO
        return item.target
    if isinstance(item, ReleasedReferences):
        return item.holder
    cluster, node = step.state.cluster, getattr(item, "node", None)
    return None if cluster is None or node is None else cluster.peers.get(node)


def _end(step: Step, item: EndingHolder) -> bool:
    holder = item.holder
    if not lifecycle.release_some(step, holder):
        return False
    if item.ends and isinstance(holder, LocalHolder):
        lifecycle.finish(step, holder)
    elif item.ends and isinstance(holder, RemoteTask):
        remote_tasks.finish(step, holder)
    return True


def _end_node(step: Step, item: NodeEnd) -> bool:
    while item.holders:
        try:
            if not lifecycle.shut_down_some(step, item.holders[-1]):
                return False
        except Exception as error:  # noqa: BLE001 - it ends this one; the others are ended as usual
            step.note_defect(item.holders[-1], error)
        item.holders.pop()
    return True


# -- calls that wait --------------------------------------------------------------------------------
def _wake(step: Step, item: WokenCalls) -> bool:
    target = item.target
    while target.waking is not Waking.NO:
        if target.waking is Waking.QUEUED:
            target.waking = Waking.BEGUN
            item.rows = list(reversed(target.waiters.values()))
        if not _retry_all(step, item.rows, target):
            return False
        # A call that was answered may have changed the object, such as a read that took what it waited for.
        target.waking = Waking.QUEUED if target.waking is Waking.AGAIN and target.waiters else Waking.NO
    return True


def _retry(step: Step, item: RetriedCalls) -> bool:
    return _retry_all(step, item.rows, None)


def _retry_all(step: Step, rows: list[Pending], changed: PhysicalObject | None) -> bool:
    while rows:
        if step.exhausted:
            return False
        step.spend(1)
        row = rows.pop()
        if step.state.pending.has(row) and row.task.alive:
            try:
                _retry_call(step, row, changed)
            except Exception as error:  # noqa: BLE001 - as above; the other calls are tried all the same
                step.note_defect(row.task, error)
            if not step.state.pending.has(row):
                step.spend(len(row.watched) // 16)
    return True


def _retry_call(step: Step, row: Pending, changed: PhysicalObject | None) -> None:
    """Try a waiting call again, because of a change of one object or, if that is None, for another reason."""
    if isinstance(row.call, messages.Select):
        task_calls.retry_select(step, row, changed)
    elif isinstance(row.call, messages.Run):
        if row.watched:
            starting.finish_run(step, row)
        else:
            run_calls.lease_over(step, row)
    elif isinstance(row.call, messages.ReadQueue | messages.AskScheduler):
        scheduling_calls.retry(step, row)
    elif isinstance(row.call, messages.ListNodes):
        node_calls.retry_list(step, row)
    elif isinstance(row.call, messages.AwaitMove):
        moves.retry(step, row)
    elif isinstance(row.call, messages.Create):
        network_streams.finish(step, row)
    elif isinstance(row.call, messages.AcquireRead | messages.ReadOnce):
        computed_objects.resume_read(step, row)


_HANDLERS: Final[dict[type, Handler]] = {
    EndingHolder: _end,
    OrphanedTasks: lifecycle.end_some_orphans,
    NodeEnd: _end_node,
    WokenCalls: _wake,
    RetriedCalls: _retry,
    AdmittedCalls: dispatch.admit_one,
    Retirement: retirement.retire_some,
    QueuedStarts: run_calls.start_queued,
    LostPeer: cluster_events.lose_some,
    EndingRemoteTasks: reconciliation.end_some,
    RepeatedNotices: requests.repeat_some_notices,
    HoldingsReport: reconciliation.report_some,
    ReceivedReport: reconciliation.compare_some,
    ReleasedReferences: reconciliation.release_some,
    LostReferences: reconciliation.correct_some,
    NameHandover: registration.hand_over_some,
}
