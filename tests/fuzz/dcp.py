"""Forged messages between nodes, made from the message types with meaningful ids.

The sender is a node with a certificate. The random generator decides everything, so that a seed repeats it.
Frames that are not messages are in ``bending``; ``dcp_simulation`` sends the messages to cores.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from random import Random
from typing import Final, cast

import msgspec
from msgspec import inspect

from dios import limits
from dios.errors import ProtocolError
from dios.wire import dcp, gossip
from dios.wire.codec import decode_message, encode_message
from tests.support.wire.descriptions import members

ATTEMPTS: Final = 40
NESTED_MAX: Final = 4
EDGES: Final = (
    *(-1, 0, 1, 2, 255, 4096, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63)),
    *(limits.REFERENCES_PER_TASK_MAX, limits.DCP_REQUESTS_MAX, limits.CONSOLE_TAIL_BYTES + 1),
)
SORTS: Final[dict[str, str]] = {
    **dict.fromkeys(("task", "child", "receiver", "tasks", "lost"), "task"),
    **dict.fromkeys(("node", "home", "target", "subject"), "node"),
    **dict.fromkeys(("ref", "refs", "first", "last", "self_ref", "console", "program"), "ref"),
    **dict.fromkeys(("object", "objects"), "object"),
    **dict.fromkeys(("number", "settled", "seq", "waiting"), "number"),
    **dict.fromkeys(("name", "group", "groups"), "name"),
    **dict.fromkeys(("names",), "internal"),
    **dict.fromkeys(("principal", "owner"), "principal"),
    **dict.fromkeys(("host", "rack", "address", "label", "fingerprint"), "text"),
    **dict.fromkeys(("buffer",), "buffer"),
    **dict.fromkeys(("epoch", "incarnation", "version", "order", "v_r", "v_w"), "small"),
    **dict.fromkeys(("permissions", "flags"), "bits"),
}
"""The sort of value in the fields with these names: a number, bytes or text."""

REQUESTS: Final = members(dcp.RequestBody)
ANSWERS: Final = members(dcp.Answer)
GOSSIPS: Final = members(gossip.GossipMessage)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _copied(plain: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(plain))


class Pools:
    """The ids, names and texts that are in use somewhere, by sort."""

    def __init__(self) -> None:
        self._by_sort: defaultdict[str, dict[object, None]] = defaultdict(dict)
        self.add("small", 0, 1, 2, 3)
        self.add("bits", 0, 1, 2, 4, 7, 31, 63, 2**40)
        self.add("stranger", *range(1_000, 1_100))
        self.add("text", "", "n1", "n2", "n3", "r1", "127.0.0.1:1")
        self.add("principal", "uid:1000", "uid:2000", "node", "")

    def add(self, sort: str, *values: object) -> None:
        """Store values of a sort; the oldest are dropped."""
        pool = self._by_sort[sort]
        for value in values:
            pool.pop(value, None)
            pool[value] = None
        while len(pool) > limits.PENDING_PER_TASK_MAX:
            del pool[next(iter(pool))]

    def of(self, sort: str) -> list[object]:
        """Return all known values."""
        return list(self._by_sort[sort])


class Liar:
    """A source of messages that any node can send."""

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng: Final = rng
        self.pools: Final = pools
        self._number = 1

    # -- whole messages -------------------------------------------------------------------------------
    def valid_message(self) -> dcp.Message:
        """Return a message that the codec accepts."""
        for _ in range(ATTEMPTS):
            try:
                return decode_message(encode_message(self._any()))
            except (ProtocolError, OverflowError):
                continue
        return dcp.Gossip(b"")

    def answer_of(self, kind: type[msgspec.Struct]) -> dcp.Message:
        """Return an answer of this kind that the codec accepts; few of the rarest kinds are."""
        while True:
            answer = cast("dcp.Answer", self._struct(kind))
            try:
                return decode_message(
                    encode_message(dcp.PeerReply(cast("int", self._scalar("asked")), answer))
                )
            except (ProtocolError, OverflowError):
                continue

    def _any(self) -> dcp.Message:
        dice = self.rng.random()
        if dice < 0.7:
            body = cast("dcp.RequestBody", self._struct(self.rng.choice(REQUESTS)))
            settled = self.rng.choice((0, 0, 0, self._number // 2))
            return dcp.Ask(self._next(), settled, body, self._waiting())
        if dice < 0.85:
            kind = self.rng.choice(ANSWERS)
            number = self._scalar("asked") if self.rng.random() < 0.98 else self._edge()
            return dcp.PeerReply(cast("int", number), cast("dcp.Answer", self._struct(kind)))
        if dice < 0.92:
            return cast("dcp.Published", self._struct(dcp.Published))
        told = cast("gossip.GossipMessage", self._struct(self.rng.choice(GOSSIPS)))
        return dcp.Gossip(gossip.encode(told) if dice < 0.99 else self.rng.randbytes(20))

    def _waiting(self) -> tuple[int, ...]:
        known = cast("list[int]", self.pools.of("number"))
        if not known or self.rng.random() < 0.9:
            return ()  # a node that names a high number is not answered any more
        return tuple(self.rng.choice(known) for _ in range(self.rng.choice((1, 4))))

    def _next(self) -> int:
        dice = self.rng.random()
        if dice > 0.05:
            self._number += 1
            return 2**40 + self._number
        return cast("int", self._number_of())

    def _number_of(self) -> object:
        return self._scalar("number") if self.rng.random() < 0.9 else self._edge()

    def bent(self, message: dcp.Message) -> dcp.Message:
        """Return a recorded message with one or two of its leaves changed."""
        if isinstance(message, dcp.Gossip) and message.message:
            return dcp.Gossip(self._bent_gossip(message.message))
        plain = msgspec.msgpack.decode(encode_message(message))
        other = msgspec.msgpack.decode(encode_message(self.valid_message()))
        for _ in range(ATTEMPTS):
            changed = cast("list[object]", _copied(plain))
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self._bend(changed, other)
            try:
                return decode_message(msgspec.msgpack.encode(changed))
            except (ProtocolError, OverflowError):
                continue
        return message

    def _bent_gossip(self, message: bytes) -> bytes:
        plain = msgspec.msgpack.decode(message)
        if self.rng.random() < 0.98:
            self._bend(plain, [0, "", []])
        return msgspec.msgpack.encode(plain)

    def _bend(self, branch: list[object], other: list[object]) -> None:
        """Change a leaf, or replace it by a part of another message."""
        while True:
            place = self.rng.randrange(len(branch))
            inside = branch[place]
            if not isinstance(inside, list) or not inside or self.rng.random() < 0.1:
                break
            branch = inside
        old = branch[place]
        if self.rng.random() < 0.05:
            branch[place] = _copied(self.rng.choice(other))
        elif isinstance(old, bool):
            branch[place] = not old
        elif isinstance(old, int):
            sort = self.rng.choice(("task", "node", "ref", "object", "number", "buffer", "small", "bits"))
            branch[place] = self.rng.choice((old + 1, self._edge(), self._scalar(sort), self._scalar(sort)))
        elif isinstance(old, bytes):
            branch[place] = self._scalar(self.rng.choice(("name", "internal")))
        elif isinstance(old, str):
            branch[place] = self._scalar(self.rng.choice(("text", "principal")))
        elif isinstance(old, list) and old:
            branch[place] = self.rng.choice((old[:-1], [*old, *old], old[::-1]))
        else:
            branch[place] = self._edge()

    # -- parts ------------------------------------------------------------------------------------------
    def _edge(self) -> int:
        return self.rng.choice(EDGES)

    def _scalar(self, sort: str) -> object:
        pool = self.pools.of(sort)
        if pool and self.rng.random() < 0.93:
            return self.rng.choice(pool)
        return {
            "name": self.rng.randbytes(32),
            "internal": self.rng.randbytes(32),
            "principal": f"uid:{self.rng.randrange(5)}",
            "text": "x" * self.rng.choice((0, 1, 40)),
        }.get(sort, self.rng.randrange(2**63))

    def _struct(self, kind: type[msgspec.Struct], depth: int = 0) -> msgspec.Struct:
        return kind(*(self._value(field.type, field.name, depth) for field in _fields(kind)))

    def _value(self, kind: inspect.Type, name: str, depth: int) -> object:
        rng = self.rng
        sort = SORTS.get(name, "")
        match kind:
            case inspect.IntType():
                if sort and rng.random() < 0.96:
                    return self._scalar(sort)
                value = rng.choice((0, 0, 1, 8, self._edge()))
                value = value if kind.ge is None else max(value, kind.ge)
                return value if kind.le is None else min(value, kind.le)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.NoneType():
                return None
            case inspect.StrType():
                return self._scalar(sort if sort in {"principal", "text"} else "text")
            case inspect.BytesType():
                if sort in {"name", "internal"}:
                    return self._scalar(sort)
                return rng.randbytes(max(kind.min_length or 0, rng.choice((0, 1, 5, 32))))
            case inspect.EnumType():
                return rng.choice(list(kind.cls))
            case inspect.UnionType():
                return self._value(rng.choice(kind.types), name, depth)
            case inspect.VarTupleType():
                count = 0 if depth > NESTED_MAX else rng.choice((0, 1, 1, 2, 3))
                return tuple(self._value(kind.item_type, name, depth + 1) for _ in range(count))
            case inspect.TupleType():
                names = (
                    ("ref", "object", "permissions", "own")
                    if len(kind.item_types) == 4
                    else ("object", "owner", "count")
                )
                return tuple(
                    self._value(item_type, part, depth)
                    for item_type, part in zip(kind.item_types, names, strict=False)
                )
            case inspect.DictType():
                return {}
            case inspect.StructType():
                return self._struct(kind.cls, depth + 1)
        raise AssertionError(f"nothing to say for {kind}")
