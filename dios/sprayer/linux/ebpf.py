"""An assembler for eBPF, the kernel's virtual machine for verified programs.

A program is a list of instructions and labels; a jump names a label. Calculations use 32 bits (the upper half
becomes 0), those of addresses 64. The programs are in ``xdp_program.py``; ``bpf_calls.py`` loads them.
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


class EbpfRegister(IntEnum):
    """The registers: 0 is the result of a call and of the program, 1 to 5 are lost in a call."""

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
class EbpfInstruction:
    """An instruction; ``to`` is the label of a jump."""

    code: int
    target: int = 0
    source: int = 0
    offset: int = 0
    value: int = 0
    to: str = ""


@dataclass(frozen=True)
class EbpfLabel:
    """A place in a program."""

    name: str


Program = list[EbpfInstruction | EbpfLabel]


def load(target: EbpfRegister, address: EbpfRegister, offset: int, size: int) -> EbpfInstruction:
    """Load 1, 2 or 4 bytes at an address, in the byte order of the machine."""
    return EbpfInstruction(_LOAD | _SIZES[size], target, address, offset)


def load_network(target: EbpfRegister, address: EbpfRegister, offset: int, size: int) -> Program:
    """Load 2 or 4 bytes at an address, in network byte order."""
    return [load(target, address, offset, size), EbpfInstruction(_NETWORK_ORDER, target, value=8 * size)]


def calculate(operation: str, target: EbpfRegister, value: int | EbpfRegister) -> EbpfInstruction:
    """Combine a register with a register or a number, by a name of ``OPERATIONS``; 32 bits."""
    return _calculated(_CALCULATE, operation, target, value)


def calculate_address(operation: str, target: EbpfRegister, value: int | EbpfRegister) -> EbpfInstruction:
    """Combine a register with a register or a number, with 64 bits."""
    return _calculated(_CALCULATE_64, operation, target, value)


def _calculated(
    kind: int, operation: str, target: EbpfRegister, value: int | EbpfRegister
) -> EbpfInstruction:
    code = kind | OPERATIONS[operation]
    if isinstance(value, EbpfRegister):
        return EbpfInstruction(code | _BY_REGISTER, target, value)
    return EbpfInstruction(code, target, value=value)


def jump(condition: str, target: EbpfRegister, value: int, to: str) -> EbpfInstruction:
    """Jump to a label by a name of ``CONDITIONS``, for the 32 bits of a register and a number."""
    return EbpfInstruction(_JUMP_32 | CONDITIONS[condition], target, value=value, to=to)


def jump_beyond(address: EbpfRegister, end: EbpfRegister, to: str) -> EbpfInstruction:
    """Jump to a label if an address is greater than another."""
    return EbpfInstruction(_JUMP | CONDITIONS["greater"] | _BY_REGISTER, address, end, to=to)


def go(to: str) -> EbpfInstruction:
    """Jump to a label."""
    return EbpfInstruction(_JUMP, to=to)


def load_map(target: EbpfRegister, file: int) -> Program:
    """Load a map by its file descriptor; it needs two instructions."""
    return [EbpfInstruction(_WIDE, target, _MAP, value=file), EbpfInstruction(0)]


def call(function: int) -> EbpfInstruction:
    """Call a function of the kernel by its number."""
    return EbpfInstruction(_CALL, value=function)


def leave() -> EbpfInstruction:
    """End with the value of R0."""
    return EbpfInstruction(_EXIT)


def assemble(program: Program) -> bytes:
    """Return the kernel's form of a program: eight bytes for each instruction.

    Raises ``ValueError`` for a label that is not below its jump, is too far, or is defined twice.
    """
    places: dict[str, int] = {}
    lines: list[EbpfInstruction] = []
    for statement in program:
        if isinstance(statement, EbpfLabel):
            if statement.name in places:
                raise ValueError(f"the label {statement.name} is defined twice")
            places[statement.name] = len(lines)
        else:
            lines.append(statement)
    text = bytearray()
    for at, line in enumerate(lines):
        offset = line.offset
        if line.to:
            if places.get(line.to, -1) <= at:
                raise ValueError(f"instruction {at} jumps to {line.to}, which is not defined below it")
            offset = places[line.to] - at - 1
            if offset > JUMP_MAX:
                raise ValueError(f"instruction {at} jumps over {offset} others; the limit is {JUMP_MAX}")
        value = (line.value + 2**31) % 2**32 - 2**31
        text += _INSTRUCTION.pack(line.code, line.target | line.source << 4, offset, value)
    return bytes(text)
