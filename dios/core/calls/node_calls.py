"""The calls with which users list, drain, label and remove the nodes of the cluster, and their environments.

``dios.core.membership.swim`` detects which nodes are alive.
"""

from __future__ import annotations

from typing import Final, cast

from dios.core import effects
from dios.core.calls import moves, rights, submissions
from dios.core.calls.handlers import handles
from dios.core.events import LabelsStored
from dios.core.model.records import Holder, Pending
from dios.core.remote import forwarding, generations, node_list, remote_calls, removals
from dios.core.step import Step
from dios.errors import Code, InvalidError
from dios.wire import messages, node_labels
from dios.wire.types import NodeWish

_MS: Final = 1_000_000


@handles(messages.ListNodes)
def list_nodes(step: Step, task: Holder, seq: int, call: messages.ListNodes) -> None:
    """List every node as this node sees it; a node without a cluster lists none.

    A caller that knows the present version of the list waits for the next one.
    """
    rights.refuse_pure(task)
    cluster = step.state.cluster
    if call.wait_ms and cluster is not None and call.known == cluster.rows_version:
        row = Pending(task, seq, call, {}, step.now + call.wait_ms * _MS)
        step.wait(row)
        return
    step.answer(task, seq, node_list.nodes(step))


def retry_list(step: Step, row: Pending) -> None:
    """Answer a call that waits for a change of the list of nodes, if there is one or its time is over."""
    cluster = step.require_cluster()
    late = row.deadline is not None and step.now >= row.deadline
    if late or cast("messages.ListNodes", row.call).known != cluster.rows_version:
        step.state.pending.remove(row)
        step.answer(row.task, row.seq, node_list.nodes(step))


@handles(messages.SetNode)
def set_node(step: Step, task: Holder, seq: int, call: messages.SetNode) -> None:
    """Drain, undrain or forget a node, or change the secret. A node itself drains, and notifies others."""
    rights.require_nodes_own(step.state, task, "drain, undrain or forget nodes, or change the secret")
    cluster = step.state.cluster
    if cluster is None:
        raise InvalidError("this node belongs to no cluster; `dios-node init` creates one")
    if call.wish in {NodeWish.FORGET, NodeWish.RESTORE}:
        node, name = removals.node_named(cluster, call.host)
        if node == cluster.here.node:
            raise InvalidError("a node cannot forget itself; send the call to another node")
        step.audit(task, "forget", "ok", call.host)
        removals.remove(step, task, seq, call, node, name)
        return
    if call.wish is NodeWish.ROTATE:
        if cluster.member_named(call.host) is not cluster.membership.own:
            raise InvalidError("the asked node changes the secret; send the call to the other node")
        step.audit(task, "rotate", "ok", call.host)
        generations.rotate(step, task, seq, call)
        return
    peer = remote_calls.peer_named(step, call.host)
    on = call.wish is NodeWish.DRAIN
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    step.audit(task, "drain" if on else "undrain", "ok", cluster.here.name)
    step.follow(cluster.membership.drain(step.now, on=on))
    node_list.changed(step, cluster)
    if on:
        moves.ask_all(step, f"its node {cluster.here.name} is drained")
    # The rows of the queue say whether the node drains: a scheduler that waits for a change learns it now.
    submissions.changed(step)
    step.answer(task, seq, node_list.nodes(step))


@handles(messages.LabelNode)
def label_node(step: Step, task: Holder, seq: int, call: messages.LabelNode) -> None:
    """Set and remove labels of a node. The node itself changes and stores them, and notifies all others."""
    rights.require_nodes_own(step.state, task, "label nodes")
    cluster = step.state.cluster
    if cluster is None:
        raise InvalidError("this node belongs to no cluster; `dios-node init` creates one")
    changes: dict[str, str | None] = {**dict(call.labels), **dict.fromkeys(call.removed)}
    for key, value in changes.items():
        node_labels.check(key, value or "")
    peer = remote_calls.peer_named(step, call.host)
    if peer is not None:
        forwarding.pass_on(step, task, seq, call, peer)
        return
    rack, labels = node_labels.changed(cluster.here.rack, cluster.here.labels, changes)
    said = ", ".join(f"{key}-" if value is None else f"{key}={value}" for key, value in changes.items())
    step.audit(task, "label", "ok", f"{cluster.here.name}: {said}")
    cluster.relabel(rack, labels)
    step.follow(cluster.membership.label(step.now, rack, node_labels.text_of(labels)))
    node_list.changed(step, cluster)
    # The rows of the queue have the labels: a scheduler that waits for a change learns them now.
    submissions.changed(step)
    row = Pending(task, seq, call, {})
    step.wait(row)
    step.emit(effects.StoreLabels(rack, labels, row.id))


def labels_stored(step: Step, event: LabelsStored) -> None:
    """Answer the call that changed labels once they are stored, or with the reason why they are not."""
    row = step.state.pending.find(event.call)
    if row is None or not isinstance(row.call, messages.LabelNode):
        return
    step.state.pending.remove(row)
    if not event.failure:
        step.answer(row.task, row.seq, node_list.nodes(step))
        return
    reason = (
        f"the labels of {step.require_cluster().here.name} are changed, but cannot be stored for its next "
        f"start: {event.failure}"
    )
    step.answer(row.task, row.seq, messages.Failure(int(Code.EIO), reason))


@handles(messages.PruneEnvironments)
def prune_environments(step: Step, task: Holder, seq: int, call: messages.PruneEnvironments) -> None:
    """Begin to remove environments in which no task runs.

    Raises:
        NotPermittedError: the caller acts neither for the node's own user nor for root.
    """
    rights.require_nodes_own(step.state, task, "remove environments of this node")
    step.audit(task, "prune", "ok", call.digest or "environments")
    step.emit(effects.PruneEnvironments(call.digest, call.unused_ms))
    step.answer(task, seq, messages.Done())
