"""The list of nodes for users, and the calls that wait for a change of it."""

from __future__ import annotations

from dios import limits
from dios.core.remote.peers import Cluster
from dios.core.step import Step
from dios.wire import messages


def node_rows(step: Step) -> tuple[messages.NodeRow, ...]:
    """Return a row for every node as this node sees it, its own first; none without a cluster."""
    cluster = step.state.cluster
    if cluster is None:
        return ()
    others = sorted(cluster.membership.members.values(), key=lambda member: (member.name, member.node))
    return (
        cluster.row_of(step.now, cluster.membership.own),
        *(cluster.row_of(step.now, member) for member in others if member.node != cluster.here.node),
    )


def nodes(step: Step) -> messages.Nodes:
    """Return the list of nodes with its version; the version is 0 without a cluster."""
    cluster = step.state.cluster
    return messages.Nodes(node_rows(step), 0 if cluster is None else cluster.rows_version)


def changed(step: Step, cluster: Cluster) -> None:
    """Note that a row changed in anything but its load, and wake the calls that wait for that."""
    cluster.rows_version += 1
    step.woken.update(step.state.pending.list_readers)


def note_barred(step: Step) -> None:
    """Announce the nodes whose schedulers have lost their lease on this node's queue, if they have changed.

    Another coordinator attends the queue then.
    """
    cluster = step.state.cluster
    if cluster is None:
        return
    barred = step.state.queue.barred(step.now)[: limits.SCHEDULERS_BARRED_MAX]
    nodes = tuple(sorted(node or cluster.here.node for node in barred))
    if nodes != cluster.membership.own.barred:
        step.follow(cluster.membership.bar(step.now, nodes))
        changed(step, cluster)


def note_coordinator(step: Step) -> None:
    """Announce that this node has, or has no longer, a coordinator of its own, if that has changed."""
    cluster = step.state.cluster
    if cluster is not None:
        on = step.state.queue.coordinated(step.now)
        if on != cluster.membership.own.coordinated:
            step.follow(cluster.membership.coordinate(step.now, on=on))
            changed(step, cluster)
