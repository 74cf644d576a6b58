"""A small assembler for classic BPF, the kernel's machine for choosing by a packet's bytes.

Not for: what is chosen (``fanout.py``), or eBPF.

A program is a list of lines; a jump names a label, which is a line of its own. Loads beyond the packet's
end make the kernel answer 0. Offsets count from the network header; ``ancillary`` ones are what came beside
the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

INSTRUCTIONS_MAX: Final = 4096
"""The kernel's own bound."""
JUMP_MAX: Final = 255
_INSTRUCTION: Final = struct.Struct("=HBBI")

LOAD: Final = 0x00
LOAD_X: Final = 0x01
STORE: Final = 0x02
STORE_X: Final = 0x03
ALU: Final = 0x04
JUMP: Final = 0x05
RETURN: Final = 0x06
MISC: Final = 0x07

WORD: Final = 0x00
HALF: Final = 0x08
BYTE: Final = 0x10

IMMEDIATE: Final = 0x00
ABSOLUTE: Final = 0x20
INDIRECT: Final = 0x40
MEMORY: Final = 0x60
HEAD_LENGTH: Final = 0xA0

BY_X: Final = 0x08
RETURN_A: Final = 0x10
TO_A: Final = 0x80

OPERATIONS: Final = {
    "add": 0x00,
    "sub": 0x10,
    "mul": 0x20,
    "div": 0x30,
    "or": 0x40,
    "and": 0x50,
    "lsh": 0x60,
    "rsh": 0x70,
    "mod": 0x90,
    "xor": 0xA0,
}
CONDITIONS: Final = {"always": 0x00, "equal": 0x10, "greater": 0x20, "any": 0x40}

ANCILLARY: Final = 2**32 - 0x1000
PROTOCOL: Final = 0
"""EtherType behind the tag that came beside the frame, if one did."""
_SIZES: Final = {1: BYTE, 2: HALF, 4: WORD}


@dataclass(frozen=True)
class Line:
    """An instruction; of a jump ``yes`` and ``no`` are labels, "" for the next line."""

    code: int
    k: int = 0
    yes: str = ""
    no: str = ""


@dataclass(frozen=True)
class Label:
    """A place in a program."""

    name: str


Program = list[Line | Label]


def load(offset: int, size: int, *, by_x: bool = False) -> Line:
    """A = so many bytes (1, 2 or 4) of the packet at an offset, or at X + offset."""
    return Line(LOAD | _SIZES[size] | (INDIRECT if by_x else ABSOLUTE), offset)


def ancillary(which: int) -> Line:
    """A = what the kernel knows of the packet."""
    return Line(LOAD | WORD | ABSOLUTE, ANCILLARY + which)


def constant(value: int) -> Line:
    """A = a number of 32 bits."""
    return Line(LOAD | IMMEDIATE, value)


def constant_x(value: int) -> Line:
    """X = a number of 32 bits."""
    return Line(LOAD_X | IMMEDIATE, value)


def head_length(offset: int) -> Line:
    """X = four times the lower half of the byte at an offset: the length of an IPv4 header."""
    return Line(LOAD_X | BYTE | HEAD_LENGTH, offset)


def store(place: int) -> Line:
    """Keep A in one of sixteen places."""
    return Line(STORE, place)


def fetch(place: int) -> Line:
    """A = what was kept."""
    return Line(LOAD | MEMORY, place)


def fetch_x(place: int) -> Line:
    """X = what was kept."""
    return Line(LOAD_X | MEMORY, place)


def to_x() -> Line:
    """X = A."""
    return Line(MISC)


def from_x() -> Line:
    """A = X."""
    return Line(MISC | TO_A)


def calculate(operation: str, value: int | None = None) -> Line:
    """A = A and a number, or A and X, by a name of ``OPERATIONS``."""
    if value is None:
        return Line(ALU | OPERATIONS[operation] | BY_X)
    return Line(ALU | OPERATIONS[operation], value)


def jump(condition: str, value: int, yes: str = "", no: str = "") -> Line:
    """Go on at a label by a name of ``CONDITIONS``, of A and a number."""
    return Line(JUMP | CONDITIONS[condition], value, yes, no)


def go(label: str) -> Line:
    """Go on at a label."""
    return Line(JUMP, 0, label)


def answer(value: int | None = None) -> Line:
    """End with a number, or with A."""
    return Line(RETURN | RETURN_A) if value is None else Line(RETURN, value)


def assemble(program: Program) -> bytes:
    """The kernel's form of a program: eight bytes for each line.

    ``ValueError`` for a label that does not stand further down, is too far, or stands twice, and for a
    program that is too long.
    """
    places: dict[str, int] = {}
    lines: list[Line] = []
    for each in program:
        if isinstance(each, Label):
            if each.name in places:
                raise ValueError(f"the label {each.name} stands twice")
            places[each.name] = len(lines)
        else:
            lines.append(each)
    if not 0 < len(lines) <= INSTRUCTIONS_MAX:
        raise ValueError(f"a program of {len(lines)} lines: the kernel takes 1 to {INSTRUCTIONS_MAX}")
    text = bytearray()
    for at, line in enumerate(lines):
        yes, no = _distance(places, at, line.yes), _distance(places, at, line.no)
        if line.code == JUMP:
            text += _INSTRUCTION.pack(line.code, 0, 0, yes)
        elif max(yes, no) > JUMP_MAX:
            raise ValueError(f"line {at} jumps over {max(yes, no)} lines, and may over {JUMP_MAX}")
        else:
            text += _INSTRUCTION.pack(line.code, yes, no, line.k % 2**32)
    return bytes(text)


def _distance(places: dict[str, int], at: int, label: str) -> int:
    if not label:
        return 0
    if label not in places or places[label] <= at:
        raise ValueError(f"line {at} jumps to {label}, which does not stand below it")
    return places[label] - at - 1
