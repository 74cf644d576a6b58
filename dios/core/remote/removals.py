"""Remove a node from the cluster at an operator's request, and ask every live node if it has stored that.

The host signs, stores and sends the removal (``dios.transport.identity.trust``) and reports removed nodes.
"""

from __future__ import annotations

from dios.core import effects
from dios.core.calls import lifecycle
from dios.core.events import NodesRemoved
from dios.core.model.records import Holder, Pending, Task
from dios.core.remote import node_list, requests
from dios.core.remote.continuations import RemovalAnswer, RemovalProgress
from dios.core.remote.peers import Cluster, Peer
from dios.core.step import Step
from dios.errors import Code, UnreachableError
from dios.ids import NodeId
from dios.wire import dcp, messages
from dios.wire.types import Brand, NodeWish


def node_named(cluster: Cluster, host: str) -> tuple[NodeId, str]:
    """Return id and name of a node that is removed, or was removed before; raise UnreachableError."""
    member = cluster.member_named(host)
    if member is not None:
        return member.node, member.name
    for node in cluster.membership.forgotten:
        name = cluster.peers[node].name if node in cluster.peers else ""
        if host in {name, f"{node:x}"}:
            return node, name or host
    raise UnreachableError(f"there is no node {host!r} here. `dios node ls` lists the nodes.")


def remove(step: Step, task: Holder, seq: int, call: messages.SetNode, node: NodeId, name: str) -> None:
    """Remove a node. The call is answered once every live node has stored it, or has not."""
    row = Pending(task, seq, call, {})
    row.progress = RemovalProgress(node, name, 0, [])
    step.wait(row)
    step.emit(effects.RemoveNode(node, call.wish is NodeWish.RESTORE, row.id))


def stored(step: Step, event: NodesRemoved) -> None:
    """Ask the other live nodes for their confirmation after this node has stored a removal."""
    row = None if event.call is None else step.state.pending.find(event.call)
    if row is None or not isinstance(row.progress, RemovalProgress):
        return
    progress, cluster = row.progress, step.require_cluster()
    if event.failure:
        step.state.pending.remove(row)
        reason = f"cannot remove {progress.name} from the cluster: {event.failure}"
        step.answer(row.task, row.seq, messages.Failure(int(Code.EIO), reason))
        return
    living = [peer.node for peer in cluster.living()]
    progress.missing = len(living)
    for node in living:
        body = dcp.ConfirmRemoval(progress.node)
        requests.ask_for_call(step, row, node, body, RemovalAnswer(row.id, node))
    if not living:
        _complete(step, row, progress)


def store_confirmation(step: Step, then: RemovalAnswer, answer: dcp.Answer) -> None:
    """Store one node's confirmation; the last one answers the call."""
    row = step.state.pending.find(then.call)
    if row is None or not isinstance(row.progress, RemovalProgress):
        return
    progress = row.progress
    progress.missing -= 1
    if not isinstance(answer, messages.Done):
        peer = step.require_cluster().peer(then.node)
        why = answer.message if isinstance(answer, messages.Failure) else "gave no answer"
        progress.failed.append(f"{peer.name} ({why})")
    if not progress.missing:
        _complete(step, row, progress)


def _complete(step: Step, row: Pending, progress: RemovalProgress) -> None:
    step.state.pending.remove(row)
    if not progress.failed:
        step.answer(row.task, row.seq, node_list.nodes(step))
        return
    reason = (
        f"{progress.name} was removed here, but not everywhere. It is not stored at: "
        f"{', '.join(sorted(progress.failed))}. Repeat `dios node forget {progress.name}` when these nodes "
        "answer, or at one of them, or forget them too."
    )
    step.answer(row.task, row.seq, messages.Failure(int(Code.EHOSTUNREACH), reason))


def confirm(step: Step, peer: Peer, number: int, body: dcp.ConfirmRemoval) -> None:
    """Answer another node's question whether this node has stored a removal."""
    if step.require_cluster().membership.is_forgotten(body.node):
        requests.reply(step, peer, number, messages.Done(1))
    else:
        reason = "it has not stored the removal, or does not believe the node that made it"
        requests.reply(step, peer, number, messages.Failure(int(Code.EPERM), reason))


def end_unconfined(step: Step, node: NodeId) -> None:
    """End the tasks outside the sandbox that tasks of a removed node have started here."""
    for task in list(step.state.tasks.values()):
        if isinstance(task, Task) and task.alive and task.brand is Brand.LIMBO and task.parent.home == node:
            lifecycle.end_task_by(step, task, task.parent, "its parent's node was removed from the cluster")
