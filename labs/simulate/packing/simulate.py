"""Jobs that arrive over time, offered to the same data centre under several policies, step by step.

Used by ``dios lab pack`` and ``dios lab repro packer``.

Every policy has a data centre of its own and is offered the same jobs in the same order; a refused job is
gone. Amounts of admitted jobs are those that the jobs demand, unless they are called booked: a policy that
knows less than the demands over time reserves more than that.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from dios.limits import PACKER_INSTANTS_MAX
from dios.packer.allocate import NAMES, Placement, allocate
from dios.packer.baselines import POLICIES
from dios.packer.datacenter import Datacenter
from dios.packer.job.ti_mra import Floats, Ints, TiMra
from dios.packer.kernels.records import UP
from dios.packer.policies import Policy
from labs.plotting import Lines
from labs.simulate.packing.generate_jobs import Workload, generate_job

JobSource = Callable[[int], Sequence[TiMra]]
"""Returns the jobs that arrive at an instant."""

JOBS_EACH: Final = 35 / 1200
"""The number of synthetic jobs for each server and instant that demand about all resources."""


@dataclass(frozen=True)
class SyntheticJobs:
    """Synthetic jobs of a seed, ``rate`` of them at each instant; a fraction adds a job now and then."""

    workload: Workload
    seed: int
    rate: float

    def __call__(self, instant: int) -> list[TiMra]:
        """Return the jobs of an instant, which depend only on the seed and the instant."""
        numbers = range(int(instant * self.rate), int((instant + 1) * self.rate))
        return [generate_job(self.workload, self.seed, number) for number in numbers]


class JobCounts(NamedTuple):
    """Numbers by the instant at which jobs arrived, each (T,)."""

    jobs: Ints
    tasks: Ints
    revenue: Floats
    """The jobs' payment: 1 for an instant of all of a server's amount of a resource, and of its link."""


class PolicyRecord:
    """The results of one policy at each instant."""

    def __init__(self, policy: Policy, datacenter: Datacenter, instants: int) -> None:
        self.policy: Final = policy
        self.datacenter: Final = datacenter
        self.admitted: Final = _zero_counts(instants)
        self.used: Final[Floats] = np.zeros((instants, 5))
        """The demand of admitted jobs at each instant: four resources, and bandwidth of all links."""
        self.booked: Final[Floats] = np.zeros((instants, 5))
        """The amounts that the policy reserved for them."""
        self.flow: Final[Floats] = np.zeros(instants)
        """The bandwidth of all admitted edges that leave a server, each counted once."""
        self.job_s: Final[list[float]] = []
        """CPU seconds of each decision."""
        self.refused_for: Final = dict.fromkeys(NAMES, 0)
        """The number of refused jobs, by the resource that was short."""
        sums = datacenter.totals
        self._has: Final = np.append(datacenter.quanta.amount(sums[:4]), datacenter.band.amount(sums[4:]))

    def offer(self, instant: int, job: TiMra, payment: float) -> bool:
        """Offer a job that would pay ``payment``; return True if it is admitted."""
        begun = time.process_time()
        placement = allocate(self.datacenter, job, instant, policy=self.policy)
        self.job_s.append(time.process_time() - begun)
        if not placement:
            self.refused_for[placement.resource] += 1
            return False
        self.admitted.jobs[instant] += 1
        self.admitted.tasks[instant] += len(placement.servers)
        self.admitted.revenue[instant] += payment
        span = self.used[instant : placement.end]
        span += (demand_over_time(self.datacenter, placement) / self._has)[: len(span)]
        place = placement._arrays.place  # noqa: SLF001 - the places as they were reserved
        apart = place[placement.job.ends[:, 0]] != place[placement.job.ends[:, 1]]
        self.flow[instant : placement.end] += (apart @ placement.job.bandwidth)[: len(span)]
        return True

    def links_each(self, begin: int) -> float:
        """Return the mean number of links on the paths of edges from ``begin`` on, weighted by bandwidth.

        Edges within a server use no link and do not count.
        """
        flow = float(self.flow[begin:].sum())
        return float(self.used[begin:, 4].sum() * self._has[4]) / flow if flow else 0.0

    def close(self, instant: int) -> None:
        """Record the reservations after an instant's last job."""
        self.datacenter.advance(instant)
        self.booked[instant] = self.datacenter.utilisation()


def demand_over_time(datacenter: Datacenter, placement: Placement) -> Floats:
    """Return (T, 5) a job's demand over its own instants, with bandwidth on each link of its paths."""
    job, site = placement.job, datacenter.site
    place = placement._arrays.place  # noqa: SLF001 - the places as they were reserved
    source, target = place[job.ends[:, 0]], place[job.ends[:, 1]]
    source_rack, other = site.rack[source], site.rack[target]
    links = (
        2 * (source != target) + 2 * (source_rack != other) + 2 * (site.pod[source_rack] != site.pod[other])
    )
    return np.column_stack((job.demand.sum(axis=0), links @ job.bandwidth))


def warm_up() -> None:
    """Load or compile all kernels, so that no measurement includes it."""
    for policy in POLICIES.values():
        allocate(Datacenter.tree(2), generate_job(Workload(), 0, 0), policy=policy)


class Simulation:
    """Policies side by side: call ``step`` once for each of ``instants`` instants.

    ``make`` returns an empty data centre for a policy. ``source`` returns the jobs of an instant, which must
    not be longer than the data centre's horizon.
    """

    def __init__(
        self,
        make: Callable[[], Datacenter],
        source: JobSource,
        policies: Sequence[str | Policy],
        instants: int,
    ) -> None:
        chosen = [POLICIES[policy] if isinstance(policy, str) else policy for policy in policies]
        self.source: Final = source
        self.instants: Final = instants
        self.records: Final = [PolicyRecord(policy, make(), instants) for policy in chosen]
        self.arrivals: Final = _zero_counts(instants)
        self.done = 0
        """The number of instants that were simulated."""
        first = self.records[0].datacenter
        site = first.site
        self._price: Final = site.rack.size / first.quanta.amount(np.maximum(first.totals[:4], 1.0))
        self._link: Final = 1.0 / float(first.band.amount(site.free[:1, UP].max(axis=1))[0])

    def step(self) -> None:
        """Simulate the next instant."""
        instant = self.done
        jobs = self.source(instant)
        payment = [self.payment(job) for job in jobs]
        self.arrivals.jobs[instant] = len(jobs)
        self.arrivals.tasks[instant] = sum(node.service is None for job in jobs for node in job.nodes)
        self.arrivals.revenue[instant] = sum(payment)
        for record in self.records:
            for job, pay in zip(jobs, payment, strict=True):
                record.offer(instant, job, pay)
            record.close(instant)
        self.done += 1

    def payment(self, job: TiMra) -> float:
        """Return the payment for a job if it is admitted (section III-B, revenue)."""
        per_instant = (job.demand.sum(axis=(0, 1)) * self._price).sum() + job.bandwidth.sum() * self._link
        return float(per_instant * job.instant_s / self.records[0].datacenter.instant_s)


@dataclass(frozen=True)
class PolicySummary:
    """One policy's results from an instant on, as fractions; a job counts at the instant of its arrival."""

    policy: str
    jobs: float
    """The admitted fraction of all jobs; 1 if there was no job."""
    tasks: float
    revenue: float
    paid: float
    """The revenue as an amount, see ``JobCounts.revenue``."""
    used: tuple[float, ...]
    """Demand for cpu, memory, disk_write, disk_read and bandwidth, averaged over instants."""
    booked: tuple[float, ...]
    """Reserved amounts, averaged over instants."""
    job_ms: tuple[float, float, float]
    """Median, 95th percentile and mean of the CPU time for a job, over all jobs."""
    refused_for: dict[str, int]
    """The number of refused jobs since the beginning, by the resource that was short."""


def summarise(simulation: Simulation, begin: int) -> list[PolicySummary]:
    """Return the results of every policy from the instant ``begin`` to the last simulated one."""
    span = slice(begin, simulation.done)
    arrivals = [float(series[span].sum()) for series in simulation.arrivals]
    summaries = []
    for record in simulation.records:
        got = [float(series[span].sum()) for series in record.admitted]
        jobs, tasks, revenue = (
            part / all_ if all_ else 1.0 for part, all_ in zip(got, arrivals, strict=True)
        )
        times = np.array(record.job_s or [0.0]) * 1e3
        summaries.append(
            PolicySummary(
                *(record.policy.name, jobs, tasks, revenue, got[2]),
                *(_mean(record.used[span]), _mean(record.booked[span])),
                (float(np.median(times)), float(np.percentile(times, 95)), float(times.mean())),
                dict(record.refused_for),
            )
        )
    return summaries


def _mean(parts: Floats) -> tuple[float, ...]:
    return tuple(parts.mean(axis=0).tolist()) if len(parts) else (0.0,) * 5


def _zero_counts(instants: int) -> JobCounts:
    return JobCounts(np.zeros(instants, np.int64), np.zeros(instants, np.int64), np.zeros(instants))


# Jobs from files


@dataclass(frozen=True)
class JobFiles:
    """Jobs by the instant of their arrival."""

    by_instant: dict[int, list[TiMra]]

    def __call__(self, instant: int) -> list[TiMra]:
        """Return the jobs of an instant."""
        return self.by_instant.get(instant, [])

    @property
    def many(self) -> int:
        """The number of jobs."""
        return sum(map(len, self.by_instant.values()))

    @property
    def last(self) -> int:
        """The instant of the last arrival."""
        return max(self.by_instant)

    @property
    def longest(self) -> int:
        """The length of the longest job, in instants of a second."""
        return max(job.resampled(1.0).instants for jobs in self.by_instant.values() for job in jobs)


def read_jobs(directory: Path) -> JobFiles:
    """Read the jobs of a folder's TOML files, which arrive as its ``arrivals.csv`` says.

    The lines of that file are ``instant,NAME``, with an optional header. Without the file each job arrives
    once, at instant 0. Raises ``ValueError`` that begins with the file and the line, and ``OSError``.
    """
    jobs = {path.stem: TiMra.from_toml(path) for path in sorted(directory.glob("*.toml"))}
    if not jobs:
        raise ValueError(f"{directory} holds no job; write some as NAME.toml, see docs/packer.md")
    table = directory / "arrivals.csv"
    if not table.exists():
        return JobFiles({0: list(jobs.values())})
    by_instant: dict[int, list[TiMra]] = {}
    with table.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            words = [word.strip() for word in row]
            if not any(words) or (number == 1 and words == ["instant", "job"]):
                continue
            place = f"{table}:{number}"
            if len(words) != 2 or not words[0].isdecimal():
                raise ValueError(f"{place}: {','.join(row)!r} must be an instant and the name of a job")
            name = words[1].removesuffix(".toml")
            if name not in jobs:
                raise ValueError(f"{place}: {name}.toml does not exist; there are {', '.join(jobs)}")
            instant = int(words[0])
            if instant >= PACKER_INSTANTS_MAX:
                raise ValueError(
                    f"{place}: instant {instant} is too late; it must be below {PACKER_INSTANTS_MAX}"
                )
            by_instant.setdefault(instant, []).append(jobs[name])
    if not by_instant:
        raise ValueError(f"{table} names no job; write lines as 0,NAME")
    return JobFiles(by_instant)


# Output


def instants_csv(runs: Sequence[tuple[int | None, Simulation]]) -> str:
    """Return a CSV table with a line for each seed, policy and simulated instant."""
    names = (*(f"{name} used" for name in NAMES), *(f"{name} booked" for name in NAMES))
    lines = [",".join(("seed", "policy", "instant", "tasks", "admitted", "revenue", *names))]
    for seed, simulation in runs:
        for record in simulation.records:
            for at in range(simulation.done):
                parts = (*record.used[at], *record.booked[at])
                cells = (
                    *("" if seed is None else seed, record.policy.name, at, simulation.arrivals.tasks[at]),
                    *(record.admitted.tasks[at], f"{record.admitted.revenue[at]:.4f}"),
                    *(f"{part:.5f}" for part in parts),
                )
                lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def figures_of(simulation: Simulation) -> list[Lines]:
    """Return figures of acceptance and demand over time."""
    instants = np.arange(simulation.done, dtype=np.float64)
    arrivals = np.maximum(np.cumsum(simulation.arrivals.tasks[: simulation.done]), 1)
    drawn = [
        Lines(
            *("acceptance", "Admitted tasks of all tasks so far", "instant", "fraction"),
            {
                record.policy.name: (instants, np.cumsum(record.admitted.tasks[: simulation.done]) / arrivals)
                for record in simulation.records
            },
        )
    ]
    for which, name in ((0, "cpu"), (4, "bandwidth")):
        series = {
            record.policy.name: (instants, record.used[: simulation.done, which])
            for record in simulation.records
        }
        drawn.append(Lines(name, f"{name.capitalize()} demanded by tasks", "instant", "fraction", series))
    return drawn
