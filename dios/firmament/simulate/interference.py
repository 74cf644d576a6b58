"""How fast programs run together on one machine: a model of shared caches, memory, disks and networks.

For: experiments like those of §8.2 on simulated machines. Not for: predicting a real machine's times; it
has the effects that §2.1.3 and §8.2.1 report (programs that fit a cache alone and thrash it together,
disks that lose throughput to seeking, hardware threads that share a core), with plausible numbers.

A program's work is counted in units. What a unit takes of each resource is fixed, so that its time is a
sum of phases: computing, going through the cache or the memory, the disk, the network. A phase takes
longer where all programs of the machine together ask for more of a resource than there is. One more
program never makes another faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dios.errors import InvalidError
from dios.firmament.descriptors import Interference, Resources

SMT_GAIN = 0.3
"""How much the second hardware thread of a core adds to its throughput; 0.2 to 0.3 is what is usual."""
SEEK_LOSS = 0.15
"""What share of a disk's throughput is lost for each further stream that it has to serve at once."""
CACHE_BYTES_PER_CYCLE = 6.5
"""What a core gets from its last-level cache in each cycle of its clock."""
CORE_MEMORY_BANDWIDTH = 4e9
"""Bytes per second that one core gets from memory when nobody else asks: latency bounds it."""
STRETCH_STEPS = 24
"""Halvings in the search for a resource's stretch: to a ten-millionth."""
LINE_BYTES = 64
"""What one miss of the last-level cache brings."""


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """What one unit of a program's work takes; the name is its equivalence class."""

    name: str
    cpu: float = 1.0
    """Seconds of computing on a core of speed 1."""
    traffic: float = 0.0
    """Bytes that it moves between the core and the caches or the memory."""
    working_set: float = 0.0
    """Bytes to which that traffic goes over and over."""
    disk: float = 0.0
    """Bytes from or to the disk."""
    network: float = 0.0
    """Bytes from or to the network."""
    instructions: float = 1e9
    interference: Interference = Interference.SHEEP
    """The class that whoever submits it would give it (§7.3)."""

    def __post_init__(self) -> None:
        amounts = (self.cpu, self.traffic, self.working_set, self.disk, self.network, self.instructions)
        if min(amounts) < 0 or not self.cpu + self.traffic + self.disk + self.network > 0:
            raise InvalidError(
                f"program {self.name}: a unit of work must take something, and nothing below 0"
            )


@dataclass(frozen=True, slots=True)
class MachineModel:
    """What of a kind of machines matters to the speed of programs."""

    name: str
    title: str
    sockets: int
    cores: int
    threads: int
    clock_hz: float
    speed: float
    """Computing speed of a core beside the others', 1 for the fastest here."""
    memory: float
    """Bytes."""
    cache: float
    """Bytes of last-level cache of one socket."""
    memory_bandwidth: float
    """Bytes per second, all sockets together."""
    disk_bandwidth: float
    network_bandwidth: float

    def capacity(self) -> Resources:
        """What a scheduler may give away."""
        return Resources(float(self.threads), self.memory, self.disk_bandwidth, self.network_bandwidth)


class Pace(NamedTuple):
    """How a program gets on beside the others that run on its machine."""

    stretch: float
    """Seconds for a unit of work."""
    busy: float
    """Seconds of those in which it occupies a core (memory's included, as counters of cycles see it)."""
    misses: float
    """Misses of the last-level cache for a unit of work."""


@lru_cache(maxsize=4096)
def alone(program: ProgramModel, machine: MachineModel) -> Pace:
    """How a program runs on an idle machine of this kind: the ideal of Figure 8.1 where it is the best."""
    return together([program], machine)[0]


def together(programs: Sequence[ProgramModel], machine: MachineModel) -> list[Pace]:
    """The pace of each of the programs that run on one machine at once, in their order."""
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
    """What a program takes of its machine at its present pace; memory is its working set."""
    return Resources(
        pace.busy / pace.stretch,
        program.working_set,
        program.disk / pace.stretch,
        program.network / pace.stretch,
    )


@lru_cache(maxsize=4096)
def _undisturbed(program: ProgramModel, machine: MachineModel) -> tuple[float, float]:
    """Seconds for a unit on the idle machine, and those of them on a core."""
    hit = _hit_alone(program, machine)
    busy = program.cpu / machine.speed + program.traffic * hit / _cache_bandwidth(machine)
    busy += program.traffic * (1 - hit) / _memory_bandwidth(machine)
    waits = program.disk / machine.disk_bandwidth + program.network / machine.network_bandwidth
    return busy + waits, busy


def _cache_bandwidth(machine: MachineModel) -> float:
    return CACHE_BYTES_PER_CYCLE * machine.clock_hz


def _memory_bandwidth(machine: MachineModel) -> float:
    """What one core gets of an idle memory."""
    return min(CORE_MEMORY_BANDWIDTH, machine.memory_bandwidth)


def _hit_alone(program: ProgramModel, machine: MachineModel) -> float:
    """What share of a program's traffic the cache of one socket serves."""
    if not (program.working_set and program.traffic):
        return 1.0
    return min(1.0, machine.cache / program.working_set)


def _hit_rates(programs: Sequence[ProgramModel], machine: MachineModel) -> list[float]:
    """What share of each program's traffic its part of the last-level caches serves.

    The system spreads programs over sockets. Where their working sets fit together each keeps its own;
    where they do not, a program keeps what its part of the traffic brings in.
    """
    sharing = [program for program in programs if program.traffic and program.working_set]
    cache = machine.cache * machine.sockets
    alone_ones = [_hit_alone(program, machine) for program in programs]
    if sum(program.working_set for program in sharing) <= cache:
        return alone_ones
    traffic = sum(program.traffic for program in sharing)
    return [
        min(hit, cache * program.traffic / traffic / program.working_set)
        if program.traffic and program.working_set
        else 1.0
        for program, hit in zip(programs, alone_ones, strict=True)
    ]


def _device(
    programs: Sequence[ProgramModel], first: Sequence[tuple[float, float]], bandwidth: float, which: str
) -> list[tuple[float, float, float]]:
    """For ``_stretch``: how the programs share the disk or the network."""
    asked = [program.disk if which == "disk" else program.network for program in programs]
    return [
        (max(0.0, seconds - amount / bandwidth), amount / bandwidth, amount)
        for (seconds, _), amount in zip(first, asked, strict=True)
    ]


def _stretch(users: Sequence[tuple[float, float, float]], capacity: float) -> float:
    """How much longer each second at a resource takes, so that all together do not exceed it; 1 or more.

    A user is: seconds of a unit spent elsewhere, seconds at the resource when it is idle, and bytes.
    Longer phases mean that less is asked for at a time, hence a root to find.
    """
    users = [user for user in users if user[2]]

    def asked(stretch: float) -> float:
        return sum(amount / (elsewhere + there * stretch) for elsewhere, there, amount in users)

    low, high = 1.0, sum(amount / there for _, there, amount in users) / capacity
    if high <= 1.0 or asked(low) <= capacity:
        return 1.0
    for _ in range(STRETCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if asked(middle) > capacity else (low, middle)
    return high


def _core_stretch(cores: float, machine: MachineModel) -> float:
    """How much longer computing takes when so many cores' worth of it is asked for."""
    if cores <= machine.cores:
        return 1.0
    second = min(cores, float(machine.threads)) - machine.cores
    return cores / (machine.cores + SMT_GAIN * second)
