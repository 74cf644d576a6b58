"""The state of the index of names: which nodes have objects of a name, by digests that reveal no name.

Each name has ``limits.INDEX_COPIES`` index nodes. A node registers the names of its objects at them, and a
lookup asks them (``dios.core.remote.registration``, ``dios.core.remote.remote_lookup``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from heapq import nsmallest
from itertools import takewhile
from struct import pack, unpack
from typing import Final, NamedTuple

from blake3 import blake3

from dios import limits
from dios.core.effects import Effect
from dios.core.membership.live_view import LiveView
from dios.ids import InternalName, Name, NodeId, Ticket

_MS: Final = 1_000_000
_PLACE: Final = b"dios place of a name in the index\0"
_DIGEST: Final = b"dios digest of a name in the index\0"
_POINTS: Final = b"dios points of an index node\0"
_POINTS_OF_NODE: Final = 16
_REGISTRAR: Final = b"dios registrars of the index\0"


def pack_digests(digests: Iterable[int]) -> bytes:
    """Return digests as bytes, ``limits.INDEX_DIGEST_BYTES`` each."""
    numbers = tuple(digests)
    return pack(f">{len(numbers)}Q", *numbers)


def unpack_digests(packed: bytes) -> tuple[int, ...]:
    """Return the digests in a message; bytes after the last whole digest do not count."""
    count = len(packed) // limits.INDEX_DIGEST_BYTES
    return unpack(f">{count}Q", packed[: count * limits.INDEX_DIGEST_BYTES])


def registrars_of(members: int) -> int:
    """Return the number of nodes that have the index in a cluster of this size, about its square root."""
    count = limits.INDEX_REGISTRARS_MIN
    while count * count < members:
        count *= 2
    return min(count, members)


@lru_cache(maxsize=limits.PEERS_MAX)
def _score(node: NodeId) -> bytes:
    """Return the number by which a node is chosen as a registrar: the same everywhere, and random."""
    return blake3(_REGISTRAR + pack(">Q", node)).digest(8)


class Ring:
    """The index nodes of every name for one view of the members, by consistent hashing.

    ``members`` are the living nodes, this node included. Index nodes are chosen among the ``registrars``: in
    a small cluster all members, in a larger one those with the lowest hash. Nodes with the same ``view``, a
    digest of the registrars, agree on the index nodes of every name.
    """

    __slots__ = ("_nodes", "_points", "live", "members", "registrars", "view")

    def __init__(self, live: LiveView) -> None:
        self.members: Final = live.nodes
        self.live: Final = live.digest
        chosen = list(zip(live.nodes, live.epochs, strict=True))
        view, count = live.digest, registrars_of(len(chosen))
        if count < len(chosen):
            chosen = sorted(nsmallest(count, chosen, key=lambda member: _score(member[0])))
            view = blake3(_REGISTRAR + b"".join(pack(">QQ", *member) for member in chosen)).digest(len(view))
        self.registrars: Final = tuple(node for node, _ in chosen)
        self.view: Final = view
        placed: list[tuple[int, NodeId]] = []
        for node in self.registrars:
            points = blake3(_POINTS + pack(">Q", node)).digest(8 * _POINTS_OF_NODE)
            placed.extend((point, node) for point in unpack_digests(points))
        placed.sort()
        self._points: Final = [point for point, _ in placed]
        self._nodes: Final = [node for _, node in placed]

    @property
    def is_large(self) -> bool:
        """Return True if there are more nodes than one lookup would ask with the index."""
        return len(self.members) > limits.INDEX_COPIES + 1

    @property
    def is_partial(self) -> bool:
        """Return True if not every member has a part of the index."""
        return len(self.registrars) < len(self.members)

    def nodes_of(self, place: int) -> tuple[NodeId, ...]:
        """Return the index nodes for a place, which ``NameIndex.place`` gives for a name."""
        most = min(limits.INDEX_COPIES, len(self.registrars))
        nodes: dict[NodeId, None] = {}
        at = bisect_left(self._points, place)
        while len(nodes) < most:
            nodes[self._nodes[at % len(self._nodes)]] = None
            at += 1
        return tuple(nodes)


class Share:
    """The part of the index that another node has registered here.

    ``view`` is the view of the members under which that node registered it; it is valid only if it is
    ``complete``. ``order`` is the number of the newest message. With ``always``, the node has registered
    nothing and must be asked for every name.
    """

    __slots__ = ("always", "complete", "digests", "order", "view")

    def __init__(self) -> None:
        self.view = b""
        self.complete = False
        self.always = False
        self.order = 0
        self.digests: set[int] = set()


class Link:
    """The registration of this node's names at another node: one message at a time, in order.

    ``operations`` are the digests to add (True) and to remove (False) that were not sent yet. ``queued``
    counts all that were ever put there, and ``confirmed`` those that the other node has. Until it has
    confirmed a message with ``restart``, it may still answer from an earlier registration.
    """

    __slots__ = (
        "complete",
        "confirmed",
        "failed",
        "generation",
        "handed_over",
        "is_open",
        "operations",
        "order",
        "queued",
        "registered",
        "restart",
        "sent",
        "sent_ns",
        "stopped",
    )

    def __init__(self) -> None:
        self.generation = 0  # counts the restarts
        self.order = 0
        self.operations: deque[tuple[int, bool]] = deque()
        self.queued = 0
        self.confirmed = 0
        self.registered = 0  # digests that the other node has, about
        self.restart = True
        self.handed_over = False  # True if all names were queued since the restart
        self.complete = False  # True if the other node has confirmed that it has them all
        self.sent: int | None = None  # the number of operations in the open request, or None
        self.sent_ns = 0  # when that request was made
        self.failed = False  # True if the last request failed
        self.stopped = True  # True until a request is made again, or for the first time
        self.is_open = False  # True if the other node may have a registration of this node

    def begin(self) -> None:
        """Begin again: the other node will drop what it has."""
        self.is_open = True
        self.generation += 1
        self.operations.clear()
        self.queued = self.confirmed = self.registered = 0
        self.restart = True
        self.handed_over = self.complete = self.stopped = False

    def fail(self) -> None:
        """Note that the other node does not answer."""
        self.generation += 1
        self.operations.clear()
        self.handed_over = self.complete = False
        self.failed = self.stopped = True

    def close(self) -> None:
        """Note that the other node has no names of this node, and needs none."""
        self.is_open, self.stopped = False, True

    def put(self, digest: int, *, is_added: bool) -> None:
        """Queue the registration of a name, or its removal."""
        self.operations.append((digest, is_added))
        self.queued += 1

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Remove the next operations; return the digests to add and to remove, each in one of the two."""
        last: dict[int, bool] = {}
        count = min(len(self.operations), limits.INDEX_DIGESTS_PER_MESSAGE)
        for _ in range(count):
            digest, is_added = self.operations.popleft()
            last[digest] = is_added
        self.sent = count
        added = tuple(digest for digest, is_added in last.items() if is_added)
        removed = tuple(digest for digest, is_added in last.items() if not is_added)
        self.registered = max(0, self.registered + len(added) - len(removed))
        return added, removed


class Registration(NamedTuple):
    """A name to be confirmed: its other index nodes, each with the count of operations up to it.

    ``enough`` is the number of those that suffice.
    """

    nodes: tuple[tuple[NodeId, int], ...]
    enough: int


class HeldAnswers:
    """Answers of a step that has named objects, until these names are registered and ``ticket`` is durable.

    ``request`` is the number of another node's request that is among those answered.
    """

    __slots__ = ("effects", "names", "request", "ticket")

    def __init__(
        self,
        effects: tuple[Effect, ...],
        ticket: Ticket,
        names: list[Registration],
        request: tuple[NodeId, int] | None,
    ) -> None:
        self.effects = effects
        self.ticket: Final = ticket
        self.names = names
        self.request: Final = request


class NameIndex:
    """This node's part in the index of names.

    ``current`` is the ring of the members as they were when it was needed last, ``announced`` the one under
    which this node registers its names; they differ for a moment after a change. ``own`` are the digests of
    this node's own names of which it is an index node itself. ``retiring`` are nodes that were index nodes
    before, and do not know yet that they are not. ``joined`` are the last nodes that came, with times.
    """

    __slots__ = (
        "_digest_key",
        "_place_key",
        "always",
        "always_asked",
        "announced",
        "check_at",
        "crowded",
        "current",
        "held",
        "joined",
        "members_at",
        "members_version",
        "own",
        "own_complete",
        "release_at",
        "retiring",
        "retry_at",
        "round",
        "round_at",
        "settled",
        "tells_all",
        "unregistered",
    )

    def __init__(self, secret: bytes) -> None:
        self._place_key: Final = blake3(_PLACE + secret).digest()
        self._digest_key: Final = blake3(_DIGEST + secret).digest()
        self.current: Ring | None = None
        self.announced: Ring | None = None
        self.round = 0  # counts the announcements
        self.always = False  # True if the others must ask this node for every name
        self.crowded = False  # True if this node has more names than another one accepts
        self.own: set[int] = set()
        self.own_complete = False
        self.settled: bool | None = None  # True if every name is registered here as it should be, if known
        self.unregistered: tuple[NodeId, ...] | None = None  # the nodes without a registration here, if known
        self.always_asked: dict[NodeId, None] = {}  # the nodes that must be asked for every name
        self.retiring: dict[NodeId, None] = {}
        self.tells_all = False  # True if all members must know that this node is always asked
        self.joined: dict[NodeId, int] = {}
        self.members_version = 0  # of the live view at the last change
        self.members_at: int | None = None  # when a change of the members has settled
        self.round_at: int | None = None  # when the next round begins
        self.retry_at: int | None = None  # time of the next requests to nodes that did not answer
        self.check_at: int | None = None  # time of the next check for lost requests
        self.held: deque[HeldAnswers] = deque()
        self.release_at: int | None = None  # time of the next check of late nodes

    def unsettle(self) -> None:
        """Forget whose names are registered here, because that may have changed."""
        self.settled = self.unregistered = None

    def note_joined(self, node: NodeId, now: int) -> None:
        """Note a node that joined, restarted or came back; more than the last ones need not be known."""
        self.joined.pop(node, None)
        self.joined[node] = now
        if len(self.joined) > limits.INDEX_RECENT_MAX + 1:
            del self.joined[next(iter(self.joined))]

    def recent(self, now: int) -> tuple[NodeId, ...] | None:
        """Return the nodes that came a short while ago, or None if there are many."""
        since = now - limits.INDEX_RECENT_MS * _MS
        nodes = tuple(takewhile(lambda node: self.joined[node] > since, reversed(self.joined)))
        return nodes if len(nodes) <= limits.INDEX_RECENT_MAX else None

    def place(self, name: Name) -> int:
        """Return the place of a name in the ring: the same for all groups."""
        return int.from_bytes(blake3(name, key=self._place_key).digest(8), "big")

    def digest(self, name: InternalName) -> int:
        """Return the digest under which an internal name is registered."""
        return int.from_bytes(blake3(name, key=self._digest_key).digest(8), "big")

    def holds(self, node: NodeId, number: int) -> bool:
        """Return True if the answer to this request of another node is held back."""
        return any(held.request == (node, number) for held in self.held)

    def next_moment(self) -> int | None:
        """Return the time of the next timer, or None."""
        earliest = None
        for moment in (self.members_at, self.round_at, self.retry_at, self.release_at, self.check_at):
            if moment is not None and (earliest is None or moment < earliest):
                earliest = moment
        return earliest
