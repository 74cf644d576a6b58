"""Resolve names on other nodes, and grant the first results (thesis §4.3.3, §4.8).

The local table is always searched first (``dios.core.calls.resolution``). Then a lookup asks the index nodes
of the name for the nodes that have it, and asks these for references. If the index nodes cannot answer for
all nodes, it asks all living nodes. The requests do not depend on the caller's membership of the group, and
the first ones do not depend on the existence of the name.
"""

from __future__ import annotations

from typing import Final, cast

from dios import limits
from dios.core import lifetimes
from dios.core.calls import groups
from dios.core.model.accounts import require_each
from dios.core.model.records import Holder, Pending, PhysicalObject, Provenance, Session
from dios.core.remote import proxies, registration, requests
from dios.core.remote.continuations import IndexAnswer, SearchAnswer, SearchProgress
from dios.core.remote.name_index import pack_digests
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import DiosError
from dios.ids import InternalName, Name, NodeId, ObjectId, RefId, TaskId
from dios.wire import dcp, messages
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Permission, Resource

_NO_SHARE: Final = RefId(0)


def search(
    step: Step,
    task: Holder,
    seq: int,
    call: messages.Lookup,
    here: tuple[PhysicalObject, ...],
    names: tuple[InternalName, ...],
    *,
    share: RefId = _NO_SHARE,
    accepts: messages.AcceptShare | None = None,
) -> None:
    """Search the nodes that had these names before, or those that the index has, or else all living nodes.

    ``share`` is the reference to the record of the share by which the caller reads, and ``accepts`` is the
    call that looks for such a record.
    """
    cluster = step.require_cluster()
    row = Pending(task, seq, call, {})
    step.wait(row)
    local_ids = tuple(target.id for target in here)
    progress = SearchProgress(names, local_ids, [], {}, share=share, accepts=accepts)
    row.progress = progress
    known = dict.fromkeys(node for name in names for node in cluster.cache.get(name, ()))
    if known and len(here) + len(known) >= call.limit:
        progress.cached = True
        _ask(step, row, progress, list(known))
    else:
        _ask_index(step, cluster, row, progress)


def _ask_index(step: Step, cluster: Cluster, row: Pending, progress: SearchProgress) -> None:
    """Ask the index nodes of the name, or all nodes if the index cannot be used now."""
    progress.cached = False
    progress.incomplete = cluster.any_dead()
    progress.asked = {}
    index = cluster.index
    ring = registration.ring_of(cluster)
    count = min(len(progress.names), dcp.RESOLVED_NAMES_MAX)
    known = ring.is_large and registration.is_comparable(ring, count) and registration.is_usable(cluster)
    also = registration.also_asked(step, cluster) if known else None
    if also is None:
        _ask_all(step, cluster, row, progress)
        return
    digests = tuple(index.digest(name) for name in progress.names[: dcp.RESOLVED_NAMES_MAX])
    step.spend(len(digests) // 16)
    nodes = ring.nodes_of(index.place(Name(cast("messages.Lookup", row.call).name)))
    if cluster.here.node in nodes:
        missing = registration.unregistered(cluster)
        if missing is None:
            _ask_all(step, cluster, row, progress)
            return
        _add_holders(cluster, progress, (*registration.nodes_with(cluster, frozenset(digests)), *missing))
    progress.incomplete = progress.incomplete or any(peer.cut_off for peer in cluster.living())
    progress.indexing = dict.fromkeys(node for node in nodes if node != cluster.here.node)
    body = dcp.FindNames(ring.view, pack_digests(digests))
    for node in progress.indexing:
        requests.ask_for_call(step, row, node, body, IndexAnswer(row.id, node))
    asked = [peer.node for node in also if (peer := cluster.peers.get(node)) and _is_living(cluster, peer)]
    if asked:
        _ask(step, row, progress, asked)


def store_index_answer(step: Step, then: IndexAnswer, answer: dcp.Answer) -> None:
    """Store the nodes that an index node names. After the last index node, ask them for the names.

    If an index node does not know, ask all nodes.
    """
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, SearchProgress) or then.node not in row.progress.indexing:
        return
    cluster, progress = step.require_cluster(), row.progress
    if not isinstance(answer, dcp.NameNodes) or not answer.known:
        progress.indexing = {}
        _ask_all(step, cluster, row, progress)
        return
    del progress.indexing[then.node]
    _add_holders(cluster, progress, answer.nodes)
    if progress.indexing:
        return
    nodes = [node for node in progress.holders if node not in progress.asked]
    if nodes:
        _ask(step, row, progress, nodes)
    elif not progress.waiting:
        _complete(step, row, progress)


def _is_living(cluster: Cluster, peer: Peer) -> bool:
    """Return True if a node is another member that is not known to be dead."""
    return peer.node in cluster.membership.members and peer.dead_since is None


def _add_holders(cluster: Cluster, progress: SearchProgress, nodes: tuple[NodeId, ...]) -> None:
    """Note the nodes to ask: other members that are not known to be dead, whatever an index node says."""
    for node in nodes:
        peer = cluster.peers.get(node)
        if peer is None or node not in cluster.membership.members:
            continue
        if peer.dead_since is None:
            progress.holders[node] = None
        else:
            progress.incomplete = True


def _ask_all(step: Step, cluster: Cluster, row: Pending, progress: SearchProgress) -> None:
    nodes = [peer.node for peer in cluster.living() if peer.node not in progress.asked]
    progress.incomplete = progress.incomplete or cluster.any_dead()
    if nodes:
        _ask(step, row, progress, nodes)
    elif not progress.waiting:
        _complete(step, row, progress)


def _ask(step: Step, row: Pending, progress: SearchProgress, nodes: list[NodeId]) -> None:
    task, limit = row.task, cast("messages.Lookup", row.call).limit
    progress.waiting.update(dict.fromkeys(nodes))
    progress.asked.update(dict.fromkeys(nodes))
    permissions, lifetime_ns = _rights(step, task, progress)
    names = progress.names[: dcp.RESOLVED_NAMES_MAX]
    body = dcp.Resolve(task.caller(), names, limit, int(permissions), lifetime_ns)
    for node in nodes:
        task.remote_nodes.add(node)
        requests.ask_for_call(step, row, node, body, SearchAnswer(row.id, node))


def _rights(step: Step, task: Holder, progress: SearchProgress) -> tuple[Permission, int]:
    """Return the rights that the search may give, and the rest of the time of a share, or 0."""
    if progress.accepts is not None:
        return Permission.READ, max(1, progress.accepts.expires_ns - step.now)
    if progress.share:
        record = task.table.find(progress.share)
        return Permission.READ, 1 if record is None else max(1, record.expires_ns - step.now)
    return Permission.ALL, 0


def store_search_answer(step: Step, then: SearchAnswer, answer: dcp.Answer) -> None:
    """Store the references that a node found. Complete the lookup if they suffice or no answer is missing."""
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, SearchProgress):
        if isinstance(answer, dcp.Found):
            _release(step, then.call[0], then.node, answer.references)
        return
    progress = row.progress
    progress.waiting.pop(then.node, None)
    if isinstance(answer, dcp.Found):
        if answer.references:
            progress.answers.append((then.node, answer))
    else:
        progress.incomplete = True
    is_done = not progress.waiting and not progress.indexing
    if is_done or progress.count >= cast("messages.Lookup", row.call).limit:
        _complete(step, row, progress)


def _complete(step: Step, row: Pending, progress: SearchProgress) -> None:
    cluster = step.require_cluster()
    task, call = row.task, cast("messages.Lookup", row.call)
    if progress.cached and progress.count < call.limit:
        # The cache was out of date. Remove the entry, and search without it.
        for name in progress.names:
            cluster.cache.pop(name, None)
        for node, answer in progress.answers:
            _release(step, task.id, node, answer.references)
        progress.answers.clear()
        _ask_index(step, cluster, row, progress)
        return
    step.state.pending.remove(row)
    _update_cache(cluster, progress)
    try:
        references = _grant_results(step, task, call, progress)
    except DiosError as error:
        for node, answer in progress.answers:
            _release(step, task.id, node, answer.references)
        step.refuse(task, row.seq, error)
        return
    if progress.accepts is not None and isinstance(task, Session):
        record = task.table.find(references[0].ref) if references else None
        groups.enter_share(step, task, row.seq, progress.accepts, record, incomplete=progress.incomplete)
        return
    step.audit(task, "lookup", "ok" if references else "empty", fingerprint(call.name))
    step.answer(task, row.seq, messages.References(references, progress.incomplete))


def _grant_results(
    step: Step, task: Holder, call: messages.Lookup, progress: SearchProgress
) -> tuple[messages.Reference, ...]:
    limit = call.limit
    shared = bool(progress.share or progress.accepts)
    origin = task.table.find(progress.share) if progress.share else None
    if shared:
        _release_unbound(step, task, progress, gone=bool(progress.share) and origin is None)
    known = (step.state.find_object(object_id) for object_id in progress.here)
    here = [target for target in known if target is not None][:limit]
    total = min(progress.count, limit)
    task.table.require_room(total)
    task.account.require(Resource.REFERENCES, total)
    require_each((account for target in here for account in target.sharing), Resource.REFERENCES)
    references = [
        lifetimes.grant(
            step,
            task,
            target,
            Permission.READ if shared else Permission.ALL,
            Provenance.RESOLVED,
            origin=origin,
        ).public()
        for target in (here if origin is not None or not shared else ())
    ]
    provenance = Provenance.RESOLVED if progress.accepts is None else Provenance.SHARED
    for node, answer in progress.answers:
        owners = dict(answer.owners)
        for place, public in enumerate(answer.references):
            if len(references) >= limit:
                _release(step, task.id, node, answer.references[place:])
                break
            if public.type is ObjectType.GROUP:
                _release(step, task.id, node, (public,))
                owner = owners.get(ObjectId(public.object), "")
                group = groups.group_for(step, dcp.GroupName(Name(call.name), owner))
                if group is not None and all(group.id != reference.object for reference in references):
                    granted = lifetimes.grant(step, task, group, Permission.ALL, Provenance.RESOLVED)
                    references.append(granted.public())
                continue
            references.append(proxies.adopt(step, task, node, public, provenance, origin=origin).public())
    return tuple(references)


def _release_unbound(step: Step, task: Holder, progress: SearchProgress, *, gone: bool) -> None:
    """Release references without the bounds of the share: a node of an earlier release knows none of them.

    With ``gone``, the share is over, and all of them are released.
    """
    bound: list[tuple[NodeId, dcp.Found]] = []
    for node, answer in progress.answers:
        if gone or any(
            reference.permissions & ~int(Permission.READ) or not reference.expires_ns
            for reference in answer.references
        ):
            _release(step, task.id, node, answer.references)
            progress.incomplete = progress.incomplete or not gone
        else:
            bound.append((node, answer))
    progress.answers[:] = bound


def _update_cache(cluster: Cluster, progress: SearchProgress) -> None:
    """Record the nodes that have the names, so that the next lookup need not ask all nodes."""
    nodes = tuple(node for node, _ in progress.answers)
    if not nodes or len(progress.names) > limits.LOOKUP_CACHED_NAMES_MAX:
        return
    for name in progress.names:
        cluster.cache.pop(name, None)
        cluster.cache[name] = nodes
    while len(cluster.cache) > limits.LOOKUP_CACHE_MAX:
        del cluster.cache[next(iter(cluster.cache))]


def _release(step: Step, task: TaskId, node: NodeId, references: tuple[messages.Reference, ...]) -> None:
    """Release references that are more than the call asked for, or that came too late."""
    refs = tuple(RefId(public.ref) for public in references)
    if refs:
        requests.notify_node(step, node, dcp.Release(task, refs))
