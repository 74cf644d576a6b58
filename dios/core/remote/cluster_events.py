"""Handle cluster events: nodes connect, disconnect, die, return and are removed (thesis §4.6).

``dios.core.membership.swim`` decides which nodes are alive; ``dios.core.remote.serving`` handles requests.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import submissions, waiting_starts
from dios.core.events import (
    CapacityChanged,
    FitnessChanged,
    LoadMeasured,
    NodesRemoved,
    PeerDown,
    PeerPaused,
    PeerUp,
    Received,
    UnderWay,
)
from dios.core.membership.swim import Change, Decision
from dios.core.model.records import LocalHolder, RemoteTask
from dios.core.model.work_items import LostPeer
from dios.core.remote import (
    authority,
    cached_reads,
    granted_leases,
    held_leases,
    keepers,
    node_list,
    notices,
    proxies,
    publication,
    reconciliation,
    registration,
    removals,
    requests,
    serving,
)
from dios.core.remote.forwarding import lost_row
from dios.core.remote.peers import Cluster, Peer
from dios.core.remote.resume import resume_all
from dios.core.remote.watermark import Watermark
from dios.core.step import Step
from dios.errors import ProtocolError
from dios.ids import BufferId, NodeId, ObjectId, TaskId
from dios.wire import dcp, gossip, messages
from dios.wire.types import NodeStatus

_MS: Final = 1_000_000
_COLLECTED_AT_ONCE: Final = 64
_NOT_ALIVE: Final = frozenset({NodeStatus.DEAD, NodeStatus.LEFT})


def peer_up(step: Step, event: PeerUp) -> None:
    """Handle a new connection. If the node has restarted, drop the state of its earlier start."""
    cluster = step.require_cluster()
    peer = cluster.peer(event.node)
    if event.epoch < peer.epoch and peer.met:
        step.emit(effects.HangUp(event.node, "the connection is from an earlier start of this node"))
        return
    if cluster.membership.is_forgotten(event.node):
        step.emit(effects.HangUp(event.node, "it was removed from the cluster"))
        return
    if event.epoch > peer.epoch and peer.epoch:
        _drop_earlier_start(step, peer)
    peer.epoch, peer.connected, peer.met = event.epoch, True, True
    requests.note_heard(step, peer)
    peer.name, peer.rack, peer.address = event.name, event.rack, event.address
    peer.version = event.version
    if peer.roles != event.roles:
        node_list.changed(step, cluster)
    peer.roles, peer.key = event.roles, event.key
    keepers.refuse_unsent(step, peer)
    row = gossip.MemberRow(event.node, event.name, event.rack, event.address, event.epoch)
    follow(step, cluster, cluster.membership.connected(step.now, row))
    known = cluster.membership.members.get(event.node)
    if known is not None and known.epoch == event.epoch:
        peer.rack = known.rack  # the node may have got another one since its start
    _revive(step, cluster, peer)
    if not cluster.membership.probes_all:
        step.emit(effects.Contact(event.node, event.name, event.address, on_demand=True))
    peer.excused_until = min(peer.excused_until, step.now)
    requests.repeat_all(step, peer)
    requests.repeat_notices(step, peer)
    reconciliation.reconcile(step, cluster, peer)


def _drop_earlier_start(step: Step, peer: Peer) -> None:
    """Drop the state of the node's earlier start: its tasks, and its knowledge of this node's tasks."""
    _lose(step, peer, "has restarted")
    peer.presented.clear()
    peer.answers.clear()
    peer.granted.clear()
    peer.unsettled.clear()
    peer.settled = Watermark()
    registration.forget_share(cluster=step.require_cluster(), peer=peer)
    cached_reads.forget_node(step, step.require_cluster(), peer.node)
    reconciliation.end_remote_tasks(step, peer)


def peer_down(step: Step, event: PeerDown) -> None:
    """Handle a lost connection. The membership protocol decides later if the node is dead."""
    cluster = step.require_cluster()
    peer = cluster.peers.get(event.node)
    if peer is None or event.epoch != peer.epoch:
        return
    peer.connected = False
    if event.idle:
        cluster.membership.closed(event.node)
    else:
        if event.refused:
            # A program that is being replaced keeps its listener, so this process has ended.
            _excuse(cluster, peer, step.now)
        follow(step, cluster, cluster.membership.disconnected(step.now, event.node))


def peer_paused(step: Step, event: PeerPaused) -> None:
    """Be patient with a node that replaces its program, or end that."""
    cluster = step.require_cluster()
    peer = cluster.peers.get(event.node)
    if peer is None or event.epoch != peer.epoch:
        return
    patience_ns = limits.CONTINUATION_PATIENCE_MS * _MS if event.begins else 0
    _excuse(cluster, peer, step.now + patience_ns)
    cluster.membership.heard(step.now, event.node)


def _excuse(cluster: Cluster, peer: Peer, until: int) -> None:
    """Draw no conclusion from a node's silence until this moment."""
    peer.excused_until = until
    cluster.membership.excuse(peer.node, until)


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
        case dcp.Leased():
            held_leases.granted(step, peer, message)
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
    """Announce the load of this node to the other nodes, and start runs that have room by now."""
    cluster = step.state.cluster
    if cluster is None:
        return
    # The node starts its own coordinator again whenever it ends, so it is not one of the tasks of users.
    coordinator = step.state.queue.coordinator
    running = sum(1 for task in step.state.living_tasks() if task.id != coordinator)
    load = gossip.Load(running, cluster.here.cpus, event.memory_bytes)
    follow(step, cluster, cluster.membership.refresh(step.now, load))
    node_list.note_coordinator(step)
    node_list.note_barred(step)
    # The figures of other nodes expire without an event, and a quota may then have room.
    waiting_starts.serve(step)


def fitness_changed(step: Step, event: FitnessChanged) -> None:
    """Note this node's ability to run pure tasks, and announce it to schedulers and other nodes."""
    step.state.fitness, step.state.why_not_fit = event.fitness, event.reason
    cluster = step.state.cluster
    if cluster is None:
        return
    cluster.here = replace(cluster.here, enforcement=event.enforcement or cluster.here.enforcement)
    follow(step, cluster, cluster.membership.report_fitness(step.now, event.fitness))
    node_list.changed(step, cluster)
    submissions.changed(step)


def capacity_changed(step: Step, event: CapacityChanged) -> None:
    """Note what this node's disk and network carry, and announce it to schedulers."""
    cluster = step.state.cluster
    if cluster is not None:
        cluster.here = replace(cluster.here, disk_io=event.disk_io, network=event.network)
        submissions.changed(step)


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
        reconciliation.end_remote_tasks(step, cluster.peer(node))
    if cluster.collect_at is not None and cluster.collect_at <= now:
        _collect_unclaimed(step, cluster)
    if cluster.reconcile_at is not None and cluster.reconcile_at <= now:
        reconciliation.reconcile_all(step, cluster)
        cached_reads.drop_unused(step, cluster)
    if cluster.working_at is not None and cluster.working_at <= now:
        requests.report_working(step, cluster)
    granted_leases.time_passed(step, cluster)
    registration.time_passed(step, cluster)


def expect_references(step: Step, cluster: Cluster, target: ObjectId) -> None:
    """Keep a reference-counted object from before a restart until other nodes had time to claim it."""
    cluster.unclaimed.append(target)
    cluster.collect_at = step.now + limits.REMOTE_TASK_GRACE_MS * _MS


def _collect_unclaimed(step: Step, cluster: Cluster) -> None:
    """Destroy some of the objects that nothing refers to, and schedule the next ones."""
    for _ in range(min(len(cluster.unclaimed), _COLLECTED_AT_ONCE)):
        target = step.state.objects.get(cluster.unclaimed.popleft())
        if target is not None:
            lifetimes.maybe_collect(step, target)
    cluster.collect_at = step.now if cluster.unclaimed else None


def follow_all(step: Step) -> None:
    """Apply the membership decisions that the calls of this step have made."""
    cluster = step.require_cluster()
    decisions, step.decisions = step.decisions, ()
    for decision in decisions:
        follow(step, cluster, decision)


def follow(step: Step, cluster: Cluster, decision: Decision) -> None:
    """Apply a membership decision."""
    for change in decision.changed:
        _apply_change(step, cluster, change)
    for node in decision.forgotten:
        _handle_removal(step, cluster, node)
    if decision.changed or decision.forgotten:
        node_list.changed(step, cluster)
        registration.note_members(step, cluster)
    for node, message in decision.send:
        step.emit(effects.Send(node, dcp.Gossip(gossip.encode(message))))


def _apply_change(step: Step, cluster: Cluster, change: Change) -> None:
    member = change.member
    peer = cluster.peer(member.node)
    peer.name, peer.rack, peer.address = member.name, member.rack, member.address
    if member.status in _NOT_ALIVE:
        _handle_death(step, cluster, peer)
    else:
        # A node whose death was the first news of it has no epoch yet.
        peer.epoch = peer.epoch or member.epoch
        if member.epoch == peer.epoch and _revive(step, cluster, peer):
            # The connection may have survived. Then no PeerUp event repeats the notices.
            requests.repeat_notices(step, peer)
        if member.address and not peer.connected:
            on_demand = not cluster.membership.probes_all
            step.emit(effects.Contact(member.node, member.name, member.address, on_demand))
        if change.former is None or change.restarted or change.former in _NOT_ALIVE:
            cluster.index.note_joined(member.node, step.now)
    if change.former is None or change.former is not member.status:
        cluster.since[member.node] = step.now
        status = member.status.name.lower()
        step.audit_node("node", status, member.name, f"{member.node:x}, epoch {member.epoch}")


def _handle_death(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Fail all requests to a dead node. Keep its remote tasks for a grace period, without requests (§4.7)."""
    if peer.dead_since is not None:
        return
    peer.dead_since = step.now
    cluster.dead[peer.node] = None
    _lose(step, peer, "does not answer", list(peer.remote_tasks.values()))
    if peer.remote_tasks:
        cluster.grace_ends[peer.node] = step.now + limits.REMOTE_TASK_GRACE_MS * _MS


def _revive(step: Step, cluster: Cluster, peer: Peer) -> bool:
    """Mark a node as alive again, and cancel its grace period; return True if it was taken for dead."""
    was_dead = peer.dead_since is not None
    peer.dead_since = None
    cluster.dead.pop(peer.node, None)
    cluster.grace_ends.pop(peer.node, None)
    if was_dead:
        registration.note_revived(step, cluster, peer)
    return was_dead


def _lose(step: Step, peer: Peer, event: str, remote_tasks: list[RemoteTask] | None = None) -> None:
    """Fail all requests to a node, and lose buffers and children there, because of ``event``."""
    tasks = [
        (task, list(task.remote_buffers), list(task.remote_children))
        for task in step.state.tasks.values()
        if peer.node in task.remote_nodes
    ]
    before = (step.state.pending.next_number, step.state.next_buffer)
    taken = requests.take_all(peer)
    step.start(LostPeer(peer.node, event, taken, tasks, remote_tasks or [], before))


def lose_some(step: Step, item: LostPeer) -> bool:
    """Lose a part of what a node that is dead or has restarted takes with it; return True if none is left."""
    peer = step.require_cluster().peer(item.node)
    while item.requests:
        if step.exhausted:
            return False
        step.spend(1)
        requests.fail(step, item.requests.pop(), item.event)
        resume_all(step)  # first, because a run that was refused has no child to lose
    while item.tasks:
        if step.exhausted:
            return False
        task, buffers, children = item.tasks.pop()
        step.spend(1 + len(buffers) // 4 + len(children))
        _lose_of_task(step, peer, task, buffers, children)
    while item.remote_tasks:
        if step.exhausted:
            return False
        remote_task = item.remote_tasks.pop()
        step.spend(1 + len(remote_task.pending) + len(remote_task.buffers))
        _lose_of_remote_task(step, peer, remote_task, *item.before)
    return True


def _lose_of_task(
    step: Step, peer: Peer, task: LocalHolder, buffers: list[BufferId], children: list[TaskId]
) -> None:
    """Close a task's buffers of requests on the peer's objects, and notify it of its lost children there.

    A child that is still alive is ended when the peer returns.
    """
    for number in buffers:
        buffer = task.remote_buffers.get(number)
        if buffer is not None and buffer.reference.object.home == peer.node:
            lifetimes.close_remote_buffer(step, buffer)
    for child in children:
        place = task.remote_children.get(child)
        if place is not None and place[0] == peer.node:
            _lose_child(step, peer, task, child)


def _lose_of_remote_task(
    step: Step, peer: Peer, remote_task: RemoteTask, number_before: int, buffer_before: int
) -> None:
    """End the waiting calls and buffers of another node's task that are older than the loss of the node.

    A node that lives nevertheless learns from the answer that its call is over.
    """
    for row in list(remote_task.pending.values()):
        if row.number < number_before:
            step.state.pending.remove(row)
            requests.give_up_all(step, row)
            if row.seq in peer.answers:
                requests.reply(step, peer, row.seq, requests.ended_while_lost(row))
    for buffer in list(remote_task.buffers.values()):
        if buffer.id < buffer_before:
            lifetimes.close_buffer(step, buffer)


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


def nodes_removed(step: Step, event: NodesRemoved) -> None:
    """Drop the removed nodes, and continue the call that removed one."""
    cluster = step.require_cluster()
    follow(step, cluster, cluster.membership.remove(step.now, event.nodes))
    authority.forget_admitted(cluster)
    removals.stored(step, event)


def _handle_removal(step: Step, cluster: Cluster, node: NodeId) -> None:
    """Drop everything of a node that was removed. This node itself continues alone: others refuse it."""
    if node == cluster.here.node:
        step.audit_node("node", "forgotten", cluster.here.name, "a member removed this node")
        return
    peer = cluster.peers.get(node)
    step.audit_node("node", "forgotten", "" if peer is None else peer.name, f"{node:x}")
    if peer is not None:
        _handle_death(step, cluster, peer)
        removals.end_unconfined(step, node)
        reconciliation.end_remote_tasks(step, peer)
        peer.connected = False
    cached_reads.forget_node(step, cluster, node)
    cluster.grace_ends.pop(node, None)
    cluster.since.pop(node, None)
    step.emit(effects.HangUp(node, "it was removed from the cluster"))


def leave(step: Step, cluster: Cluster) -> None:
    """Announce that this node leaves, so that the others need not detect it."""
    follow(step, cluster, cluster.membership.leave(step.now))
