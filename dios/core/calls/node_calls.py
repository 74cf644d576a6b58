"""The nodes of the cluster for people: list, drain and remove them.

``dios.core.membership.swim`` finds out which nodes live.
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
    """Every node as this one sees it; a lone node knows itself."""
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
    """Drain, undrain or forget a node; draining is asked of the node itself, and told by it to all."""
    access.refuse_pure(task)
    if not access.is_nodes_own(step.state, task):
        raise NotPermittedError("only the nodes' own user and root rule the cluster")
    cluster = step.state.cluster
    if cluster is None:
        raise InvalidError("this node is alone; `dios-node init` makes a cluster")
    if call.wish is NodeWish.FORGET:
        node = remote_calls.member_named(cluster, call.host)
        if node == cluster.here.node:
            raise InvalidError("a node does not remove itself; ask another, or stop it")
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
