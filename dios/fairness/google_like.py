"""A made-up month of a shared cluster, by seed: a few users all the time, some by day, most in bursts.

For: simulations of fairness without a trace. Not for: machines, priorities or constraints; the 2011 Google
trace itself is read by ``dios.fairness.trace``, and placement has a generator of its own.

The published trace has some 600 users; a handful of them submit most of the tasks, at all hours, and most
users come seldom and then with much at once. That is what a memory of past use can tell apart:

- constant: 1.2 % of the users with 60 % of the tasks, whose jobs come evenly over the whole time;
- daily: 12 % with 25 %, whose jobs come in working hours;
- bursty: the others with the rest, each in a few bursts of an hour or so.

Jobs have Pareto numbers of tasks, which come at one instant and ask for the same; how long they run is
lognormal about a length that is the job's. What the trace does not say is our choice and stands in
``GoogleLike``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dios.fairness.allocation import Floats, Ints
from dios.fairness.trace import DAY_US, MICRO, FairTrace

RESOURCES: Final = ("cpu", "memory")
UNITS: Final = 1024
"""Demands are whole numbers of this part of a machine, so that sums are exact and ties are ties."""
WORK_HOURS: Final = (9.0, 19.0)


class Group(NamedTuple):
    """One kind of user."""

    name: str
    users: float
    """Its share of all users; each kind has at least one."""
    tasks: float
    """Its share of all tasks."""


GROUPS: Final = (Group("constant", 0.012, 0.60), Group("daily", 0.12, 0.25), Group("bursty", 0.868, 0.15))


@dataclass(frozen=True, slots=True)
class GoogleLike:
    """What is made up.

    ``users``, ``tasks`` and ``days`` say how many and how long, ``seed`` which. ``pareto`` is the exponent
    of the tasks in a job, at most ``job_share`` of all tasks in one. Tasks last so long that about
    ``running`` of them would run at a time if none waited. Lengths are lognormal: ``runtime_spread`` is the
    deviation (of logarithms) of the jobs, ``runtime_jitter`` within a job. ``demand`` is the median demand
    for CPU and memory, a fraction of a machine, ``demand_spread`` its deviation, between jobs. A bursty user
    has ``bursts`` bursts on average, each with a mean length of ``burst_s``. Within a kind, users differ by
    a lognormal ``activity``.
    """

    users: int = 600
    tasks: int = 1_000_000
    days: float = 30.0
    seed: int = 1
    pareto: float = 1.3
    job_share: float = 0.002
    running: float = 300.0
    runtime_spread: float = 1.2
    runtime_jitter: float = 0.5
    demand: tuple[float, float] = (0.02, 0.015)
    demand_spread: float = 0.7
    bursts: float = 4.0
    burst_s: float = 3_600.0
    activity: float = 1.0

    def __post_init__(self) -> None:
        if self.users < len(GROUPS):
            raise ValueError(f"users is {self.users}; there are {len(GROUPS)} kinds, with one user each")
        if self.tasks < self.users:
            raise ValueError(f"tasks is {self.tasks}; each of the {self.users} users has at least one")
        if not (math.isfinite(self.days) and self.days > 0):
            raise ValueError(f"days is {self.days}; it must be a finite number above 0")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be 0 or more")


def generate_trace(made: GoogleLike) -> FairTrace:
    """The tasks of all users, in order of submission; the same description gives the same tasks.

    Demands are (T, 2) whole numbers of 1/1024 of a machine's CPU and memory.
    """
    rng = np.random.default_rng(made.seed)
    horizon_us = int(made.days * DAY_US)
    sizes = _parts(made.users, [group.users for group in GROUPS], [1] * len(GROUPS))
    amounts = _parts(made.tasks, [group.tasks for group in GROUPS], sizes)
    jobs: list[tuple[Ints, Ints, Floats]] = []
    first = 0
    for group, users, tasks in zip(GROUPS, sizes, amounts, strict=True):
        counts = _job_sizes(made, tasks, users, rng)
        owners = _owners(made, counts.size, users, rng)
        times = _times(group.name, made, owners, users, rng)
        jobs.append((counts, owners + first, times))
        first += users
    counts, owners, times = (np.concatenate(column) for column in zip(*jobs, strict=True))
    order = np.argsort(times, kind="stable")
    counts, owners, times = counts[order], owners[order], times[order]
    mean_s = made.running * horizon_us / MICRO / made.tasks
    median = math.log(mean_s) - (made.runtime_spread**2 + made.runtime_jitter**2) / 2
    lengths = rng.normal(median, made.runtime_spread, counts.size)
    demands = _demands(made, counts.size, rng)
    jitter = rng.normal(0.0, made.runtime_jitter, int(counts.sum()))
    seconds = np.exp(np.repeat(lengths, counts) + jitter)
    return FairTrace(
        submit_us=np.repeat((times * MICRO).astype(np.int64), counts),
        duration_us=(np.clip(seconds, 1.0, horizon_us / MICRO) * MICRO).astype(np.int64),
        user=np.repeat(owners, counts),
        demands=np.repeat(demands, counts, axis=0),
        horizon_us=horizon_us,
        users=made.users,
    )


def _parts(total: int, shares: list[float], least: list[int]) -> list[int]:
    """A total in parts, each no less than so much; the last one takes what rounding leaves."""
    parts = [max(floor, round(total * share)) for share, floor in zip(shares, least, strict=True)]
    parts[-1] = max(least[-1], total - sum(parts[:-1]))
    # With few users or tasks the floors may have added up to too much: who can gives.
    for at, floor in enumerate(least):
        parts[at] -= min(parts[at] - floor, sum(parts) - total)
    return parts


def _job_sizes(made: GoogleLike, tasks: int, users: int, rng: np.random.Generator) -> Ints:
    """Tasks in each job: Pareto, at least a job for each user, in sum ``tasks``."""
    most = max(1, int(made.job_share * made.tasks))
    found: list[Ints] = [np.ones(users, np.int64)]
    left = tasks - users
    while left > 0:
        drawn = np.minimum(rng.pareto(made.pareto, max(64, left // 8)) + 1.0, most).astype(np.int64)
        ends = np.cumsum(drawn)
        drawn = drawn[: int(np.searchsorted(ends, left)) + 1]
        if drawn.sum() > left:
            drawn[-1] -= int(drawn.sum()) - left
        found.append(drawn)
        left -= int(drawn.sum())
    return np.concatenate(found)


def _owners(made: GoogleLike, jobs: int, users: int, rng: np.random.Generator) -> Ints:
    """Whose each job is: one for each user, the others by how active users are."""
    active = np.exp(rng.normal(0.0, made.activity, users))
    drawn = rng.choice(users, jobs - users, p=active / active.sum())
    return np.concatenate([np.arange(users), drawn]).astype(np.int64)


def _times(kind: str, made: GoogleLike, owners: Ints, users: int, rng: np.random.Generator) -> Floats:
    """Seconds at which jobs come."""
    span = made.days * DAY_US / MICRO
    if kind == "constant":
        return rng.uniform(0.0, span, owners.size)
    if kind == "daily":
        begin, end = WORK_HOURS
        days = rng.integers(0, max(1, round(made.days)), owners.size)
        hours = rng.uniform(begin, end, owners.size)
        # Of less than a day only a part of its working hours is there; it is the same part of the whole.
        return np.minimum((days * 24.0 + hours) * 3600.0, span) if made.days >= 1 else hours / 24.0 * span
    bursts = 1 + rng.poisson(max(0.0, made.bursts - 1.0), users)
    starts = rng.uniform(0.0, span, int(bursts.sum()))
    offsets = np.concatenate([[0], np.cumsum(bursts)[:-1]])
    which = offsets[owners] + (rng.random(owners.size) * bursts[owners]).astype(np.int64)
    times: Floats = np.minimum(starts[which] + rng.exponential(made.burst_s, owners.size), span)
    return times


def _demands(made: GoogleLike, jobs: int, rng: np.random.Generator) -> Floats:
    """(jobs, 2) whole numbers of a machine's parts, from one part to half a machine."""
    drawn = np.log(np.array(made.demand)) + rng.normal(0.0, made.demand_spread, (jobs, 2))
    parts: Floats = np.clip(np.rint(np.exp(drawn) * UNITS), 1.0, UNITS / 2)
    return parts
