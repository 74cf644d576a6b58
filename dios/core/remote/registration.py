"""Keep the index of names up to date, so that a lookup need not ask every node (decision 0040).

A node registers the names of its objects at their index nodes. When the members change, it announces the new
view to all nodes, and registers all names again for it. An index node answers for all nodes only if it has a
complete registration of each under the view that the asking node has, too.

A create is answered when enough index nodes of the name have confirmed it. So a lookup whose index nodes all
answer finds every object whose create was answered before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from dios import limits
from dios.core import effects
from dios.core.events import PersistFailed
from dios.core.model.name_table import PARTS
from dios.core.model.work_items import NameHandover
from dios.core.remote import requests
from dios.core.remote.continuations import RegisterAnswer
from dios.core.remote.name_index import (
    HeldAnswers,
    NameIndex,
    Registration,
    Ring,
    Share,
    pack_digests,
    unpack_digests,
)
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import Code
from dios.ids import InternalName, Name, NodeId
from dios.wire import dcp, messages
from dios.wire.types import NodeStatus

_MS = 1_000_000
_NAMES_PER_UNIT = 16
_FULL = messages.Failure(int(Code.ENOSPC), "cannot register more names of one node")
_LOST = messages.Failure(int(Code.EHOSTUNREACH), "the request has disappeared")


# -- the members --------------------------------------------------------------------------------------
def note_members(step: Step, cluster: Cluster) -> None:
    """Follow a change of the members: names are registered for them once the changes have settled."""
    index, version = cluster.index, cluster.membership.view_version
    if index.members_version != version:
        index.members_version = version
        index.unsettle()
        if len(cluster.membership.members) > limits.INDEX_COPIES or index.announced is not None:
            index.members_at = step.now + limits.INDEX_SETTLE_MS * _MS
    release(step, cluster)


def ring_of(cluster: Cluster) -> Ring:
    """Return the ring of the members as they are now; it is made when it is needed."""
    index, live = cluster.index, cluster.membership.view
    if index.current is None or index.current.live != live.digest:
        index.current = Ring(live)
        index.unsettle()
    return index.current


def _follow_members(step: Step, cluster: Cluster) -> None:
    """Register names for the present members, unless they have the same registrars as before."""
    index, ring = cluster.index, ring_of(cluster)
    if index.announced is None and not ring.is_large:
        return
    if index.announced is None or not ring.is_partial or index.announced.view != ring.view:
        _begin_round(step, cluster)
        return
    index.announced = ring
    index.unsettle()
    _retry(step, cluster)


def note_revived(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Register the names at a node that lives, if the last registration left it out because it seemed dead.

    A member may be alive by gossip before it is reached. Then the view does not change when it is.
    """
    index = cluster.index
    if peer.link.stopped and index.retry_at is None and peer in _others(cluster):
        index.retry_at = step.now


def _retry(step: Step, cluster: Cluster) -> None:
    """Register the names again at the nodes that did not answer."""
    failed = [peer for peer in _others(cluster) if peer.link.stopped]
    for peer in failed:
        peer.link.begin()
    if failed:
        _hand_over(step, cluster, failed, own=False)


def time_passed(step: Step, cluster: Cluster) -> None:
    """Begin the round that is due, and ask nodes again that did not answer."""
    index = cluster.index
    if index.members_at is not None and index.members_at <= step.now:
        index.members_at = None
        _follow_members(step, cluster)
    if index.round_at is not None and index.round_at <= step.now:
        _begin_round(step, cluster)
    if index.retry_at is not None and index.retry_at <= step.now:
        index.retry_at = None
        _retry(step, cluster)
    if index.release_at is not None and index.release_at <= step.now:
        release(step, cluster)
        index.release_at = step.now + limits.INDEX_PATIENCE_MS * _MS if index.held else None
    if index.check_at is not None and index.check_at <= step.now:
        _check_links(step, cluster)


def _check_links(step: Step, cluster: Cluster) -> None:
    """Register names again where a defect has lost a request, or the work that makes the requests.

    By this time a request has ended, with an answer or a failure. Without this check, the names would stay
    unregistered until the members change.
    """
    index = cluster.index
    index.check_at = None
    for peer in _others(cluster):
        link = peer.link
        if link.sent is not None and step.now - link.sent_ns >= limits.INDEX_LOST_MS * _MS:
            link.sent = None
            _fail(step, cluster, peer, _LOST)
        if link.sent is not None:
            _check_later(index, link.sent_ns)
    if index.round_at is not None or index.members_at is not None or index.announced is None:
        return
    if step.state.work.is_handing_over() or any(isinstance(item, NameHandover) for item in step.started):
        _check_later(index, step.now)
    elif not index.own_complete or any(
        not (peer.link.stopped or peer.link.handed_over) for peer in _others(cluster)
    ):
        index.round_at = step.now


def _check_later(index: NameIndex, since_ns: int) -> None:
    """Check when a request that was made at this time would be lost, or earlier."""
    due = since_ns + limits.INDEX_LOST_MS * _MS
    index.check_at = due if index.check_at is None else min(due, index.check_at)


def forget_share(cluster: Cluster, peer: Peer) -> None:
    """Forget the names that an earlier start of a node has registered here."""
    peer.share = Share()
    cluster.index.always_asked.pop(peer.node, None)
    cluster.index.unsettle()


def _others(cluster: Cluster) -> Iterable[Peer]:
    """Return the other living nodes that have to know this node's registration: the registrars, or all."""
    index, ring = cluster.index, cluster.index.announced
    if ring is None:
        return
    for node in ring.members if index.tells_all else (*ring.registrars, *index.retiring):
        peer = cluster.peers.get(node)
        if peer is not None and node != cluster.here.node and peer.dead_since is None:
            yield peer


def _begin_round(step: Step, cluster: Cluster) -> None:
    """Announce the members as they are now, and register all names for them."""
    index, names = cluster.index, step.state.names
    index.round_at = None
    index.unsettle()
    ring = ring_of(cluster)
    former, index.announced = index.announced, ring
    index.retiring = {
        node: None
        for node, peer in cluster.peers.items()
        if peer.link.is_open and node not in ring.registrars
    }
    index.round += 1
    names.is_noting = True
    copies = len(names) * limits.INDEX_COPIES
    # A node that refused names for these members would refuse them again.
    was_crowded = index.crowded and former is not None and former.view == ring.view
    index.crowded = was_crowded or copies > limits.INDEX_NAMES_PER_NODE_MAX * len(ring.registrars) * 3 // 4
    index.always = _must_be_asked(step, cluster)
    index.tells_all = ring.is_partial and _reaches_too_few(cluster)
    index.own.clear()
    index.own_complete = False
    # The handover includes the names that these wait for.
    for held in index.held:
        held.names = []
    others = list(_others(cluster))
    for peer in others:
        peer.link.begin()
    _hand_over(step, cluster, others, own=True)


def _must_be_asked(step: Step, cluster: Cluster) -> bool:
    """Return True if lookups must ask this node for every name.

    It has more names than others accept, has objects that are only in the store, or reaches too few nodes.
    """
    return cluster.index.crowded or step.state.dormant_count > 0 or _reaches_too_few(cluster)


def _reaches_too_few(cluster: Cluster) -> bool:
    """Return True if a name may have no index node that this node reaches."""
    failed = sum(peer.link.failed for peer in _others(cluster))
    return failed > limits.INDEX_COPIES - limits.INDEX_CONFIRMED_MIN


def _hand_over(step: Step, cluster: Cluster, others: list[Peer], *, own: bool) -> None:
    """Register all names at these nodes; without an index, only announce the members to them."""
    index = cluster.index
    ring = index.announced
    registers = ring is not None and ring.is_large and not index.always
    _check_later(index, step.now)
    links = {peer.node: peer.link.generation for peer in others}
    step.start(NameHandover(index.round, PARTS if registers else 0, links, own=own))
    if registers and len(step.state.names) > limits.INDEX_DIGESTS_PER_MESSAGE:
        # The nodes drop the earlier registration at once; few names go with the message that says so.
        for peer in others:
            _send(step, cluster, peer)


def hand_over_some(step: Step, item: NameHandover) -> bool:
    """Queue some names for their index nodes; return True after the last one."""
    cluster = step.require_cluster()
    index = cluster.index
    ring = index.announced
    if ring is None or item.round != index.round:
        return True
    while item.keys or item.parts:
        if step.exhausted:
            return False
        step.spend(1)
        if not item.keys:
            item.parts -= 1
            item.keys = step.state.names.keys(item.parts)
            step.spend(len(item.keys) // (64 * _NAMES_PER_UNIT))
        for _ in range(min(_NAMES_PER_UNIT, len(item.keys))):
            key = item.keys.pop()
            external = step.state.names.external(key)
            if external is not None:
                _queue(cluster, ring, key, external, item)
    if step.state.dormant_count and not index.always:
        index.round_at = step.now  # some names left the table meanwhile
        return True
    if item.own:
        index.own_complete = True
        index.unsettle()
    for peer in _others(cluster):
        if item.links.get(peer.node) == peer.link.generation:
            peer.link.handed_over = True
            _send(step, cluster, peer)
    return True


def _queue(cluster: Cluster, ring: Ring, key: InternalName, external: Name, item: NameHandover) -> None:
    index = cluster.index
    digest = index.digest(key)
    for node in ring.nodes_of(index.place(external)):
        if node == cluster.here.node:
            if item.own:
                index.own.add(digest)
            continue
        peer = cluster.peers.get(node)
        if peer is not None and item.links.get(node) == peer.link.generation:
            peer.link.put(digest, is_added=True)


# -- this node's names ----------------------------------------------------------------------------------
def note_changes(step: Step, cluster: Cluster) -> None:
    """Register the names that came and went in this step, and hold back its answers about new ones."""
    index, names = cluster.index, step.state.names
    changes, names.changes = names.changes, []
    ring = index.announced
    if ring is None:
        return
    new: list[Registration] = []
    touched: dict[NodeId, None] = {}
    registers = ring.is_large and not index.always
    for change in changes if registers else ():
        # A name that left the table may still be that of an object that is only in the store.
        if change.is_added or not step.state.dormant_owners:
            nodes = _note_change(cluster, ring, change.internal, change.external, is_added=change.is_added)
            touched.update(dict.fromkeys(nodes))
            if change.is_added:
                enough = limits.INDEX_CONFIRMED_MIN - (len(nodes) < limits.INDEX_COPIES)
                new.append(Registration(tuple(nodes.items()), enough))
    step.spend(len(changes) // _NAMES_PER_UNIT)
    if any(change.is_added for change in changes):
        _hold(step, cluster, new)
    for node in touched:
        peer = cluster.peers.get(node)
        if peer is not None:
            if peer.link.registered + len(peer.link.operations) > limits.INDEX_NAMES_PER_NODE_MAX:
                _crowd(step, cluster)
            try:
                _send(step, cluster, peer)
            except Exception as error:  # noqa: BLE001 - it ends the connection to this node; the others go on
                step.note_defect(peer, error)
    release(step, cluster)


def _note_change(
    cluster: Cluster, ring: Ring, internal: InternalName, external: Name, *, is_added: bool
) -> dict[NodeId, int]:
    """Queue one change for the other index nodes; return them, each with the count of its operations."""
    index = cluster.index
    digest = index.digest(internal)
    nodes: dict[NodeId, int] = {}
    for node in ring.nodes_of(index.place(external)):
        peer = cluster.peers.get(node)
        if node == cluster.here.node:
            (index.own.add if is_added else index.own.discard)(digest)
        elif peer is not None:
            if not peer.link.stopped:
                peer.link.put(digest, is_added=is_added)
            nodes[node] = peer.link.queued
    return nodes


def _crowd(step: Step, cluster: Cluster) -> None:
    """Have this node asked for every name from now on, because it has too many."""
    cluster.index.crowded = True
    if not cluster.index.always:
        cluster.index.round_at = step.now


def _send(step: Step, cluster: Cluster, peer: Peer) -> None:
    """Send the next names to a node, unless it has not confirmed the last ones."""
    link, index = peer.link, cluster.index
    ring = index.announced
    due = link.restart or link.operations or (link.handed_over and not link.complete)
    if ring is None or link.sent is not None or link.stopped or not due:
        return
    added, removed = link.take()
    complete = link.handed_over and not link.operations
    link.order += 1
    link.sent_ns = step.now
    _check_later(index, step.now)
    step.spend(1 + (len(added) + len(removed)) // (4 * _NAMES_PER_UNIT))
    body = dcp.Register(
        link.order,
        ring.view,
        link.restart,
        complete,
        index.always,
        pack_digests(added),
        pack_digests(removed),
    )
    requests.ask(step, peer.node, body, RegisterAnswer(peer.node, link.order, link.generation, complete))


def registered(step: Step, then: RegisterAnswer, answer: dcp.Answer) -> None:
    """Note that a node has registered names, or does not answer; send it the next ones."""
    cluster = step.require_cluster()
    peer = cluster.peers.get(then.node)
    if peer is None or peer.link.order != then.order:
        return
    link, index = peer.link, cluster.index
    count, link.sent = link.sent or 0, None
    if isinstance(answer, messages.Failure):
        _fail(step, cluster, peer, answer)
    else:
        link.failed = False
        if link.generation == then.generation:
            link.confirmed += count
            link.restart = False
            link.complete = link.complete or then.complete
            if link.complete and index.retiring.pop(peer.node, peer) is None:
                link.close()
    if index.always and index.round_at is None and not _must_be_asked(step, cluster):
        index.round_at = step.now + limits.INDEX_SETTLE_MS * _MS
    _send(step, cluster, peer)
    release(step, cluster)


def _fail(step: Step, cluster: Cluster, peer: Peer, answer: messages.Failure) -> None:
    index = cluster.index
    peer.link.fail()
    if answer.code == Code.ENOSPC:
        _crowd(step, cluster)
    if peer.dead_since is None:
        index.retry_at = index.retry_at or step.now + limits.INDEX_RETRY_MS * _MS
        if not index.always and _must_be_asked(step, cluster):
            index.round_at = step.now


# -- answers that wait for their names ------------------------------------------------------------------
def _hold(step: Step, cluster: Cluster, names: list[Registration]) -> None:
    """Hold back this step's answers until its new names are registered."""
    index = cluster.index
    if not index.held and _is_announced(step, cluster) and not names:
        return
    answers = tuple(effect for effect in step.after if _is_answer(effect))
    if not answers:
        return
    first = answers[0]
    request: tuple[NodeId, int] | None = None
    if isinstance(first, effects.Answer | effects.AnswerVector):
        remote = step.state.remote_tasks.get(first.task)
        request = None if remote is None else (remote.home, first.seq)
    elif isinstance(first, effects.Send) and isinstance(first.message, dcp.PeerReply):
        request = first.node, first.message.number
    step.after = [effect for effect in step.after if not _is_answer(effect)]
    index.held.append(HeldAnswers(answers, step.waits_for, names, request))
    if index.release_at is None:
        index.release_at = step.now + limits.INDEX_PATIENCE_MS * _MS


def _is_answer(effect: effects.Effect) -> bool:
    """Return True for an answer that needs no content from the host, which may change meanwhile.

    The first message to a new task or session is not held back.
    """
    if isinstance(effect, effects.AnswerVector):
        return all(isinstance(part, effects.Answer) for part in effect.parts)
    if isinstance(effect, effects.Answer):
        return not isinstance(effect.result, messages.Welcome)
    if isinstance(effect, effects.Send) and isinstance(effect.message, dcp.PeerReply):
        return not isinstance(effect.message.result, dcp.Working)
    return False


def release(step: Step, cluster: Cluster) -> None:
    """Send the answers whose names are registered, in order."""
    held = cluster.index.held
    if held and _is_announced(step, cluster):
        while held and all(_is_confirmed(step, cluster, name) for name in held[0].names):
            # It leaves the queue last, so that a defect on the way loses no answer.
            _release_one(step, held[0])
            held.popleft()


def release_all(step: Step, cluster: Cluster) -> None:
    """Send all answers, because this node stops."""
    while cluster.index.held:
        _release_one(step, cluster.index.held.popleft())


def _release_one(step: Step, held: HeldAnswers) -> None:
    step.spend(1)
    step.wait_for(held.ticket)
    tasks = step.state.tasks, step.state.remote_tasks
    for effect in held.effects:
        # A task may have ended meanwhile.
        if isinstance(effect, effects.Send) or any(getattr(effect, "task", 0) in known for known in tasks):
            step.emit(effect)


def _is_announced(step: Step, cluster: Cluster) -> bool:
    """Return True if no node that answers answers from an earlier registration of this node."""
    return not any(peer.link.restart and _is_usable(step, cluster, peer) for peer in _others(cluster))


def _is_confirmed(step: Step, cluster: Cluster, name: Registration) -> bool:
    """Return True if enough index nodes have the name, or all that can be asked."""
    enough = name.enough
    waits = False
    for node, count in name.nodes:
        peer = cluster.peers.get(node)
        if peer is not None and _is_usable(step, cluster, peer):
            if peer.link.confirmed >= count:
                enough -= 1
            else:
                waits = True
    return enough <= 0 or not waits


def _is_usable(step: Step, cluster: Cluster, peer: Peer) -> bool:
    """Return True if a node is likely to answer soon: it is alive, no suspect, and answers in time."""
    member, link = cluster.membership.members.get(peer.node), peer.link
    is_alive = member is not None and member.status is NodeStatus.ALIVE and peer.dead_since is None
    is_late = link.sent is not None and step.now - link.sent_ns >= limits.INDEX_PATIENCE_MS * _MS
    return is_alive and not link.failed and not is_late


def refuse_held(index: NameIndex, event: PersistFailed) -> None:
    """Turn the answers into refusals whose objects could not be stored."""
    failure = messages.Failure(event.code, event.message)
    for held in index.held:
        if held.ticket >= event.first:
            held.effects = tuple(_refusal(effect, failure) for effect in held.effects)


def _refusal(effect: effects.Effect, failure: messages.Failure) -> effects.Effect:
    if isinstance(effect, effects.Answer | effects.AnswerVector):
        return effects.Answer(effect.task, effect.seq, failure)
    if isinstance(effect, effects.Send) and isinstance(effect.message, dcp.PeerReply):
        return effects.Send(effect.node, dcp.PeerReply(effect.message.number, failure), epoch=effect.epoch)
    return effect


# -- the names of other nodes ---------------------------------------------------------------------------
def register(step: Step, peer: Peer, number: int, body: dcp.Register) -> None:
    """Register names of another node, in the order in which it sent them."""
    share, index = peer.share, step.require_cluster().index
    answer: messages.Done | messages.Failure = messages.Done(1)
    if body.order > share.order and (share.order or body.restart):
        index.unsettle()
        share.order = body.order
        if body.always:
            index.always_asked[peer.node] = None
        else:
            index.always_asked.pop(peer.node, None)
        if body.restart:
            share.digests = set()
        share.digests.update(unpack_digests(body.added))
        share.digests.difference_update(unpack_digests(body.removed))
        share.view, share.complete, share.always = body.view, body.complete, body.always
        if len(share.digests) > limits.INDEX_NAMES_PER_NODE_MAX:
            share.digests, share.complete, share.order = set(), False, 0
            answer = _FULL
    step.spend((len(body.added) + len(body.removed)) // (64 * limits.INDEX_DIGEST_BYTES))
    requests.reply(step, peer, number, answer)


def find_names(step: Step, peer: Peer, number: int, body: dcp.FindNames) -> None:
    """Return the nodes that have registered names here, if this node knows all nodes' names."""
    cluster = step.require_cluster()
    ring = ring_of(cluster)
    answer = dcp.NameNodes(known=False)
    count = len(body.digests) // limits.INDEX_DIGEST_BYTES
    missing = unregistered(cluster) if ring.view == body.view and is_comparable(ring, count) else None
    if missing is not None:
        digests = frozenset(unpack_digests(body.digests))
        step.spend(len(digests) // _NAMES_PER_UNIT)
        nodes = dict.fromkeys(nodes_with(cluster, digests))
        nodes.update(dict.fromkeys(missing))
        answer = dcp.NameNodes(known=True, nodes=tuple(nodes))
    requests.reply(step, peer, number, answer)


def unregistered(cluster: Cluster) -> tuple[NodeId, ...] | None:
    """Return the nodes that a lookup asks because their names are not all here; None if it asks everybody.

    In a small cluster, every member knows if all have registered, and then nothing is missing.
    """
    index, ring = cluster.index, ring_of(cluster)
    if not ring.is_partial:
        return () if is_settled(cluster) else None
    if index.announced is None or index.announced.view != ring.view or not index.own_complete:
        return None
    if index.unregistered is None:
        index.unregistered = tuple(
            node
            for node in ring.members
            if node != cluster.here.node and not _is_registered(cluster, ring, node)
        )
    if len(index.unregistered) > limits.INDEX_UNREGISTERED_MAX:
        return None
    always = (node for node in index.always_asked if node not in index.unregistered)
    return (*index.unregistered, *islice(always, limits.NODES_MAX // 2))


def _is_registered(cluster: Cluster, ring: Ring, node: NodeId) -> bool:
    peer = cluster.peers.get(node)
    return peer is not None and peer.share.complete and peer.share.view == ring.view


def is_usable(cluster: Cluster) -> bool:
    """Return True if this node may ask the index nodes of a name instead of all nodes.

    In a large cluster it does not know if all nodes have registered; the index nodes know that.
    """
    index, ring = cluster.index, ring_of(cluster)
    if not ring.is_partial:
        return is_settled(cluster)
    return index.announced is not None and index.announced.view == ring.view


def also_asked(step: Step, cluster: Cluster) -> tuple[NodeId, ...] | None:
    """Return the nodes that a lookup asks in addition to the index nodes; None if it asks everybody.

    Those are the ones that are always asked, and in a large cluster also those that joined a moment ago:
    index nodes may not know them yet.
    """
    index = cluster.index
    recent = index.recent(step.now) if ring_of(cluster).is_partial else ()
    return None if recent is None else tuple(dict.fromkeys((*index.always_asked, *recent)))


def is_comparable(ring: Ring, digests: int) -> bool:
    """Return True if one step can compare this number of digests with the names of all nodes."""
    return digests * len(ring.members) <= limits.INDEX_COMPARED_MAX


def is_settled(cluster: Cluster) -> bool:
    """Return True if all living nodes have registered their names here for the present members."""
    index = cluster.index
    ring_of(cluster)
    if index.settled is None:
        index.settled = _all_complete(cluster)
    return index.settled


def _all_complete(cluster: Cluster) -> bool:
    index = cluster.index
    ring = ring_of(cluster)
    if index.announced is None or not index.own_complete or index.announced.view != ring.view:
        return False
    return all(_is_registered(cluster, ring, node) for node in ring.members if node != cluster.here.node)


def nodes_with(cluster: Cluster, digests: frozenset[int]) -> tuple[NodeId, ...]:
    """Return the living nodes that have registered any of these digests here, this node included."""
    nodes: list[NodeId] = []
    for node in ring_of(cluster).members:
        peer = cluster.peers.get(node)
        known = (
            cluster.index.own if node == cluster.here.node else set() if peer is None else peer.share.digests
        )
        if not digests.isdisjoint(known):
            nodes.append(node)
    return tuple(nodes)
