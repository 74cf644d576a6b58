"""Define the state of the other nodes as this node knows it, and of the requests in progress with each."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.core import effects
from dios.core.effects import WriteSource
from dios.core.membership.swim import Membership
from dios.core.model.accounts import Version
from dios.core.model.placement import Placement
from dios.core.model.records import CallId, PhysicalObject, Reference, RemoteTask
from dios.core.remote.continuations import Continuation
from dios.core.remote.lease_table import LeaseTable
from dios.core.remote.name_index import Link, NameIndex, Share
from dios.core.remote.version_cache import VersionCache
from dios.core.remote.watermark import Watermark
from dios.ids import Name, NodeId, ObjectId, Principal, RefId, TaskId, Ticket
from dios.wire import dcp, messages
from dios.wire.call_table import Exemption, kinds
from dios.wire.dcp_table import RequestFlag, requests_with
from dios.wire.gossip import MemberRow
from dios.wire.mandates import Mandate
from dios.wire.node_roles import NodeRight, has_right
from dios.wire.types import Fitness, Mode, NodeStatus, Persistence, Proximity, SecretState

_LASTING: Final[frozenset[type]] = requests_with(RequestFlag.LASTING) | kinds(
    lambda row: Exemption.LASTING in row.exemptions
)

Mandates: TypeAlias = dict[Principal, tuple[Mandate, ...]]
"""The mandates of users for one node."""

RememberedEffect: TypeAlias = effects.Reply | effects.AnswerVector | effects.AnswerAttach | effects.Send


class Here(Struct, frozen=True):
    """The properties of this node. Its id is 0 if it is not in a cluster.

    ``secret`` is the cluster's secret. ``cpus`` and ``memory_bytes`` are the node's resources for tasks;
    ``disk_io`` and ``network`` are the bytes per second that they carry, 0 while that is unknown.
    ``slots`` is the maximum number of running tasks. Placement constraints refer to ``labels``.
    ``coordinator`` is True if a coordinator runs here or will start soon. ``processors`` are the numbers of
    the processors that pinned tasks can have. ``enforcement`` names resources, each with the reason why a
    task cannot be held to its part of it here, or an empty text if it can.
    ``cache_bytes`` is the maximum for kept versions of other nodes' objects, 0 to keep none. With ``leases``,
    the node grants leases on its objects, and asks other nodes for some.
    ``devices`` are those that tasks may ask for. ``threads`` are the same processors with the parts
    of the machine that they are in. With ``limbo_from_nodes``, tasks of other nodes may start limbo tasks
    here. ``roles`` are those in its certificate, and ``cluster``
    is the SHA-256 of the certificate of the cluster's root, and ``key`` that of this node's public key. If
    ``signed``, other nodes may act only for principals that are enrolled.
    """

    node: NodeId = NodeId(0)
    epoch: int = 0
    name: str = ""
    rack: str = ""
    address: str = ""
    secret: bytes = b""
    cpus: int = 1
    memory_bytes: int = 0
    disk_io: int = 0
    network: int = 0
    slots: int = limits.TASKS_MAX
    labels: tuple[tuple[str, str], ...] = ()
    coordinator: bool = False
    processors: tuple[int, ...] = ()
    enforcement: tuple[tuple[str, str], ...] = ()
    cache_bytes: int = 0
    leases: bool = True
    devices: tuple[messages.Device, ...] = ()
    threads: tuple[messages.ThreadPlace, ...] = ()
    limbo_from_nodes: bool = False
    roles: str = ""
    cluster: bytes = b""
    key: bytes = b""
    signed: bool = False


class PendingRequest:
    """A request without an answer so far. ``then`` is None if the answer does not matter.

    ``mandates`` go with it, and ``presented`` are those that its node has after its answer.

    ``call`` is the waiting call that it is for, or None. A request that ``is_lasting`` may wait at the other
    node for as long as a task runs. The number is negative until the request is opened.
    """

    __slots__ = (
        "body",
        "call",
        "confirmed",
        "confirmed_ns",
        "confirmed_until",
        "is_lasting",
        "mandates",
        "moving_since",
        "number",
        "peer",
        "presented",
        "principal",
        "repeat_at",
        "repeats",
        "sent",
        "silent_since",
        "source",
        "then",
        "version",
    )

    ADDED_FIELDS: ClassVar[Mapping[str, object]] = {"mandates": (), "presented": ()}
    """Fields that snapshots of earlier releases lack, with their values."""

    def __init__(
        self,
        peer: Peer,
        body: dcp.RequestBody,
        then: Continuation | None,
        source: WriteSource | None,
        now: int,
        call: CallId | None = None,
    ) -> None:
        caller: dcp.Caller | None = getattr(body, "caller", None)
        self.number = 0
        self.peer: Final = peer
        self.call: Final = call
        self.principal: Final = Principal("" if caller is None else caller.principal)
        waiting = body.call if isinstance(body, dcp.Forward) else body
        self.is_lasting: Final = type(waiting) in _LASTING
        self.body: Final = body
        self.then: Final = then
        self.source: Final = source
        self.version = 0  # version of the object whose content is the source
        self.repeats = 0
        self.sent = False  # False as long as the node cannot have received it
        self.silent_since = now
        self.confirmed = False  # True once the node has reported that it has the request
        self.confirmed_ns = now
        self.confirmed_until = now  # while it is confirmed, it need not be repeated before this time
        self.moving_since = now  # the last time when its bytes, or those of the answer, were in transit
        self.repeat_at = now
        self.mandates: tuple[bytes, ...] = ()
        self.presented: tuple[bytes, ...] = ()


class RequestQueue:
    """The requests to one node that are not sent yet, because too many are open.

    They are in order for each principal, and principals take turns.
    """

    __slots__ = ("_by_principal", "_principals", "next_key")

    def __init__(self) -> None:
        self._by_principal: dict[Principal, dict[int, PendingRequest]] = {}
        self._principals: dict[int, Principal] = {}
        self.next_key = -1

    def __len__(self) -> int:
        return len(self._principals)

    def __iter__(self) -> Iterator[PendingRequest]:
        return (request for own in self._by_principal.values() for request in own.values())

    def has(self, principal: Principal) -> bool:
        """Return True if requests of this principal wait."""
        return principal in self._by_principal

    def put(self, request: PendingRequest) -> None:
        """Append a request, and give it a negative number until it is opened."""
        request.number = self.next_key
        self.next_key -= 1
        self._by_principal.setdefault(request.principal, {})[request.number] = request
        self._principals[request.number] = request.principal

    def take(self, number: int) -> PendingRequest | None:
        """Remove and return the request with this number; None if it does not wait here."""
        principal = self._principals.pop(number, None)
        if principal is None:
            return None
        own = self._by_principal[principal]
        taken = own.pop(number)
        if not own:
            del self._by_principal[principal]
        return taken

    def principals(self) -> list[Principal]:
        """Return the principals with waiting requests, in the order of their turns."""
        return list(self._by_principal)

    def first_of(self, principal: Principal) -> PendingRequest:
        """Return the first request of a principal."""
        return next(iter(self._by_principal[principal].values()))

    def take_turn(self, principal: Principal) -> PendingRequest:
        """Remove and return the first request of a principal, whose next turn comes after the others'."""
        own = self._by_principal.pop(principal)
        number = next(iter(own))
        taken = own.pop(number)
        del self._principals[number]
        if own:
            self._by_principal[principal] = own
        return taken


class CachedReply(NamedTuple):
    """An answer that was sent: the effect, the versions of the objects that it reads, and the next ticket."""

    effect: RememberedEffect
    versions: tuple[tuple[ObjectId, int], ...]
    ticket: Ticket


class Proxy(PhysicalObject):
    """The record of an object of another node. ``order`` is the number of the newest message about it."""

    __slots__ = ("called_back", "ended", "ends", "epoch", "lost", "order", "stored")

    def __init__(self, peer: Peer, public: messages.Reference, proximity: Proximity) -> None:
        super().__init__(
            ObjectId(public.object),
            public.type,
            None,
            (),
            Principal(""),
            deletion=public.deletion,
            buffering=public.buffering,
            proximity=proximity,
            shown=public.fingerprint,
            secrecy=public.secrecy,
        )
        self.home = peer.node
        self.place = (peer.name, peer.rack)
        self.order = 0
        self.epoch = 0  # the start of the node in which it sent the message with this number
        self.ends: dict[RefId, Mode] = {}  # of a stream: the ends that references of this node have taken
        self.stored = public.persistence
        self.called_back = 0  # the last time when its node called the leases on it back
        self.lost = False  # for tasks: treated as ended for good, even if the task's node returns
        self.ended: messages.TaskRow | None = None  # for tasks: the end that the task's node has reported
        self.learn(public)

    @property
    def persistence(self) -> Persistence:
        """The persistence that the object's node reported."""
        return self.stored

    @property
    def gone(self) -> bool:
        """Return True if the object was deleted, or is a lost task, whose exit status can be read."""
        return self.zombie or self.lost

    def learn(self, public: messages.Reference) -> None:
        """Copy the counters from an answer."""
        self.size, self.v_r, self.v_w = public.size, public.v_r, public.v_w
        self.a_r, self.a_w = public.a_r, public.a_w
        self.stored = public.persistence
        self.address = public.address


class Peer:
    """Another node: the requests to it without an answer, and the cached answers to its own requests.

    ``epoch`` is 0 before the first contact. ``reconciled_epoch`` is the node's epoch at the time when it
    granted the references that this node holds.
    """

    __slots__ = (
        "address",
        "admitted",
        "answers",
        "asked",
        "connected",
        "cut_off",
        "dead_since",
        "epoch",
        "excused_until",
        "granted",
        "guesses",
        "handing_over",
        "heard_ns",
        "key",
        "lasting",
        "link",
        "lost",
        "mandates",
        "met",
        "name",
        "next_number",
        "node",
        "notices",
        "order_out",
        "presented",
        "proxies",
        "rack",
        "reconcile_missing",
        "reconcile_round",
        "reconciled_epoch",
        "reconciled_ns",
        "reconciled_unshared",
        "remote_tasks",
        "requests_unnamed",
        "roles",
        "settled",
        "share",
        "unsent_brief",
        "unsent_lasting",
        "unsettled",
        "version",
        "working_at",
        "working_ms",
        "working_since",
    )

    ADDED_FIELDS: ClassVar[Mapping[str, object]] = {
        "admitted": {},
        "key": b"",
        "mandates": {},
        "presented": {},
        "roles": "",
    }
    """Fields that snapshots of earlier releases lack, with their values."""

    def __init__(self, node: NodeId) -> None:
        self.node: Final = node
        self.name = ""
        self.rack = ""
        self.address = ""
        self.epoch = 0
        self.reconciled_epoch = 0
        self.reconciled_ns: int | None = None  # when its first reconciliation round was complete
        self.reconciled_unshared = 0  # the number of rounds since something was shared with it
        self.reconcile_round = 0  # the number of reconciliation rounds that were sent to it
        self.reconcile_missing = 0  # the number of answers to the last round that are still missing
        self.version = 0  # of the messages that both nodes speak; 0 before the first contact
        self.roles = ""  # by its certificate; empty before the first contact
        self.key = b""  # the SHA-256 of its public key, by its certificate
        self.connected = False
        self.met = False  # True if the node itself reported its epoch on a connection
        self.cut_off = False  # True if nothing arrives from it, although it may be alive
        self.heard_ns = 0
        self.excused_until = 0  # silence before this moment says nothing: the node replaces its program
        self.dead_since: int | None = None
        self.lost: list[TaskId] = []  # tasks on the node that were treated as lost
        self.asked: dict[int, PendingRequest] = {}
        self.lasting: dict[Principal, int] = {}  # the number of lasting ones, by principal
        self.unsent_brief = RequestQueue()
        self.unsent_lasting = RequestQueue()
        self.next_number = 1
        self.answers: dict[int, CachedReply | None] = {}
        self.granted: dict[int, list[Reference]] = {}  # for each of its unsettled requests
        self.working_at: int | None = None  # when its requests that wait here are reported to it next
        self.working_ms = 0  # the time between the last report and the next one
        self.working_since = 0  # the highest number of a request at the last report
        self.unsettled: set[RefId] = set()  # the ids of all of these
        self.requests_unnamed = 0  # requests since the last one that named the waiting requests
        self.settled = Watermark()
        self.order_out = 0
        self.remote_tasks: dict[TaskId, RemoteTask] = {}
        self.guesses = 0  # the number of them that rest on other nodes' words
        self.handing_over = 0  # references of its tasks that third nodes have not confirmed
        self.proxies: dict[ObjectId, Proxy] = {}
        self.notices: dict[bytes | int, dcp.RequestBody] = {}  # unconfirmed notices that it must receive
        self.mandates: Mandates = {}  # with which the node acts for users
        self.admitted: dict[tuple[Principal, int], int] = {}  # until when, by principal and purposes
        self.presented: dict[bytes, None] = {}  # mandates of this node, and extensions, that it has
        self.link = Link()  # the names of this node that are registered there
        self.share = Share()  # the names of the other node that are registered here

    def is_reachable(self, *, on_demand: bool) -> bool:
        """Return True if a request would be sent to the node now, or after connecting ``on_demand``."""
        return (
            (self.connected or on_demand) and self.epoch > 0 and self.dead_since is None and not self.cut_off
        )

    def may_open(self, request: PendingRequest) -> bool:
        """Return True if there is room for one more open request to the node.

        A principal may have as many lasting requests open as there is room for more. So one principal alone
        uses half of the room, and there is room left for a newcomer, and for the brief requests that end
        lasting ones.
        """
        room = limits.DCP_REQUESTS_MAX - len(self.asked)
        return room > (self.lasting.get(request.principal, 0) if request.is_lasting else 0)

    def open(self, request: PendingRequest) -> None:
        """Number a request, and add it to those without an answer."""
        request.number = self.next_number
        self.next_number += 1
        self.asked[request.number] = request
        if request.is_lasting:
            self.lasting[request.principal] = self.lasting.get(request.principal, 0) + 1

    def take(self, number: int) -> PendingRequest | None:
        """Remove and return a request, open or not sent yet; None if there is none with this number."""
        if number < 0:
            return self.unsent_lasting.take(number) or self.unsent_brief.take(number)
        taken = self.asked.pop(number, None)
        if taken is not None and taken.is_lasting:
            self.lasting[taken.principal] -= 1
            if not self.lasting[taken.principal]:
                del self.lasting[taken.principal]
        return taken

    def next_to_open(self) -> PendingRequest | None:
        """Remove and return an unsent request that has room now, or None."""
        for queue in (self.unsent_brief, self.unsent_lasting):
            for principal in queue.principals():
                if self.may_open(queue.first_of(principal)):
                    return queue.take_turn(principal)
        return None

    def note_granted(self, number: int, reference: Reference) -> None:
        """Note a reference that a task of the node gets from a request of the node.

        Until the request is settled, the node may not have the answer and cannot report the reference.
        """
        if number in self.answers:
            self.granted.setdefault(number, []).append(reference)
            self.unsettled.add(reference.id)

    def forget_answer(self, number: int, now: int) -> None:
        """Forget the answer to a settled request; the references that it gave count as new from now on."""
        del self.answers[number]
        for reference in self.granted.pop(number, ()):
            reference.granted_ns = now
            self.unsettled.discard(reference.id)

    def numbers_to_name(self) -> tuple[int, ...]:
        """Return the numbers to name in a request to the node: all requests without an answer, or none.

        The result is empty if ``settled`` alone is exact. Long lists go with few requests, so that a request
        names about ``DCP_OPEN_NUMBERS_PER_REQUEST`` numbers on average.
        """
        self.requests_unnamed += 1
        if self.next_number - next(iter(self.asked)) == len(self.asked):
            return ()
        if self.requests_unnamed <= len(self.asked) // limits.DCP_OPEN_NUMBERS_PER_REQUEST:
            return ()
        self.requests_unnamed = 0
        return tuple(self.asked)


class Cluster:
    """The state of the cluster as this node knows it."""

    __slots__ = (
        "_moments",
        "cache",
        "collect_at",
        "dead",
        "disbanded",
        "due_at",
        "enrolled",
        "grace_ends",
        "here",
        "index",
        "leases",
        "mandates",
        "membership",
        "peers",
        "place",
        "placed",
        "placement",
        "publish_at",
        "reconcile_at",
        "register",
        "reported",
        "resumed_ns",
        "rows_version",
        "seen_ns",
        "since",
        "small_versions",
        "to_publish",
        "to_release",
        "unclaimed",
        "versions",
        "withheld",
        "working_at",
    )

    ADDED_FIELDS: ClassVar[Mapping[str, object]] = {
        "enrolled": {},
        "mandates": {},
        "register": b"",
        "withheld": frozenset(),
    }
    """Fields that snapshots of earlier releases lack, with their values."""

    def __init__(self, here: Here, membership: Membership, placement: Placement) -> None:
        self.here = here
        self.place = (here.name, here.rack)
        self.placement: Final = placement
        self.membership: Final = membership
        self.peers: Final[dict[NodeId, Peer]] = {}
        self.index: Final = NameIndex(here.secret)
        self.versions: Final = VersionCache(here.cache_bytes)
        small_bytes = min(here.cache_bytes, limits.SMALL_CACHE_BYTES_MAX) if here.leases else 0
        self.small_versions: Final = VersionCache(small_bytes, 1, limits.SMALL_CACHE_VERSIONS_MAX)
        self.leases: Final = LeaseTable(enabled=here.leases)
        self.to_publish: dict[ObjectId, PhysicalObject] = {}
        self.publish_at: int | None = None
        self.to_release: dict[tuple[NodeId, TaskId], list[RefId]] = {}
        self.cache: dict[bytes, tuple[NodeId, ...]] = {}
        self.disbanded: dict[Name, None] = {}  # destroyed groups, which no message may create again
        self.register = b""  # of the enrolled principals, as its administrator signed it
        self.enrolled: dict[Principal, tuple[bytes, ...]] = {}  # their keys
        self.mandates: Mandates = {}  # with which this node acts for users at other nodes
        self.withheld: frozenset[NodeId] = frozenset()  # nodes that do not get the present secret
        self.unclaimed: deque[ObjectId] = deque()  # counted objects from before a restart of this node
        self.collect_at: int | None = None  # when those without references are collected
        self.dead: dict[NodeId, None] = {}  # the nodes that are known to be dead
        self.grace_ends: dict[NodeId, int] = {}  # when the remote tasks of a dead node end
        self.placed: dict[NodeId, tuple[int, int]] = {}  # version of a node's row, and tasks sent since
        self.since: dict[NodeId, int] = {}  # when a node's status last changed
        self.rows_version = 1  # counts the changes of the list of nodes in anything but the load
        self.due_at: int | None = None  # the time of the next timer, as of the last step
        self.seen_ns = 0  # the time of the last event
        self.resumed_ns = 0  # the end of the last stall of this node, from which silence of others counts
        self.reconcile_at: int | None = None
        self.working_at: int | None = None  # the earliest of the nodes' own
        self.reported: dict[NodeId, None] = {}  # the nodes with a working_at
        self._moments: list[tuple[int, NodeId, int]] = []

    def relabel(self, rack: str, labels: tuple[tuple[str, str], ...]) -> None:
        """Change the rack and the labels of this node."""
        self.here = replace(self.here, rack=rack, labels=labels)
        self.place = (self.here.name, rack)

    def charged(self) -> Iterator[Version]:
        """Iterate over the kept bytes of other nodes' objects as accounts count them."""
        yield from self.versions.charged()
        yield from self.small_versions.charged()

    def member_named(self, host: str) -> MemberRow | None:
        """Return the row of the node with this id or name, or None.

        Gossip alone does not prove a name: a node that was connected, and had a certificate, comes first.
        """
        membership = self.membership
        own = membership.own
        if host == f"{own.node:x}":
            return own
        with_id = membership.with_id(host)
        if with_id is not None:
            return with_id
        named = membership.named(host)
        if own.name == host:
            named.insert(0, own)
        for row in named:
            peer = self.peers.get(row.node)
            if row.node == self.here.node or (peer is not None and peer.met):
                return row
        return named[0] if named else None

    def peer(self, node: NodeId) -> Peer:
        """Return the record of a node. Create it if there is none."""
        peer = self.peers.get(node)
        if peer is None:
            if len(self.peers) >= limits.PEERS_MAX:
                self._forget_unused()
            peer = self.peers[node] = Peer(node)
            # Answers to requests of an earlier start may still arrive. Their numbers must not be in use.
            peer.next_number += self.here.epoch * limits.REQUESTS_PER_EPOCH
            peer.notices.update((name, dcp.Disband(name)) for name in self.disbanded)
        return peer

    def _forget_unused(self) -> None:
        """Forget nodes that have left the membership table and have no state here."""
        for node, peer in list(self.peers.items()):
            busy = peer.connected or peer.remote_tasks or peer.proxies or peer.asked
            if not busy and node not in self.membership.members:
                for table in (self.peers, self.since, self.placed, self.grace_ends, self.dead):
                    table.pop(node, None)

    def living(self) -> Iterator[Peer]:
        """Iterate over the nodes that are not known to be dead, by id."""
        for member in self.membership.alive():
            peer = self.peers.get(member.node)
            if peer is not None:
                yield peer

    def any_dead(self) -> bool:
        """Return True if a member is not known to live, so that answers of all nodes may be incomplete."""
        return any(node in self.membership.members for node in self.dead)

    def proximity_of(self, node: NodeId) -> Proximity:
        """Return RACK if both nodes report the same rack, else CLUSTER."""
        peer = self.peers.get(node)
        near = peer is not None and peer.rack and peer.rack == self.here.rack
        return Proximity.RACK if near else Proximity.CLUSTER

    def row_of(self, now: int, member: MemberRow) -> messages.NodeRow:
        """Return the row of a member for users."""
        clock = self.membership.clock_of(now, member.node)
        peer = self.peers.get(member.node)
        is_here = member.node == self.here.node
        roles = self.here.roles if is_here else "" if peer is None else peer.roles
        return messages.NodeRow(
            member.node,
            member.name,
            member.rack,
            member.address,
            NodeStatus(member.status),
            member.draining,
            member.epoch,
            self.since.get(member.node, 0),
            member.load.tasks,
            member.load.cpus,
            member.load.memory_bytes,
            is_here,
            member.coordinated and has_right(roles, NodeRight.SCHEDULE),
            member.labels,
            None if clock is None else messages.ClockReading(*clock),
            member.fitness,
            member.barred,
            roles,
            self._secret_of(member),
        )

    def _secret_of(self, member: MemberRow) -> SecretState:
        """Return whether a member has the present secret, which this node lacks after a removal."""
        if member.node == self.here.node:
            is_due = any(node not in self.withheld for node in self.membership.forgotten)
            return SecretState.WAITING if is_due else SecretState.CURRENT
        if member.secrets == self.membership.own.secrets:
            return SecretState.CURRENT
        return SecretState.WAITING if member.status is NodeStatus.ALIVE else SecretState.UNKNOWN

    def name_of(self, node: NodeId) -> str:
        """Return the name of a node; 0 is this node."""
        if node in {0, self.here.node}:
            return self.here.name
        member = self.membership.members.get(node)
        return f"node {node}" if member is None else member.name

    # -- placement ----------------------------------------------------------------------------------
    def expected_load(self, member: MemberRow) -> MemberRow:
        """Return a node's row with the tasks added that were sent to it since its last load report."""
        version, count = self.placed.get(member.node, (0, 0))
        if version != member.version or not count:
            return member
        return replace(member, load=replace(member.load, tasks=member.load.tasks + count))

    def is_unfit(self, node: NodeId) -> bool:
        """Return True if a node is known to be unable to run pure tasks."""
        member = self.membership.members.get(node)
        return member is not None and member.fitness is Fitness.UNFIT

    def note_placed(self, node: NodeId) -> None:
        """Count a task that was sent to a node."""
        member = self.membership.members.get(node)
        if member is not None:
            version, count = self.placed.get(node, (0, 0))
            self.placed[node] = (member.version, count + 1 if version == member.version else 1)

    # -- timers -------------------------------------------------------------------------------------
    def repeat_later(self, request: PendingRequest, at: int) -> None:
        """Schedule the next repeat of a request, or the end of its timeout."""
        request.repeat_at = at
        heapq.heappush(self._moments, (at, request.peer.node, request.number))
        if len(self._moments) > limits.STALE_TIMERS_MAX:
            open_requests = sum(len(peer.asked) for peer in self.peers.values())
            if len(self._moments) > 2 * open_requests + limits.STALE_TIMERS_MAX:
                self._moments = [entry for entry in self._moments if self._open_request(entry) is not None]
                heapq.heapify(self._moments)

    def due(self, now: int, most: int) -> list[PendingRequest]:
        """Return at most ``most`` requests whose time has come. They remain open."""
        due_requests: list[PendingRequest] = []
        while self._moments and self._moments[0][0] <= now and len(due_requests) < most:
            request = self._open_request(heapq.heappop(self._moments))
            if request is not None:
                due_requests.append(request)
        return due_requests

    def next_moment(self) -> int | None:
        """Return the time of the next timer, or None if no timer is set."""
        while self._moments and self._open_request(self._moments[0]) is None:
            heapq.heappop(self._moments)
        earliest = self._moments[0][0] if self._moments else None
        for moment in (
            self.membership.next_tick,
            self.publish_at,
            self.collect_at,
            min(self.grace_ends.values()) if self.grace_ends else None,
            self.reconcile_at,
            self.working_at,
            self.index.next_moment(),
            self.leases.next_moment(),
        ):
            if moment is not None and (earliest is None or moment < earliest):
                earliest = moment
        return earliest

    def _open_request(self, entry: tuple[int, NodeId, int]) -> PendingRequest | None:
        peer = self.peers.get(entry[1])
        request = None if peer is None else peer.asked.get(entry[2])
        return request if request is not None and request.repeat_at == entry[0] else None
