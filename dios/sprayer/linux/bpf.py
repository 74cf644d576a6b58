"""An assembler for classic BPF, the kernel's virtual machine for filtering packets.

A program is a list of instructions and labels; a jump names a label. A load beyond the end of the packet ends
the program with the result 0. Offsets count from the network header; ``ancillary`` loads read what the kernel
knows of the packet. The programs are in ``fanout.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

INSTRUCTIONS_MAX: Final = 4096
"""The limit of the kernel."""
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
"""The EtherType, behind a VLAN tag that the kernel removed from the frame."""
_SIZES: Final = {1: BYTE, 2: HALF, 4: WORD}


@dataclass(frozen=True)
class BpfInstruction:
    """An instruction; the labels ``yes`` and ``no`` of a jump are empty for the next instruction."""

    code: int
    k: int = 0
    yes: str = ""
    no: str = ""


@dataclass(frozen=True)
class BpfLabel:
    """A place in a program."""

    name: str


Program = list[BpfInstruction | BpfLabel]


def load(offset: int, size: int, *, by_x: bool = False) -> BpfInstruction:
    """A = 1, 2 or 4 bytes of the packet at an offset, or at X + offset."""
    return BpfInstruction(LOAD | _SIZES[size] | (INDIRECT if by_x else ABSOLUTE), offset)


def ancillary(which: int) -> BpfInstruction:
    """A = a value that the kernel knows of the packet."""
    return BpfInstruction(LOAD | WORD | ABSOLUTE, ANCILLARY + which)


def constant(value: int) -> BpfInstruction:
    """A = a 32-bit number."""
    return BpfInstruction(LOAD | IMMEDIATE, value)


def constant_x(value: int) -> BpfInstruction:
    """X = a 32-bit number."""
    return BpfInstruction(LOAD_X | IMMEDIATE, value)


def store(place: int) -> BpfInstruction:
    """Store A in one of sixteen memory words."""
    return BpfInstruction(STORE, place)


def fetch(place: int) -> BpfInstruction:
    """A = a memory word."""
    return BpfInstruction(LOAD | MEMORY, place)


def fetch_x(place: int) -> BpfInstruction:
    """X = a memory word."""
    return BpfInstruction(LOAD_X | MEMORY, place)


def to_x() -> BpfInstruction:
    """X = A."""
    return BpfInstruction(MISC)


def from_x() -> BpfInstruction:
    """A = X."""
    return BpfInstruction(MISC | TO_A)


def calculate(operation: str, value: int | None = None) -> BpfInstruction:
    """A = A and a number, or A and X, combined by a name of ``OPERATIONS``."""
    if value is None:
        return BpfInstruction(ALU | OPERATIONS[operation] | BY_X)
    return BpfInstruction(ALU | OPERATIONS[operation], value)


def jump(condition: str, value: int, yes: str = "", no: str = "") -> BpfInstruction:
    """Jump to a label by a name of ``CONDITIONS``, for A and a number."""
    return BpfInstruction(JUMP | CONDITIONS[condition], value, yes, no)


def go(label: str) -> BpfInstruction:
    """Jump to a label."""
    return BpfInstruction(JUMP, 0, label)


def answer(value: int | None = None) -> BpfInstruction:
    """End with a number, or with A."""
    return BpfInstruction(RETURN | RETURN_A) if value is None else BpfInstruction(RETURN, value)


def assemble(program: Program) -> bytes:
    """Return the kernel's form of a program: eight bytes for each instruction.

    Raises ``ValueError`` for a label that is not below its jump, is too far or is defined twice, and for a
    program that is too long.
    """
    places: dict[str, int] = {}
    lines: list[BpfInstruction] = []
    for statement in program:
        if isinstance(statement, BpfLabel):
            if statement.name in places:
                raise ValueError(f"the label {statement.name} is defined twice")
            places[statement.name] = len(lines)
        else:
            lines.append(statement)
    if not 0 < len(lines) <= INSTRUCTIONS_MAX:
        raise ValueError(
            f"a program of {len(lines)} instructions: the kernel accepts 1 to {INSTRUCTIONS_MAX}"
        )
    text = bytearray()
    for at, line in enumerate(lines):
        yes, no = _distance(places, at, line.yes), _distance(places, at, line.no)
        if line.code == JUMP:
            text += _INSTRUCTION.pack(line.code, 0, 0, yes)
        elif max(yes, no) > JUMP_MAX:
            raise ValueError(f"instruction {at} jumps over {max(yes, no)} others; the limit is {JUMP_MAX}")
        else:
            text += _INSTRUCTION.pack(line.code, yes, no, line.k % 2**32)
    return bytes(text)


def _distance(places: dict[str, int], at: int, label: str) -> int:
    if not label:
        return 0
    if label not in places or places[label] <= at:
        raise ValueError(f"instruction {at} jumps to {label}, which is not defined below it")
    return places[label] - at - 1
