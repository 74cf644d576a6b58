"""Lies about every field: messages between nodes, as plain trees, with one part wrong.

True messages come from ``tests.fuzz.dcp``, which makes them from the types, so that a new message is attacked
without a change here. A tree is encoded without a check, so that a lie need not fit its type.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from random import Random
from typing import Final, NamedTuple, TypeAlias, cast

import msgspec

from dios import limits
from dios.errors import ProtocolError
from dios.ids import NodeId
from dios.wire import dcp, gossip, messages
from dios.wire.types import Brand, NodeStatus
from tests.fuzz.dcp import ANSWERS, GOSSIPS, REQUESTS, Liar, Pools
from tests.support.wire.descriptions import members

Tree: TypeAlias = list[object]
Path: TypeAlias = tuple[int, ...]

ASK, REPLY, PUBLISHED, GOSSIP, HELLO, REVOKED = 40, 41, 42, 43, 44, 50
U63: Final = 2**63 - 1
_LENGTH: Final = struct.Struct("<I")
_pack: Final = msgspec.msgpack.Encoder().encode

INTEGERS: Final = (
    *(
        -1,
        0,
        1,
        2,
        7,
        255,
        256,
        4095,
        4096,
        2**31,
        2**32,
        2**40,
        2**53,
        2**62,
        U63,
        2**63,
        2**64 - 1,
        -(2**63),
    ),
    *(limits.BLOB_BYTES_MAX + 1, limits.DCP_REQUESTS_MAX + 1, limits.GOSSIP_VERSION_JUMP_MAX + 1),
)
FLOATS: Final = (float("nan"), float("inf"), -0.0, 1.5)
TEXTS: Final = (
    "",
    "\0",
    "n1",
    "a\nb",
    "../../etc",
    "\x1b]52;c;eA==\x07",
    "\u202e",
    "x" * 64,
    "x" * 300,
    "x" * (limits.TEXT_BYTES_MAX + 1),
    "\N{PILE OF POO}" * 1_100,
    "x" * 70_000,
)
BYTES: Final = (b"", b"x", bytes(31), bytes(32), bytes(33), b"\xff" * 4_096, bytes(70_000), b"\xc1")
OTHERS: Final[tuple[object, ...]] = (None, True, False, [], {}, [[]], {"a": 1}, {1: 2})
COUNTS: Final = (17, 257, 4_097, 60_000)
FORWARDED: Final = members(messages.PlainCall)
ADMINISTRATIVE: Final = frozenset(
    kind.__struct_config__.tag
    for kind in (
        messages.SetLimits,
        messages.SetNode,
        messages.LabelNode,
        messages.Govern,
        messages.Place,
        messages.Advise,
        messages.ReadQueue,
        messages.Report,
        messages.Run,
    )
)
"""Calls with which the nodes' own user rules: a member may make them in that user's name."""


class Lie(NamedTuple):
    """A frame, and the words for it in a report."""

    words: str
    frame: bytes


def framed(tree: object) -> bytes:
    """Return the frame of one message, given as a tree; nothing is checked."""
    body = _pack([tree])
    return _LENGTH.pack(len(body)) + body


def tree_of(value: object) -> object:
    """Return a message as a tree of plain values."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [tree_of(getattr(value, name)) for name in value.__struct_fields__]
        return fields if tag is None else [tag, *fields]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [tree_of(element) for element in value]
    return value


def paths(tree: object, before: Path = ()) -> Iterator[Path]:
    """Yield the place of every part of a tree, without the tree itself."""
    if isinstance(tree, list):
        for place, part in enumerate(tree):
            yield (*before, place)
            yield from paths(part, (*before, place))


def part_at(tree: object, path: Path) -> object:
    """Return the part at a place."""
    for place in path:
        tree = cast("Tree", tree)[place]
    return tree


class Lies:
    """A source of lies of one member. ``own`` is the principal in whose name a member may do everything."""

    def __init__(self, rng: Random, pools: Pools, row: gossip.MemberRow, own: str) -> None:
        self.rng: Final = rng
        self.pools: Final = pools
        self.row = row
        self.liar: Final = Liar(rng, pools)
        self.told: Final[Counter[str]] = Counter()
        self.victims: tuple[gossip.MemberRow, ...] = ()
        self.statement = b""
        self._own: Final = own
        self._serial = 0

    # -- true messages --------------------------------------------------------------------------------
    def number(self) -> int:
        """Return the number of the next request."""
        self._serial += 1
        return self._serial

    def _made(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        return self.liar._struct(kind)

    def any_tree(self) -> Tree:
        """Return a message of any type as a tree; every type is as likely as any other."""
        makers: tuple[Callable[[], object], ...] = (
            *[self.request_tree] * 4,
            self.forward_tree,
            self.forward_tree,
            lambda: [REPLY, self.liar._scalar("asked"), tree_of(self._made(self.rng.choice(ANSWERS)))],
            lambda: tree_of(self._made(dcp.Published)),
            self.revoked_tree,
        )
        return cast("Tree", self.rng.choice(makers)())

    def request_tree(self) -> Tree:
        """Return a request of any type."""
        body = self._made(self.rng.choice(REQUESTS))
        return [ASK, self.number(), 0, tree_of(body), []]

    def forward_tree(self) -> Tree:
        """Return any call of a task of this member."""
        caller = dcp.Caller(
            cast("dcp.Task", self.rng.randrange(70_000, 70_020)),
            "uid:4711",
            "f" * 12,
            self.rng.choice(list(Brand)),
        )
        call = self._made(self.rng.choice(FORWARDED))
        return [ASK, self.number(), 0, [1, tree_of(caller), tree_of(call), []], []]

    def revoked_tree(self) -> Tree:
        """Return a statement that removes nobody."""
        return [REVOKED, self.statement]

    # -- one part wrong -------------------------------------------------------------------------------
    def wrong(self, tree: Tree, name: str = "") -> tuple[str, Tree]:
        """Return words for a tree with one part replaced, and that tree."""
        rng = self.rng
        places = list(paths(tree))
        path = rng.choice(places)
        old = part_at(tree, path)
        new = self._instead(old)
        changed = cast("Tree", msgspec.msgpack.decode(_pack(tree)))
        holder = cast("Tree", part_at(changed, path[:-1]))
        holder[path[-1]] = new
        label = name or str(tree[0])
        self.told[f"{label}{list(path)}"] += 1
        return f"{label} {list(path)}: {_short(old)} became {_short(new)}", changed

    def _instead(self, old: object) -> object:
        rng = self.rng
        dice = rng.random()
        if dice < 0.06:
            return rng.choice(OTHERS)
        if dice < 0.1:
            return rng.choice(FLOATS)
        match old:
            case bool():
                return rng.choice((2, -1, 0, 1, None, "yes"))
            case int():
                return rng.choice(INTEGERS) if dice < 0.95 else rng.choice(TEXTS)
            case str():
                return rng.choice(TEXTS) if dice < 0.95 else rng.choice(BYTES)
            case bytes():
                return rng.choice(BYTES) if dice < 0.95 else rng.choice(TEXTS)
            case [first, *_]:
                if dice < 0.3:
                    return old[:-1]
                if dice < 0.5:
                    return [*old, rng.choice(INTEGERS)]
                if dice < 0.7:
                    return [*old, *old]
                return [first] * rng.choice(COUNTS)
            case []:
                return [rng.choice(INTEGERS)] * rng.choice((1, *COUNTS))
            case _:
                return rng.choice((0, "x", b"x", [0]))

    def lie(self) -> Lie:
        """Return a message between nodes with one part wrong, of any kind but gossip."""
        while True:
            tree = self.any_tree()
            words, changed = self.wrong(tree, name_of(tree))
            frame = framed(changed)
            if len(frame) <= limits.DCP_FRAME_BYTES_MAX and not self.conceded(changed):
                return Lie(words, frame)

    def gossip_tree(self, kind: type[msgspec.Struct] | None = None) -> Tree:
        """Return gossip of a kind, with this member's own row and rows of its victims."""
        rng = self.rng
        rows = (
            tuple(rng.choice(self.victims) for _ in range(rng.choice((0, 1, 1, 2)))) if self.victims else ()
        )
        ghosts = tuple(self._ghost() for _ in range(rng.choice((0, 0, 1))))
        number = rng.choice((1, 2, 2**40, U63))
        updates = (*rows, *ghosts)
        match kind or rng.choice(GOSSIPS):
            case gossip.Ping:
                message: gossip.GossipMessage = gossip.Ping(self.row, number, updates)
            case gossip.Ack:
                message = gossip.Ack(self.row, number, self._somebody(), updates)
            case gossip.PingRequest:
                message = gossip.PingRequest(self.row, number, self._somebody(), updates)
            case gossip.News:
                message = gossip.News(self.row, updates)
            case gossip.Digests:
                parts = tuple(rng.choice((0, rng.randrange(2**63))) for _ in range(limits.GOSSIP_DIGESTS))
                message = gossip.Digests(self.row, parts, rng.random() < 0.3, updates)
            case _:
                message = gossip.Table(self.row, updates, rng.random() < 0.3)
        return cast("Tree", tree_of(message))

    def _somebody(self) -> NodeId:
        everybody = [row.node for row in (*self.victims, self.row)]
        return self.rng.choice(everybody)

    def _ghost(self) -> gossip.MemberRow:
        node = NodeId(self.rng.randrange(1_000, 1_020))
        return gossip.MemberRow(node, f"g{node}", "", "127.0.0.1:1", 1, 0, self.rng.choice(list(NodeStatus)))

    def gossip_lie(self) -> Lie:
        """Return gossip with one part wrong."""
        while True:
            tree = self.gossip_tree()
            words, changed = self.wrong(tree, f"gossip {tree[0]}")
            frame = framed([GOSSIP, _pack(changed)])
            if len(frame) <= limits.DCP_FRAME_BYTES_MAX and not self.conceded_gossip(changed):
                return Lie(words, frame)

    def believable(self) -> Lie:
        """Return a message that fits its types and whose values are false."""
        while True:
            message = self.liar.valid_message()
            if isinstance(message, dcp.Gossip):
                continue
            tree = cast("Tree", tree_of(message))
            if not self.conceded(tree):
                return Lie(f"made {name_of(tree)}", framed(tree))

    def bent(self, message: dcp.Message) -> Lie:
        """Return a message that was sent before, with one or two leaves changed to values that are in use."""
        for _ in range(20):
            try:
                changed = self.liar.bent(message)
            except ProtocolError:
                break
            tree = cast("Tree", tree_of(changed))
            if not self.conceded(tree):
                return Lie(f"bent {name_of(tree)}", framed(tree))
        return self.believable()

    # -- the powers that a member has -------------------------------------------------------------------
    def conceded(self, tree: Sequence[object]) -> bool:
        """Return True for a message with which a member uses a power that the threat model concedes.

        It may speak as the nodes' own user, and it may remove other nodes.
        """
        match tree:
            case [int(tag), bytes(body), *_] if tag == GOSSIP:
                try:
                    told = msgspec.msgpack.decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    return False
                return isinstance(told, list) and self.conceded_gossip(told)
            case [int(tag), bytes(body), *_] if tag == REVOKED:
                try:
                    told = msgspec.msgpack.decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    return False
                return isinstance(told, list) and len(told) > 1 and bool(told[1])
            case [int(tag), _, _, list(body), *_] if tag == ASK and len(body) > 1:
                caller = body[1]
                acts = isinstance(caller, list) and len(caller) > 1 and caller[1] == self._own
                if not acts:
                    return False
                if body[0] == 1:
                    return any(call in ADMINISTRATIVE for call in _calls_in(body[2:3]))
                return bool(body[0] == 7)
            case _:
                return False

    def conceded_gossip(self, tree: Sequence[object]) -> bool:
        """Return True for gossip by which nodes are removed from the cluster."""
        return any(
            isinstance(part, list)
            and part
            and all(isinstance(number, int) and 1 <= number <= U63 for number in part)
            for part in tree
        )


def _calls_in(parts: Sequence[object]) -> Iterator[int]:
    """Yield the tags of all calls in a forwarded call, a vector's included."""
    for part in parts:
        if isinstance(part, list) and part and isinstance(part[0], int):
            yield part[0]
            if part[0] == 40 and len(part) > 1 and isinstance(part[1], list):
                yield from _calls_in(part[1])


def name_of(tree: Sequence[object]) -> str:
    """Return words for a message: its type, and that of what it carries."""
    inner = next(
        (part for part in tree[1:] if isinstance(part, list) and part and isinstance(part[0], int)), None
    )
    if inner is None or tree[0] not in {ASK, REPLY}:
        return f"{tree[0]}"
    deeper = inner[2] if tree[0] == ASK and inner[0] == 1 and len(inner) > 2 else None
    call = f"/{deeper[0]}" if isinstance(deeper, list) and deeper else ""
    return f"{tree[0]}/{inner[0]}{call}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:40]}… ({len(text)})"
