"""Reconcile references: two nodes agree on their holders, so that reference counts become exact again.

A lost message, a partition or a restart can make two nodes differ. Each node reports the references of its
tasks, and the other node corrects the report. Drops in normal operation are in ``dios.core.remote.proxies``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from dios import limits
from dios.core import lifetimes
from dios.core.calls import lifecycle
from dios.core.model.records import Holder, Provenance, Task
from dios.core.remote import notices, proxies, publication, remote_tasks, requests
from dios.core.remote.continuations import ReconcileAnswer
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.ids import ObjectId, RefId
from dios.wire import dcp, messages
from dios.wire.types import ObjectType, Permission

_MS: Final = 1_000_000
_LAST_ID: Final = 2**63 - 1

_Entry: TypeAlias = tuple[RefId, ObjectId, int, bool]
_OWN_AUTHORITY: Final = frozenset({Provenance.RESOLVED, Provenance.CREATED})


def reconcile(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Report the references that tasks of this node hold on the peer; its answers correct them."""
    if cluster.reconcile_at is None:
        cluster.reconcile_at = step.now + limits.RECONCILE_PERIOD_MS * _MS
    by_task: dict[Holder, list[_Entry]] = {}
    for target in peer.proxies.values():
        for reference in target.references.values():
            own = reference.provenance in _OWN_AUTHORITY
            entry = (reference.id, target.id, int(reference.permissions), own)
            by_task.setdefault(reference.task, []).append(entry)
    for task in step.state.tasks.values():
        if peer.node in task.remote_nodes:
            by_task.setdefault(task, [])  # it holds no reference there, but may have a remote task
    epoch = peer.reconciled_epoch or peer.epoch
    parts = list(_parts(by_task))
    bodies = [dcp.ReconcileReferences(epoch, part) for part in parts[:-1]]
    lost, peer.lost = tuple(peer.lost), []
    tasks = tuple(task.id for task in by_task)
    bodies.append(dcp.ReconcileReferences(epoch, parts[-1] if parts else (), lost, tasks))
    peer.reconcile_round += 1
    peer.reconcile_missing = len(bodies)
    for body in bodies:
        requests.ask(step, peer.node, body, ReconcileAnswer(peer.node, peer.reconcile_round))


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


def _parts(by_task: dict[Holder, list[_Entry]]) -> Iterator[tuple[dcp.HeldReferences, ...]]:
    """Split the reports into pieces that fit into a message; a task's pieces cover all reference ids."""
    part: list[dcp.HeldReferences] = []
    room = limits.RECONCILE_REFERENCES_MAX
    for task, entries in by_task.items():
        rest = sorted(entries)
        first = 0
        while rest or not first:
            piece, rest = rest[:room], rest[room:]
            last = piece[-1][0] if rest else _LAST_ID
            part.append(dcp.HeldReferences(task.caller(), first, last, tuple(piece)))
            first = last + 1
            room -= len(piece)
            if not room or len(part) == limits.RECONCILE_TASKS_MAX:
                yield tuple(part)
                part, room = [], limits.RECONCILE_REFERENCES_MAX
    if part:
        yield tuple(part)


def reconcile_all(step: Step, cluster: Cluster) -> None:
    """Reconcile with every reachable node, and schedule the next time."""
    # Schedule it even without reachable nodes: a node that is treated as dead may live and stay connected.
    cluster.reconcile_at = step.now + limits.RECONCILE_PERIOD_MS * _MS
    for peer in list(cluster.peers.values()):
        if peer.connected and peer.dead_since is None:
            reconcile(step, cluster, peer)


def _correct(step: Step, peer: Peer, answer: dcp.UnknownReferences) -> None:
    gone = set(answer.objects)
    unknown = set(answer.refs)
    for target in list(peer.proxies.values()):
        if target.id in gone:
            target.zombie = True
            target.lost = target.lost or target.type is ObjectType.TASK
            step.changed(target)
            continue
        for reference in [each for each in target.references.values() if each.id in unknown]:
            holder = reference.task
            proxies.drop_lost(step, reference)
            event = messages.Retired(reference.id, target.id, target.fingerprint, reference.label, False)
            notices.notify(step, holder, event)


def reconcile_requested(step: Step, peer: Peer, number: int, body: dcp.ReconcileReferences) -> None:
    """Compare another node's report with the references that its tasks hold here, and answer it."""
    cluster = step.require_cluster()
    refs: list[RefId] = []
    objects: dict[ObjectId, None] = {}
    granted_before = step.now - limits.RECONCILE_YOUNG_MS * _MS
    restarted = _accepts_earlier_references(step, peer, body.epoch)
    for holding in body.holdings:
        remote_task = remote_tasks.remote_task_for(step, peer, holding.caller)
        named = {entry[0] for entry in holding.references}
        for reference in remote_task.table:
            is_covered = holding.first <= reference.id <= holding.last
            if is_covered and reference.id not in named and reference.granted_ns <= granted_before:
                lifetimes.drop_reference(step, reference)
        for ref, object_id, permissions, own in holding.references:
            if ref in remote_task.table:
                continue
            target = step.state.objects.get(object_id)
            if target is None:
                objects[object_id] = None
                refs.append(ref)
            elif restarted and own and remote_tasks.can_restore(remote_task, target, ref):
                rights = Permission(permissions) & Permission.ALL
                remote_tasks.restore(step, remote_task, target, ref, rights)
            else:
                refs.append(ref)
    if body.tasks is not None:
        peer.reconciled_ns = step.now if peer.reconciled_ns is None else peer.reconciled_ns
        known = set(body.tasks)
        for remote_task in [each for each in peer.remote_tasks.values() if each.id not in known]:
            for reference in remote_task.table:
                if reference.granted_ns <= granted_before:
                    lifetimes.drop_reference(step, reference)
            busy = len(remote_task.table) or remote_task.pending or remote_task.buffers
            if not busy and remote_task.started_ns <= granted_before:
                remote_tasks.end(step, peer, remote_task)
    for child in body.lost:
        victim = step.state.tasks.get(child)
        if isinstance(victim, Task) and victim.alive and victim.parent.home == peer.node:
            lifecycle.end_task_by(step, victim, victim.parent, "its parent was notified that it is lost")
    for remote_task in peer.remote_tasks.values():
        for reference in remote_task.table:
            if not reference.object.zombie:
                step.after += publication.publish(cluster, reference.object, step.now, step.informed)
    requests.reply(step, peer, number, dcp.UnknownReferences(tuple(refs), tuple(objects)))


def _accepts_earlier_references(step: Step, peer: Peer, epoch: int) -> bool:
    """Return True if the references in a report may be from an earlier start of this node.

    Accept this only until shortly after the peer's first round: a later report could only bring back
    references that were dropped since.
    """
    is_late = (
        peer.reconciled_ns is not None and step.now - peer.reconciled_ns > limits.RECONCILE_YOUNG_MS * _MS
    )
    return 0 < epoch < step.require_cluster().here.epoch and not is_late


def end_remote_tasks(step: Step, cluster: Cluster, peer: Peer) -> None:
    """End all remote tasks of a node."""
    del cluster
    for remote_task in list(peer.remote_tasks.values()):
        remote_tasks.end(step, peer, remote_task)
