"""The network between simulated nodes: connections that open and break, messages that are late or lost.

With an ordered delivery policy a message is lost only with its connection, as with TLS over TCP: messages
that a cut holds back arrive late, or the connection breaks. With an unordered policy any message may be lost,
duplicated and overtaken, because the coordination protocol requires no more.
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
from dios.wire import dcp, messages
from dios.wire.codec import decode_message, encode_message
from labs.sim.cluster.host import ClusterHost
from labs.sim.cluster.slowness import Slowness, SlowServer, is_control
from labs.sim.event_queue import MS, US, EventQueue

DELAY_NS: Final = (100 * US, 4 * MS)
LATE_NS: Final = (20 * MS, 600 * MS)
DIAL_NS: Final = (100 * MS, 700 * MS)
NOTICED_NS: Final = (1 * MS, 40 * MS)
PUBLISHED_NS: Final = (1 * MS, 1_500 * MS)
PUBLISHED_LATE: Final = 0.8
CONFIRMED_LATE: Final = 0.2
REST_NS: Final = (100 * MS, 900 * MS)
GIVEN_UP_NS: Final = (1_500 * MS, 9_000 * MS)  # until a side notices that nothing arrives any more


class DeliveryPolicy(Struct, frozen=True):
    """The shares of messages that are lost, doubled and late; ``ordered`` if none overtakes another."""

    loss: float = 0.0
    doubled: float = 0.0
    late: float = 0.01
    ordered: bool = True


class NetworkEndpoints(Protocol):
    """The nodes, as the network sees them."""

    def accepts(self, node: NodeId) -> bool:
        """Return True if the node runs and is not frozen."""

    def hello(self, node: NodeId) -> dcp.PeerHello:
        """Return the node's introduction on a new connection."""

    def post(self, node: NodeId, action: Callable[[ClusterHost], None]) -> None:
        """Run an action at the node: now, after it thaws if it is frozen, or never if it is down."""

    def post_request(
        self, node: NodeId, asker: NodeId, number: int, action: Callable[[ClusterHost], None]
    ) -> None:
        """Run the action that handles a request of another node, when it is its turn."""


class SimConnection:
    """One connection of two nodes, with the introductions that they exchanged."""

    def __init__(self, hellos: dict[NodeId, dcp.PeerHello]) -> None:
        self.hellos: Final = hellos
        self.broken = False
        self.last: Final[dict[NodeId, int]] = {}
        self.early: Final[dict[NodeId, list[Callable[[], None]]]] = {node: [] for node in hellos}
        self.held: Final[dict[NodeId, list[Callable[[], None]]]] = {node: [] for node in hellos}


class SimNetwork:
    """All connections. ``cut`` has the directions that deliver nothing now.

    If ``late_versions`` is set, it makes most messages about new versions late. Until the times in
    ``lost_retirements``, notices to these nodes that a reference was taken back are lost.
    """

    def __init__(
        self, queue: EventQueue, rng: Random, policy: DeliveryPolicy, endpoints: NetworkEndpoints
    ) -> None:
        self._queue: Final = queue
        self._rng: Final = rng
        self._endpoints: Final = endpoints
        self.policy = policy
        self.rests = False
        self.late_versions: Random | None = None
        self.lost_retirements: Final[dict[NodeId, int]] = {}
        self.cut: Final[set[tuple[NodeId, NodeId]]] = set()
        self.counts: Final[Counter[str]] = Counter()
        self._connections: Final[dict[tuple[NodeId, NodeId], SimConnection]] = {}
        self._known: Final[dict[tuple[NodeId, NodeId], SimConnection]] = {}
        self._wanted: Final[set[tuple[NodeId, NodeId]]] = set()
        self.slow_links: Final[dict[tuple[NodeId, NodeId], tuple[SlowServer, Slowness]]] = {}

    # -- connections --------------------------------------------------------------------------------
    def start_dialing(self, first: NodeId, other: NodeId) -> None:
        """Check regularly if two nodes want a connection and have none."""
        self._queue.after(self._span(DIAL_NS), partial(self._dial, first, other))

    def request_connection(self, node: NodeId, other: NodeId, *, on_demand: bool = False) -> None:
        """Keep a connection from one node to another from now on, or ``on_demand`` for the next gossip."""
        if on_demand:
            self._wanted.discard((node, other))
        else:
            self._wanted.add((node, other))

    def hang_up(self, node: NodeId, other: NodeId) -> None:
        """End a node's connection to another."""
        self._wanted.discard((node, other))
        self.break_connection(node, other)

    def connected(self, first: NodeId, other: NodeId) -> bool:
        """Return True if the two nodes are connected and both know it."""
        connection = self._connections.get(_pair(first, other))
        return (
            connection is not None
            and not connection.broken
            and self._known.get((first, other)) is connection
            and self._known.get((other, first)) is connection
        )

    def _dial(self, first: NodeId, other: NodeId) -> None:
        self.start_dialing(first, other)
        connection = self._connections.get(_pair(first, other))
        if connection is not None and not connection.broken:
            return
        wanted = {(first, other), (other, first)} & self._wanted
        reached = self._endpoints.accepts(first) and self._endpoints.accepts(other)
        if not wanted or not reached or {(first, other), (other, first)} & self.cut:
            return
        connection = SimConnection({node: self._endpoints.hello(node) for node in (first, other)})
        self._connections[_pair(first, other)] = connection
        for node, peer in ((first, other), (other, first)):
            up = partial(self._endpoints.post, node, partial(self._up, connection, node, peer))
            self._queue.after(self._span(NOTICED_NS), up)

    def _up(self, connection: SimConnection, node: NodeId, peer: NodeId, host: ClusterHost) -> None:
        if connection.broken or host.epoch != connection.hellos[node].epoch:
            return
        previous = self._known.pop((node, peer), None)
        if previous is not None:
            epoch = previous.hellos[peer].epoch
            host.step(events.PeerDown(host.now, peer, epoch, "it connected again"))
        self._known[node, peer] = connection
        hello = connection.hellos[peer]
        host.step(events.PeerUp(host.now, peer, hello.epoch, hello.name, hello.rack, hello.address))
        early, connection.early[node] = connection.early[node], []
        for arrive in early:
            arrive()

    def rest(self) -> None:
        """End a random connection as if it was not used, again and again while ``rests``."""
        if not self.rests:
            return
        self._queue.after(self._span(REST_NS), self.rest)
        pairs = [pair for pair, connection in self._connections.items() if not connection.broken]
        if pairs:
            pair = self._rng.choice(pairs)
            connection = self._connections[pair]
            connection.broken = True
            self.counts["rests"] += 1
            self._wanted.difference_update((pair, pair[::-1]))
            for node, peer in (pair, pair[::-1]):
                down = partial(self._endpoints.post, node, partial(self._rested, connection, node, peer))
                self._queue.after(self._span(NOTICED_NS), down)

    def _rested(self, connection: SimConnection, node: NodeId, peer: NodeId, host: ClusterHost) -> None:
        if self._known.get((node, peer)) is connection:
            del self._known[node, peer]
            epoch = connection.hellos[peer].epoch
            host.step(events.PeerDown(host.now, peer, epoch, "it was not used", idle=True))

    def break_connection(
        self, first: NodeId, other: NodeId, *, span_ns: tuple[int, int] = NOTICED_NS
    ) -> None:
        """Break the connection of two nodes; each notices at its own time."""
        connection = self._connections.get(_pair(first, other))
        if connection is None or connection.broken:
            return
        connection.broken = True
        self.counts["breaks"] += 1
        for node, peer in ((first, other), (other, first)):
            down = partial(self._endpoints.post, node, partial(self._down, connection, node, peer))
            self._queue.after(self._span(span_ns), down)

    def _down(self, connection: SimConnection, node: NodeId, peer: NodeId, host: ClusterHost) -> None:
        if self._known.get((node, peer)) is connection:
            del self._known[node, peer]
            refused = not self._endpoints.accepts(peer) and self._rng.random() < 0.5
            epoch = connection.hellos[peer].epoch
            host.step(events.PeerDown(host.now, peer, epoch, "the connection is gone", refused))

    def crashed(self, node: NodeId, *, silent: bool) -> None:
        """Break all connections of a crashed node; with ``silent`` the peers notice it only by timeout."""
        for pair in list(self._connections):
            if node in pair:
                self.break_connection(*pair, span_ns=GIVEN_UP_NS if silent else NOTICED_NS)
        for way in [way for way in self._known if way[0] == node]:
            del self._known[way]

    # -- cuts ---------------------------------------------------------------------------------------
    def sever(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        """Block these directions; connections break after a while."""
        self.cut.update(ways)
        for way in sorted(ways):
            self._queue.after(self._span(GIVEN_UP_NS), partial(self._give_up, way))

    def _give_up(self, way: tuple[NodeId, NodeId]) -> None:
        if way in self.cut:
            self.break_connection(*way)

    def mend(self, ways: set[tuple[NodeId, NodeId]]) -> None:
        """Unblock these directions; messages that connections held back arrive now."""
        self.cut.difference_update(ways)
        for sender, to in sorted(ways):
            connection = self._connections.get(_pair(sender, to))
            if connection is not None:
                held, connection.held[to] = connection.held[to], []
                for arrive in held:
                    arrive()

    # -- messages -----------------------------------------------------------------------------------
    def send(self, sender: NodeId, to: NodeId, message: dcp.Message, attached: bytes) -> None:
        """Send a message to another node; it is lost if there is no connection."""
        connection = self._known.get((sender, to))
        self.counts["messages"] += 1
        if connection is None or connection.broken:
            self.counts["not sent"] += 1
            if isinstance(message, dcp.Gossip):
                self._wanted.add((sender, to))
            return
        data = encode_message(message)
        if _is_retirement(message) and self.lost_retirements.get(to, 0) > self._queue.now:
            self.counts["lost retirements"] += 1
            return
        late_ns = self._lateness(message)
        if late_ns:
            arrive = partial(self._arrive, connection, sender, to, data, attached)
            self._queue.at(self._queue.now + late_ns, arrive)
            return
        self._put(connection, sender, to, data, attached)
        if self._rng.random() < self.policy.doubled:
            self.counts["doubled"] += 1
            self._put(connection, sender, to, data, attached)

    def _lateness(self, message: dcp.Message) -> int:
        """Return the nanoseconds by which a message about a version is late, 0 for one that is not.

        Publications that come in time would drop kept versions before anything can be wrong with them. An
        answer without bytes confirms a version; a lease may come with it.
        """
        rng = self.late_versions
        if rng is None:
            return 0
        if isinstance(message, dcp.Published) and rng.random() < PUBLISHED_LATE:
            return rng.randint(*PUBLISHED_NS)
        result = message.result if isinstance(message, dcp.PeerReply) else None
        if self.policy.ordered or not isinstance(result, messages.Buffer):
            return 0
        is_bare = result.size and not result.length and result.data is None
        return rng.randint(*LATE_NS) if is_bare and rng.random() < CONFIRMED_LATE else 0

    def _put(
        self, connection: SimConnection, sender: NodeId, to: NodeId, data: bytes, attached: bytes
    ) -> None:
        if self._rng.random() < self.policy.loss:
            self.counts["lost"] += 1
            return
        slow = self.slow_links.get((sender, to))
        if slow is not None:
            server, slowness = slow
            send = partial(self._send_slowly, connection, sender, to, data, attached, slowness)
            server.put(send, slowness.frame_ns, urgent=is_control(decode_message(data)))
            return
        late = self._rng.random() < self.policy.late
        when = self._queue.now + self._span(LATE_NS if late else DELAY_NS)
        if self.policy.ordered:
            when = connection.last[to] = max(when, connection.last.get(to, 0) + 1)
        self._queue.at(when, partial(self._arrive, connection, sender, to, data, attached))

    def _send_slowly(
        self,
        connection: SimConnection,
        sender: NodeId,
        to: NodeId,
        data: bytes,
        attached: bytes,
        slowness: Slowness,
    ) -> None:
        when = self._queue.now + self._span(slowness.delay_ns)
        when = connection.last[to] = max(when, connection.last.get(to, 0) + 1)
        self._queue.at(when, partial(self._arrive, connection, sender, to, data, attached))

    def _arrive(
        self, connection: SimConnection, sender: NodeId, to: NodeId, data: bytes, attached: bytes
    ) -> None:
        arrive = partial(self._arrive, connection, sender, to, data, attached)
        if connection.broken:
            self.counts["broken off"] += 1
        elif (sender, to) in self.cut or connection.held[to]:
            if self.policy.ordered:
                connection.held[to].append(arrive)
            else:
                self.counts["cut off"] += 1
        else:
            deliver = partial(self._deliver, connection, sender, to, data, attached)
            message = decode_message(data)
            if isinstance(message, dcp.Ask):
                self._endpoints.post_request(to, sender, message.number, deliver)
            else:
                self._endpoints.post(to, deliver)

    def _deliver(
        self,
        connection: SimConnection,
        sender: NodeId,
        to: NodeId,
        data: bytes,
        attached: bytes,
        host: ClusterHost,
    ) -> None:
        known = self._known.get((to, sender))
        if known is connection:
            host.receive(sender, connection.hellos[sender].epoch, decode_message(data), attached)
        elif not connection.broken and host.epoch == connection.hellos[to].epoch:
            connection.early[to].append(partial(self._arrive, connection, sender, to, data, attached))

    def _span(self, span_ns: tuple[int, int]) -> int:
        return self._rng.randint(*span_ns)


def _is_retirement(message: dcp.Message) -> bool:
    return (
        isinstance(message, dcp.Ask)
        and isinstance(message.body, dcp.DeliverEvent)
        and isinstance(message.body.event, messages.Retired)
    )


def _pair(first: NodeId, other: NodeId) -> tuple[NodeId, NodeId]:
    return (first, other) if first < other else (other, first)
