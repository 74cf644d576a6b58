"""The other nodes as this one knows them, and the requests that are under way with each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.core import effects
from dios.core.effects import WriteSource
from dios.core.membership.swim import Membership
from dios.core.model.placement import Placement
from dios.core.model.records import PhysicalObject, RemoteTask
from dios.core.remote.continuations import Continuation
from dios.core.remote.watermark import Watermark
from dios.ids import Name, NodeId, ObjectId, Principal, RefId, TaskId, Ticket
from dios.wire import dcp, messages
from dios.wire.gossip import MemberRow
from dios.wire.types import Mode, Persistence, Proximity

RememberedEffect: TypeAlias = effects.Reply | effects.AnswerVector | effects.AnswerAttach | effects.Send


class Here(Struct, frozen=True):
    """This node; a lone one has no id. ``secret`` is the cluster's, ``cpus`` and ``memory_bytes`` what it
    has for tasks, of which ``slots`` may run; ``labels`` are what constraints look at;
    ``coordinator`` says that one runs here, or soon will.
    """

    node: NodeId = NodeId(0)
    epoch: int = 0
    name: str = ""
    rack: str = ""
    address: str = ""
    secret: bytes = b""
    cpus: int = 1
    memory_bytes: int = 0
    slots: int = limits.TASKS_MAX
    labels: tuple[tuple[str, str], ...] = ()
    coordinator: bool = False


class PendingRequest:
    """A request that is not answered yet. ``then`` is None where the answer does not matter."""

    __slots__ = (
        "body",
        "moving_since",
        "number",
        "peer",
        "repeat_at",
        "repeats",
        "silent_since",
        "source",
        "then",
        "version",
    )

    def __init__(
        self,
        number: int,
        peer: Peer,
        body: dcp.RequestBody,
        then: Continuation | None,
        source: WriteSource | None,
        now: int,
    ) -> None:
        self.number: Final = number
        self.peer: Final = peer
        self.body: Final = body
        self.then: Final = then
        self.source: Final = source
        self.version = 0  # of the object whose content is the source
        self.repeats = 0
        self.silent_since = now
        self.moving_since = now  # when its bytes, or the answer's, were last seen under way
        self.repeat_at = now


class CachedReply(NamedTuple):
    """An answer that was given: the effect, the versions of what it reads, and the last ticket before it."""

    effect: RememberedEffect
    versions: tuple[tuple[ObjectId, int], ...]
    ticket: Ticket


class Proxy(PhysicalObject):
    """What is known of an object of another node. ``order`` is of the newest message about it."""

    __slots__ = ("ends", "lost", "order", "stored")

    def __init__(self, peer: Peer, told: messages.Reference, proximity: Proximity) -> None:
        super().__init__(
            ObjectId(told.object),
            told.type,
            None,
            (),
            Principal(""),
            deletion=told.deletion,
            buffering=told.buffering,
            proximity=proximity,
            shown=told.fingerprint,
        )
        self.home = peer.node
        self.place = (peer.name, peer.rack)
        self.order = 0
        self.ends: dict[RefId, Mode] = {}  # of a stream: those taken by references of here
        self.stored = told.persistence
        self.lost = False  # a task that was taken for lost: it is, whatever its node says later
        self.learn(told)

    @property
    def persistence(self) -> Persistence:
        """As its node says."""
        return self.stored

    @property
    def gone(self) -> bool:
        """A lost task's end can be read."""
        return self.zombie or self.lost

    def learn(self, told: messages.Reference) -> None:
        """Take over the counters that an answer told."""
        self.size, self.v_r, self.v_w = told.size, told.v_r, told.v_w
        self.a_r, self.a_w = told.a_r, told.a_w
        self.stored = told.persistence
        self.address = told.address


class Peer:
    """Another node: what was asked of it and is not answered, and what it asked and may ask again.

    ``epoch`` is 0 until it was met. ``reconciled_epoch`` is the epoch under which what is held there was
    granted.
    """

    __slots__ = (
        "address",
        "answers",
        "asked",
        "connected",
        "cut_off",
        "dead_since",
        "epoch",
        "heard_ns",
        "lost",
        "met",
        "name",
        "next_number",
        "node",
        "notices",
        "order_out",
        "proxies",
        "rack",
        "reconcile_missing",
        "reconcile_round",
        "reconciled_epoch",
        "reconciled_ns",
        "remote_tasks",
        "requests_unnamed",
        "settled",
    )

    def __init__(self, node: NodeId) -> None:
        self.node: Final = node
        self.name = ""
        self.rack = ""
        self.address = ""
        self.epoch = 0
        self.reconciled_epoch = 0
        self.reconciled_ns: int | None = None  # when it first told all that it holds here
        self.reconcile_round = 0  # of messages that told it what is held there
        self.reconcile_missing = 0  # answers to that round
        self.connected = False
        self.met = False  # whether its epoch is its own word, and not what others say of it
        self.cut_off = False  # it may live, but nothing of it is heard here
        self.heard_ns = 0
        self.dead_since: int | None = None
        self.lost: list[TaskId] = []  # tasks there that were taken for lost
        self.asked: dict[int, PendingRequest] = {}
        self.next_number = 1
        self.answers: dict[int, CachedReply | None] = {}
        self.requests_unnamed = 0  # requests since one that named those which wait
        self.settled = Watermark()
        self.order_out = 0
        self.remote_tasks: dict[TaskId, RemoteTask] = {}
        self.proxies: dict[ObjectId, Proxy] = {}
        self.notices: dict[bytes | int, dcp.RequestBody] = {}  # what it must hear, and may not know

    def numbers_to_name(self) -> tuple[int, ...]:
        """Return the numbers to name in a request to the node: all that wait for its answers, or none.

        None where ``settled`` says it all. Long lists go with few requests, so that on average a request
        names about ``DCP_OPEN_NUMBERS_PER_REQUEST``.
        """
        self.requests_unnamed += 1
        if self.next_number - next(iter(self.asked)) == len(self.asked):
            return ()
        if self.requests_unnamed <= len(self.asked) // limits.DCP_OPEN_NUMBERS_PER_REQUEST:
            return ()
        self.requests_unnamed = 0
        return tuple(self.asked)


class Cluster:
    """Everything that is known of other nodes."""

    __slots__ = (
        "_moments",
        "cache",
        "disbanded",
        "due_at",
        "grace_ends",
        "here",
        "membership",
        "peers",
        "place",
        "placed",
        "placement",
        "publish_at",
        "reconcile_at",
        "seen_ns",
        "since",
        "to_publish",
        "to_release",
    )

    def __init__(self, here: Here, membership: Membership, placement: Placement) -> None:
        self.here: Final = here
        self.place: Final = (here.name, here.rack)
        self.placement: Final = placement
        self.membership: Final = membership
        self.peers: Final[dict[NodeId, Peer]] = {}
        self.to_publish: dict[ObjectId, PhysicalObject] = {}
        self.publish_at: int | None = None
        self.to_release: dict[tuple[NodeId, TaskId], list[RefId]] = {}
        self.cache: dict[bytes, tuple[NodeId, ...]] = {}
        self.disbanded: dict[Name, None] = {}  # groups that were destroyed: no message makes them anew
        self.grace_ends: dict[NodeId, int] = {}  # when what dead nodes held here goes
        self.placed: dict[NodeId, tuple[int, int]] = {}  # version of a node's row, and tasks sent since
        self.since: dict[NodeId, int] = {}  # when each came to be in its status
        self.due_at: int | None = None  # when something is to be done, as of the last step
        self.seen_ns = 0  # of the last event
        self.reconcile_at: int | None = None
        self._moments: list[tuple[int, NodeId, int]] = []

    def peer(self, node: NodeId) -> Peer:
        """What is known of a node; a fresh one where nothing is."""
        found = self.peers.get(node)
        if found is None:
            if len(self.peers) >= limits.PEERS_MAX:
                self._clear_out()
            found = self.peers[node] = Peer(node)
            # An answer to an earlier start of this node may still be on its way: it must fit nothing.
            found.next_number += self.here.epoch * limits.REQUESTS_PER_EPOCH
            found.notices.update((name, dcp.Disband(name)) for name in self.disbanded)
        return found

    def _clear_out(self) -> None:
        """Forget the nodes that have no row any more, and hold nothing here, nor anybody here of them."""
        for node, peer in list(self.peers.items()):
            busy = peer.connected or peer.remote_tasks or peer.proxies or peer.asked
            if not busy and node not in self.membership.members:
                for table in (self.peers, self.since, self.placed, self.grace_ends):
                    table.pop(node, None)

    def living(self) -> Iterator[Peer]:
        """The nodes that are not known to be dead, by id."""
        for member in self.membership.alive():
            peer = self.peers.get(member.node)
            if peer is not None:
                yield peer

    def proximity_of(self, node: NodeId) -> Proximity:
        """How far away a node is: in the same rack, if both say which, or somewhere in the cluster."""
        peer = self.peers.get(node)
        near = peer is not None and peer.rack and peer.rack == self.here.rack
        return Proximity.RACK if near else Proximity.CLUSTER

    # -- placement ----------------------------------------------------------------------------------
    def expected_load(self, member: MemberRow) -> MemberRow:
        """A node with the tasks that were sent there since it last told of its load."""
        version, count = self.placed.get(member.node, (0, 0))
        if version != member.version or not count:
            return member
        return replace(member, load=replace(member.load, tasks=member.load.tasks + count))

    def note_placed(self, node: NodeId) -> None:
        """A task was sent to a node."""
        member = self.membership.members.get(node)
        if member is not None:
            version, count = self.placed.get(node, (0, 0))
            self.placed[node] = (member.version, count + 1 if version == member.version else 1)

    # -- moments ------------------------------------------------------------------------------------
    def repeat_later(self, question: PendingRequest, at: int) -> None:
        """Look at a question again at this time."""
        question.repeat_at = at
        heapq.heappush(self._moments, (at, question.peer.node, question.number))
        if len(self._moments) > limits.STALE_TIMERS_MAX:
            open_questions = sum(len(peer.asked) for peer in self.peers.values())
            if len(self._moments) > 2 * open_questions + limits.STALE_TIMERS_MAX:
                self._moments = [entry for entry in self._moments if self._live(entry) is not None]
                heapq.heapify(self._moments)

    def due(self, now: int) -> list[PendingRequest]:
        """The questions whose time has come; they stay open."""
        found: list[PendingRequest] = []
        while self._moments and self._moments[0][0] <= now:
            question = self._live(heapq.heappop(self._moments))
            if question is not None:
                found.append(question)
        return found

    def next_moment(self) -> int | None:
        """When something is to be done next, whatever happens."""
        while self._moments and self._live(self._moments[0]) is None:
            heapq.heappop(self._moments)
        found = [] if self.membership.next_tick is None else [self.membership.next_tick]
        if self._moments:
            found.append(self._moments[0][0])
        if self.publish_at is not None:
            found.append(self.publish_at)
        if self.grace_ends:
            found.append(min(self.grace_ends.values()))
        if self.reconcile_at is not None:
            found.append(self.reconcile_at)
        return min(found, default=None)

    def _live(self, entry: tuple[int, NodeId, int]) -> PendingRequest | None:
        peer = self.peers.get(entry[1])
        question = None if peer is None else peer.asked.get(entry[2])
        return question if question is not None and question.repeat_at == entry[0] else None
