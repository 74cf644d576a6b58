"""A small assembler for eBPF, the kernel's machine for programs that it has looked through beforehand.

For: programs that pick a frame's socket before the kernel makes anything of it (``xdp_program.py``). Not for:
loading them (``bpf_calls.py``), or classic BPF (``bpf.py``).

A program is a list of lines; a jump names a label, which is a line of its own. Calculations are on 32 bits
(the upper half becomes 0), those of addresses on 64.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_INSTRUCTION: Final = struct.Struct("=BBhi")
JUMP_MAX: Final = 2**15 - 1

_LOAD: Final = 0x61
_CALCULATE: Final = 0x04
_CALCULATE_64: Final = 0x07
_JUMP: Final = 0x05
_JUMP_32: Final = 0x06
_BY_REGISTER: Final = 0x08
_NETWORK_ORDER: Final = 0xDC
_WIDE: Final = 0x18
_MAP: Final = 1
_CALL: Final = 0x85
_EXIT: Final = 0x95
_SIZES: Final = {4: 0x00, 2: 0x08, 1: 0x10}

OPERATIONS: Final = {
    "add": 0x00,
    "mul": 0x20,
    "and": 0x50,
    "lsh": 0x60,
    "rsh": 0x70,
    "mod": 0x90,
    "xor": 0xA0,
    "move": 0xB0,
}
CONDITIONS: Final = {"always": 0x00, "equal": 0x10, "greater": 0x20, "any": 0x40, "other": 0x50}


class Register(IntEnum):
    """The machine's registers: 0 is what a call and the program answer, 1 to 5 are lost in a call."""

    R0 = 0
    R1 = 1
    R2 = 2
    R3 = 3
    R4 = 4
    R5 = 5
    R6 = 6
    R7 = 7
    R8 = 8
    R9 = 9


@dataclass(frozen=True)
class Line:
    """An instruction; ``to`` is a jump's label."""

    code: int
    target: int = 0
    source: int = 0
    offset: int = 0
    value: int = 0
    to: str = ""


@dataclass(frozen=True)
class Label:
    """A place in a program."""

    name: str


Program = list[Line | Label]


def load(target: Register, address: Register, offset: int, size: int) -> Line:
    """So many bytes (1, 2 or 4) at an address, in the machine's order."""
    return Line(_LOAD | _SIZES[size], target, address, offset)


def load_network(target: Register, address: Register, offset: int, size: int) -> Program:
    """So many bytes (2 or 4) at an address, in the network's order."""
    return [load(target, address, offset, size), Line(_NETWORK_ORDER, target, value=8 * size)]


def calculate(operation: str, target: Register, value: int | Register) -> Line:
    """A register and another, or a number, by a name of ``OPERATIONS``; 32 bits."""
    return _calculated(_CALCULATE, operation, target, value)


def calculate_address(operation: str, target: Register, value: int | Register) -> Line:
    """The same on 64 bits."""
    return _calculated(_CALCULATE_64, operation, target, value)


def _calculated(kind: int, operation: str, target: Register, value: int | Register) -> Line:
    code = kind | OPERATIONS[operation]
    if isinstance(value, Register):
        return Line(code | _BY_REGISTER, target, value)
    return Line(code, target, value=value)


def jump(condition: str, target: Register, value: int, to: str) -> Line:
    """Go on at a label by a name of ``CONDITIONS``, of a register's 32 bits and a number."""
    return Line(_JUMP_32 | CONDITIONS[condition], target, value=value, to=to)


def jump_beyond(address: Register, end: Register, to: str) -> Line:
    """Go on at a label if an address is greater than another."""
    return Line(_JUMP | CONDITIONS["greater"] | _BY_REGISTER, address, end, to=to)


def go(to: str) -> Line:
    """Go on at a label."""
    return Line(_JUMP, to=to)


def load_map(target: Register, file: int) -> Program:
    """A map by its file descriptor; it takes two instructions."""
    return [Line(_WIDE, target, _MAP, value=file), Line(0)]


def call(function: int) -> Line:
    """One of the kernel's functions, by its number."""
    return Line(_CALL, value=function)


def leave() -> Line:
    """End with what is in R0."""
    return Line(_EXIT)


def assemble(program: Program) -> bytes:
    """The kernel's form of a program: eight bytes for each line.

    ``ValueError`` for a label that does not stand further down, is too far, or stands twice.
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
    text = bytearray()
    for at, line in enumerate(lines):
        offset = line.offset
        if line.to:
            if places.get(line.to, -1) <= at:
                raise ValueError(f"line {at} jumps to {line.to}, which does not stand below it")
            offset = places[line.to] - at - 1
            if offset > JUMP_MAX:
                raise ValueError(f"line {at} jumps over {offset} lines, and may over {JUMP_MAX}")
        value = (line.value + 2**31) % 2**32 - 2**31
        text += _INSTRUCTION.pack(line.code, line.target | line.source << 4, offset, value)
    return bytes(text)
