"""Validate the requests and answers of other nodes before anything changes (§4.8).

A message that no correct node would send raises ProtocolError, which closes the connection to its sender.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from dios.core.model.state import State
from dios.core.remote.mandate_table import principals_of
from dios.core.remote.peers import Cluster, Peer, PendingRequest
from dios.errors import ProtocolError
from dios.ids import NodeId, TaskId
from dios.wire import dcp, messages
from dios.wire.call_table import CALLS, Route
from dios.wire.dcp_table import REQUESTS

Kinds: TypeAlias = tuple[type, ...]

_RESULTS: Final[dict[type, Kinds]] = {
    kind: row.results for kind, row in CALLS.items() if row.route not in {Route.LOCAL, Route.REQUEST}
}
"""The calls that may be forwarded, and the types of their answers if they succeed."""


# -- requests -----------------------------------------------------------------------------------------
def require_request(state: State, cluster: Cluster, peer: Peer, body: dcp.RequestBody) -> None:
    """Raise ProtocolError unless a correct node could make this request."""
    here = cluster.here.node
    if not all(principals_of(body)):
        raise ProtocolError("cannot accept the request: it is made for nobody")
    if isinstance(body, dcp.CreateReplica):
        home = body.home or peer.node
        if home != here:  # a task of this node may have ended since
            _require_task_on(state, home, here, body.caller.task)
    elif (caller := getattr(body, "caller", None)) is not None and caller.task not in peer.remote_tasks:
        # A task with a record here was checked with its first request, and ids are not chosen twice.
        _require_task_on(state, peer.node, here, caller.task)
    match body:
        case dcp.Forward():
            for call in messages.calls_of(body.call):
                if type(call) not in _RESULTS:
                    raise ProtocolError(
                        f"cannot accept a forwarded {type(call).__name__}: this call is local"
                    )
        case dcp.Offer():
            _require_task_on(state, body.node, here, body.receiver.task)
        case dcp.Delegate() if body.node != here:
            _require_task_on(state, body.node, here, body.receiver.task)
        case dcp.ReconcileReferences():
            for holding in body.holdings:
                _require_task_on(state, peer.node, here, holding.caller.task)


def _require_task_on(state: State, node: NodeId, here: NodeId, task: TaskId) -> None:
    """Raise ProtocolError unless the task can be on that other node."""
    if node == here or state.chose_id(task):
        raise ProtocolError("cannot accept the request: its task is not on the node that it names")


# -- answers ------------------------------------------------------------------------------------------
def require_answer(state: State, cluster: Cluster, request: PendingRequest, answer: dcp.Answer) -> None:
    """Raise ProtocolError unless this can be the answer to a request; the request then stays open."""
    body = request.body
    if isinstance(body, dcp.Forward) and isinstance(body.call, messages.Vector):
        if isinstance(answer, messages.Failure):
            return
        if not isinstance(answer, messages.Results) or len(answer.results) != len(body.call.calls):
            raise ProtocolError("cannot accept the answer to a vector: it does not have one result per call")
        for call, result in zip(body.call.calls, answer.results, strict=True):
            _require_result(call, result)
    elif isinstance(body, dcp.Forward):
        _require_result(body.call, answer)
    elif not isinstance(answer, (messages.Failure, *REQUESTS[type(body)].results)):
        raise ProtocolError(f"a {type(answer).__name__} cannot answer a {type(body).__name__}")
    if isinstance(answer, dcp.ReplicaCreated):
        if answer.held.node == cluster.here.node:
            return  # the node of the original had this node make the copy, and the task has its reference
        if answer.held.node not in cluster.peers:
            raise ProtocolError("cannot accept the copy: it is on a node that is not known here")
    if any(state.chose_id(reference.object) for reference in _references(answer)):
        raise ProtocolError("cannot accept the reference: its object's id belongs to an object of this node")


def _require_result(call: messages.AnyCall, result: dcp.Answer) -> None:
    if not isinstance(result, (messages.Failure, *_RESULTS[type(call)])):
        raise ProtocolError(f"a {type(result).__name__} cannot answer a {type(call).__name__}")
    if isinstance(call, messages.Select) and isinstance(result, messages.Selected):
        waits = call.timeout_ns is None
        if not (0 if waits else -1) <= result.index < len(call.refs):
            raise ProtocolError(f"a select of {len(call.refs)} references cannot return index {result.index}")


def _references(answer: dcp.Answer) -> Iterator[messages.Reference]:
    match answer:
        case messages.Created():
            yield answer.reference
        case messages.References() | dcp.Found() | dcp.Offered():
            yield from answer.references
        case dcp.ReplicaCreated():
            yield answer.held.reference
        case messages.Results():
            for result in answer.results:
                yield from _references(result)
