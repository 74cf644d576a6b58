"""Agreeing with other nodes on who holds what: so that reference counts come to be the truth again.

Not for: single references, which are released as they go (``dios.core.stand_ins``). After a lost message, a
partition or a new start the two sides may differ; each says what its tasks hold, and the other corrects.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import coordination, deputies, forwarding, lifecycle, stand_ins
from dios.core.peers import Cluster, Peer
from dios.core.references import Provenance
from dios.core.step import Step
from dios.core.tasks import Task
from dios.ids import ObjectId, RefId
from dios.wire import dcp, messages
from dios.wire.types import ObjectType, Permission, Persistence

_MS: Final = 1_000_000
_OWN_AUTHORITY: Final = frozenset({Provenance.RESOLVED, Provenance.CREATED})


def claim(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Say what tasks of this node hold on another's, and take back what it does not know."""
    if cluster.claim_at is None:
        cluster.claim_at = step.now + limits.CLAIM_MS * _MS
    by_task: dict[Task, list[tuple[RefId, ObjectId, int, bool]]] = {}
    for target in peer.stand_ins.values():
        for reference in target.references.values():
            entry = (
                reference.id,
                target.id,
                int(reference.permissions),
                reference.provenance in _OWN_AUTHORITY,
            )
            by_task.setdefault(reference.task, []).append(entry)
    holdings = tuple(
        dcp.Holding(forwarding.caller_of(task), tuple(entries)) for task, entries in by_task.items()
    )
    lost, peer.lost = tuple(peer.lost), []
    epoch = peer.claim_epoch or peer.epoch

    def then(later: Step, answer: dcp.Answer) -> None:
        if isinstance(answer, dcp.Unknown):
            peer.claim_epoch = peer.epoch
            _correct(later, peer, answer)

    coordination.ask(step, peer.node, dcp.Claim(epoch, holdings, lost), then)


def claim_all(step: Step, cluster: Cluster) -> None:
    """Now and then, whatever has happened."""
    cluster.claim_at = None
    for peer in list(cluster.peers.values()):
        if peer.connected and peer.dead_since is None:
            claim(step, cluster, peer)


def _correct(step: Step, peer: Peer, answer: dcp.Unknown) -> None:
    gone = set(answer.objects)
    unknown = set(answer.refs)
    for target in list(peer.stand_ins.values()):
        if target.id in gone:
            target.zombie = target.type is not ObjectType.TASK or target.zombie
            step.changed(target)
            continue
        for reference in [one for one in target.references.values() if one.id in unknown]:
            holder = reference.task
            stand_ins.lose(step, reference)
            told = messages.Retired(reference.id, target.id, target.fingerprint, reference.label, False)
            step.tell(holder, told)


def claimed(step: Step, peer: Peer, number: int, body: dcp.Claim) -> None:
    """Compare what a node says that its tasks hold here with what they do."""
    refs: list[RefId] = []
    objects: dict[ObjectId, None] = {}
    named: set[RefId] = set()
    restarted = body.epoch != coordination.cluster_of(step).here.epoch
    for holding in body.holdings:
        deputy = deputies.deputy_of(step, peer, holding.caller)
        for ref, object_id, permissions, own in holding.references:
            named.add(ref)
            if ref in deputy.table:
                continue
            target = step.state.objects.get(object_id)
            if target is None:
                objects[object_id] = None
                refs.append(ref)
            elif restarted and own and target.persistence is Persistence.DURABLE:
                deputies.grant_again(step, deputy, target, ref, Permission(permissions))
            else:
                refs.append(ref)
    young = step.now - limits.CLAIM_YOUNG_MS * _MS
    for deputy in list(peer.deputies.values()):
        for reference in deputy.table:
            if reference.id not in named and reference.granted_ns <= young:
                step.drop_reference(reference)
    for child in body.lost:
        victim = step.state.tasks.get(child)
        if (
            victim is not None
            and victim.alive
            and victim.parent is not None
            and victim.parent.home == peer.node
        ):
            lifecycle.end_task_by(step, victim, victim.parent, "its parent was told that it is lost")
    for deputy in peer.deputies.values():
        for reference in deputy.table:
            if not reference.object.zombie:
                coordination.publish(step, reference.object)
    coordination.reply(step, peer, number, dcp.Unknown(tuple(refs), tuple(objects)))


def end_deputies(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Nothing that tasks of a node hold here counts any more."""
    del cluster
    for deputy in list(peer.deputies.values()):
        deputies.end(step, peer, deputy)
