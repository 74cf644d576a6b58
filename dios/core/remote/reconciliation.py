"""Reconcile references: two nodes agree on their holders, so that reference counts become exact again.

A lost message, a partition or a restart can make two nodes differ. Each node reports the references of its
tasks, and the other node corrects the report. Drops in normal operation are in ``dios.core.remote.proxies``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import lifecycle
from dios.core.model.records import LocalHolder, Provenance, Reference, RemoteTask, Task
from dios.core.model.work_items import (
    EndingRemoteTasks,
    HoldingsReport,
    LostReferences,
    ReceivedReport,
    ReleasedReferences,
)
from dios.core.remote import authority, notices, proxies, publication, remote_tasks, requests
from dios.core.remote.continuations import ReconcileAnswer, StartProgress
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import DiosError
from dios.ids import ObjectId, Principal, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.mandates import Purpose
from dios.wire.types import ObjectType, Permission

_MS: Final = 1_000_000
_UNSHARED_ROUNDS: Final = 2
"""Rounds with a node after nothing is shared with it any more."""
_LAST_ID: Final = 2**63 - 1

_OWN_AUTHORITY: Final = frozenset({Provenance.RESOLVED, Provenance.CREATED})


def reconcile(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Report the references that tasks of this node hold on the peer; its answers correct them."""
    if cluster.reconcile_at is None:
        cluster.reconcile_at = step.now + limits.RECONCILE_PERIOD_MS * _MS
    peer.reconcile_round += 1
    peer.reconcile_missing = 1  # the last message of the round
    step.start(HoldingsReport(peer.node, peer.reconcile_round))


def report_some(step: Step, item: HoldingsReport) -> bool:
    """Report the references of some tasks to a node; return True after the last message of the round."""
    peer = step.require_cluster().peer(item.node)
    if item.round != peer.reconcile_round:
        return True
    if item.tasks is None:
        # Those without references there, too, because they may have a remote task.
        item.tasks = [task for task in step.state.tasks.values() if peer.node in task.remote_nodes]
        item.tasks.reverse()
        step.spend(len(step.state.tasks) // 64)
        _report_waiting(step, peer, item)
    while item.tasks:
        if step.exhausted:
            return False
        task = item.tasks.pop()
        step.spend(1 + len(task.table) // 32)
        _report_task(step, peer, item, task)
    most = limits.REMOTE_TASKS_PER_NODE_MAX
    lost, peer.lost = tuple(peer.lost[:most]), peer.lost[most:]
    tasks = tuple(task.id for task in step.state.tasks.values() if peer.node in task.remote_nodes)
    tasks += tuple(caller.task for caller, _ in _waiting_starts(step, peer))
    _send_report(step, peer, item, lost, tasks)
    return True


def _waiting_starts(step: Step, peer: Peer) -> Iterator[tuple[dcp.Caller, list[messages.Reference]]]:
    """Iterate over the future tasks in the start queue that were offered references on the peer."""
    for queued in step.state.starts.all_waiting():
        start, body = queued.row.progress, queued.body
        every: tuple[dcp.HeldReference | None, ...] = ()
        caller: dcp.Caller | None = None
        if isinstance(start, StartProgress):
            caller, every = start.child, tuple(start.held)
        elif body is not None:
            every = (body.program, *body.inputs, *body.outputs)
            principal, label = body.caller.principal, body.call.label
            caller = dcp.Caller(body.child, principal, queued.fingerprint, body.call.brand, label)
        held = [holding.reference for holding in every if holding is not None and holding.node == peer.node]
        if caller is not None and held:
            yield caller, held


def _report_waiting(step: Step, peer: Peer, item: HoldingsReport) -> None:
    """Report the references that were offered to tasks which wait for their start."""
    for caller, held in _waiting_starts(step, peer):
        step.spend(1)
        rest = sorted(
            (RefId(reference.ref), ObjectId(reference.object), reference.permissions, False)
            for reference in held
        )
        _report_holder(step, peer, item, caller, rest)


def _report_task(step: Step, peer: Peer, item: HoldingsReport, task: LocalHolder) -> None:
    """Report the references of a task."""
    rest = sorted(
        (
            reference.id,
            reference.object.id,
            int(reference.permissions),
            reference.provenance in _OWN_AUTHORITY,
        )
        for reference in task.table
        if reference.object.home == peer.node
    )
    _report_holder(step, peer, item, task.caller(), rest)


def _report_holder(
    step: Step,
    peer: Peer,
    item: HoldingsReport,
    caller: dcp.Caller,
    rest: list[tuple[RefId, ObjectId, int, bool]],
) -> None:
    """Add a task's references to the next messages; the pieces of a task cover all reference ids."""
    if step.require_cluster().mandates and item.part and item.part[-1].caller.principal != caller.principal:
        principals = {holding.caller.principal for holding in item.part}
        if len(principals | {caller.principal}) > limits.MANDATES_PER_REQUEST_MAX:
            peer.reconcile_missing += 1
            _send_report(step, peer, item)  # so that the mandates of all of them fit
    first = 0
    while rest or not first:
        room = limits.RECONCILE_REFERENCES_MAX - item.references
        piece, rest = rest[:room], rest[room:]
        last = piece[-1][0] if rest else _LAST_ID
        item.part.append(dcp.HeldReferences(caller, first, last, tuple(piece)))
        first = last + 1
        item.references += len(piece)
        is_full = item.references == limits.RECONCILE_REFERENCES_MAX
        if is_full or len(item.part) == limits.RECONCILE_TASKS_MAX:
            peer.reconcile_missing += 1
            _send_report(step, peer, item)


def _send_report(
    step: Step,
    peer: Peer,
    item: HoldingsReport,
    lost: tuple[TaskId, ...] = (),
    tasks: tuple[TaskId, ...] | None = None,
) -> None:
    epoch = peer.reconciled_epoch or peer.epoch
    body = dcp.ReconcileReferences(epoch, tuple(item.part), lost, tasks)
    item.part, item.references = [], 0
    requests.ask(step, peer.node, body, ReconcileAnswer(peer.node, item.round))


def reconcile_answered(step: Step, then: ReconcileAnswer, answer: dcp.Answer) -> None:
    """Apply a correction. The last answer of a round completes it."""
    if not isinstance(answer, dcp.UnknownReferences):
        return
    peer = step.require_cluster().peer(then.node)
    if then.round == peer.reconcile_round:
        peer.reconcile_missing -= 1
        if not peer.reconcile_missing:
            peer.reconciled_epoch = peer.epoch
    _correct(step, peer, answer)


def reconcile_all(step: Step, cluster: Cluster) -> None:
    """Reconcile with every reachable node, and schedule the next time."""
    # Schedule it even without reachable nodes: a node that is treated as dead may live and stay connected.
    cluster.reconcile_at = step.now + limits.RECONCILE_PERIOD_MS * _MS
    shared = {node for task in step.state.tasks.values() for node in task.remote_nodes}
    for peer in list(cluster.peers.values()):
        if peer.connected and peer.dead_since is None:
            if not cluster.membership.probes_all:
                # The connection may be from the time when the cluster was small, and was to be kept.
                step.emit(effects.Contact(peer.node, peer.name, peer.address, on_demand=True))
            if peer.node in shared or peer.remote_tasks or peer.proxies or peer.lost:
                peer.reconciled_unshared = 0
            elif not cluster.membership.probes_all and peer.reconciled_unshared >= _UNSHARED_ROUNDS:
                continue  # so that a connection that nobody uses comes to rest
            else:
                peer.reconciled_unshared += 1
            reconcile(step, cluster, peer)


def _correct(step: Step, peer: Peer, answer: dcp.UnknownReferences) -> None:
    for object_id in answer.objects:
        target = peer.proxies.get(object_id)
        if target is not None:
            target.zombie = True
            lifetimes.end_shares(step, target)
            target.lost = target.lost or target.type is ObjectType.TASK
            step.changed(target)
    if answer.refs:
        step.start(LostReferences(list(peer.proxies.values()), frozenset(answer.refs)))


def release_some(step: Step, item: ReleasedReferences) -> bool:
    """Drop references that a task of another node has dropped; return True if none is left."""
    while item.refs:
        if step.exhausted:
            return False
        reference = item.holder.table.find(item.refs.pop())
        if reference is None:
            step.spend(1)
        else:
            lifetimes.drop_reference(step, reference)
    return True


def correct_some(step: Step, item: LostReferences) -> bool:
    """Drop references that another node does not have; return True if all are dropped."""
    looked = 0
    while item.proxies:
        if step.exhausted:
            return False
        looked += 1
        if not looked % 16:
            step.spend(1)
        target = item.proxies[-1]
        gone = () if target.zombie else item.unknown & target.references.keys()
        if not gone:
            item.proxies.pop()
            continue
        for ref in sorted(gone)[: limits.STEP_UNITS // 8]:
            reference = target.references[ref]
            holder = reference.task
            proxies.drop_lost(step, reference)
            event = messages.Retired(reference.id, target.id, target.fingerprint, reference.label, False)
            notices.notify(step, holder, event)
    return True


def reconcile_requested(step: Step, peer: Peer, number: int, body: dcp.ReconcileReferences) -> None:
    """Compare another node's report with the references that its tasks hold here, and answer it."""
    granted_before = step.now - limits.RECONCILE_YOUNG_MS * _MS
    restarted = _accepts_earlier_references(step, peer, body.epoch)
    step.start(ReceivedReport(peer.node, peer.epoch, number, body, granted_before, restarted=restarted))


def compare_some(step: Step, item: ReceivedReport) -> bool:
    """Compare a part of another node's report; return True after the answer."""
    peer = step.require_cluster().peer(item.node)
    if peer.epoch != item.epoch:
        return True  # the node has restarted since
    try:
        done = _compare_some(step, peer, item)
    except DiosError as error:
        failure = messages.Failure(int(error.code), error.message, error.fingerprint)
        requests.reply(step, peer, item.number, failure)
        return True
    if done:
        requests.reply(step, peer, item.number, dcp.UnknownReferences(tuple(item.refs), tuple(item.objects)))
    return done


def _compare_some(step: Step, peer: Peer, item: ReceivedReport) -> bool:
    while not step.exhausted:
        if item.drops:
            reference = item.drops.pop()
            if not reference.dropped:
                lifetimes.drop_reference(step, reference)
        elif item.claims:
            step.spend(1)
            _compare_claim(step, peer, item, *item.claims.pop())
        elif item.holdings:
            _compare_holding(step, peer, item, item.holdings.pop())
        elif item.body.tasks is None:
            _end_lost(step, peer, item.body)
            return True
        elif item.absent is None:
            peer.reconciled_ns = step.now if peer.reconciled_ns is None else peer.reconciled_ns
            known = set(item.body.tasks)
            item.absent = [
                remote_task for remote_task in peer.remote_tasks.values() if remote_task.home_id not in known
            ]
            step.spend(len(peer.remote_tasks) // 64)
        elif item.absent:
            _compare_absent(step, peer, item, item.absent)
        elif item.shown is None:
            _end_lost(step, peer, item.body)
            item.shown = list(peer.remote_tasks.values())
        elif item.shown:
            _show(step, item.shown.pop())
        else:
            return True
    return False


def _compare_holding(step: Step, peer: Peer, item: ReceivedReport, holding: dcp.HeldReferences) -> None:
    if authority.why_not(step, peer, Principal(holding.caller.principal), Purpose.OBJECTS):
        return  # nothing is restored, and nothing is dropped: the mandate may come later
    remote_task = remote_tasks.remote_task_for(step, peer, holding.caller)
    step.spend(1 + (len(remote_task.table) + len(holding.references)) // 32)
    named = {entry[0] for entry in holding.references}
    item.drops = [
        reference
        for reference in remote_task.table
        if holding.first <= reference.id <= holding.last
        and reference.id not in named
        and _is_judged(peer, item, reference)
    ]
    item.claims = [
        (remote_task, entry) for entry in reversed(holding.references) if entry[0] not in remote_task.table
    ]


def _is_judged(peer: Peer, item: ReceivedReport, reference: Reference) -> bool:
    """Return True if the node knew of the reference for certain when it made its report."""
    return reference.granted_ns <= item.granted_before and reference.id not in peer.unsettled


def _compare_claim(
    step: Step,
    peer: Peer,
    item: ReceivedReport,
    remote_task: RemoteTask,
    entry: tuple[RefId, ObjectId, int, bool],
) -> None:
    ref, object_id, permissions, own = entry
    if ref in remote_task.table:
        return
    target = step.state.find_object(object_id)
    if target is None:
        item.objects[object_id] = None
        item.refs.append(ref)
    elif (
        item.restarted
        and own
        and remote_tasks.can_restore(remote_task, target, ref)
        and not authority.why_not_of(step, peer, target.owner, remote_task.principal, Purpose.OBJECTS)
    ):
        rights = Permission(permissions) & Permission.EVERY
        remote_tasks.restore(step, remote_task, target, ref, rights)
    else:
        item.refs.append(ref)


def _compare_absent(step: Step, peer: Peer, item: ReceivedReport, absent: list[RemoteTask]) -> None:
    """Drop the old references of a task that the report does not list; then end it if it has nothing."""
    remote_task = absent[-1]
    step.spend(1 + len(remote_task.table) // 32)
    offered_since = step.now - limits.OFFERED_GRACE_MS * _MS
    is_offered = remote_task.guessed and remote_task.started_ns > offered_since
    if remote_task.table and (is_offered or step.state.starts.is_starting(remote_task.home_id)):
        absent.pop()  # references that were offered to a task, which may wait for its start
        return
    item.drops = [reference for reference in remote_task.table if _is_judged(peer, item, reference)]
    if item.drops:
        return
    absent.pop()
    busy = len(remote_task.table) or remote_task.pending or remote_task.buffers
    if not busy and remote_task.started_ns <= item.granted_before:
        remote_tasks.end(step, peer, remote_task)


def _end_lost(step: Step, peer: Peer, body: dcp.ReconcileReferences) -> None:
    step.spend(len(body.lost) // 32)
    for child in body.lost:
        victim = step.state.tasks.get(child)
        if isinstance(victim, Task) and victim.alive and victim.parent.home == peer.node:
            lifecycle.end_task_by(step, victim, victim.parent, "its parent was notified that it is lost")


def _show(step: Step, remote_task: RemoteTask) -> None:
    """Publish the counters of the objects that a task of another node refers to."""
    cluster = step.require_cluster()
    step.spend(1 + len(remote_task.table) // 16)
    for reference in remote_task.table:
        if not reference.object.zombie:
            step.after += publication.publish(cluster, reference.object, step.now, step.informed)


def _accepts_earlier_references(step: Step, peer: Peer, epoch: int) -> bool:
    """Return True if the references in a report may be from an earlier start of this node.

    Accept this only until shortly after the peer's first round: a later report could only bring back
    references that were dropped since.
    """
    is_late = (
        peer.reconciled_ns is not None and step.now - peer.reconciled_ns > limits.RECONCILE_YOUNG_MS * _MS
    )
    return 0 < epoch < step.require_cluster().here.epoch and not is_late


def end_remote_tasks(step: Step, peer: Peer) -> None:
    """End all remote tasks of a node."""
    if peer.remote_tasks:
        step.start(EndingRemoteTasks(peer.node, list(reversed(peer.remote_tasks.values()))))


def end_some(step: Step, item: EndingRemoteTasks) -> bool:
    """End some remote tasks; return True if none is left."""
    peer = step.require_cluster().peer(item.node)
    while item.tasks:
        if step.exhausted:
            return False
        step.spend(1)
        remote_tasks.end(step, peer, item.tasks.pop())
    return True
