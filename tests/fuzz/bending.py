"""Invalid frames: in a field, in a size, in their bytes, or in their length.

Most of them cost their connection; none may affect anyone else. Valid messages are made in ``frames``.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Final

from dios import limits
from dios.wire.codec import PROTOCOL_VERSION
from tests.fuzz.frames import HELLO, VECTOR, Frames, framed
from tests.fuzz.known import Plain

_PREFIX: Final = struct.Struct("<I")

WRONG: Final[tuple[object, ...]] = (
    None,
    True,
    -1,
    2**63,
    2**64 - 1,
    1.5,
    float("nan"),
    "text",
    b"",
    b"x" * 31,
    [],
    [[]],
    {},
    {"a": 1},
)
BOMBS: Final = (
    b"\xdd\xff\xff\xff\xff",  # an array of 2**32 - 1
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xc6\xff\xff\xff\xff",  # binary of as many
    b"\xdb\xff\xff\xff\xff",  # text of as many
    b"\xc9\xff\xff\xff\xff\x05",  # an extension of as many
    b"\xdc\xff\xff",
    b"\x92\x01\xdd\x00\xff\xff\xff",
    b"\xd4\xff\x00",
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a time stamp out of any calendar
    b"\xc1",
)


class Bent:
    """A source of invalid frames, made from the valid ones of ``source``."""

    def __init__(self, rng: Random, source: Frames) -> None:
        self._rng: Final = rng
        self._source: Final = source

    def frame(self) -> bytes:
        """Return a whole frame, with its length, that is invalid in one way."""
        return self._rng.choice(self._BENDS)(self)

    def _wrong_field(self) -> bytes:
        call = self._source.call()
        place = int(self._rng.random() * len(call))
        call[place] = WRONG[int(self._rng.random() * len(WRONG))]
        return framed(self._source.request(call, ()))

    def _too_much(self) -> bytes:
        """Return a message with a field, list or text just over its limit, or one field too many."""
        many: tuple[Plain, ...] = (
            [*self._source.call(), *[0] * 12],
            [VECTOR, [[30, 1]] * (limits.VECTOR_CALLS_MAX + 1)],
            [VECTOR, []],
            [VECTOR, [[VECTOR, [[30, 1]]]]],
            [VECTOR, [[HELLO, 1]]],
            [2, b"x" * (limits.NAME_BYTES + 1)],
            [21, 1, b"x" * (limits.INLINE_BYTES_MAX + 1)],
            [14, [1] * (limits.SELECT_REFERENCES_MAX + 1)],
            [14, []],
            [1, 3, [1] * (limits.GROUPS_PER_CALL_MAX + 1)],
            [5, 1, [], [], [], ["x"] * (limits.ARGUMENTS_MAX + 1)],
            [5, 1, [], [], [], ["x" * (limits.TEXT_BYTES_MAX + 1)]],
            [HELLO, PROTOCOL_VERSION],
            [HELLO, 2**63 - 1],
        )
        return framed(self._source.request(self._rng.choice(many), ()))

    def _flipped(self) -> bytes:
        body = bytearray(self._source.good())
        for _ in range(1 + self._source.rarely(6)):
            body[int(self._rng.random() * len(body))] = int(self._rng.random() * 256)
        return framed(bytes(body))

    def _cut(self) -> bytes:
        body = self._source.good()
        return framed(body[: int(self._rng.random() * len(body))])

    def _trailed(self) -> bytes:
        return framed(self._source.good() + self._rng.choice((b"\0", b"\xc0", b"\x91\x01")))

    def _wrong_length(self) -> bytes:
        body = self._source.good()
        length = self._rng.choice(
            (len(body) + 1, max(0, len(body) - 1), 0, limits.FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1, 1)
        )
        return _PREFIX.pack(length) + body

    def _nested(self) -> bytes:
        depth = self._rng.choice((100, 1_000, 5_000, 100_000, limits.FRAME_BYTES_MAX - 4))
        opener = self._rng.choice((b"\x91", b"\x81\x00", b"\x92\x01"))
        body = (opener * depth)[: limits.FRAME_BYTES_MAX - 4] + b"\xc0"
        return framed(self._rng.choice((b"", b"\x92\x01", b"\x92\x01\x93\x01")) + body)

    def _bomb(self) -> bytes:
        head = self._rng.choice(
            (b"", b"\x92\x01", b"\x92\x01\x92\x28", b"\x92\x01\x92\x0e", b"\x92\x01\x93\x15\x01")
        )
        return framed(head + self._rng.choice(BOMBS) + b"\0" * self._source.rarely(300))

    def _full(self) -> bytes:
        """Return a frame of the maximum length, or one byte more."""
        size = limits.FRAME_BYTES_MAX + self._rng.choice((0, 0, 1))
        return framed((b"\x92\x01\xc6" + struct.pack(">I", size - 7) + bytes(size))[:size])

    def _noise(self) -> bytes:
        return self._rng.randbytes(1 + self._source.rarely(400))

    def _no_text(self) -> bytes:
        return framed(b"\x92\x01\x98\x01\x03\x90\x00\xc0\x00\x01\xa4\xff\xfe\xc3\x28")

    _BENDS: Final = (
        _wrong_field,
        _wrong_field,
        _wrong_field,
        _too_much,
        _flipped,
        _flipped,
        _cut,
        _trailed,
        _wrong_length,
        _nested,
        _bomb,
        _full,
        _noise,
        _no_text,
    )
