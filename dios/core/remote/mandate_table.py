"""Keep the mandates of users for nodes, and choose those that go with a request to another node.

``dios.core.remote.authority`` decides what other nodes may do with theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dios import limits
from dios.core import effects
from dios.core.events import ExtensionsFailed
from dios.core.model.state import State
from dios.core.remote.peers import Cluster, Mandates, Peer, PendingRequest
from dios.core.step import Step
from dios.errors import Code
from dios.ids import NodeId, Principal
from dios.wire import dcp, messages
from dios.wire.dcp_table import REQUESTS, Naming
from dios.wire.mandates import FOR_CHILDREN, Mandate, Purpose

MS: Final = 1_000_000
_HOUR_MS: Final = 3_600_000


def is_timely(mandate: Mandate, now_ms: int) -> bool:
    """Return True if a mandate counts now; the clocks of user, home node and this node may differ a bit."""
    return (
        mandate.made_ms <= now_ms + limits.MANDATE_SKEW_MS
        and now_ms < mandate.end_ms + limits.MANDATE_SKEW_MS
        and mandate.end_ms - mandate.made_ms <= limits.MANDATE_MS_MAX
    )


def is_whole(cluster: Cluster, mandate: Mandate) -> bool:
    """Return True if the key of a mandate is enrolled, and no node in it was removed from the cluster."""
    return mandate.key in cluster.enrolled.get(Principal(mandate.principal), ()) and not any(
        cluster.membership.is_forgotten(NodeId(node)) for node in mandate.nodes
    )


def keep(cluster: Cluster, known: Mandates, mandate: Mandate, now_ms: int) -> None:
    """Keep a mandate in place of those that it covers and of those that are over, unless it is covered.

    So there is at most one for each set of purposes and number of nodes. One that is not timely is kept only
    if there is no other: a clock may be put right.
    """
    principal = Principal(mandate.principal)
    valid = [kept for kept in known.get(principal, ()) if is_whole(cluster, kept) and is_timely(kept, now_ms)]
    if not any(_covers(kept, mandate) for kept in valid) and (is_timely(mandate, now_ms) or not valid):
        valid = [mandate, *(kept for kept in valid if not _covers(mandate, kept))]
    known[principal] = tuple(valid)


def _covers(mandate: Mandate, other: Mandate) -> bool:
    """Return True if a mandate does all that another one does, and can be extended as often."""
    return (
        mandate.purposes & other.purposes == other.purposes
        and mandate.end_ms >= other.end_ms
        and len(mandate.nodes) <= len(other.nodes)
    )


_EXTENDING: Final = frozenset({dcp.Start, dcp.Delegate, dcp.Rows})
"""The requests with which a node may get an extension."""


def attach(step: Step, cluster: Cluster, request: PendingRequest) -> tuple[effects.Extension, ...]:
    """Set the mandates that go with a request; return the extensions that the host signs for its node.

    Both are those that the node does not have yet.
    """
    if not cluster.mandates:
        return ()
    peer, body = request.peer, request.body
    request.mandates = ()
    extensions: list[effects.Extension] = []
    for principal in principals_of(body):
        kept = cluster.mandates.get(principal, ())
        if type(body) not in _EXTENDING and all(mandate.data in peer.presented for mandate in kept):
            continue
        own = [
            mandate for mandate in kept if is_timely(mandate, step.now // MS) and is_whole(cluster, mandate)
        ]
        request.mandates += tuple(mandate.data for mandate in own if mandate.data not in peer.presented)
        extension = _extension(step, peer, body, own)
        if extension is not None and extension.key not in peer.presented:
            extensions.append(extension)
    most = limits.MANDATES_PER_REQUEST_MAX
    request.mandates, extensions = request.mandates[:most], extensions[:most]
    request.presented = (*request.mandates, *(extension.key for extension in extensions))
    return tuple(extensions)


def principals_of(body: dcp.RequestBody) -> Iterable[Principal]:
    """Return the principals that a request names, each once."""
    naming = REQUESTS[type(body)].naming
    if naming is Naming.CALLER:
        return (Principal(body.caller.principal),)  # type: ignore[union-attr] # as its row says
    if naming is Naming.PRINCIPAL:
        return (Principal(body.principal),)  # type: ignore[union-attr] # the same
    if naming is Naming.HOLDINGS:
        holdings = body.holdings  # type: ignore[union-attr] # the same
        return dict.fromkeys(Principal(holding.caller.principal) for holding in holdings)
    return ()


def _extension(step: Step, peer: Peer, body: dcp.RequestBody, own: list[Mandate]) -> effects.Extension | None:
    """Return the extension with which the node acts for the principal of a request, None if it need not."""
    now_ms = step.now // MS
    end_ms, purposes = now_ms + limits.MANDATE_MS_MAX, FOR_CHILDREN
    if isinstance(body, dcp.Start):
        if body.call.work.time_ms:
            end_ms = now_ms + body.call.work.time_ms + _HOUR_MS
    elif isinstance(body, dcp.Delegate):
        end_ms, purposes = now_ms + limits.MANDATE_COPY_MS, Purpose.COPIES
    elif not isinstance(body, dcp.Rows) or peer.node not in nodes_of_children(
        step.state, Principal(body.caller.principal)
    ):
        return None
    best = max(
        (kept for kept in own if len(kept.nodes) <= limits.MANDATE_EXTENSIONS_MAX),
        key=lambda kept: ((kept.purposes & purposes).bit_count(), kept.end_ms),
        default=None,
    )
    if best is None or not best.purposes & purposes:
        return None
    # In whole hours, so that the same bytes serve the tasks of an hour and are checked once.
    end_ms = min(best.end_ms, -(-end_ms // _HOUR_MS) * _HOUR_MS)
    return effects.Extension(best.data, best.purposes & purposes, end_ms)


def nodes_of_children(state: State, principal: Principal) -> dict[NodeId, dcp.Caller]:
    """Return the nodes with children of a principal's tasks that are here, each with one of these tasks."""
    return {
        node: task.caller()
        for task in state.tasks.values()
        if task.principal == principal
        for node, _, _ in task.remote_children.values()
    }


def not_signed(cluster: Cluster | None, event: ExtensionsFailed) -> None:
    """Note that a node has not got extensions, so that they go with its next request."""
    peer = None if cluster is None else cluster.peers.get(event.node)
    if peer is None:
        return
    for key in event.keys:
        peer.presented.pop(key, None)
    for request in peer.asked.values():
        request.presented = tuple(key for key in request.presented if key not in event.keys)


def confirm(request: PendingRequest, answer: dcp.Answer) -> None:
    """Note that a node has the mandates that came with a request, or that it may lack some."""
    presented = request.peer.presented
    if type(answer) is not messages.Failure and not request.presented:
        return
    if isinstance(answer, messages.Failure) and answer.code == Code.EPERM:
        presented.clear()
        return
    presented.update(dict.fromkeys(request.presented))
    while len(presented) > limits.MANDATES_PRESENTED_MAX:
        del presented[next(iter(presented))]
