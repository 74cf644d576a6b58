"""Classic BPF as the kernel runs it, in plain Python: what the assembler's programs are tried on.

Not for: speed, or programs that the kernel would not load: those raise ``AssertionError`` here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

ANCILLARY: Final = 0xFFFFF000
MASK: Final = 0xFFFFFFFF


_Load = Callable[[int, int], int]


class TooShortError(Exception):
    """A load goes beyond the packet; the kernel's answer is 0 then."""


def run(program: bytes, packet: bytes, ancillary: dict[int, int]) -> int:
    """What a program answers to a packet from its network header on, with what comes beside it."""
    lines = list(struct.iter_unpack("=HBBI", program))
    accumulator = index = 0
    memory: dict[int, int] = {}
    at = steps = 0

    def load(offset: int, size: int) -> int:
        if offset >= ANCILLARY:
            return ancillary[offset - ANCILLARY]
        if offset + size > len(packet):
            raise TooShortError
        return int.from_bytes(packet[offset : offset + size], "big")

    try:
        while True:
            code, yes, no, k = lines[at]
            at, steps = at + 1, steps + 1
            assert steps <= len(lines), "a program only goes forward"
            kind, size = code & 7, {0x00: 4, 0x08: 2, 0x10: 1}.get(code & 0x18, 0)
            if kind in (0, 1):
                loaded = _loaded(code, k, size, index, memory, load, len(packet))
                if kind == 0:
                    accumulator = loaded
                else:
                    index = loaded
            elif kind in (2, 3):
                assert k < 16
                memory[k] = accumulator if kind == 2 else index
            elif kind == 4:
                accumulator = _calculated(code & 0xF0, accumulator, index if code & 8 else k)
            elif kind == 5:
                if code & 0xF0 == 0:
                    at += k
                else:
                    other = index if code & 8 else k
                    met = {
                        0x10: accumulator == other,
                        0x20: accumulator > other,
                        0x30: accumulator >= other,
                        0x40: bool(accumulator & other),
                    }[code & 0xF0]
                    at += yes if met else no
            elif kind == 6:
                return accumulator if code & 0x18 == 0x10 else k
            elif code & 0xF8 == 0x80:
                accumulator = index
            else:
                index = accumulator
    except TooShortError:
        return 0


def _loaded(
    code: int, k: int, size: int, index: int, memory: dict[int, int], load: _Load, length: int
) -> int:
    mode = code & 0xE0
    if mode == 0x00:
        return k
    if mode == 0x20:
        return load(k, size)
    if mode == 0x40:
        return load(index + k, size)
    if mode == 0x60:
        return memory[k]  # the kernel refuses to load what was not kept before, on any way
    if mode == 0x80:
        return length
    assert mode == 0xA0
    return (load(k, 1) & 15) * 4


def _calculated(operation: int, accumulator: int, other: int) -> int:
    if operation in (0x30, 0x90):
        assert other, "the kernel divides by nothing but numbers"
        return accumulator // other if operation == 0x30 else accumulator % other
    computed = {
        0x00: lambda: accumulator + other,
        0x10: lambda: accumulator - other,
        0x20: lambda: accumulator * other,
        0x40: lambda: accumulator | other,
        0x50: lambda: accumulator & other,
        0x60: lambda: accumulator << (other & 31),
        0x70: lambda: accumulator >> (other & 31),
        0xA0: lambda: accumulator ^ other,
    }[operation]()
    return computed & MASK
