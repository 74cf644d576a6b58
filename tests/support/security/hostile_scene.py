"""A cluster of three cores, one of which turned hostile and says what it likes to another."""

from __future__ import annotations

from dios.core.model.invariants import check
from dios.ids import ObjectId, RefId
from dios.wire import dcp, gossip, messages
from dios.wire.node_roles import NodeRole
from dios.wire.types import Brand
from tests.support.core.cluster import MS, Citizen, Cluster, Parcel
from tests.support.core.harness import OWNER


class Scene:
    """The target, a friend of it, and the villain; each with a person.

    The villain has these roles, and its clock is ahead by ``drift_ms``.
    """

    def __init__(self, role: NodeRole = NodeRole.MEMBER, drift_ms: int = 0) -> None:
        self.cluster = Cluster(roles={3: role}, drifts={3: drift_ms * MS})
        self.target, self.friend, self.villain = self.cluster.nodes
        self.mine, self.friends, self.villains = (self.cluster.session(node) for node in self.cluster.nodes)
        self.number = 2**40

    def caller(self, who: Citizen, brand: Brand = Brand.LEGACY, principal: str = OWNER) -> dcp.Caller:
        """As a task's node would say."""
        return dcp.Caller(who.task, principal, "0" * 12, brand)

    def say(self, message: dcp.Message, beside: bytes = b"") -> None:
        """The villain says this, and everybody does what follows; time passes a little."""
        self.target.take(Parcel(self.villain.node, self.target.node, self.villain.epoch, message, beside))
        check(self.target.core.state)

    def ask(self, body: dcp.RequestBody, beside: bytes = b"") -> object:
        """The villain asks; what it is answered, None when it is not."""
        self.number += 1
        self.cluster.wire.clear()
        self.say(dcp.Ask(self.number, 0, body), beside)
        answer = None
        for parcel in list(self.cluster.wire):
            told = parcel.message
            if (
                parcel.to == self.villain.node
                and isinstance(told, dcp.PeerReply)
                and told.number == self.number
            ):
                answer = told.result
                self.cluster.wire.remove(parcel)
        return answer

    def refused(self, body: dcp.RequestBody, beside: bytes = b"") -> int:
        """The villain asks in vain; the code that it is refused with."""
        answer = self.ask(body, beside)
        assert isinstance(answer, messages.Failure), answer
        return answer.code

    def forward(self, call: messages.PlainCall) -> dcp.Forward:
        """A call of the villain's session."""
        return dcp.Forward(self.caller(self.villains), call)

    def gossip(self, *rows: gossip.MemberRow) -> list[object]:
        """The villain tells of nodes; what the target does then."""
        state = self.villain.core.state.cluster
        assert state is not None
        self.target.effects.clear()
        self.say(dcp.Gossip(gossip.encode(gossip.News(state.membership.own, rows))))
        return self.target.effects

    def claim(self, *references: tuple[RefId, ObjectId, int, bool], epoch: int) -> object:
        """The villain says what its session holds."""
        holding = dcp.HeldReferences(self.caller(self.villains), 0, 2**63 - 1, references)
        return self.ask(dcp.ReconcileReferences(epoch, (holding,), (), (self.villains.task,)))
