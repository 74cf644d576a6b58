"""Two nodes, and a task of the one that asks the other: for tests of requests and answers.

Not for: claims; ``test_away_protocol.py`` and ``test_away_memory.py`` make those with it.
"""

from __future__ import annotations

from dios.core.remote.peers import Peer
from dios.wire import dcp, messages
from tests.support.core.cluster import Cluster, Parcel
from tests.support.core.harness import Client


class Two:
    """A session on the first of two nodes, and a reference of its to an object of the second."""

    def __init__(self) -> None:
        self.cluster = Cluster(("r1", "r1"))
        self.here, self.there = self.cluster.nodes
        self.me = self.cluster.session(self.here)
        self.keeper = self.cluster.session(self.there)
        created = self.keeper.create(data=b"content")
        self.ref_there = created.reference.ref
        (reference,) = self.me.lookup(created.name)
        self.ref = reference.ref

    def books(self) -> tuple[Peer, Peer]:
        """What each node knows of the other."""
        clusters = [node.core.state.cluster for node in self.cluster.nodes]
        assert clusters[0] is not None
        assert clusters[1] is not None
        return clusters[0].peer(self.there.node), clusters[1].peer(self.here.node)

    def hear(self, *said: dcp.Message) -> None:
        """The second node gets these messages of the first."""
        for message in said:
            self.there.take(Parcel(self.here.node, self.there.node, 1, message, b""))

    def held_back(self, call: messages.AnyCall) -> tuple[int, list[Parcel]]:
        """Make a call whose messages wait in the test's hand."""
        seq = self.me.send(call)
        held, self.cluster.wire = self.cluster.wire, []
        return seq, held

    def job(self) -> tuple[Client, int]:
        """A task that the second node starts, and the session's reference to it."""
        started = self.keeper.run()
        (reference,) = self.me.lookup(started.welcome.name)
        return started, reference.ref
