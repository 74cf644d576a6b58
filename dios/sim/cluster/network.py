"""The network between simulated nodes: connections that come and break, messages that are late or lost.

Not for: what is said, or who is told of it (``dios.sim.cluster.machine``). In an orderly manner a message
is lost
only with its connection, as with TLS over TCP: what a cut keeps back arrives late, or the connection breaks.
In a *lossy* one any message may be lost, doubled and overtaken: the coordination protocol needs no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol

from msgspec import Struct

from dios.core import events
from dios.ids import NodeId
from dios.sim.cluster.host import ClusterHost
from dios.sim.event_queue import MS, US, Agenda
from dios.wire import dcp
from dios.wire.codec import decode_message, encode_message

DELAY_NS: Final = (100 * US, 4 * MS)
LATE_NS: Final = (20 * MS, 600 * MS)
DIAL_NS: Final = (100 * MS, 700 * MS)
NOTICED_NS: Final = (1 * MS, 40 * MS)
GIVEN_UP_NS: Final = (1_500 * MS, 9_000 * MS)  # until a side notices that nothing comes through any more


class Manner(Struct, frozen=True):
    """How messages travel: shares of them that are lost, doubled, late; ``ordered`` where none overtakes."""

    loss: float = 0.0
    doubled: float = 0.0
    late: float = 0.01
    ordered: bool = True


class Ends(Protocol):
    """The nodes, as the network knows them."""

    def accepts(self, node: NodeId) -> bool:
        """Whether the node runs and is not frozen."""
        ...

    def hello(self, node: NodeId) -> dcp.PeerHello:
        """What it says of itself."""
        ...

    def tell(self, node: NodeId, action: Callable[[ClusterHost], None]) -> None:
        """Let something happen at the node, later if it is frozen, never if it is down."""
        ...


class Line:
    """One connection of two nodes, with the epochs that they had."""

    def __init__(self, hellos: dict[NodeId, dcp.PeerHello]) -> None:
        self.hellos: Final = hellos
        self.broken = False
        self.last: Final[dict[NodeId, int]] = {}
        self.early: Final[dict[NodeId, list[Callable[[], None]]]] = {node: [] for node in hellos}
        self.held: Final[dict[NodeId, list[Callable[[], None]]]] = {node: [] for node in hellos}


class Network:
    """Every connection. ``cut`` are the ways on which nothing gets through now."""

    def __init__(self, agenda: Agenda, rng: Random, manner: Manner, ends: Ends) -> None:
        self._agenda: Final = agenda
        self._rng: Final = rng
        self._ends: Final = ends
        self.manner = manner
        self.cut: Final[set[tuple[NodeId, NodeId]]] = set()
        self.counts: Final[Counter[str]] = Counter()
        self._lines: Final[dict[tuple[NodeId, NodeId], Line]] = {}
        self._told: Final[dict[tuple[NodeId, NodeId], Line]] = {}
        self._wanted: Final[set[tuple[NodeId, NodeId]]] = set()

    # -- connections --------------------------------------------------------------------------------
    def begin(self, one: NodeId, other: NodeId) -> None:
        """Look now and then whether two nodes want a connection and have none."""
        self._agenda.after(self._span(DIAL_NS), partial(self._dial, one, other))

    def want(self, node: NodeId, other: NodeId) -> None:
        """A node looks for another from now on."""
        self._wanted.add((node, other))

    def hang_up(self, node: NodeId, other: NodeId) -> None:
        """A node ends its connection with another."""
        self._wanted.discard((node, other))
        self.snap(node, other)

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Whether a connection stands, and both know it."""
        line = self._lines.get(_pair(one, other))
        return (
            line is not None
            and not line.broken
            and self._told.get((one, other)) is line
            and self._told.get((other, one)) is line
        )

    def _dial(self, one: NodeId, other: NodeId) -> None:
        self.begin(one, other)
        line = self._lines.get(_pair(one, other))
        if line is not None and not line.broken:
            return
        wanted = {(one, other), (other, one)} & self._wanted
        reached = self._ends.accepts(one) and self._ends.accepts(other)
        if not wanted or not reached or {(one, other), (other, one)} & self.cut:
            return
        line = Line({node: self._ends.hello(node) for node in (one, other)})
        self._lines[_pair(one, other)] = line
        for node, peer in ((one, other), (other, one)):
            up = partial(self._ends.tell, node, partial(self._up, line, node, peer))
            self._agenda.after(self._span(NOTICED_NS), up)

    def _up(self, line: Line, node: NodeId, peer: NodeId, host: ClusterHost) -> None:
        if line.broken or host.epoch != line.hellos[node].epoch:
            return
        former = self._told.pop((node, peer), None)
        if former is not None:
            epoch = former.hellos[peer].epoch
            host.step(events.PeerDown(host.now, peer, epoch, "it connected anew"))
        self._told[node, peer] = line
        said = line.hellos[peer]
        host.step(events.PeerUp(host.now, peer, said.epoch, said.name, said.rack, said.address))
        early, line.early[node] = line.early[node], []
        for arrive in early:
            arrive()

    def snap(self, one: NodeId, other: NodeId, *, span_ns: tuple[int, int] = NOTICED_NS) -> None:
        """The connection of two nodes is gone; each notices at its own time."""
        line = self._lines.get(_pair(one, other))
        if line is None or line.broken:
            return
        line.broken = True
        self.counts["breaks"] += 1
        for node, peer in ((one, other), (other, one)):
            down = partial(self._ends.tell, node, partial(self._down, line, node, peer))
            self._agenda.after(self._span(span_ns), down)

    def _down(self, line: Line, node: NodeId, peer: NodeId, host: ClusterHost) -> None:
        if self._told.get((node, peer)) is line:
            del self._told[node, peer]
            refused = not self._ends.accepts(peer) and self._rng.random() < 0.5
            epoch = line.hellos[peer].epoch
            host.step(events.PeerDown(host.now, peer, epoch, "the connection is gone", refused))

    def crashed(self, node: NodeId, *, silent: bool) -> None:
        """A node is down; with ``silent`` its machine, too, so that nobody is told."""
        for pair in list(self._lines):
            if node in pair:
                self.snap(*pair, span_ns=GIVEN_UP_NS if silent else NOTICED_NS)
        for way in [way for way in self._told if way[0] == node]:
            del self._told[way]

    # -- cuts ---------------------------------------------------------------------------------------
    def sever(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        """Nothing gets through on these ways any more; after a while connections break of it."""
        self.cut.update(ways)
        for way in sorted(ways):
            self._agenda.after(self._span(GIVEN_UP_NS), partial(self._give_up, way))

    def _give_up(self, way: tuple[NodeId, NodeId]) -> None:
        if way in self.cut:
            self.snap(*way)

    def mend(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        """They are open again; what the connections kept back arrives now."""
        self.cut.difference_update(ways)
        for sender, to in sorted(ways):
            line = self._lines.get(_pair(sender, to))
            if line is not None:
                held, line.held[to] = line.held[to], []
                for arrive in held:
                    arrive()

    # -- messages -----------------------------------------------------------------------------------
    def send(self, sender: NodeId, to: NodeId, message: dcp.Message, beside: bytes) -> None:
        """A node says something to another; lost without a connection."""
        line = self._told.get((sender, to))
        self.counts["messages"] += 1
        if line is None or line.broken:
            self.counts["unsaid"] += 1
            return
        data = encode_message(message)
        self._put(line, sender, to, data, beside)
        if self._rng.random() < self.manner.doubled:
            self.counts["doubled"] += 1
            self._put(line, sender, to, data, beside)

    def _put(self, line: Line, sender: NodeId, to: NodeId, data: bytes, beside: bytes) -> None:
        if self._rng.random() < self.manner.loss:
            self.counts["lost"] += 1
            return
        late = self._rng.random() < self.manner.late
        when = self._agenda.now + self._span(LATE_NS if late else DELAY_NS)
        if self.manner.ordered:
            when = line.last[to] = max(when, line.last.get(to, 0) + 1)
        self._agenda.at(when, partial(self._arrive, line, sender, to, data, beside))

    def _arrive(self, line: Line, sender: NodeId, to: NodeId, data: bytes, beside: bytes) -> None:
        arrive = partial(self._arrive, line, sender, to, data, beside)
        if line.broken:
            self.counts["broken off"] += 1
        elif (sender, to) in self.cut or line.held[to]:
            if self.manner.ordered:
                line.held[to].append(arrive)
            else:
                self.counts["cut off"] += 1
        else:
            self._ends.tell(to, partial(self._deliver, line, sender, to, data, beside))

    def _deliver(
        self, line: Line, sender: NodeId, to: NodeId, data: bytes, beside: bytes, host: ClusterHost
    ) -> None:
        known = self._told.get((to, sender))
        if known is line:
            host.receive(sender, line.hellos[sender].epoch, decode_message(data), beside)
        elif not line.broken and host.epoch == line.hellos[to].epoch:
            line.early[to].append(partial(self._arrive, line, sender, to, data, beside))

    def _span(self, span_ns: tuple[int, int]) -> int:
        return self._rng.randint(*span_ns)


def _pair(one: NodeId, other: NodeId) -> tuple[NodeId, NodeId]:
    return (one, other) if one < other else (other, one)
