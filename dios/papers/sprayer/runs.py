"""What the figures share: the machines, the synthetic function of the thesis, and each measurement once.

For: ``dios repro sprayer``. Not for: how it is measured (``dios.papers.sprayer.lab``), or what is in a
figure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dios.papers.figures import Cell, Told
from dios.papers.sprayer.lab import measure, tcp
from dios.papers.sprayer.lab.cables import Cables
from dios.papers.sprayer.lab.measure import Delay, Rate, Setting
from dios.papers.sprayer.lab.tcp import Throughput
from dios.sprayer.functions.synthetic import Synthetic

FAMILY: Final = "sprayer"
SPRAY: Final = "spray"
RSS: Final = "rss"
FLOWLET: Final = "flowlet"
BOTH: Final = (RSS, SPRAY)
NONE: Final = "no number"
PARTS: Final = ("mean", "least", "most")
"""Columns of what several seeds gave."""
MEMORY: Final = "in memory"
CABLES: Final = "between namespaces"
LOAD: Final = 0.7
"""Of the lower of both rates, where delays are measured (thesis section 3.4)."""


class Scope(NamedTuple):
    """How much is measured."""

    cycles: tuple[int, ...]
    flows: tuple[int, ...]
    seeds: int
    memory_s: float
    cables_s: float
    tcp_s: int
    settle_s: int
    delay_s: float
    quick: bool


FULL: Final = Scope(
    cycles=(0, 1000, 2500, 5000, 7500, 10_000),
    flows=(1, 2, 4, 8, 16, 64, 128),
    seeds=3,
    memory_s=0.3,
    cables_s=0.6,
    tcp_s=2,
    settle_s=1,
    delay_s=1.0,
    quick=False,
)
QUICK: Final = Scope(
    cycles=(0, 10_000),
    flows=(1, 4),
    seeds=1,
    memory_s=0.1,
    cables_s=0.2,
    tcp_s=1,
    settle_s=0,
    delay_s=0.3,
    quick=True,
)

NOTES: Final = (
    (
        "The thesis has a machine of 16 cores for the function, another for the traffic, and a card of 10 "
        "Gbit/s between them. Here one machine is all: sender, workers, sink and both ends of TCP share its "
        "processors, and cables are virtual, with offloads off. So each rate stands beside what workers did "
        "in a second of the processor, and `in memory` workers have the machine to themselves, without "
        "frames coming in or going out."
    ),
    (
        "Between namespaces sender, sink and workers go before everything else on their processors "
        "(SCHED_FIFO), as if those were theirs alone. For rates the sender sends as much as is taken: "
        "each core always has frames, and none is lost for want of room. It hands over bursts of one "
        "flow, which the kernel cuts into frames with checksums of their own."
    ),
)


@dataclass
class Fields:
    """The measurements, each made when it is first asked for; ``cables`` None where there are none."""

    seed: int
    told: Told
    scope: Scope
    cables: Cables | None
    _rates: dict[tuple[str, str, int, int, int], Rate] = field(default_factory=dict)
    _tcp: dict[tuple[str, int, int, int, bool], Throughput] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """Workers: as many as processors, up to the thesis' eight."""
        return max(2, min(8, len(os.sched_getaffinity(0))))

    def seeds(self) -> range:
        """From the given one on."""
        return range(self.seed, self.seed + self.scope.seeds)

    @property
    def options(self) -> str:
        """What the command takes for so many seeds."""
        usual = (QUICK if self.scope.quick else FULL).seeds
        return "" if self.scope.seeds == usual else f" --seeds {self.scope.seeds}"

    def places(self) -> tuple[str, ...]:
        """Where rates are measured."""
        return (MEMORY, CABLES) if self.cables else (MEMORY,)

    def machines(self) -> Cables:
        """The machines in namespaces, for figures that are nothing without."""
        if self.cables is None:
            raise AssertionError("a figure was asked for that this machine cannot make")
        return self.cables

    def _setting(self, steer: str, flows: int, seed: int, seconds: float) -> Setting:
        return Setting(cores=self.cores, steer=steer, flows=flows, seed=seed, seconds=seconds)

    def rate(self, place: str, steer: str, cycles: int, flows: int, seed: int) -> Rate:
        """What is processed of short frames."""
        key = place, steer, cycles, flows, seed
        if key not in self._rates:
            self.told(f"seed {seed}, {place}, {steer}: {cycles:,} cycles, {flows} flows")
            function = Synthetic(cycles)
            if place == MEMORY:
                setting = self._setting(steer, flows, seed, self.scope.memory_s)
                self._rates[key] = measure.in_memory(function, setting)
            else:
                setting = self._setting(steer, flows, seed, self.scope.cables_s)
                self._rates[key] = measure.forwarding(self.machines(), function, setting)
        return self._rates[key]

    def rates(self, place: str, steer: str, cycles: int, flows: int) -> list[float]:
        """Frames a second, of every seed."""
        return [self.rate(place, steer, cycles, flows, seed).frames_s for seed in self.seeds()]

    def lower(self, cycles: int, seed: int) -> float:
        """The lower rate of both ways to steer, for one flow between namespaces."""
        return min(self.rate(CABLES, steer, cycles, 1, seed).frames_s for steer in BOTH)

    def delays(self, cycles: int, seed: int) -> dict[str, Delay]:
        """How long frames of one flow take, by the way to steer, at 70 % of the lower rate at most.

        Sprayed, both processors have workers, which go before the sender: RSS gets what it managed then.
        """
        rate = int(LOAD * self.lower(cycles, seed))
        found: dict[str, Delay] = {}
        for steer in (SPRAY, RSS):
            self.told(f"seed {seed}, {steer}: {cycles:,} cycles, delay")
            setting = self._setting(steer, 1, seed, self.scope.delay_s)
            found[steer] = measure.delay(self.machines(), Synthetic(cycles), setting, rate)
            rate = min(rate, int(found[steer].frames_s))
        return found

    def tcp(self, steer: str, cycles: int, flows: int, seed: int, *, first: bool = True) -> Throughput:
        """What connections of a real TCP carry."""
        key = steer, cycles, flows, seed, first
        if key not in self._tcp:
            self.told(f"seed {seed}, TCP, {steer}: {cycles:,} cycles, {flows} flows")
            setting = self._setting(steer, flows, seed, self.scope.tcp_s)
            self._tcp[key] = tcp.throughput(
                self.machines(), Synthetic(cycles), setting, settle_s=self.scope.settle_s, first=first
            )
        return self._tcp[key]

    def tcps(self, steer: str, cycles: int, flows: int) -> list[Throughput]:
        """The same of every seed."""
        return [self.tcp(steer, cycles, flows, seed) for seed in self.seeds()]

    def setting(self) -> tuple[tuple[str, str], ...]:
        """What was run."""
        processors = len(os.sched_getaffinity(0))
        load = os.getloadavg()[0]
        return (
            ("machine", f"{processors} processors, load {load:.1f} when this was written"),
            ("workers", f"{self.cores}, of which the thesis has 8"),
            ("function", "synthetic: an entry for each connection; for each packet its flow, a new header"),
            ("seeds", ", ".join(map(str, self.seeds()))),
        )


def mean(values: Sequence[float]) -> float:
    """The mean of at least one."""
    return sum(values) / len(values)


def middle_and_ends(values: Sequence[float]) -> tuple[Cell, Cell, Cell]:
    """Cells: mean, least and most."""
    return mean(values), min(values), max(values)


def times(values: Sequence[float]) -> str:
    """``1.92 x (1.90 to 1.94)``: the mean, and the ends."""
    if len(values) == 1:
        return f"{values[0]:.2f} x"
    return f"{mean(values):.2f} x ({min(values):.2f} to {max(values):.2f})"


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """One by the other, seed by seed."""
    return [one / other if other else float("inf") for one, other in zip(ones, others, strict=True)]


def spread(values: Sequence[float]) -> float:
    """From the least to the most, as a part of the mean."""
    return (max(values) - min(values)) / mean(values) if any(values) else 0.0
