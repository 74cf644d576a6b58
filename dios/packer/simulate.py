"""Jobs that come over time, offered to the same data centre under several policies, step by step.

For: ``dios pack simulate`` and ``dios repro packer``. Not for: admission (``allocate.py``), making jobs up
(``generate_jobs.py``), or what is made of the numbers.

Every policy has a data centre of its own and is offered the same jobs in the same order; one that is refused
is gone. Whatever is told of a job that was admitted is what it asked for, not what a policy set aside for it.
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
from dios.packer.generate_jobs import Workload, generate_job
from dios.packer.job.ti_mra import Floats, Ints, TiMra
from dios.packer.kernels.records import UP
from dios.packer.policies import Policy
from dios.plotting import Lines

Source = Callable[[int], Sequence[TiMra]]
"""The jobs that come at an instant."""

JOBS_EACH: Final = 35 / 1200
"""Made-up jobs for each server and instant that ask for about all that there is."""


@dataclass(frozen=True)
class Steady:
    """Made-up jobs of a seed, ``rate`` of them at each instant (a part of one now and then)."""

    workload: Workload
    seed: int
    rate: float

    def __call__(self, instant: int) -> list[TiMra]:
        """The jobs of an instant: the same whatever else is drawn."""
        numbers = range(int(instant * self.rate), int((instant + 1) * self.rate))
        return [generate_job(self.workload, self.seed, number) for number in numbers]


class Counts(NamedTuple):
    """Jobs by the instant at which they came, each (T,)."""

    jobs: Ints
    tasks: Ints
    revenue: Floats
    """What they pay: 1 for an instant of all that a server has of a resource, and of its link."""


class Record:
    """What one policy did at each instant."""

    def __init__(self, policy: Policy, datacenter: Datacenter, instants: int) -> None:
        self.policy: Final = policy
        self.datacenter: Final = datacenter
        self.admitted: Final = _nothing(instants)
        self.used: Final[Floats] = np.zeros((instants, 5))
        """What tasks ask for at each instant: four resources, and bandwidth of all links."""
        self.booked: Final[Floats] = np.zeros((instants, 5))
        """The same as the policy set it aside, which knows less than is asked for."""
        self.job_s: Final[list[float]] = []
        """CPU seconds that each decision took."""
        self.refused_for: Final = dict.fromkeys(NAMES, 0)
        """Jobs refused, by the resource that was short."""
        sums = datacenter.totals
        self._has: Final = np.append(datacenter.quanta.amount(sums[:4]), datacenter.band.amount(sums[4:]))

    def offer(self, instant: int, job: TiMra, pays: float) -> bool:
        """Whether a job is admitted; ``pays`` is what it would pay."""
        begun = time.process_time()
        found = allocate(self.datacenter, job, instant, policy=self.policy)
        self.job_s.append(time.process_time() - begun)
        if not found:
            self.refused_for[found.resource] += 1
            return False
        self.admitted.jobs[instant] += 1
        self.admitted.tasks[instant] += len(found.servers)
        self.admitted.revenue[instant] += pays
        span = self.used[instant : found.end]
        span += (asked(self.datacenter, found) / self._has)[: len(span)]
        return True

    def close(self, instant: int) -> None:
        """Note the books after an instant's last job."""
        self.datacenter.advance(instant)
        self.booked[instant] = self.datacenter.utilisation()


def asked(datacenter: Datacenter, found: Placement) -> Floats:
    """(T, 5) what a job asks for over its own instants, bandwidth on each link of its paths."""
    job, site = found.job, datacenter.site
    place = found._load.place  # noqa: SLF001 - as it was booked
    source, target = place[job.ends[:, 0]], place[job.ends[:, 1]]
    one, other = site.rack[source], site.rack[target]
    links = 2 * (source != target) + 2 * (one != other) + 2 * (site.pod[one] != site.pod[other])
    return np.column_stack((job.demand.sum(axis=0), links @ job.bandwidth))


def rehearse() -> None:
    """Load all kernels, or compile them: that is not to be counted."""
    for policy in POLICIES.values():
        allocate(Datacenter.tree(2), generate_job(Workload(), 0, 0), policy=policy)


class Simulation:
    """Policies side by side: ``step`` once for each of so many instants, in order.

    ``make`` gives each policy an empty data centre, ``source`` the jobs of an instant, which must not be
    longer than the data centre looks ahead. ``ValueError`` for an unknown policy.
    """

    def __init__(
        self, make: Callable[[], Datacenter], source: Source, policies: Sequence[str | Policy], instants: int
    ) -> None:
        chosen = [POLICIES[each] if isinstance(each, str) else each for each in policies]
        self.source: Final = source
        self.instants: Final = instants
        self.records: Final = [Record(policy, make(), instants) for policy in chosen]
        self.came: Final = _nothing(instants)
        self.done = 0
        """So many instants were played."""
        first = self.records[0].datacenter
        site = first.site
        self._price: Final = site.rack.size / first.quanta.amount(np.maximum(first.totals[:4], 1.0))
        self._link: Final = 1.0 / float(first.band.amount(site.free[:1, UP].max(axis=1))[0])

    def step(self) -> None:
        """Play the next instant."""
        instant = self.done
        jobs = self.source(instant)
        pays = [self.pays(job) for job in jobs]
        self.came.jobs[instant] = len(jobs)
        self.came.tasks[instant] = sum(node.service is None for job in jobs for node in job.nodes)
        self.came.revenue[instant] = sum(pays)
        for record in self.records:
            for job, pay in zip(jobs, pays, strict=True):
                record.offer(instant, job, pay)
            record.close(instant)
        self.done += 1

    def pays(self, job: TiMra) -> float:
        """What a job pays if it is admitted (section III-B, revenue)."""
        each = (job.demand.sum(axis=(0, 1)) * self._price).sum() + job.bandwidth.sum() * self._link
        return float(each * job.instant_s / self.records[0].datacenter.instant_s)


@dataclass(frozen=True)
class Summary:
    """One policy from an instant on, as parts of one; a job counts at the instant at which it came."""

    policy: str
    jobs: float
    """Of all that came, those that were admitted; 1 where none came."""
    tasks: float
    revenue: float
    paid: float
    """The same as an amount, see ``Counts.revenue``."""
    used: tuple[float, ...]
    """What tasks asked for of cpu, memory, disk_write, disk_read and bandwidth, in the mean of instants."""
    booked: tuple[float, ...]
    """What was set aside for them."""
    job_ms: tuple[float, float, float]
    """Median, 95th percentile and mean of the CPU time for a job, of all jobs."""
    refused_for: dict[str, int]
    """Jobs refused, from the first on, by what was short."""


def summarise(simulation: Simulation, begin: int) -> list[Summary]:
    """Every policy from the instant ``begin`` on, as far as was played."""
    span = slice(begin, simulation.done)
    came = [float(each[span].sum()) for each in simulation.came]
    found = []
    for record in simulation.records:
        got = [float(each[span].sum()) for each in record.admitted]
        jobs, tasks, revenue = (part / all_ if all_ else 1.0 for part, all_ in zip(got, came, strict=True))
        times = np.array(record.job_s or [0.0]) * 1e3
        found.append(
            Summary(
                *(record.policy.name, jobs, tasks, revenue, got[2]),
                *(_mean(record.used[span]), _mean(record.booked[span])),
                (float(np.median(times)), float(np.percentile(times, 95)), float(times.mean())),
                dict(record.refused_for),
            )
        )
    return found


def _mean(parts: Floats) -> tuple[float, ...]:
    return tuple(parts.mean(axis=0).tolist()) if len(parts) else (0.0,) * 5


def _nothing(instants: int) -> Counts:
    return Counts(np.zeros(instants, np.int64), np.zeros(instants, np.int64), np.zeros(instants))


# Jobs that stand in files -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """Jobs and when they come."""

    by_instant: dict[int, list[TiMra]]

    def __call__(self, instant: int) -> list[TiMra]:
        """Those of an instant."""
        return self.by_instant.get(instant, [])

    @property
    def many(self) -> int:
        """How many there are."""
        return sum(map(len, self.by_instant.values()))

    @property
    def last(self) -> int:
        """The instant at which the last one comes."""
        return max(self.by_instant)

    @property
    def longest(self) -> int:
        """How many instants the longest one has, in instants of a second."""
        return max(job.resampled(1.0).instants for jobs in self.by_instant.values() for job in jobs)


def read_jobs(directory: Path) -> Given:
    """Jobs of a folder's TOML files, as ``arrivals.csv`` there says: lines ``instant,NAME``, maybe a heading.

    Without it each comes once, at instant 0. Raises ``ValueError`` that begins with the file and the line,
    and ``OSError``.
    """
    jobs = {path.stem: TiMra.from_toml(path) for path in sorted(directory.glob("*.toml"))}
    if not jobs:
        raise ValueError(f"{directory} holds no job: write some as NAME.toml, see docs/packer.md")
    table = directory / "arrivals.csv"
    if not table.exists():
        return Given({0: list(jobs.values())})
    found: dict[int, list[TiMra]] = {}
    with table.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            words = [word.strip() for word in row]
            if not any(words) or (number == 1 and words == ["instant", "job"]):
                continue
            place = f"{table}:{number}"
            if len(words) != 2 or not words[0].isdecimal():
                raise ValueError(f"{place}: {','.join(row)!r} is no instant and the name of a job")
            name = words[1].removesuffix(".toml")
            if name not in jobs:
                raise ValueError(f"{place}: there is no {name}.toml; there are {', '.join(jobs)}")
            instant = int(words[0])
            if instant >= PACKER_INSTANTS_MAX:
                raise ValueError(
                    f"{place}: instant {instant} is too late; {PACKER_INSTANTS_MAX} are possible"
                )
            found.setdefault(instant, []).append(jobs[name])
    if not found:
        raise ValueError(f"{table} names no job: write lines as 0,NAME")
    return Given(found)


# What is written -------------------------------------------------------------------------------------------


def instants_csv(runs: Sequence[tuple[int | None, Simulation]]) -> str:
    """A line for each seed, policy and instant that was played."""
    names = (*(f"{name} used" for name in NAMES), *(f"{name} booked" for name in NAMES))
    lines = [",".join(("seed", "policy", "instant", "tasks", "admitted", "revenue", *names))]
    for seed, simulation in runs:
        for record in simulation.records:
            for at in range(simulation.done):
                parts = (*record.used[at], *record.booked[at])
                cells = (
                    *("" if seed is None else seed, record.policy.name, at, simulation.came.tasks[at]),
                    *(record.admitted.tasks[at], f"{record.admitted.revenue[at]:.4f}"),
                    *(f"{part:.5f}" for part in parts),
                )
                lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def pictures_of(simulation: Simulation) -> list[Lines]:
    """Acceptance and what is used over time."""
    instants = np.arange(simulation.done, dtype=np.float64)
    came = np.maximum(np.cumsum(simulation.came.tasks[: simulation.done]), 1)
    drawn = [
        Lines(
            *("acceptance", "Tasks admitted of all that came so far", "instant", "part"),
            {
                record.policy.name: (instants, np.cumsum(record.admitted.tasks[: simulation.done]) / came)
                for record in simulation.records
            },
        )
    ]
    for which, name in ((0, "cpu"), (4, "bandwidth")):
        series = {
            record.policy.name: (instants, record.used[: simulation.done, which])
            for record in simulation.records
        }
        drawn.append(Lines(name, f"{name.capitalize()} that tasks ask for", "instant", "part", series))
    return drawn
