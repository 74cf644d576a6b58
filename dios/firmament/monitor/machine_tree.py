"""What a machine is made of, as a plain tree: packages, memory, caches, cores, hardware threads (§6.5.2).

For: everybody who places tasks inside a machine, or asks whether two machines are alike.
Not for: finding it out, which is ``topology``'s part; or how full it is, which is the state's.

A tree comes from other nodes too. ``MachineTopology.from_dict`` therefore checks all that it promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.errors import InvalidError
from dios.firmament.descriptors import Inner, Level, Resources

_BYTES_MAX: Final = 2**60
_KEY_BYTES: Final = 8


class BadTopologyError(InvalidError):
    """A description of a machine contradicts itself or is over a limit; the message names the place."""


class Part(Enum):
    """What an element of the tree is."""

    MACHINE = "machine"
    PACKAGE = "package"
    NUMA = "numa"
    CACHE = "cache"
    CORE = "core"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class Element:
    """One part of a machine, with all that is inside of it."""

    part: Part
    number: int
    """As the system counts: package, node, core or cpu; for a cache its level (1, 2, 3)."""
    cpus: tuple[int, ...]
    """The online hardware threads inside, ascending; none for memory without processors."""
    size: int = 0
    """Bytes: of a cache, or of a NUMA node's memory; 0 for the others and where it is not told."""
    children: tuple[Element, ...] = ()

    def walk(self) -> Iterator[Element]:
        """This element and everything below it, parents first."""
        todo = [self]
        while todo:
            element = todo.pop()
            yield element
            todo.extend(reversed(element.children))

    @property
    def name(self) -> str:
        """What people call it: ``package0``, ``L3``, ``cpu5``."""
        if self.part is Part.CACHE:
            return f"L{self.number}:{self.cpus[0]}" if self.cpus else f"L{self.number}"
        if self.part is Part.MACHINE:
            return "machine"
        return f"{'cpu' if self.part is Part.THREAD else self.part.value}{self.number}"


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk that the machine has."""

    name: str
    size: int
    """Bytes."""
    rotational: bool


@dataclass(frozen=True, slots=True)
class MachineTopology:
    """One machine: its tree and what counts for the whole of it."""

    model: str
    """The processor's name."""
    architecture: str
    tree: Element
    memory: int
    """Bytes of the whole machine."""
    usable_memory: int
    """Bytes that a control group leaves us; ``memory`` where none limits it."""
    usable: tuple[int, ...]
    """The hardware threads on which tasks may run, ascending; others are online but not ours."""
    clock_khz: int = 0
    """The highest clock; 0 where it is not told."""
    cpu_quota_milli: int = 0
    """Thousandths of hardware threads that a control group allows at once; 0: no such limit."""
    offline: tuple[int, ...] = ()
    network: int = 0
    """Bytes per second of all links in one direction; 0 where it is not told."""
    disks: tuple[Disk, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be found out, in words, and what was assumed instead."""

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON or MessagePack, which ``from_dict`` reads."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, object]) -> MachineTopology:
        """The machine that another node described.

        Raises:
            BadTopologyError: a field is missing or of a wrong kind, the tree is too large or too deep, or
                children do not divide their parent's hardware threads.
        """
        try:
            found = msgspec.convert(plain, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise BadTopologyError(f"not the description of a machine: {error}") from None
        check(found)
        return found

    def count(self, part: Part, number: int | None = None) -> int:
        """How many elements of a kind there are; for caches of one level with ``number``."""
        return sum(e.part is part and (number is None or e.number == number) for e in self.tree.walk())

    @property
    def machine_type(self) -> str:
        """Sixteen hexadecimal digits, equal for machines that are alike; profiles are kept by them (§6.2.4).

        It depends on the processor's model, the counts of its parts, the sizes of its caches, and the
        memory, rounded up to an eighth: what the firmware keeps for itself makes no new type. The
        clock does not count: what is read of it changes with the load on some machines.
        """
        parts = sorted((e.part.value, e.number, e.size) for e in self.tree.walk() if e.part is Part.CACHE)
        counts = [(part.value, self.count(part)) for part in Part]
        words = repr((self.architecture, self.model, counts, parts, _rounded(self.memory)))
        return blake3(words.encode(), derive_key_context="dios machine type 1").digest(_KEY_BYTES).hex()

    def capacity(self) -> Resources:
        """What tasks may use in all. Disks do not tell their speed: 0, not known.

        Links carry as much in as out at the same time, and both count.
        """
        cpus = float(len(self.usable))
        if self.cpu_quota_milli:
            cpus = min(cpus, self.cpu_quota_milli / 1000)
        return Resources(cpus, float(min(self.memory, self.usable_memory)), 0.0, 2.0 * self.network)

    def inner(self) -> tuple[Inner, ...]:
        """What stands below the machine in the flow network: sockets, last-level caches, cores, threads.

        Threads that are not ours are left out, and parts without any thread of ours. A socket here is
        the smaller of package and NUMA node, as memory is what tasks share there.
        """
        caches = [e for e in self.tree.walk() if e.part is Part.CACHE]
        last = max((e.number for e in caches), default=0)
        usable = frozenset(self.usable)
        smaller = (
            Part.NUMA if self.count(Part.NUMA) > self.count(Part.PACKAGE) or not self.count(Part.PACKAGE)
            else Part.PACKAGE
        )  # fmt: skip

        def level_of(element: Element) -> Level | None:
            match element.part:
                case Part.CORE:
                    return Level.CORE
                case Part.THREAD:
                    return Level.THREAD
                case Part.CACHE if element.number == last and last > 1:
                    return Level.CACHE
                case part if part is smaller:
                    return Level.SOCKET
            return None

        def below(element: Element, least: Level) -> Iterator[Inner]:
            for child in element.children:
                if not usable.intersection(child.cpus):
                    continue
                level = level_of(child)
                # A cache over several NUMA nodes stands above them; levels only go down, so it is skipped.
                if level is None or level <= least or (level is Level.CACHE and _holds(child, smaller)):
                    yield from below(child, least)
                else:
                    yield Inner(level, child.name, tuple(below(child, level)))

        return tuple(below(self.tree, Level.MACHINE))


def check(machine: MachineTopology) -> None:
    """Refuse a machine that contradicts itself.

    Raises:
        BadTopologyError: with the element at fault.
    """
    tree = machine.tree
    if tree.part is not Part.MACHINE:
        raise BadTopologyError(f"the tree begins with a {tree.part.value}; it must begin with the machine")
    online = frozenset(tree.cpus)
    if not online or not frozenset(machine.usable) <= online:
        raise BadTopologyError("the usable hardware threads are not among those of the machine")
    numbers = (machine.memory, machine.usable_memory, machine.clock_khz, machine.cpu_quota_milli)
    if not all(0 <= number <= _BYTES_MAX for number in (*numbers, machine.network)):
        raise BadTopologyError("a number of the machine is negative or absurdly large")
    texts = (machine.model, machine.architecture, *machine.missing, *(disk.name for disk in machine.disks))
    if any(len(text.encode()) > limits.TOPOLOGY_TEXT_BYTES_MAX for text in texts):
        raise BadTopologyError(f"a name is over {limits.TOPOLOGY_TEXT_BYTES_MAX} bytes")
    lists = (machine.missing, machine.disks, machine.offline)
    if any(len(each) > limits.TOPOLOGY_CPUS_MAX for each in lists):
        raise BadTopologyError(f"a list is over {limits.TOPOLOGY_CPUS_MAX} entries")
    for number, element in enumerate(tree.walk()):
        if number >= limits.TOPOLOGY_ELEMENTS_MAX:
            raise BadTopologyError(f"the tree has over {limits.TOPOLOGY_ELEMENTS_MAX} elements")
        _check_element(element)


def _check_element(element: Element) -> None:
    where = f"{element.name} with cpus {list(element.cpus[:8])}"
    if len(element.cpus) > limits.TOPOLOGY_CPUS_MAX:
        raise BadTopologyError(f"{where}: over {limits.TOPOLOGY_CPUS_MAX} hardware threads")
    if list(element.cpus) != sorted(set(element.cpus)) or (element.cpus and element.cpus[0] < 0):
        raise BadTopologyError(f"{where}: hardware threads must be ascending and each there once")
    if not -1 <= element.number < 2**31 or not 0 <= element.size <= _BYTES_MAX:
        raise BadTopologyError(f"{where}: number {element.number} or size {element.size} is not possible")
    if element.part is Part.THREAD:
        if element.children or element.cpus != (element.number,):
            raise BadTopologyError(f"{where}: a hardware thread is one cpu with nothing inside")
        return
    inside = sorted(cpu for child in element.children for cpu in child.cpus)
    if inside != list(element.cpus):
        raise BadTopologyError(f"{where}: what is inside has the cpus {inside[:8]}; each must be there once")


def _holds(element: Element, part: Part) -> bool:
    return any(e.part is part for e in element.walk())


def _rounded(memory: int) -> int:
    """Up to a multiple of an eighth of the next lower power of two: 62.8 GiB are 64, 11.7 are 12."""
    granule = 1 << max(memory.bit_length() - 4, 0)
    return -(-memory // granule) * granule
