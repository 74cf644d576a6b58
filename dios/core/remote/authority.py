"""Decide which users another node may act for.

``require`` is the only place where a principal that another node names is admitted. It knows the keys of the
enrolled principals, and the mandates that the node has sent; their signatures were checked once, when they
arrived (``dios.wire.mandates``), so that a request costs a look at a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dios import limits
from dios.core.events import RegisterStored
from dios.core.model.names import belongs_to
from dios.core.remote import mandate_table, requests
from dios.core.remote.peers import Cluster, Mandates, Peer
from dios.core.step import Step
from dios.errors import Code, InvalidError, NotPermittedError, ProtocolError
from dios.ids import NodeId, Principal
from dios.wire import dcp, messages
from dios.wire.dcp_table import PURPOSES, REQUESTS, Naming
from dios.wire.mandates import FOR_CHILDREN, Mandate, MandateTerms, Purpose, read_mandate, stated_mandate

_NEEDED: Final[Mapping[type, int]] = {
    **{
        kind: int(row.purpose)
        for kind, row in REQUESTS.items()
        if row.naming in {Naming.CALLER, Naming.PRINCIPAL}
    },
    **{kind: int(purpose) for kind, purpose in PURPOSES.items()},
}
"""The purposes that requests and forwarded calls need, as numbers, which cost less to add and to compare."""

_MANDATE_UNITS: Final = limits.STEP_UNITS // 64
"""The work of a step in checking the signatures of one mandate."""


# -- other nodes ----------------------------------------------------------------------------------------
def receive(step: Step, peer: Peer, message: dcp.Ask) -> None:
    """Note the mandates that came with a request. Those that do not count are recorded, and change nothing.

    A correct node may have got such a one of its own user, so that the request goes on without it.
    """
    cluster = step.require_cluster()
    for data in message.mandates:
        _learn(step, cluster, peer, data, peer.mandates, (peer.node, peer.key))
    for data in message.extensions:
        here = cluster.here
        mandate = _learn(step, cluster, peer, data, cluster.mandates, (here.node, here.key))
        if mandate is not None:
            renew(step, Principal(mandate.principal))


def _learn(
    step: Step, cluster: Cluster, peer: Peer, data: bytes, known: Mandates, node: tuple[NodeId, bytes]
) -> Mandate | None:
    """Keep a mandate for the node with this id and key. Return it if it is new and counts, else None."""
    if not cluster.enrolled or any(data == kept.data for own in known.values() for kept in own):
        return None
    try:
        mandate = stated_mandate(data)
        _require_for(cluster, mandate, node)
        if not mandate_table.is_whole(cluster, mandate):
            return None  # the key may reach this node later, or a removal the other node
        step.spend(_MANDATE_UNITS)
        read_mandate(data)  # the signatures last: each takes as long as many requests
    except ProtocolError as error:
        step.audit_node("mandate", "denied", peer.name, f"a mandate that came does not count: {error}")
        return None
    now_ms = step.now // mandate_table.MS
    mandate_table.keep(cluster, known, mandate, now_ms)
    return mandate if mandate_table.is_timely(mandate, now_ms) else None


def _require_for(cluster: Cluster, mandate: Mandate, node: tuple[NodeId, bytes]) -> None:
    is_for_node = mandate.cluster == cluster.here.cluster and (mandate.node, mandate.node_key) == node
    if not is_for_node:
        raise ProtocolError("it is of another cluster, or for another node or key")


def require(step: Step, peer: Peer, body: dcp.RequestBody) -> None:
    """Raise NotPermittedError if the node may not act for the principal that a request names."""
    cluster = step.require_cluster()
    if not (cluster.enrolled or cluster.here.signed):
        return
    purpose = _NEEDED.get(type(body))
    if isinstance(body, dcp.Forward):
        purpose = _NEEDED.get(type(body.call))
        if purpose is None:
            purpose = 0
            for call in messages.calls_of(body.call):
                purpose |= _NEEDED[type(call)]
    elif purpose is None:
        return  # it names nobody, or several, who are checked one after the other
    elif isinstance(body, dcp.CreateReplica) and body.home == cluster.here.node:
        return  # for a task of this node, which waits for it
    for principal in mandate_table.principals_of(body):
        if peer.admitted.get((principal, purpose), 0) <= step.now:
            _admit(step, cluster, peer, principal, Purpose(purpose))


def _admit(step: Step, cluster: Cluster, peer: Peer, principal: Principal, purpose: Purpose) -> None:
    """Let a node act for a principal until its mandate ends, or raise NotPermittedError."""
    reason = why_not(step, peer, principal, purpose)
    if reason:
        step.audit_node("mandate", "denied", peer.name, f"{principal}: {reason}")
        raise NotPermittedError(f"node {peer.name} may not act for {principal}: {reason}")
    ends = [
        mandate.end_ms + limits.MANDATE_SKEW_MS
        for mandate in peer.mandates.get(principal, ())
        if mandate_table.is_whole(cluster, mandate) and purpose & mandate.purposes == purpose
    ]
    if ends:
        peer.admitted[principal, int(purpose)] = max(ends) * mandate_table.MS


def why_not(step: Step, peer: Peer, principal: Principal, purpose: Purpose) -> str:
    """Return the reason why a node may not act for a principal, with the next step; empty if it may."""
    cluster = step.require_cluster()
    if principal not in cluster.enrolled:
        if not cluster.here.signed:
            return ""
        return (
            'it is not enrolled, and the setting `principals` of this node is "signed". An administrator '
            "enrols it with `dios user add`"
        )
    if not cluster.enrolled[principal]:
        return "the register has no key of it. An administrator adds one with `dios user add`"
    signed = [
        mandate for mandate in peer.mandates.get(principal, ()) if mandate_table.is_whole(cluster, mandate)
    ]
    advice = f"give it one: connect to {peer.name} with the user's key, or run `dios user vouch {peer.name}`"
    if not signed:
        return (
            "the node has no mandate that is signed by an enrolled key and by nodes that are members; "
            f"{advice}"
        )
    now_ms = step.now // mandate_table.MS
    timely = [mandate for mandate in signed if mandate_table.is_timely(mandate, now_ms)]
    if not timely:
        return f"the node's mandate is over, or a clock is wrong by more than five minutes; {advice}"
    if not any(purpose & mandate.purposes == purpose for mandate in timely):
        words = " and ".join((member.name or "").lower() for member in purpose)
        return f"the node's mandate is not for {words}; {advice}"
    return ""


def why_not_of(step: Step, peer: Peer, owner: str, caller: str, purpose: Purpose) -> str:
    """Return why a request of a node for ``caller`` may not concern what is ``owner``'s; empty if it may.

    Every other principal than the caller's passes here that another node names, or whose object it names.
    Nobody's objects are for all.
    """
    return "" if owner in {"", caller} else why_not(step, peer, Principal(owner), purpose)


def owner_of(step: Step, peer: Peer, owner: str, caller: str) -> Principal:
    """Return the owner of a copy: the user that a node names if it may act for that user, else the caller."""
    return Principal(caller if why_not_of(step, peer, owner, caller, Purpose.COPIES) else owner)


def require_groups(
    step: Step, peer: Peer, described: dcp.GroupNames, caller: Principal, purpose: Purpose
) -> None:
    """Raise NotPermittedError if a request of a node for ``caller`` may not use one of these groups."""
    for group in described:
        reason = _why_not_group(step, peer, group, caller, purpose)
        if reason:
            step.audit_node("mandate", "denied", peer.name, f"a group of another user: {reason}")
            raise NotPermittedError(f"node {peer.name} may not act for the owner of a group: {reason}")


def groups_of_copy(step: Step, peer: Peer, described: dcp.GroupNames, caller: Principal) -> dcp.GroupNames:
    """Return the groups of a copy, except those with owners that the node may not act for."""
    return tuple(
        group for group in described if not _why_not_group(step, peer, group, caller, Purpose.COPIES)
    )


def _why_not_group(
    step: Step, peer: Peer, described: dcp.GroupName, caller: Principal, purpose: Purpose
) -> str:
    cluster = step.require_cluster()
    if not (cluster.enrolled or cluster.here.signed):
        return ""
    owner = _owner_of_group(step, described, caller)
    if owner or not cluster.here.signed:
        return why_not_of(step, peer, owner, caller, purpose)
    return 'the owner of the group is not known, and the setting `principals` of this node is "signed"'


def _owner_of_group(step: Step, described: dcp.GroupName, caller: Principal) -> str:
    """Return the owner of a group as this node or the group's name has it, whoever a node says it is."""
    group = step.state.groups.get(described.name)
    if group is not None and group.owner:
        return group.owner
    enrolled = step.require_cluster().enrolled
    step.spend(len(enrolled) // 64)
    candidates = dict.fromkeys((caller, described.owner, *enrolled))
    secrets = step.state.secrets
    return next((owner for owner in candidates if belongs_to(secrets, described.name, owner)), "")


# -- this node's users ------------------------------------------------------------------------------------
def terms(step: Step, principal: Principal) -> MandateTerms | None:
    """Return the terms on which a principal signs a mandate for this node; None if it needs no mandate."""
    cluster = step.state.cluster
    keys = () if cluster is None else cluster.enrolled.get(principal, ())
    if cluster is None or not keys or not cluster.here.key:
        return None
    here, now_ms = cluster.here, step.now // mandate_table.MS
    ends = [
        mandate.end_ms
        for mandate in cluster.mandates.get(principal, ())
        if mandate_table.is_whole(cluster, mandate) and FOR_CHILDREN & mandate.purposes == FOR_CHILDREN
    ]
    return MandateTerms(here.node, here.key, here.cluster, principal, keys, now_ms, max(ends, default=0))


def vouch(step: Step, data: bytes) -> Mandate:
    """Keep a mandate for this node, whoever brings it. Raise InvalidError if it does not count here."""
    cluster = step.require_cluster()
    step.spend(_MANDATE_UNITS)
    try:
        mandate = read_mandate(data)
    except ProtocolError as error:
        raise InvalidError(f"cannot accept the mandate: {error}") from None
    here = cluster.here
    is_for_here = (mandate.cluster, mandate.node, mandate.node_key) == (here.cluster, here.node, here.key)
    if not is_for_here:
        raise InvalidError("cannot accept the mandate: it is for another node. Sign one for this node.")
    if mandate.key not in cluster.enrolled.get(Principal(mandate.principal), ()):
        raise InvalidError(
            f"cannot accept the mandate: {mandate.principal} is not enrolled with this key. `dios user list` "
            "shows the enrolled keys, and `dios user key` yours."
        )
    if not mandate_table.is_timely(mandate, step.now // mandate_table.MS):
        raise InvalidError(
            "cannot accept the mandate: it is over, or longer than 31 days, or a clock is wrong. Compare the "
            "clocks, then sign another one."
        )
    if not mandate_table.is_whole(cluster, mandate):
        raise InvalidError(
            "cannot accept the mandate: a node that signed it was removed from the cluster. Sign another one."
        )
    mandate_table.keep(cluster, cluster.mandates, mandate, step.now // mandate_table.MS)
    renew(step, Principal(mandate.principal))
    return mandate


def renew(step: Step, principal: Principal) -> None:
    """Give the nodes with children of a principal's tasks the extensions of its present mandate."""
    step.spend(len(step.state.tasks) // 64)
    for node, caller in mandate_table.nodes_of_children(step.state, principal).items():
        requests.ask(step, node, dcp.Rows(caller))


def forget_admitted(cluster: Cluster) -> None:
    """Judge the next request of each node again: the register or the members have changed."""
    for peer in cluster.peers.values():
        peer.admitted.clear()


def register_stored(step: Step, event: RegisterStored) -> None:
    """Use the keys of a register, also if it cannot be stored now, and answer the call that brought it."""
    cluster = step.require_cluster()
    if event.register:
        cluster.register, cluster.enrolled = event.register, dict(event.keys)
        forget_admitted(cluster)
        step.audit_node("enrol", "ok", cluster.here.name, f"{len(event.keys)} principals")
    row = None if event.call is None else step.state.pending.find(event.call)
    if row is None:
        return
    step.state.pending.remove(row)
    if event.failure:
        step.answer(row.task, row.seq, messages.Failure(int(Code.EINVAL), event.failure))
    else:
        step.answer(row.task, row.seq, messages.Done())
