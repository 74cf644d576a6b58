"""Events of other nodes: they connect, disconnect, die, return and are removed (thesis §4.6).

``dios.core.membership.swim`` decides which nodes live, ``dios.core.remote.serving`` handles their requests.
"""

from __future__ import annotations

from typing import Final

from dios import limits
from dios.core import effects, lifetimes
from dios.core.events import LoadMeasured, PeerDown, PeerUp, Received, UnderWay
from dios.core.membership.swim import Change, Decision
from dios.core.model.records import LocalHolder
from dios.core.remote import notices, proxies, publication, reconciliation, requests, serving
from dios.core.remote.forwarding import lost_row
from dios.core.remote.peers import Cluster, Peer
from dios.core.remote.resume import resume_all
from dios.core.remote.watermark import Watermark
from dios.core.step import Step
from dios.errors import ProtocolError
from dios.ids import NodeId, ObjectId, TaskId
from dios.wire import dcp, gossip, messages
from dios.wire.types import NodeStatus

_MS: Final = 1_000_000
_GONE: Final = frozenset({NodeStatus.DEAD, NodeStatus.LEFT})


def peer_up(step: Step, event: PeerUp) -> None:
    """A connection stands: what was under way with an earlier start of that node is over."""
    cluster = step.require_cluster()
    peer = cluster.peer(event.node)
    if event.epoch < peer.epoch and peer.met:
        step.emit(effects.HangUp(event.node, "an earlier start of this node was met before"))
        return
    if cluster.membership.is_forgotten(event.node):
        step.emit(effects.HangUp(event.node, "it was removed from the cluster", revoked=True))
        return
    if event.epoch > peer.epoch and peer.epoch:
        _started_anew(step, cluster, peer)
    peer.epoch, peer.connected, peer.met = event.epoch, True, True
    requests.note_heard(step, peer)
    peer.name, peer.rack, peer.address = event.name, event.rack, event.address
    row = gossip.MemberRow(event.node, event.name, event.rack, event.address, event.epoch)
    follow(step, cluster, cluster.membership.connected(step.now, row))
    revive(cluster, peer)
    requests.repeat_all(step, peer)
    requests.repeat_notices(step, peer)
    reconciliation.reconcile(step, cluster, peer)


def _started_anew(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Its tasks are gone with its former start, and so is what it knew of ours."""
    requests.fail_all(step, peer, "was started anew meanwhile")
    resume_all(step)  # runs that were not started are no children to lose
    peer.answers.clear()
    peer.settled = Watermark()
    for target in peer.proxies.values():
        target.order = 0
    reconciliation.end_remote_tasks(step, cluster, peer)
    _lose_requests(step, peer)
    _lose_children(step, peer)


def peer_down(step: Step, event: PeerDown) -> None:
    """The connection is gone; whether the node is, time and the others will tell."""
    cluster = step.require_cluster()
    peer = cluster.peers.get(event.node)
    if peer is None or event.epoch != peer.epoch:
        return
    peer.connected = False
    follow(step, cluster, cluster.membership.disconnected(step.now, event.node))


def received(step: Step, event: Received) -> None:
    """A message came. What no node would say raises ProtocolError, and has changed nothing."""
    cluster = step.require_cluster()
    peer = cluster.peers.get(event.node)
    if peer is None or event.epoch != peer.epoch or cluster.membership.is_forgotten(event.node):
        return
    cluster.membership.heard(step.now, event.node)
    requests.note_heard(step, peer)
    step.payload, step.payload_size = event.payload, event.attached
    message = event.message
    match message:
        case dcp.Ask():
            serving.serve(step, peer, message)
        case dcp.PeerReply():
            requests.answered(step, peer, message)
        case dcp.Published():
            proxies.published(step, peer, message)
        case dcp.Gossip():
            told = gossip.decode(message.message)
            follow(step, cluster, cluster.membership.received(step.now, event.node, told))
        case dcp.PeerHello():
            raise ProtocolError("a second hello on one connection")


def under_way(step: Step, event: UnderWay) -> None:
    """Nobody repeats or gives up on what is on its way; a node that is silent is so all the same."""
    cluster = step.state.cluster
    peer = None if cluster is None else cluster.peers.get(event.node)
    question = None if peer is None else peer.asked.get(event.number)
    if cluster is not None and question is not None:
        question.moving_since = step.now
        cluster.repeat_later(question, step.now + limits.DCP_REPEAT_MS_MAX * _MS)


def load_measured(step: Step, event: LoadMeasured) -> None:
    """Tell the others how busy this node is."""
    cluster = step.state.cluster
    if cluster is None:
        return
    running = sum(1 for _ in step.state.living_tasks())
    load = gossip.Load(running, cluster.here.cpus, event.memory_bytes)
    follow(step, cluster, cluster.membership.refresh(step.now, load))


def time_passed(step: Step, cluster: Cluster) -> None:
    """Whatever was to be done by now."""
    now = step.now
    tick = cluster.membership.next_tick
    if tick is not None and tick <= now:
        follow(step, cluster, cluster.membership.tick(now))
    requests.repeat_due(step)
    if cluster.publish_at is not None and cluster.publish_at <= now:
        step.after += publication.publish_due(cluster)
    for node in [node for node, end in cluster.grace_ends.items() if end <= now]:
        del cluster.grace_ends[node]
        reconciliation.end_remote_tasks(step, cluster, cluster.peer(node))
    if cluster.reconcile_at is not None and cluster.reconcile_at <= now:
        reconciliation.reconcile_all(step, cluster)


def follow_all(step: Step) -> None:
    """Do what the membership has decided in the course of a call."""
    cluster = step.require_cluster()
    for decision in step.decisions:
        follow(step, cluster, decision)


def follow(step: Step, cluster: Cluster, decision: Decision) -> None:
    """Do what the membership has decided."""
    for change in decision.changed:
        _changed(step, cluster, change)
    for node in decision.forgotten:
        _forgotten(step, cluster, node)
    for node, message in decision.send:
        step.emit(effects.Send(node, dcp.Gossip(gossip.encode(message))))


def _changed(step: Step, cluster: Cluster, change: Change) -> None:
    member = change.member
    peer = cluster.peer(member.node)
    peer.name, peer.rack, peer.address = member.name, member.rack, member.address
    if member.status in _GONE:
        _died(step, cluster, peer)
    else:
        if not peer.epoch:
            peer.epoch = member.epoch
        elif member.epoch == peer.epoch:
            was_dead = peer.dead_since is not None
            revive(cluster, peer)
            if was_dead:
                # Its connection may have stood all the time: no other event tells of this.
                requests.repeat_notices(step, peer)
        if member.address and not peer.connected:
            step.emit(effects.Contact(member.node, member.name, member.address))
    if change.former is None or change.former is not member.status:
        cluster.since[member.node] = step.now
        word = member.status.name.lower()
        step.audit_node("node", word, member.name, f"{member.node:x}, epoch {member.epoch}")


def _died(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Nobody waits for it any more; what it holds here stays for a while, but no request of its (§4.7)."""
    if peer.dead_since is not None:
        return
    peer.dead_since = step.now
    requests.fail_all(step, peer)
    resume_all(step)  # runs that were not started are no children to lose
    _lose_requests(step, peer)
    _lose_children(step, peer)
    for remote_task in peer.remote_tasks.values():
        for row in list(remote_task.pending.values()):
            step.state.pending.remove(row)
        for buffer in list(remote_task.buffers.values()):
            lifetimes.close_buffer(step, buffer)
    if peer.remote_tasks:
        cluster.grace_ends[peer.node] = step.now + limits.REMOTE_TASK_GRACE_MS * _MS


def revive(cluster: Cluster, peer: Peer) -> None:
    """It lives after all."""
    peer.dead_since = None
    cluster.grace_ends.pop(peer.node, None)


def _lose_requests(step: Step, peer: Peer) -> None:
    """Requests on its objects that were under way are over: their buffers go."""
    for task in step.state.tasks.values():
        for buffer in [one for one in task.remote_buffers.values() if one.reference.object.home == peer.node]:
            lifetimes.close_remote_buffer(step, buffer)


def _lose_children(step: Step, peer: Peer) -> None:
    """Tell those who started tasks there that they are lost; should they live, they will be ended."""
    for task in list(step.state.tasks.values()):
        for child in [one for one, told in task.remote_children.items() if told[0] == peer.node]:
            _lose_child(step, peer, task, child)


def _lose_child(step: Step, peer: Peer, task: LocalHolder, child: TaskId) -> None:
    _, fingerprint, label = task.remote_children.pop(child)
    peer.lost.append(child)
    target = peer.proxies.get(ObjectId(child))
    if target is not None:
        target.lost = True
        step.changed(target)
    if task.alive:
        # Also who has dropped its reference hears of the end.
        notices.notify(step, task, messages.ChildEnded(child, lost_row(fingerprint, peer.name, label, task)))


def _forgotten(step: Step, cluster: Cluster, node: NodeId) -> None:
    """Somebody removed a node for good: nothing of it is valid any more."""
    if node == cluster.here.node:
        step.audit_node("node", "forgotten", cluster.here.name, "this node was removed, and stops")
        step.emit(effects.BeginShutdown())
        return
    peer = cluster.peers.get(node)
    step.audit_node("node", "forgotten", "" if peer is None else peer.name, f"{node:x}")
    if peer is not None:
        _died(step, cluster, peer)
        reconciliation.end_remote_tasks(step, cluster, peer)
        peer.connected = False
    cluster.grace_ends.pop(node, None)
    cluster.since.pop(node, None)
    step.emit(effects.HangUp(node, "it was removed from the cluster", revoked=True))


def leave(step: Step, cluster: Cluster) -> None:
    """Say good-bye: nobody need wait to find out."""
    follow(step, cluster, cluster.membership.leave(step.now))
