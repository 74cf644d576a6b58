"""Handle cluster events: nodes connect, disconnect, die, return and are removed (thesis §4.6).

``dios.core.membership.swim`` decides which nodes are alive; ``dios.core.remote.serving`` handles requests.
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
_NOT_ALIVE: Final = frozenset({NodeStatus.DEAD, NodeStatus.LEFT})


def peer_up(step: Step, event: PeerUp) -> None:
    """Handle a new connection. If the node has restarted, drop the state of its earlier start."""
    cluster = step.require_cluster()
    peer = cluster.peer(event.node)
    if event.epoch < peer.epoch and peer.met:
        step.emit(effects.HangUp(event.node, "the connection is from an earlier start of this node"))
        return
    if cluster.membership.is_forgotten(event.node):
        step.emit(effects.HangUp(event.node, "it was removed from the cluster", revoked=True))
        return
    if event.epoch > peer.epoch and peer.epoch:
        _drop_earlier_start(step, cluster, peer)
    peer.epoch, peer.connected, peer.met = event.epoch, True, True
    requests.note_heard(step, peer)
    peer.name, peer.rack, peer.address = event.name, event.rack, event.address
    row = gossip.MemberRow(event.node, event.name, event.rack, event.address, event.epoch)
    follow(step, cluster, cluster.membership.connected(step.now, row))
    revive(cluster, peer)
    requests.repeat_all(step, peer)
    requests.repeat_notices(step, peer)
    reconciliation.reconcile(step, cluster, peer)


def _drop_earlier_start(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Drop the state of the node's earlier start: its tasks, and its knowledge of this node's tasks."""
    requests.fail_all(step, peer, "has restarted. The call may have been made.")
    resume_all(step)  # first, because a run that was refused has no child to lose
    peer.answers.clear()
    peer.settled = Watermark()
    for target in peer.proxies.values():
        target.order = 0
    reconciliation.end_remote_tasks(step, cluster, peer)
    _lose_requests(step, peer)
    _lose_children(step, peer)


def peer_down(step: Step, event: PeerDown) -> None:
    """Handle a lost connection. The membership protocol decides later if the node is dead."""
    cluster = step.require_cluster()
    peer = cluster.peers.get(event.node)
    if peer is None or event.epoch != peer.epoch:
        return
    peer.connected = False
    follow(step, cluster, cluster.membership.disconnected(step.now, event.node))


def received(step: Step, event: Received) -> None:
    """Handle a message. Raise ProtocolError, with nothing changed, if no correct node would send it."""
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
            gossiped = gossip.decode(message.message)
            follow(step, cluster, cluster.membership.received(step.now, event.node, gossiped))
        case dcp.PeerHello():
            raise ProtocolError("cannot accept the hello: this connection already had one")


def under_way(step: Step, event: UnderWay) -> None:
    """Postpone the repeat of a request whose bytes are in transit. This does not count as a sign of life."""
    cluster = step.state.cluster
    peer = None if cluster is None else cluster.peers.get(event.node)
    request = None if peer is None else peer.asked.get(event.number)
    if cluster is not None and request is not None:
        request.moving_since = step.now
        cluster.repeat_later(request, step.now + limits.DCP_REPEAT_MS_MAX * _MS)


def load_measured(step: Step, event: LoadMeasured) -> None:
    """Announce the load of this node to the other nodes."""
    cluster = step.state.cluster
    if cluster is None:
        return
    running = sum(1 for _ in step.state.living_tasks())
    load = gossip.Load(running, cluster.here.cpus, event.memory_bytes)
    follow(step, cluster, cluster.membership.refresh(step.now, load))


def time_passed(step: Step, cluster: Cluster) -> None:
    """Run every timer that is due."""
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
    """Apply the membership decisions that the calls of this step have made."""
    cluster = step.require_cluster()
    for decision in step.decisions:
        follow(step, cluster, decision)


def follow(step: Step, cluster: Cluster, decision: Decision) -> None:
    """Apply a membership decision."""
    for change in decision.changed:
        _apply_change(step, cluster, change)
    for node in decision.forgotten:
        _handle_removal(step, cluster, node)
    for node, message in decision.send:
        step.emit(effects.Send(node, dcp.Gossip(gossip.encode(message))))


def _apply_change(step: Step, cluster: Cluster, change: Change) -> None:
    member = change.member
    peer = cluster.peer(member.node)
    peer.name, peer.rack, peer.address = member.name, member.rack, member.address
    if member.status in _NOT_ALIVE:
        _handle_death(step, cluster, peer)
    else:
        if not peer.epoch:
            peer.epoch = member.epoch
        elif member.epoch == peer.epoch:
            was_dead = peer.dead_since is not None
            revive(cluster, peer)
            if was_dead:
                # The connection may have survived. Then no PeerUp event repeats the notices.
                requests.repeat_notices(step, peer)
        if member.address and not peer.connected:
            step.emit(effects.Contact(member.node, member.name, member.address))
    if change.former is None or change.former is not member.status:
        cluster.since[member.node] = step.now
        status = member.status.name.lower()
        step.audit_node("node", status, member.name, f"{member.node:x}, epoch {member.epoch}")


def _handle_death(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Fail all requests to a dead node. Keep its remote tasks for a grace period, without requests (§4.7)."""
    if peer.dead_since is not None:
        return
    peer.dead_since = step.now
    requests.fail_all(step, peer)
    resume_all(step)  # first, because a run that was refused has no child to lose
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
    """Mark a node as alive again, and cancel its grace period."""
    peer.dead_since = None
    cluster.grace_ends.pop(peer.node, None)


def _lose_requests(step: Step, peer: Peer) -> None:
    """Close the buffers of requests on the peer's objects."""
    for task in step.state.tasks.values():
        for buffer in [
            open_buffer
            for open_buffer in task.remote_buffers.values()
            if open_buffer.reference.object.home == peer.node
        ]:
            lifetimes.close_remote_buffer(step, buffer)


def _lose_children(step: Step, peer: Peer) -> None:
    """Notify the parents of tasks on the peer that these tasks are lost.

    A task that is still alive is ended when the peer returns.
    """
    for task in list(step.state.tasks.values()):
        for child in [started for started, place in task.remote_children.items() if place[0] == peer.node]:
            _lose_child(step, peer, task, child)


def _lose_child(step: Step, peer: Peer, task: LocalHolder, child: TaskId) -> None:
    _, fingerprint, label = task.remote_children.pop(child)
    peer.lost.append(child)
    target = peer.proxies.get(ObjectId(child))
    if target is not None:
        target.lost = True
        step.changed(target)
    if task.alive:
        # A parent that has dropped its reference is notified, too.
        notices.notify(step, task, messages.ChildEnded(child, lost_row(fingerprint, peer.name, label, task)))


def _handle_removal(step: Step, cluster: Cluster, node: NodeId) -> None:
    """Drop everything of a node that was removed for good; if it is this node, stop."""
    if node == cluster.here.node:
        step.audit_node("node", "forgotten", cluster.here.name, "this node was removed and stops")
        step.emit(effects.BeginShutdown())
        return
    peer = cluster.peers.get(node)
    step.audit_node("node", "forgotten", "" if peer is None else peer.name, f"{node:x}")
    if peer is not None:
        _handle_death(step, cluster, peer)
        reconciliation.end_remote_tasks(step, cluster, peer)
        peer.connected = False
    cluster.grace_ends.pop(node, None)
    cluster.since.pop(node, None)
    step.emit(effects.HangUp(node, "it was removed from the cluster", revoked=True))


def leave(step: Step, cluster: Cluster) -> None:
    """Announce that this node leaves, so that the others need not detect it."""
    follow(step, cluster, cluster.membership.leave(step.now))
