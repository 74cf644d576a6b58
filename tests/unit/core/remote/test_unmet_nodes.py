"""Nodes known by gossip alone: they are chosen, and nothing is done at their word until they connect."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios.core.remote.peers import Cluster as ClusterState
from dios.errors import Code
from dios.wire import dcp, gossip, messages
from dios.wire.node_roles import NodeRole
from tests.support.core.cluster import Cluster, ClusterNode, Parcel


def state_of(node: ClusterNode) -> ClusterState:
    """What a node knows of the cluster."""
    state = node.core.state.cluster
    assert state is not None
    return state


class Met:
    """Three members that know each other, and a fourth node that only the second one was connected with."""

    def __init__(self, role: NodeRole) -> None:
        self.cluster = Cluster(roles={4: role})
        self.asker, self.friend, _ = self.cluster.nodes
        self.newcomer = ClusterNode(self.cluster, 4, "r2")
        self.cluster.nodes.append(self.newcomer)
        self.cluster.connect(self.friend, self.newcomer)
        self.cluster.connect(self.newcomer, self.friend)
        self.cluster.settle()
        self.cluster.advance(2_000)
        self.mine = self.cluster.session(self.asker)
        self.sent: list[dcp.RequestBody] = []
        """What the first node asked the newcomer for."""
        self.cluster.drop = self._watch
        assert not state_of(self.asker).peers[self.newcomer.node].roles

    def _watch(self, parcel: Parcel) -> bool:
        if parcel.to == self.newcomer.node and isinstance(parcel.message, dcp.Ask):
            self.sent.append(parcel.message.body)
        return False

    def meet(self) -> None:
        """The first node and the newcomer connect."""
        self.cluster.connect(self.asker, self.newcomer)
        self.cluster.connect(self.newcomer, self.asker)
        self.cluster.settle()

    def row(self) -> messages.NodeRow:
        """The newcomer as the first node shows it."""
        rows = self.mine.ask(messages.Nodes, messages.ListNodes()).nodes
        return next(row for row in rows if row.node == self.newcomer.node)


@pytest.mark.parametrize(("role", "is_scheduler"), [(NodeRole.RUNNER, False), (NodeRole.SCHEDULER, True)])
def test_it_is_taken_for_a_scheduler_once_its_roles_are_known(role: NodeRole, *, is_scheduler: bool) -> None:
    """Its gossip alone makes no scheduler of it; who waits for a change of the list learns when it is one."""
    met = Met(role)
    own = state_of(met.newcomer).membership.own
    news = gossip.News(
        state_of(met.friend).membership.own, (replace(own, coordinated=True, version=own.version + 1),)
    )
    parcel = Parcel(met.friend.node, met.asker.node, met.friend.epoch, dcp.Gossip(gossip.encode(news)), b"")
    met.asker.take(parcel)
    assert not met.row().coordinated
    version = state_of(met.asker).rows_version
    met.cluster.connect(met.asker, met.newcomer)
    assert state_of(met.asker).rows_version > version
    assert met.row().coordinated is is_scheduler


def test_a_node_with_unknown_roles_administers_nothing() -> None:
    """A task of a node counts as one of the nodes' own user only by roles that are known."""
    met = Met(NodeRole.MEMBER)
    met.meet()
    operator = met.cluster.session(met.newcomer)
    label = messages.LabelNode("n1", (("gpu", "yes"),))
    assert isinstance(met.cluster.call(operator, label), messages.Nodes)
    state_of(met.asker).peers[met.newcomer.node].roles = ""
    refused = met.cluster.call(operator, label)
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EPERM
    assert "does not know the roles" in refused.message
