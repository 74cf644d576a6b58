"""The translation of a machine's structure for the scheduler: its capacity, and its inner vertices."""

from __future__ import annotations

from collections.abc import Iterator

from dios.firmament.descriptors import Inner, Level, Resources
from dios.host.machine.machine_tree import Element, MachineTopology, Part


def capacity_of(machine: MachineTopology) -> Resources:
    """Return the resources that tasks may use in all.

    The bandwidth of disks is not known, hence 0. Links transfer at full speed in both directions at the
    same time, and both count.
    """
    cpus = float(len(machine.usable))
    if machine.cpu_quota_milli:
        cpus = min(cpus, machine.cpu_quota_milli / 1000)
    return Resources(cpus, float(min(machine.memory, machine.usable_memory)), 0.0, 2.0 * machine.network)


def inner_of(machine: MachineTopology) -> tuple[Inner, ...]:
    """Return the machine's inner vertices of the flow network: sockets, caches, cores, threads.

    Threads on which tasks may not run are left out, and so are parts without any usable thread. A
    socket here is the smaller of package and NUMA node, because tasks share memory there.
    """
    caches = [e for e in machine.tree.walk() if e.part is Part.CACHE]
    last = max((e.number for e in caches), default=0)
    usable = frozenset(machine.usable)
    smaller = (
        Part.NUMA
        if machine.count(Part.NUMA) > machine.count(Part.PACKAGE) or not machine.count(Part.PACKAGE)
        else Part.PACKAGE
    )

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
            # A cache that spans several NUMA nodes is above them, but levels only descend: skip it.
            if level is None or level <= least or (level is Level.CACHE and _holds(child, smaller)):
                yield from below(child, least)
            else:
                yield Inner(level, child.name, tuple(below(child, level)))

    return tuple(below(machine.tree, Level.MACHINE))


def _holds(element: Element, part: Part) -> bool:
    return any(e.part is part for e in element.walk())
