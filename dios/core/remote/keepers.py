"""The nodes that may store durably for others: both the asking and the asked node judge their roles.

A node that is not met may have any role. What waits for it is judged when it connects, before it is sent.
"""

from __future__ import annotations

from typing import Final

from dios.core.model.type_rules import RULES
from dios.core.remote import requests
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import NotPermittedError
from dios.wire import dcp, messages
from dios.wire.node_roles import NodeRight, may_be_chosen, refusal
from dios.wire.types import ObjectType, Persistence

_DURABLE: Final = frozenset(kind for kind, rules in RULES.items() if rules.persistence is Persistence.DURABLE)


def require(body: dcp.RequestBody, name: str, roles: str) -> None:
    """Raise NotPermittedError if a request stores durably at a node whose roles do not let it keep that."""
    reason = _why_not(body, name, roles)
    if reason:
        raise NotPermittedError(reason)


def refuse_unsent(step: Step, peer: Peer) -> None:
    """Refuse requests that wait for a node whose roles were unknown, and that its roles do not permit."""
    requests.refuse_unsent(step, peer, lambda body: _why_not(body, peer.name, peer.roles))


def _why_not(body: dcp.RequestBody, name: str, roles: str) -> str:
    if may_be_chosen(roles, NodeRight.KEEP) or not _stored_types(body) & _DURABLE:
        return ""
    return f"cannot store it durably there: {refusal(name, roles, NodeRight.KEEP)}"


def _stored_types(body: dcp.RequestBody) -> set[ObjectType]:
    """Return the types of the objects that a request makes."""
    if isinstance(body, dcp.CreateReplica):
        return {body.kind}
    if isinstance(body, dcp.Forward):
        calls = messages.calls_of(body.call)
        return {call.object_type for call in calls if isinstance(call, messages.Create)}
    return set()
