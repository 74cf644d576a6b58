"""A model of the speed of programs that share a machine's caches, memory, disk and network.

It serves experiments like those of §8.2 on simulated machines. It does not predict the times of a real
machine. It has the effects that §2.1.3 and §8.2.1 report (programs that fit a cache alone and thrash it
together, disks that lose throughput to seeking, hardware threads that share a core), with plausible numbers.

A program's work is counted in units. The amount of each resource per unit is fixed, so the time for a unit
is a sum of phases: computing, traffic to the cache or the memory, the disk, the network. A phase takes
longer when all programs of the machine together demand more of a resource than it has. An additional
program never makes another one faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dios.errors import InvalidError
from dios.firmament.descriptors import Interference, Resources

SMT_GAIN = 0.3
"""The throughput that the second hardware thread adds to a core, as a share; 0.2 to 0.3 is usual."""
SEEK_LOSS = 0.15
"""The share of a disk's throughput that is lost for each further concurrent stream."""
CACHE_BYTES_PER_CYCLE = 6.5
"""Bytes that a core gets from its last-level cache in each clock cycle."""
CORE_MEMORY_BANDWIDTH = 4e9
"""Bytes per second that a single core gets from an otherwise idle memory: latency limits it."""
STRETCH_STEPS = 24
"""Steps of the binary search for a resource's stretch; the result is exact to a ten-millionth."""
LINE_BYTES = 64
"""Bytes that a miss of the last-level cache loads."""


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """The resources needed by a unit of a program's work; the name is its equivalence class."""

    name: str
    cpu: float = 1.0
    """Seconds of computing on a core of speed 1."""
    traffic: float = 0.0
    """Bytes moved between the core and the caches or the memory."""
    working_set: float = 0.0
    """Bytes of memory that this traffic accesses repeatedly."""
    disk: float = 0.0
    """Bytes from or to the disk."""
    network: float = 0.0
    """Bytes from or to the network."""
    instructions: float = 1e9
    interference: Interference = Interference.SHEEP
    """The class that a user would declare for it (§7.3)."""

    def __post_init__(self) -> None:
        amounts = (self.cpu, self.traffic, self.working_set, self.disk, self.network, self.instructions)
        if min(amounts) < 0 or not self.cpu + self.traffic + self.disk + self.network > 0:
            raise InvalidError(
                f"program {self.name}: a unit of work must need some resource, and no negative amount"
            )


@dataclass(frozen=True, slots=True)
class MachineModel:
    """The properties of a machine type that determine the speed of programs."""

    name: str
    title: str
    sockets: int
    cores: int
    threads: int
    clock_hz: float
    speed: float
    """Computing speed of a core relative to the fastest type in ``machines``, which has 1."""
    memory: float
    """Bytes."""
    cache: float
    """Bytes of last-level cache of one socket."""
    memory_bandwidth: float
    """Bytes per second, all sockets together."""
    disk_bandwidth: float
    network_bandwidth: float

    def capacity(self) -> Resources:
        """Return the resources that a scheduler may allocate."""
        return Resources(float(self.threads), self.memory, self.disk_bandwidth, self.network_bandwidth)


class Pace(NamedTuple):
    """The speed of a program, given the other programs on its machine."""

    stretch: float
    """Seconds for a unit of work."""
    busy: float
    """Seconds of those in which it occupies a core, including memory stalls, as cycle counters see it."""
    misses: float
    """Misses of the last-level cache per unit of work."""


@lru_cache(maxsize=4096)
def pace_alone(program: ProgramModel, machine: MachineModel) -> Pace:
    """Return the pace of a program on an idle machine; on the best type it is the ideal of Figure 8.1."""
    return paces_together([program], machine)[0]


def paces_together(programs: Sequence[ProgramModel], machine: MachineModel) -> list[Pace]:
    """Return the pace of each program when all of them run on one machine, in the same order."""
    first = [_undisturbed(program, machine) for program in programs]
    hits = _hit_rates(programs, machine)
    misses = [program.traffic * (1 - hit) for program, hit in zip(programs, hits, strict=True)]
    bandwidth = _memory_bandwidth(machine)
    of_memory = _stretch(
        [
            (max(0.0, seconds - program.traffic * (1 - hit) / bandwidth), missed / bandwidth, missed)
            for program, (seconds, _), hit, missed in zip(programs, first, hits, misses, strict=True)
        ],
        machine.memory_bandwidth,
    )
    streams = sum(
        program.disk / machine.disk_bandwidth / seconds
        for program, (seconds, _) in zip(programs, first, strict=True)
    )
    of_disk = _stretch(_device(programs, first, machine.disk_bandwidth, "disk"), machine.disk_bandwidth)
    of_disk *= 1 + SEEK_LOSS * max(0.0, streams - 1)
    of_network = _stretch(
        _device(programs, first, machine.network_bandwidth, "network"), machine.network_bandwidth
    )
    of_core = _core_stretch(sum(busy / seconds for seconds, busy in first), machine)
    paces: list[Pace] = []
    for program, hit, missed in zip(programs, hits, misses, strict=True):
        busy = (program.cpu / machine.speed + program.traffic * hit / _cache_bandwidth(machine)) * of_core
        busy += missed / bandwidth * of_memory
        waits = program.disk / machine.disk_bandwidth * of_disk
        waits += program.network / machine.network_bandwidth * of_network
        paces.append(Pace(busy + waits, busy, missed / LINE_BYTES))
    return paces


def usage(program: ProgramModel, pace: Pace) -> Resources:
    """Return the resources that a program uses at its present pace; memory is its working set."""
    return Resources(
        pace.busy / pace.stretch,
        program.working_set,
        program.disk / pace.stretch,
        program.network / pace.stretch,
    )


@lru_cache(maxsize=4096)
def _undisturbed(program: ProgramModel, machine: MachineModel) -> tuple[float, float]:
    """Return the seconds for a unit of work on an idle machine, and the part of them on a core."""
    hit = _hit_alone(program, machine)
    busy = program.cpu / machine.speed + program.traffic * hit / _cache_bandwidth(machine)
    busy += program.traffic * (1 - hit) / _memory_bandwidth(machine)
    waits = program.disk / machine.disk_bandwidth + program.network / machine.network_bandwidth
    return busy + waits, busy


def _cache_bandwidth(machine: MachineModel) -> float:
    return CACHE_BYTES_PER_CYCLE * machine.clock_hz


def _memory_bandwidth(machine: MachineModel) -> float:
    """Return the memory bandwidth of one core when the other cores are idle, in bytes per second."""
    return min(CORE_MEMORY_BANDWIDTH, machine.memory_bandwidth)


def _hit_alone(program: ProgramModel, machine: MachineModel) -> float:
    """Return the share of a program's traffic that the cache of one socket serves."""
    if not (program.working_set and program.traffic):
        return 1.0
    return min(1.0, machine.cache / program.working_set)


def _hit_rates(programs: Sequence[ProgramModel], machine: MachineModel) -> list[float]:
    """Return the share of each program's traffic that the last-level caches serve.

    The system spreads programs over sockets. If all working sets fit together, each program keeps its own.
    Otherwise each program gets cache in proportion to its traffic.
    """
    sharing = [program for program in programs if program.traffic and program.working_set]
    cache = machine.cache * machine.sockets
    hits_alone = [_hit_alone(program, machine) for program in programs]
    if sum(program.working_set for program in sharing) <= cache:
        return hits_alone
    traffic = sum(program.traffic for program in sharing)
    return [
        min(hit, cache * program.traffic / traffic / program.working_set)
        if program.traffic and program.working_set
        else 1.0
        for program, hit in zip(programs, hits_alone, strict=True)
    ]


def _device(
    programs: Sequence[ProgramModel], first: Sequence[tuple[float, float]], bandwidth: float, which: str
) -> list[tuple[float, float, float]]:
    """Return the ``users`` argument of ``_stretch`` for the disk or the network."""
    asked = [program.disk if which == "disk" else program.network for program in programs]
    return [
        (max(0.0, seconds - amount / bandwidth), amount / bandwidth, amount)
        for (seconds, _), amount in zip(first, asked, strict=True)
    ]


def _stretch(users: Sequence[tuple[float, float, float]], capacity: float) -> float:
    """Return the factor (1 or more) by which phases at a resource lengthen so that the demand fits it.

    A user is a triple: seconds per unit spent elsewhere, seconds per unit at the idle resource, and bytes.
    Longer phases also reduce the demand per second, so the factor is found by binary search.
    """
    users = [user for user in users if user[2]]

    def asked(stretch: float) -> float:
        return sum(amount / (elsewhere + at_resource * stretch) for elsewhere, at_resource, amount in users)

    low, high = 1.0, sum(amount / at_resource for _, at_resource, amount in users) / capacity
    if high <= 1.0 or asked(low) <= capacity:
        return 1.0
    for _ in range(STRETCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if asked(middle) > capacity else (low, middle)
    return high


def _core_stretch(cores: float, machine: MachineModel) -> float:
    """Return the factor by which computing lengthens when programs demand ``cores`` cores."""
    if cores <= machine.cores:
        return 1.0
    second = min(cores, float(machine.threads)) - machine.cores
    return cores / (machine.cores + SMT_GAIN * second)
