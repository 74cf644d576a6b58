"""The calls with which users list, drain and remove the nodes of the cluster.

``dios.core.membership.swim`` detects which nodes are alive.
"""

from __future__ import annotations

from dios.core.calls import access
from dios.core.model.records import Holder
from dios.core.remote import forwarding, remote_calls
from dios.core.remote.peers import Cluster
from dios.core.step import Step
from dios.errors import InvalidError, NotPermittedError
from dios.wire import messages
from dios.wire.gossip import MemberRow
from dios.wire.types import NodeStatus, NodeWish


def list_nodes(step: Step, task: Holder, seq: int, call: messages.ListNodes) -> None:
    """List every node as this node sees it; a node without a cluster lists none."""
    del call
    access.refuse_pure(task)
    step.answer(task, seq, messages.Nodes(_rows(step)))


def _rows(step: Step) -> tuple[messages.NodeRow, ...]:
    cluster = step.state.cluster
    if cluster is None:
        return ()
    others = sorted(cluster.membership.members.values(), key=lambda member: (member.name, member.node))
    return (
        _row(cluster, cluster.membership.own, here=True),
        *(_row(cluster, member, here=False) for member in others if member.node != cluster.here.node),
    )


def _row(cluster: Cluster, member: MemberRow, *, here: bool) -> messages.NodeRow:
    return messages.NodeRow(
        member.node,
        member.name,
        member.rack,
        member.address,
        NodeStatus(member.status),
        member.draining,
        member.epoch,
        cluster.since.get(member.node, 0),
        member.load.tasks,
        member.load.cpus,
        member.load.memory_bytes,
        here,
    )


def set_node(step: Step, task: Holder, seq: int, call: messages.SetNode) -> None:
    """Drain, undrain or forget a node. The node itself drains, and notifies all others."""
    access.refuse_pure(task)
    if not access.is_nodes_own(step.state, task):
        raise NotPermittedError("only the nodes' own user and root may drain, undrain or forget nodes")
    cluster = step.state.cluster
    if cluster is None:
        raise InvalidError("this node belongs to no cluster; `dios-node init` creates one")
    if call.wish is NodeWish.FORGET:
        node = remote_calls.member_named(cluster, call.host)
        if node == cluster.here.node:
            raise InvalidError("a node cannot forget itself; send the call to another node")
        step.audit(task, "forget", "ok", call.host)
        step.follow(cluster.membership.forget(step.now, node))
        step.answer(task, seq, messages.Nodes(_rows(step)))
        return
    peer = remote_calls.peer_named(step, call.host)
    on = call.wish is NodeWish.DRAIN
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    step.audit(task, "drain" if on else "undrain", "ok", cluster.here.name)
    step.follow(cluster.membership.drain(step.now, on=on))
    step.answer(task, seq, messages.Nodes(_rows(step)))
