"""The structure of a machine as a tree: packages, memory, caches, cores, hardware threads (§6.5.2).

``topology`` reads this machine's tree. The node reports its threads from it, and the scheduler recognises
machines of the same type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from blake3 import blake3

from dios import limits
from dios.errors import InvalidError

_BYTES_MAX: Final = 2**60
_KEY_BYTES: Final = 8


class BadTopologyError(InvalidError):
    """The description of a machine contradicts itself or exceeds a limit; the message names the place."""


class Part(Enum):
    """The kinds of elements of the tree, from the outside to the inside."""

    MACHINE = "machine"
    PACKAGE = "package"
    NUMA = "numa"
    CACHE = "cache"
    CORE = "core"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class Element:
    """A part of a machine, with all parts inside it."""

    part: Part
    number: int
    """The system's number of the package, node, core or cpu; for a cache its level (1, 2, 3)."""
    cpus: tuple[int, ...]
    """The online hardware threads inside, ascending; empty for memory without processors."""
    size: int = 0
    """Bytes of a cache or of a NUMA node's memory; 0 for other parts and for an unknown size."""
    children: tuple[Element, ...] = ()

    def walk(self) -> Iterator[Element]:
        """Yield this element and everything below it, parents first."""
        todo = [self]
        while todo:
            element = todo.pop()
            yield element
            todo.extend(reversed(element.children))

    @property
    def name(self) -> str:
        """Return the usual name: ``package0``, ``L3``, ``cpu5``."""
        if self.part is Part.CACHE:
            return f"L{self.number}:{self.cpus[0]}" if self.cpus else f"L{self.number}"
        if self.part is Part.MACHINE:
            return "machine"
        return f"{'cpu' if self.part is Part.THREAD else self.part.value}{self.number}"


@dataclass(frozen=True, slots=True)
class MachineTopology:
    """A machine: its tree, and the properties of the whole."""

    model: str
    """The processor's name."""
    architecture: str
    tree: Element
    memory: int
    """Bytes of the whole machine."""
    missing: tuple[str, ...] = ()
    """Texts that describe each unknown property and the value assumed instead."""

    def count(self, part: Part, number: int | None = None) -> int:
        """Return the number of elements of a kind; with ``number``, only of caches of this level."""
        return sum(e.part is part and (number is None or e.number == number) for e in self.tree.walk())

    @property
    def machine_type(self) -> str:
        """Sixteen hexadecimal digits, equal for machines of the same type; profiles are per type (§6.2.4).

        They depend on the processor's model, the counts of its parts, the sizes of its caches, and the
        memory. The memory is rounded up to an eighth, because the firmware reserves a varying part.
        """
        parts = sorted((e.part.value, e.number, e.size) for e in self.tree.walk() if e.part is Part.CACHE)
        counts = [(part.value, self.count(part)) for part in Part]
        words = repr((self.architecture, self.model, counts, parts, _rounded(self.memory)))
        return blake3(words.encode(), derive_key_context="dios machine type 1").digest(_KEY_BYTES).hex()


def check(machine: MachineTopology) -> None:
    """Raise an error if a machine contradicts itself.

    Raises:
        BadTopologyError: the message names the invalid element.
    """
    tree = machine.tree
    if tree.part is not Part.MACHINE:
        raise BadTopologyError(f"the tree begins with a {tree.part.value}; its root must be a machine")
    if not tree.cpus:
        raise BadTopologyError("the machine has no hardware thread")
    if not 0 <= machine.memory <= _BYTES_MAX:
        raise BadTopologyError("the machine's memory is negative or too large")
    for number, element in enumerate(tree.walk()):
        if number >= limits.TOPOLOGY_ELEMENTS_MAX:
            raise BadTopologyError(f"the tree has over {limits.TOPOLOGY_ELEMENTS_MAX} elements")
        _check_element(element)


def _check_element(element: Element) -> None:
    subject = f"{element.name} with cpus {list(element.cpus[:8])}"
    if len(element.cpus) > limits.TOPOLOGY_CPUS_MAX:
        raise BadTopologyError(f"{subject}: over {limits.TOPOLOGY_CPUS_MAX} hardware threads")
    if list(element.cpus) != sorted(set(element.cpus)) or (element.cpus and element.cpus[0] < 0):
        raise BadTopologyError(f"{subject}: hardware threads must be ascending, without duplicates")
    if not -1 <= element.number < 2**31 or not 0 <= element.size <= _BYTES_MAX:
        raise BadTopologyError(f"{subject}: number {element.number} or size {element.size} is out of range")
    if element.part is Part.THREAD:
        if element.children or element.cpus != (element.number,):
            raise BadTopologyError(f"{subject}: a hardware thread must be a single cpu without children")
        return
    inside = sorted(cpu for child in element.children for cpu in child.cpus)
    if inside != list(element.cpus):
        raise BadTopologyError(f"{subject}: its children have the cpus {inside[:8]}; each must occur once")


def _rounded(memory: int) -> int:
    """Round up to a multiple of an eighth of the next lower power of two: 62.8 GiB to 64, 11.7 to 12."""
    granule = 1 << max(memory.bit_length() - 4, 0)
    return -(-memory // granule) * granule
