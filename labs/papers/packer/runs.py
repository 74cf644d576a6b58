"""The paper's data centre under synthetic jobs, by seed and bandwidth, for all policies at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from dios.packer.baselines import POLICIES
from dios.packer.datacenter import Datacenter
from dios.packer.job.ti_mra import Floats
from dios.packer.policies import AHEAD, FIXED, LITERAL
from labs.papers.figures import ProgressCallback
from labs.papers.packer.missing_capacity import MissingCapacity, without_checks
from labs.papers.packer.published_rules import PublishedTimes, slots_as_published, tetris_as_published
from labs.simulate.packing.generate_jobs import Workload
from labs.simulate.packing.simulate import (
    JOBS_EACH,
    JobCounts,
    PolicySummary,
    Simulation,
    SyntheticJobs,
    summarise,
    warm_up,
)

FAMILY: Final = "packer"
PAPER: Final = "the paper"
PRESSURE: Final = 30.0
"""Median Mbit/s of an edge at which links are scarce."""
CALM: Final = 5.0
"""Median Mbit/s of an edge at which links are plenty."""
PEAKS: Final = tuple(
    replace(policy, name=f"{policy.name}, peaks", knows="peaks") for policy in (LITERAL, FIXED, AHEAD)
)
"""Packer's scores and ours with the knowledge that Tetris has."""
NAMES: Final = (*POLICIES, *(policy.name for policy in PEAKS))
FEW: Final = ("literal", "fixed", "aligned", "ahead", "tetris", "tetris-time", "slots")


class PackerScope(NamedTuple):
    """The extent of the simulations."""

    servers: int
    per_rack: int
    racks_per_pod: int
    instants: int
    seeds: int
    sweep: tuple[float, ...]
    """Median Mbit/s of an edge, one for each data point."""
    quick: bool


FULL: Final = PackerScope(1200, 40, 10, 120, 5, (CALM, 15.0, PRESSURE, 45.0), quick=False)
QUICK: Final = PackerScope(60, 10, 3, 24, 2, (CALM, PRESSURE), quick=True)

NOTES: Final = (
    (
        "Jobs are synthetic (labs.simulate.packing.generate_jobs). As in the paper, a server has 16 "
        "cores, 32 GiB, 200 MB/s of disk each way and 1 Gbit/s, racks have 10 and pods 100 Gbit/s, "
        "resources of tasks are uniform up to a quarter of a server, half of the jobs are MapReduce and "
        "half web services. The numbers of tasks (2 plus an exponential number with the mean 20) and of "
        "instants (10 to 30), the changes over time and the bandwidth of edges are our choice: the paper "
        "has no numbers for them."
    ),
    (
        "Packer is `literal`, its equations as printed. Every policy passes the same check of whole paths, "
        "also Tetris and slots; the paper's Tetris only lowers a server's score because of the network."
    ),
    "The seeds were drawn for this and not used before; no policy was chosen or changed with them.",
)


class PolicyRun(NamedTuple):
    """The result of one policy in one data centre."""

    summary: PolicySummary
    admitted: JobCounts
    used: Floats
    """(T, 5) demand of admitted jobs."""
    links: float
    """The number of links on the paths of admitted edges, averaged by bandwidth."""


class SeedRun(NamedTuple):
    """The results of all policies under the jobs of one seed."""

    arrivals: JobCounts
    policies: dict[str, PolicyRun]


@dataclass
class PackerRuns:
    """The simulations that the figures share; each is run at its first use."""

    seed: int
    progress: ProgressCallback
    scope: PackerScope
    _seed_runs: dict[tuple[int, float, tuple[str, ...]], SeedRun] = field(default_factory=dict)
    _without_links_runs: dict[int, tuple[MissingCapacity, ...]] = field(default_factory=dict)
    _published_runs: dict[int, dict[str, PublishedTimes]] = field(default_factory=dict)

    def seeds(self) -> range:
        """Return the seeds, from the first one on."""
        return range(self.seed, self.seed + self.scope.seeds)

    @property
    def options(self) -> str:
        """The command's option for the number of seeds."""
        usual = (QUICK if self.scope.quick else FULL).seeds
        return "" if self.scope.seeds == usual else f" --seeds {self.scope.seeds}"

    @property
    def begin(self) -> int:
        """The instant from which jobs are counted: the first jobs have ended."""
        return min(Workload().instants_max, self.scope.instants // 2)

    def make(self) -> Datacenter:
        """Return an empty data centre."""
        scope = self.scope
        return Datacenter.tree(scope.servers, per_rack=scope.per_rack, racks_per_pod=scope.racks_per_pod)

    def seed_run(self, seed: int, mbps: float, names: Sequence[str] = NAMES) -> SeedRun:
        """Return the results of all policies of ``names`` under the same jobs."""
        key = seed, mbps, tuple(names)
        for (number, rate, known), seed_run in self._seed_runs.items():
            if (number, rate) == (seed, mbps) and set(names) <= set(known):
                return seed_run
        if not self._seed_runs:
            self.progress("loading the kernels; the first time they are compiled, which takes a minute")
            warm_up()
        source = self.jobs(seed, mbps)
        peaks = {policy.name: policy for policy in PEAKS}
        chosen = [peaks.get(name, POLICIES.get(name, FIXED)) for name in names]
        simulation = Simulation(self.make, source, chosen, self.scope.instants)
        while simulation.done < self.scope.instants:
            self.progress(f"seed {seed}, {mbps:g} Mbit/s: instant {simulation.done} of {self.scope.instants}")
            simulation.step()
        summaries = summarise(simulation, self.begin)
        self._seed_runs[key] = SeedRun(
            simulation.arrivals,
            {
                record.policy.name: PolicyRun(
                    summary, record.admitted, record.used, record.links_each(self.begin)
                )
                for record, summary in zip(simulation.records, summaries, strict=True)
            },
        )
        return self._seed_runs[key]

    def without_links(self, seed: int) -> tuple[MissingCapacity, ...]:
        """Return the results of Tetris, with peaks and over time, if it ignores links."""
        if seed not in self._without_links_runs:
            self.progress(f"seed {seed}: Tetris without links")
            self._without_links_runs[seed] = tuple(
                without_checks(self.make(), self.jobs(seed), policy, self.begin, self.scope.instants)
                for policy in ("tetris", "tetris-time")
            )
        return self._without_links_runs[seed]

    def published_times(self, seed: int) -> dict[str, PublishedTimes]:
        """Return the decisions of Tetris and slots with no more checks than in their publications."""
        if seed not in self._published_runs:
            rules = {"tetris": tetris_as_published, "slots": slots_as_published}
            if not self._published_runs:
                for rule in rules.values():
                    # The first decision compiles or loads the kernels.
                    rule(self.jobs(seed), self.scope.servers, 1)
            self.progress(f"seed {seed}: Tetris and slots as published")
            self._published_runs[seed] = {
                name: rule(self.jobs(seed), self.scope.servers, self.scope.instants)
                for name, rule in rules.items()
            }
        return self._published_runs[seed]

    def jobs(self, seed: int, mbps: float = PRESSURE) -> SyntheticJobs:
        """Return the jobs of a seed."""
        return SyntheticJobs(Workload(mbps=mbps), seed, self.scope.servers * JOBS_EACH)

    def over_seeds(self, mbps: float, name: str, of: Callable[[PolicySummary], float]) -> list[float]:
        """Return a number for every seed."""
        names = NAMES if mbps in {PRESSURE, CALM} else FEW
        return [of(self.seed_run(seed, mbps, names).policies[name].summary) for seed in self.seeds()]

    def relative_gains(
        self, mbps: float, name: str, other: str, of: Callable[[PolicySummary], float]
    ) -> list[float]:
        """Return the relative gain of one policy over another, for every seed."""
        pairs = zip(self.over_seeds(mbps, name, of), self.over_seeds(mbps, other, of), strict=True)
        return [gain(own, two) for own, two in pairs]

    def setting(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of the simulations."""
        scope = self.scope
        racks = -(-scope.servers // scope.per_rack)
        return (
            (
                "data centre",
                f"{scope.servers:,} servers, {racks} racks, {scope.racks_per_pod} racks to a pod",
            ),
            ("jobs", f"{scope.servers * JOBS_EACH:g} at each of {scope.instants} instants, synthetic"),
            ("counted", f"jobs that arrive from instant {self.begin} on"),
            ("seeds", ", ".join(map(str, self.seeds()))),
        )


def gain(own: float, other: float) -> float:
    """Return the relative excess of ``own`` over ``other``."""
    return own / other - 1.0 if other > 0.0 else float("inf") if own > 0.0 else 0.0


def tasks(summary: PolicySummary) -> float:
    """Return the admitted fraction of all tasks."""
    return summary.tasks


def revenue(summary: PolicySummary) -> float:
    """Return the revenue as a fraction of that of all jobs."""
    return summary.revenue


def percent(values: Sequence[float]) -> str:
    """Return the median and the range, as in ``+30% (+28% to +33%)``."""
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return f"{middle:+.0%} ({ordered[0]:+.0%} to {ordered[-1]:+.0%})"
