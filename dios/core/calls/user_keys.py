"""The calls with which administrators enrol principals, and users give nodes mandates to act for them.

``dios.core.remote.authority`` decides what enrolled principals' mandates permit.
"""

from __future__ import annotations

from dios.core import effects
from dios.core.calls import rights
from dios.core.calls.handlers import handles
from dios.core.model.records import Holder, Pending
from dios.core.remote import authority, forwarding, remote_calls
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import InvalidError, NotSupportedError
from dios.wire import messages
from dios.wire.codec import MANDATES_VERSION


@handles(messages.ReadRegister)
def read_register(step: Step, task: Holder, seq: int, _: messages.ReadRegister) -> None:
    """Answer with the register that this node has stored.

    Raises:
        NotPermittedError: the caller is a pure task.
    """
    rights.refuse_pure(task)
    cluster = step.require_cluster()
    step.answer(task, seq, messages.Enrolled(cluster.register, cluster.here.cluster))


@handles(messages.Enrol)
def enrol(step: Step, task: Holder, seq: int, call: messages.Enrol) -> None:
    """Store a register of enrolled principals; the host checks its signature and sends it to all nodes.

    Raises:
        NotPermittedError: it is the first register of the cluster, and the caller acts neither for the
            node's own user nor for root.
    """
    rights.refuse_pure(task)
    cluster = step.require_cluster()
    if not cluster.register:
        rights.require_nodes_own(step.state, task, "enrol the first principals of a cluster")
    row = Pending(task, seq, call, {})
    step.wait(row)
    step.emit(effects.StoreRegister(call.register, row.id))


@handles(messages.ReadMandateTerms)
def read_terms(step: Step, task: Holder, seq: int, call: messages.ReadMandateTerms) -> None:
    """Answer with the terms of a mandate of the caller's principal for a node."""
    rights.refuse_pure(task)
    peer = _peer(step, call.host)
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    step.answer(task, seq, messages.MandateWanted(authority.terms(step, task.principal)))


@handles(messages.Vouch)
def vouch(step: Step, task: Holder, seq: int, call: messages.Vouch) -> None:
    """Keep a mandate for a node, which may then act for its user until it ends.

    Raises:
        InvalidError: the mandate is not for that node, is over, or is not signed by the enrolled key.
    """
    rights.refuse_pure(task)
    peer = _peer(step, call.host)
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    if step.state.cluster is None:
        raise InvalidError("a node without a cluster acts at no other node and needs no mandate")
    mandate = authority.vouch(step, call.mandate)
    step.audit(task, "vouch", "ok", mandate.principal, f"until {mandate.end_ms // 1000} s")
    step.answer(task, seq, messages.Done())


def _peer(step: Step, host: str) -> Peer | None:
    """Return the node with this name, or None for this node."""
    peer = remote_calls.peer_named(step, host) if host else None
    if peer is not None and peer.version < MANDATES_VERSION:
        raise NotSupportedError(f"node {peer.name} has a release without mandates of users. Update it.")
    return peer
