"""Nodes known by gossip alone: they are chosen, and nothing is done at their word until they connect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.remote.peers import Cluster as ClusterState
from dios.errors import Code
from dios.wire import dcp, gossip, messages
from dios.wire.node_roles import NodeRole
from dios.wire.types import Brand, ObjectType, Persistence
from tests.support.core.cluster import Cluster, ClusterNode, Parcel
from tests.support.core.harness import OWNER


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


def _copy(met: Met, persistence: Persistence = Persistence.DURABLE) -> messages.AnyCall:
    blob = met.mine.create(data=b"for keepers").reference
    return messages.Copy(blob.ref, met.mine.self_ref, host="n4", persistence=persistence)


def _create(_: Met, kind: ObjectType = ObjectType.DURABLE_BLOB) -> messages.AnyCall:
    data = None if kind is ObjectType.DURABLE_STREAM else b"for keepers"
    return messages.Create(kind, host="n4", data=data)


KEPT: dict[str, Callable[[Met], messages.AnyCall]] = {
    "a copy": _copy,
    "a blob": _create,
    "a journal": lambda met: _create(met, ObjectType.DURABLE_STREAM),
}
"""Calls that store something durably on the newcomer."""
VOLATILE: dict[str, Callable[[Met], messages.AnyCall]] = {
    "a copy": lambda met: _copy(met, Persistence.VOLATILE),
    "a blob": lambda met: _create(met, ObjectType.SHMEM_BLOB),
}
"""Calls that store nothing durably there."""


def _answer(met: Met, call: messages.AnyCall, *, is_met: bool) -> object:
    """The answer to a call that is made before or after the newcomer is met."""
    if is_met:
        met.meet()
    seq = met.mine.send(call)
    met.cluster.settle()
    if not is_met:
        assert met.mine.answer(seq) is None, "the call waits for the node"
        met.meet()
    return met.cluster.wait(met.mine, seq)


@pytest.mark.parametrize("is_met", [True, False])
@pytest.mark.parametrize("name", KEPT)
def test_a_runner_is_sent_nothing_that_it_would_keep(name: str, *, is_met: bool) -> None:
    """No byte leaves the node, also if the call waited for a node that turns out to be a runner."""
    met = Met(NodeRole.RUNNER)
    answer = _answer(met, KEPT[name](met), is_met=is_met)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EPERM
    assert "n4 has the role runner and holds no durable copies" in answer.message
    assert not any(isinstance(body, dcp.CreateReplica | dcp.Forward) for body in met.sent)
    met.cluster.check()


@pytest.mark.parametrize("is_met", [True, False])
@pytest.mark.parametrize(
    ("role", "calls", "name"),
    [(NodeRole.KEEPER, KEPT, name) for name in KEPT]
    + [(NodeRole.RUNNER, VOLATILE, name) for name in VOLATILE],
)
def test_what_a_role_allows_is_stored(
    role: NodeRole, calls: dict[str, Callable[[Met], messages.AnyCall]], name: str, *, is_met: bool
) -> None:
    """A keeper gets what waited for it, and a runner what is not durable."""
    met = Met(role)
    assert isinstance(_answer(met, calls[name](met), is_met=is_met), messages.Created | messages.References)


def test_requests_behind_refused_ones_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """More calls than may be open wait for a runner: the durable ones fail, and the others are answered."""
    monkeypatch.setattr(limits, "DCP_REQUESTS_MAX", 8)
    met = Met(NodeRole.RUNNER)
    durable = [met.mine.send(_create(met)) for _ in range(12)]
    volatile = [met.mine.send(_create(met, ObjectType.SHMEM_BLOB)) for _ in range(20)]
    met.cluster.connect(met.asker, met.newcomer)
    opened = state_of(met.asker).peers[met.newcomer.node].asked.values()
    assert sum(isinstance(request.body, dcp.Forward) for request in opened) == limits.DCP_REQUESTS_MAX
    met.meet()
    for seq in durable:
        assert isinstance(met.cluster.wait(met.mine, seq), messages.Failure)
    for seq in volatile:
        assert isinstance(met.cluster.wait(met.mine, seq), messages.Created)


def test_an_honest_runner_refuses_what_a_hostile_node_hides_in_a_vector() -> None:
    """The node that is asked looks into each call of a vector, too."""
    met = Met(NodeRole.RUNNER)
    met.meet()
    hidden = messages.Vector((messages.Create(ObjectType.DURABLE_BLOB, data=b"for keepers"),))
    ask = dcp.Ask(2**40, 0, dcp.Forward(dcp.Caller(met.mine.task, OWNER, "0" * 12, Brand.LEGACY), hidden))
    answers: list[dcp.Answer] = []

    def watch(parcel: Parcel) -> bool:
        reply = parcel.message
        is_answer = isinstance(reply, dcp.PeerReply) and reply.number == 2**40
        answers.extend([reply.result] if isinstance(reply, dcp.PeerReply) and is_answer else [])
        return is_answer

    met.cluster.drop = watch
    met.cluster.wire.append(Parcel(met.asker.node, met.newcomer.node, met.asker.epoch, ask, b""))
    met.cluster.settle()
    (answer,) = answers
    assert isinstance(answer, messages.Failure)
    assert "holds no durable copies" in answer.message
