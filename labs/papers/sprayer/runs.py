"""The machines and the thesis' synthetic function, with each measurement that the figures share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dios.sprayer.functions.synthetic import Synthetic
from labs.papers.figures import Cell, ProgressCallback
from labs.papers.sprayer.lab import measure, quic, tcp
from labs.papers.sprayer.lab.measure import ForwardingRate, FrameDelays, MeasurementSetting
from labs.papers.sprayer.lab.quic import QuicTransfer
from labs.papers.sprayer.lab.tcp import Throughput
from labs.papers.sprayer.lab.veth_pairs import VethPairs

FAMILY: Final = "sprayer"
SPRAY: Final = "spray"
RSS: Final = "rss"
FLOWLET: Final = "flowlet"
BOTH: Final = (RSS, SPRAY)
NONE: Final = "no number"
PARTS: Final = ("mean", "least", "most")
"""Columns of a result over several seeds."""
MEMORY: Final = "in memory"
NAMESPACES: Final = "between namespaces"
MOVES: Final = 3
"""The number of changes of the port of a QUIC client."""
LOAD: Final = 0.7
"""The fraction of the lower of both rates at which delays are measured (thesis, section 3.4)."""


class SprayerScope(NamedTuple):
    """The extent of the measurements."""

    cycles: tuple[int, ...]
    flows: tuple[int, ...]
    seeds: int
    memory_s: float
    veth_s: float
    tcp_s: int
    settle_s: int
    delay_s: float
    quic_bytes: int
    quick: bool


FULL: Final = SprayerScope(
    cycles=(0, 1000, 2500, 5000, 7500, 10_000),
    flows=(1, 2, 4, 8, 16, 64, 128),
    seeds=3,
    memory_s=0.3,
    veth_s=0.6,
    tcp_s=2,
    settle_s=1,
    delay_s=1.0,
    quic_bytes=8 << 20,
    quick=False,
)
QUICK: Final = SprayerScope(
    cycles=(0, 10_000),
    flows=(1, 4),
    seeds=1,
    memory_s=0.1,
    veth_s=0.2,
    tcp_s=1,
    settle_s=0,
    delay_s=0.3,
    quic_bytes=1 << 19,
    quick=True,
)

NOTES: Final = (
    (
        "The thesis has a machine of 16 cores for the function, another one for the traffic, and a card of "
        "10 Gbit/s between them. Here one machine does all: sender, workers, sink and both ends of TCP "
        "share its processors, and cables are virtual, with offloads off. So each rate is also given per "
        "second of processor time of the workers. `in memory`, workers have the machine for themselves, and "
        "no frames come in or go out."
    ),
    (
        "Between namespaces, sender, sink and workers have priority over everything else on their processors "
        "(SCHED_FIFO), as if these were theirs alone. For rates, the sender sends at the rate of processing: "
        "each core always has frames, and none is lost for lack of room. It sends bursts of one flow, which "
        "the kernel cuts into frames with their own checksums."
    ),
)


@dataclass
class SprayerRuns:
    """The measurements; each is made at its first use. ``veth_pairs`` is None without namespaces."""

    seed: int
    progress: ProgressCallback
    scope: SprayerScope
    veth_pairs: VethPairs | None
    _rates: dict[tuple[str, str, int, int, int], ForwardingRate] = field(default_factory=dict)
    _tcp: dict[tuple[str, int, int, int, bool], Throughput] = field(default_factory=dict)
    _quic: dict[tuple[str, int, int], QuicTransfer] = field(default_factory=dict)
    _moved: dict[tuple[str, int], QuicTransfer] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """The number of workers: that of processors, at least two and at most the thesis' eight."""
        return max(2, min(8, len(os.sched_getaffinity(0))))

    def seeds(self) -> range:
        """Return the seeds, from the first one on."""
        return range(self.seed, self.seed + self.scope.seeds)

    @property
    def options(self) -> str:
        """The command's option for the number of seeds."""
        usual = (QUICK if self.scope.quick else FULL).seeds
        return "" if self.scope.seeds == usual else f" --seeds {self.scope.seeds}"

    def places(self) -> tuple[str, ...]:
        """Return the places in which rates are measured."""
        return (MEMORY, NAMESPACES) if self.veth_pairs else (MEMORY,)

    def machines(self) -> VethPairs:
        """Return the machines in namespaces, for figures that need them."""
        if self.veth_pairs is None:
            raise AssertionError("this figure needs namespaces, which this machine does not have")
        return self.veth_pairs

    def _setting(self, steer: str, flows: int, seed: int, seconds: float) -> MeasurementSetting:
        return MeasurementSetting(cores=self.cores, steer=steer, flows=flows, seed=seed, seconds=seconds)

    def rate(self, place: str, steer: str, cycles: int, flows: int, seed: int) -> ForwardingRate:
        """Return the rate at which short frames are processed."""
        key = place, steer, cycles, flows, seed
        if key not in self._rates:
            self.progress(f"seed {seed}, {place}, {steer}: {cycles:,} cycles, {flows} flows")
            function = Synthetic(cycles)
            if place == MEMORY:
                setting = self._setting(steer, flows, seed, self.scope.memory_s)
                self._rates[key] = measure.in_memory(function, setting)
            else:
                setting = self._setting(steer, flows, seed, self.scope.veth_s)
                self._rates[key] = measure.forwarding(self.machines(), function, setting)
        return self._rates[key]

    def rates(self, place: str, steer: str, cycles: int, flows: int) -> list[float]:
        """Return the frames per second for every seed."""
        return [self.rate(place, steer, cycles, flows, seed).frames_s for seed in self.seeds()]

    def lower(self, cycles: int, seed: int) -> float:
        """Return the lower rate of both ways of steering, for one flow between namespaces."""
        return min(self.rate(NAMESPACES, steer, cycles, 1, seed).frames_s for steer in BOTH)

    def delays(self, cycles: int, seed: int) -> dict[str, FrameDelays]:
        """Return the delays of one flow by the way of steering, at no more than 70 % of the lower rate.

        With spraying both processors have workers, which have priority over the sender. RSS then gets the
        rate that the sender managed.
        """
        rate = int(LOAD * self.lower(cycles, seed))
        delays: dict[str, FrameDelays] = {}
        for steer in (SPRAY, RSS):
            self.progress(f"seed {seed}, {steer}: {cycles:,} cycles, delay")
            setting = self._setting(steer, 1, seed, self.scope.delay_s)
            delays[steer] = measure.delay(self.machines(), Synthetic(cycles), setting, rate)
            rate = min(rate, int(delays[steer].frames_s))
        return delays

    def tcp(self, steer: str, cycles: int, flows: int, seed: int, *, first: bool = True) -> Throughput:
        """Return the throughput of real TCP connections."""
        key = steer, cycles, flows, seed, first
        if key not in self._tcp:
            self.progress(f"seed {seed}, TCP, {steer}: {cycles:,} cycles, {flows} flows")
            setting = self._setting(steer, flows, seed, self.scope.tcp_s)
            self._tcp[key] = tcp.throughput(
                self.machines(), Synthetic(cycles), setting, settle_s=self.scope.settle_s, first=first
            )
        return self._tcp[key]

    def tcps(self, steer: str, cycles: int, flows: int) -> list[Throughput]:
        """Return the throughput for every seed."""
        return [self.tcp(steer, cycles, flows, seed) for seed in self.seeds()]

    def quics(self, steer: str, cycles: int) -> list[QuicTransfer]:
        """Return the transfers on one QUIC connection for every seed."""
        for seed in self.seeds():
            if (steer, cycles, seed) not in self._quic:
                self.progress(f"seed {seed}, QUIC, {steer}: {cycles:,} cycles")
                setting = self._setting(steer, 1, seed, 0)
                self._quic[steer, cycles, seed] = quic.through_synthetic(
                    self.machines(), cycles, setting, self.scope.quic_bytes
                )
        return [self._quic[steer, cycles, seed] for seed in self.seeds()]

    def moved_quic(self, steer: str, seed: int) -> QuicTransfer:
        """Return a transfer through a balancer, during which the client changes its port."""
        if (steer, seed) not in self._moved:
            self.progress(f"seed {seed}, QUIC, {steer}: a client that changes its port")
            setting = self._setting(steer, 1, seed, 0)
            self._moved[steer, seed] = quic.through_balancer(
                self.machines(), setting, self.scope.quic_bytes, MOVES
            )
        return self._moved[steer, seed]

    def setting(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of the measurements."""
        processors = len(os.sched_getaffinity(0))
        load = os.getloadavg()[0]
        return (
            ("machine", f"{processors} processors, load {load:.1f} at the end"),
            ("workers", f"{self.cores}; the thesis has 8"),
            ("function", "synthetic: an entry for each connection; a lookup and a new header per packet"),
            ("seeds", ", ".join(map(str, self.seeds()))),
        )


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def middle_and_ends(values: Sequence[float]) -> tuple[Cell, Cell, Cell]:
    """Return the cells mean, least and most."""
    return mean(values), min(values), max(values)


def times(values: Sequence[float]) -> str:
    """Return the mean and the range as text, as in ``1.92 x (1.90 to 1.94)``."""
    if len(values) == 1:
        return f"{values[0]:.2f} x"
    return f"{mean(values):.2f} x ({min(values):.2f} to {max(values):.2f})"


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the quotients, seed by seed."""
    return [own / other if other else float("inf") for own, other in zip(ones, others, strict=True)]


def spread(values: Sequence[float]) -> float:
    """Return the range as a fraction of the mean."""
    return (max(values) - min(values)) / mean(values) if any(values) else 0.0
