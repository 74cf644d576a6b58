"""The paper's data centre under made-up jobs, by seed and bandwidth, for every policy at once.

For: Figures 3 to 6. Not for: playing (``dios.packer.simulate``), or one server's link (``one_server``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from dios.packer.baselines import POLICIES
from dios.packer.datacenter import Datacenter
from dios.packer.generate_jobs import Workload
from dios.packer.job.ti_mra import Floats, TiMra
from dios.packer.policies import AHEAD, FIXED, LITERAL
from dios.packer.simulate import JOBS_EACH, Counts, Simulation, Steady, Summary, rehearse, summarise
from dios.papers.figures import Told

FAMILY: Final = "packer"
PAPER: Final = "the paper"
PRESSURE: Final = 30.0
"""Mbit/s of an edge in the median at which links are short."""
CALM: Final = 5.0
"""The same where they are not."""
PEAKS: Final = tuple(
    replace(policy, name=f"{policy.name}, peaks", knows="peaks") for policy in (LITERAL, FIXED, AHEAD)
)
"""Packer's scores and ours, told no more than Tetris is."""
NAMES: Final = (*POLICIES, *(policy.name for policy in PEAKS))
FEW: Final = ("literal", "fixed", "aligned", "ahead", "tetris", "tetris-time", "slots")


class Scope(NamedTuple):
    """How much is played."""

    servers: int
    per_rack: int
    racks_per_pod: int
    instants: int
    seeds: int
    sweep: tuple[float, ...]
    """Mbit/s of an edge in the median."""
    quick: bool


FULL: Final = Scope(1200, 40, 10, 120, 5, (CALM, 15.0, PRESSURE, 45.0), quick=False)
QUICK: Final = Scope(60, 10, 3, 24, 2, (CALM, PRESSURE), quick=True)

NOTES: Final = (
    (
        "Jobs are made up (dios.packer.generate_jobs). As in the paper a server has 16 cores, 32 GiB, 200 "
        "MB/s of disk each way and 1 Gbit/s, racks 10 and pods 100 Gbit/s, resources of tasks are uniform "
        "up to a quarter of a server, half of the jobs are MapReduce and half web services. Numbers of "
        "tasks (2 and an exponential number of the mean 20), of instants (10 to 30), how demands change "
        "over time and how much edges need are our choice: the paper has no numbers for them."
    ),
    (
        "Packer is `literal`, its equations as printed. Every policy is held to the same check of whole "
        "paths, Tetris and slots too; the paper's Tetris only counts the network against a server."
    ),
    "Seeds were drawn for this and used for nothing before; no policy was chosen or changed by them.",
)


class Played(NamedTuple):
    """One policy in one data centre."""

    summary: Summary
    admitted: Counts
    used: Floats
    """(T, 5)"""


class Field(NamedTuple):
    """All policies under the jobs of one seed."""

    came: Counts
    policies: dict[str, Played]


@dataclass
class Fields:
    """The simulations that the figures share, each made when it is first asked for."""

    seed: int
    told: Told
    scope: Scope
    _fields: dict[tuple[int, float, tuple[str, ...]], Field] = field(default_factory=dict)
    _blind: dict[int, list[float]] = field(default_factory=dict)

    def seeds(self) -> range:
        """From the given one on."""
        return range(self.seed, self.seed + self.scope.seeds)

    @property
    def options(self) -> str:
        """What the command takes for so many seeds."""
        usual = (QUICK if self.scope.quick else FULL).seeds
        return "" if self.scope.seeds == usual else f" --seeds {self.scope.seeds}"

    @property
    def begin(self) -> int:
        """The instant from which on jobs count: the first ones have ended."""
        return min(Workload().instants_max, self.scope.instants // 2)

    def make(self) -> Datacenter:
        """An empty data centre."""
        scope = self.scope
        return Datacenter.tree(scope.servers, per_rack=scope.per_rack, racks_per_pod=scope.racks_per_pod)

    def field(self, seed: int, mbps: float, names: Sequence[str] = NAMES) -> Field:
        """Every policy of ``names`` under the same jobs."""
        key = seed, mbps, tuple(names)
        for (number, rate, known), played in self._fields.items():
            if (number, rate) == (seed, mbps) and set(names) <= set(known):
                return played
        if not self._fields:
            self.told("loading the kernels; the first time they are compiled, which takes a minute")
            rehearse()
        source = Steady(Workload(mbps=mbps), seed, self.scope.servers * JOBS_EACH)
        peaks = {policy.name: policy for policy in PEAKS}
        chosen = [peaks.get(name, POLICIES.get(name, FIXED)) for name in names]
        simulation = Simulation(self.make, source, chosen, self.scope.instants)
        while simulation.done < self.scope.instants:
            self.told(f"seed {seed}, {mbps:g} Mbit/s: instant {simulation.done} of {self.scope.instants}")
            simulation.step()
        summaries = summarise(simulation, self.begin)
        self._fields[key] = Field(
            simulation.came,
            {
                record.policy.name: Played(summary, record.admitted, record.used)
                for record, summary in zip(simulation.records, summaries, strict=True)
            },
        )
        return self._fields[key]

    def blind(self, seed: int) -> list[float]:
        """Tasks admitted by Tetris, with peaks and over time, if no link is ever looked at or booked."""
        if seed not in self._blind:
            self.told(f"seed {seed}: Tetris without links")
            source = Steady(Workload(mbps=PRESSURE), seed, self.scope.servers * JOBS_EACH)

            def stripped(instant: int) -> list[TiMra]:
                return [job.with_arrays(job.demand, 0.0 * job.bandwidth) for job in source(instant)]

            simulation = Simulation(self.make, stripped, ("tetris", "tetris-time"), self.scope.instants)
            while simulation.done < self.scope.instants:
                simulation.step()
            self._blind[seed] = [found.tasks for found in summarise(simulation, self.begin)]
        return self._blind[seed]

    def over_seeds(self, mbps: float, name: str, of: Callable[[Summary], float]) -> list[float]:
        """One number of every seed."""
        names = NAMES if mbps in {PRESSURE, CALM} else FEW
        return [of(self.field(seed, mbps, names).policies[name].summary) for seed in self.seeds()]

    def gains(self, mbps: float, name: str, other: str, of: Callable[[Summary], float]) -> list[float]:
        """By how much one policy has more than another, as a part, for every seed."""
        pairs = zip(self.over_seeds(mbps, name, of), self.over_seeds(mbps, other, of), strict=True)
        return [gain(one, two) for one, two in pairs]

    def setting(self) -> tuple[tuple[str, str], ...]:
        """What was played."""
        scope = self.scope
        racks = -(-scope.servers // scope.per_rack)
        return (
            (
                "data centre",
                f"{scope.servers:,} servers, {racks} racks, {scope.racks_per_pod} racks to a pod",
            ),
            ("jobs", f"{scope.servers * JOBS_EACH:g} at each of {scope.instants} instants, made up"),
            ("counted", f"jobs that come from instant {self.begin} on"),
            ("seeds", ", ".join(map(str, self.seeds()))),
        )


def gain(one: float, other: float) -> float:
    """By how much ``one`` is more, as a part of ``other``."""
    return one / other - 1.0 if other > 0.0 else float("inf") if one > 0.0 else 0.0


def tasks(found: Summary) -> float:
    """The part of all tasks that was admitted."""
    return found.tasks


def revenue(found: Summary) -> float:
    """The part of what all jobs would pay."""
    return found.revenue


def percent(values: Sequence[float]) -> str:
    """``+30 % (28 to 33)``: the median, and the ends."""
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return f"{middle:+.0%} ({ordered[0]:+.0%} to {ordered[-1]:+.0%})"
