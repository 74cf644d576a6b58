"""Frames of every message type, with fields that are valid or nearly valid.

It imports only the wire format, and runs in three places: next to a node, inside a sandboxed task, and in
process before a core. The random generator decides everything, so that a seed repeats it and hypothesis can
shrink it. Frames that are not messages are in ``bending``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Final

import msgspec
from msgspec import inspect

from dios import limits
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION
from dios.wire.messages import AnyResult
from dios.wire.types import Flag, ObjectType
from tests.fuzz.known import CREATE, GRAVE, KEPT, KINDS, PROGRAMS, WEIGHTS, Known, Plain

MADE_BYTES_MAX: Final = limits.GIB
"""The largest size that a node may grant."""

BURST_SEQUENCE: Final = 2**62
"""Sequence numbers from here on are the attacker's marks; other frames never use them."""

VECTOR: Final = 40
HELLO: Final = 41

_PREFIX: Final = struct.Struct("<I")
_pack: Final = msgspec.msgpack.Encoder().encode

EDGES: Final = (
    *(0, 1, 2, 3, 255, 256, 4095, 4096, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1),
    *(limits.INLINE_BYTES_MAX, limits.INLINE_BYTES_MAX + 1, limits.INLINE_VALUE_BYTES_MAX + 1),
    *(limits.STREAM_RING_BYTES_MIN, limits.STREAM_RING_BYTES_MIN - 1, limits.STREAM_RING_BYTES_MAX + 1),
    *(limits.BLOB_BYTES_MAX, limits.BLOB_BYTES_MAX + 1, limits.BLOB_BYTES_MAX - 1),
)
_FLAGS: Final = (*Flag, Flag.RELEASE_COMMIT | Flag.NON_BLOCKING, Flag.DESTROY | Flag.HANDLE_ONLY)
_MAKEABLE: Final = (
    *[ObjectType.SHMEM_BLOB] * 8,
    *[ObjectType.SHMEM_STREAM] * 3,
    ObjectType.DURABLE_BLOB,
    ObjectType.PRIVMEM_BLOB,
    ObjectType.TIMER_BLOB,
    ObjectType.GROUP,
)
_BYTES: Final = bytes(range(256))
_NAMES: Final = (bytes(32), b"\xff" * 32, bytes(range(32)), b"a" * 32)


def framed(body: bytes) -> bytes:
    """Return a body with its length before it."""
    return _PREFIX.pack(len(body)) + body


def _plain(value: object) -> object:
    """Return a default value in its encoded form."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    return value


class Frames:
    """A source of frames for one attacker; with ``grave`` it may ask to stop the node and to set limits.

    ``runs`` is the share of its run calls that name a real program.
    """

    def __init__(self, rng: Random, known: Known, *, grave: bool = False, runs: float = 0.1) -> None:
        self.rng: Final = rng
        self.known: Final = known
        self._runs: Final = runs
        self._weights: Final = [
            0 if not grave and kind.call.__name__ in GRAVE else weight
            for kind, weight in zip(KINDS, WEIGHTS, strict=True)
        ]
        self._seq = 1
        self.sent: dict[int, Sequence[Plain]] = {}
        self._pair = (0, 0, False)
        self._by_name: Final = self._makers()

    # -- frames -------------------------------------------------------------------------------------
    def good(self) -> bytes:
        """Return the body of a valid message, which the node may refuse."""
        shape = self.rng.random()
        if shape < 0.06:
            return self._vector()
        call = self.call()
        return self.request(call, [call])

    def hello(self) -> bytes:
        """Return the body of a first message, rarely with groups of others."""
        groups = [self._name() for _ in range(self.rarely(3))]
        return _pack([1, [HELLO, PROTOCOL_VERSION, groups, "fuzz"]])

    def mark(self, number: int) -> bytes:
        """Return the body of a harmless call, whose answer shows that everything before it was read."""
        return _pack([BURST_SEQUENCE + number, [30, 1]])

    def answered(self, seq: int, result: AnyResult) -> None:
        """Learn from the reply to one of this source's frames."""
        calls = self.sent.pop(seq, None)
        if calls is not None:
            self.known.learn(calls, result)

    def request(self, call: Plain, calls: Sequence[Plain]) -> bytes:
        """Return the body of a message with the next number; its answer teaches about ``calls``."""
        rng = self.rng
        if rng.random() > 0.004:
            self._seq += 1
        if len(self.sent) > 4 * KEPT:
            self.sent.pop(next(iter(self.sent)))
        self.sent[self._seq] = calls
        return _pack([self._seq, call])

    def _vector(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.02:
            cheap = self.call()
            calls = [cheap] * rng.choice((limits.VECTOR_CALLS_MAX, 200))
        else:
            calls = [self.call() for _ in range(1 + self.rarely(24))]
        body = self.request([VECTOR, calls], calls)
        return body if len(body) <= limits.FRAME_BYTES_MAX else self.request(calls[0], calls[:1])

    # -- calls --------------------------------------------------------------------------------------
    def call(self) -> Plain:
        """Return any call, sometimes without its trailing defaults."""
        rng, known = self.rng, self.known
        # An attacker without references creates something first, because refusals alone lead nowhere.
        poor = len(known.refs) < 8 and rng.random() < 0.7
        kind = CREATE if poor else rng.choices(KINDS, self._weights)[0]
        if kind.paired:
            if known.buffers and rng.random() < 0.9:
                self._pair = known.buffers[int(rng.random() * len(known.buffers))]
            else:
                self._pair = (self._ref(), self._number(), False)
        by_name = self._by_name
        plain_call: Plain = [kind.tag]
        count = len(kind.fields)
        if rng.random() < 0.5:
            count = kind.required + int(rng.random() * (count - kind.required + 1))
        for field in kind.fields[:count]:
            if kind.paired and field.name in {"ref", "buffer"}:
                plain_call.append(self._pair[0 if field.name == "ref" else 1])
            elif field.name == "data":
                optional = isinstance(field.type, inspect.UnionType) and rng.random() < 0.2
                plain_call.append(None if optional else self._data())
            elif field.name in by_name:
                plain_call.append(by_name[field.name]())
            elif not field.required and rng.random() < 0.6:
                plain_call.append(_plain(field.default))
            else:
                plain_call.append(self.value(field.type))
        if kind.call is messages.Run and rng.random() > self._runs:
            plain_call[1] = self._number()
        return plain_call

    def value(self, kind: inspect.Type) -> object:
        """Return a value of a described type, mostly within its limits."""
        rng = self.rng
        match kind:
            case inspect.UnionType():
                return self.value(rng.choice(kind.types))
            case inspect.EnumType():
                members: list[Enum] = list(kind.cls)
                return rng.choice(members).value
            case inspect.IntType():
                return (
                    self._number()
                    if kind.le is None or kind.le > 2**32
                    else rng.randint(kind.ge or 0, kind.le)
                )
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.BytesType():
                return self._name() if kind.min_length == limits.NAME_BYTES else self._data()
            case inspect.StrType():
                return self._text()
            case inspect.VarTupleType():
                most = min(kind.max_length or 4, 4)
                count = max(kind.min_length or 0, self.rarely(most))
                return [self.value(kind.item_type) for _ in range(count)]
            case inspect.StructType():
                makers = self._by_name
                return [
                    makers[field.name]() if field.name in makers else self.value(field.type)
                    for field in kind.fields
                ]
            case _:
                return None

    def _makers(self) -> dict[str, Callable[[], object]]:
        return {
            "ref": self._ref,
            "executable": self._code,
            "like": lambda: 0 if self.rng.random() < 0.9 else self._of(self.known.tasks),
            "task": lambda: self._of(self.known.tasks),
            "group": lambda: 0 if self.rng.random() < 0.5 else self._of(self.known.groups),
            "groups": self._groups,
            "refs": lambda: [self._ref() for _ in range(1 + self.rarely(8))],
            "buffer": lambda: (
                self._of([pair[1] for pair in self.known.buffers]) if self.rng.random() < 0.3 else 0
            ),
            "name": self._name,
            "flags": self._flags,
            "size": self._size,
            "offset": self._size,
            "permissions": lambda: (
                self._number() if self.rng.random() < 0.05 else int(self.rng.random() * 32)
            ),
            "timeout_ns": lambda: None if self.rng.random() < 0.1 else int(self.rng.random() * 5_000_000),
            "lifetime_ns": lambda: 0 if self.rng.random() < 0.5 else int(self.rng.random() * 50_000_000),
            "seq": lambda: max(0, self._seq - int(self.rng.random() * 20)),
            "object_type": self._type,
            "host": lambda: "" if self.rng.random() < 0.95 else self._text(),
            "memory_bytes": lambda: 0 if self.rng.random() < 0.9 else self._number(),
            "limits": lambda: (
                [0] * int(self.rng.random() * 4) if self.rng.random() < 0.8 else [self._number()] * 3
            ),
        }

    # -- fields -------------------------------------------------------------------------------------
    def rarely(self, most: int) -> int:
        """Return a number that is mostly small, at most ``most``."""
        dice = self.rng.random()
        return int(dice * dice * dice * (most + 1))

    def _of(self, numbers: Sequence[int]) -> int:
        if numbers and self.rng.random() < 0.9:
            return numbers[int(self.rng.random() * len(numbers))]
        return self._ref()

    def _ref(self) -> int:
        known, dice = self.known, self.rng.random()
        if known.refs and dice < 0.9:
            return known.refs[int(self.rng.random() * len(known.refs))]
        if known.dead and dice < 0.93:
            return known.dead[int(self.rng.random() * len(known.dead))]
        if known.foreign and dice < 0.97:
            return self.rng.choice(known.foreign)
        return self._number()

    def _code(self) -> int:
        known = self.known
        return known.code[int(self.rng.random() * len(known.code))] if known.code else self._ref()

    def _type(self) -> int:
        dice = self.rng.random()
        if dice < 0.92:
            return int(_MAKEABLE[int(dice / 0.92 * len(_MAKEABLE))])
        return 1 + int(self.rng.random() * 11)

    def _groups(self) -> Plain:
        groups = self.known.groups
        if groups and self.rng.random() < 0.8:
            return [groups[int(self.rng.random() * len(groups))]]
        if self.rng.random() < 0.1:
            return [self._ref()] * limits.GROUPS_PER_CALL_MAX
        return [self._of(groups) for _ in range(self.rarely(4))]

    def _number(self) -> int:
        dice = self.rng.random()
        if dice < 0.6:
            return EDGES[int(self.rng.random() * len(EDGES))]
        return int(self.rng.random() * (1 << int(1 + self.rng.random() * 62)))

    def _size(self) -> int:
        dice = self.rng.random()
        if dice < 0.4:
            return 0
        number = int(self.rng.random() * 200) if dice < 0.85 else self._number()
        # Granted sizes are really allocated, and the machine has no room for the sum of all requests.
        return number if number <= MADE_BYTES_MAX else limits.BLOB_BYTES_MAX + 1 + number

    def _flags(self) -> int:
        dice = self.rng.random()
        if dice < 0.75:
            return 0
        if dice < 0.96:
            return int(self.rng.choice(_FLAGS))
        return self._number()

    def _name(self) -> bytes:
        names = self.known.names
        if names and self.rng.random() < 0.8:
            return names[int(self.rng.random() * len(names))]
        return _NAMES[int(self.rng.random() * len(_NAMES))]

    def _data(self) -> bytes:
        dice = self.rng.random()
        if dice < 0.2:
            return PROGRAMS[int(dice * 5 * len(PROGRAMS))]
        if dice < 0.97:
            return _BYTES[: int(self.rng.random() * 120)]
        size = self.rng.choice(
            (limits.INLINE_BYTES_MAX, limits.INLINE_BYTES_MAX - 1, limits.INLINE_VALUE_BYTES_MAX)
        )
        return b"\xc1" * size

    def _text(self) -> str:
        dice = self.rng.random()
        if dice < 0.9:
            return ("", "a", "local", "\n\x1b[2J\0", "é😀", "../../etc", "%s{0}")[int(dice / 0.9 * 7)]
        return "x" * self.rng.choice((limits.TEXT_BYTES_MAX, limits.TEXT_BYTES_MAX - 1, 1000))
