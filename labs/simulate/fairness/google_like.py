"""A synthetic month of a shared cluster from a seed: few users all the time, some by day, most in bursts.

Use it for simulations of fairness without a trace; the 2011 Google trace itself is read by
``labs.simulate.fairness.trace``. It has no machines, priorities or constraints; placement has another
generator.

The published trace has about 600 users. A handful of them submit most of the tasks at all hours; most users
come seldom and then submit much at once. A memory of past use distinguishes these kinds:

- constant: 1.2 % of the users with 60 % of the tasks, whose jobs come evenly over the whole time;
- daily: 12 % with 25 %, whose jobs come in working hours;
- bursty: the others with the rest, each in a few bursts of about an hour.

Jobs have Pareto numbers of tasks that are submitted at the same time with the same demand. Run times are
lognormal about a median that is the job's. ``GoogleLike`` lists the parameters that the trace does not give;
they are our choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dios.fairness.allocation import Floats, Ints
from labs.simulate.fairness.trace import DAY_US, MICRO, FairTrace

RESOURCES: Final = ("cpu", "memory")
UNITS: Final = 1024
"""Demands are whole numbers of this part of a machine, so that sums and ties are exact."""
WORK_HOURS: Final = (9.0, 19.0)


class UserKind(NamedTuple):
    """One kind of user."""

    name: str
    users: float
    """Its fraction of all users; each kind has at least one."""
    tasks: float
    """Its fraction of all tasks."""


GROUPS: Final = (
    UserKind("constant", 0.012, 0.60),
    UserKind("daily", 0.12, 0.25),
    UserKind("bursty", 0.868, 0.15),
)


@dataclass(frozen=True, slots=True)
class GoogleLike:
    """The parameters of a synthetic trace.

    - ``users``, ``tasks``, ``days`` and ``seed``: its size and its random seed.
    - ``pareto``: the exponent of the number of tasks in a job; ``job_share``: the largest fraction of all
      tasks in one job.
    - ``running``: the mean number of tasks that would run at a time if none waited; it sets the run times.
    - ``runtime_spread``, ``runtime_jitter``: the deviation of the logarithm of run times, between jobs and
      within a job.
    - ``demand``: the median demand for CPU and memory, as fractions of a machine; ``demand_spread``: its
      deviation between jobs.
    - ``bursts``: the mean number of bursts of a bursty user; ``burst_s``: their mean length in seconds.
    - ``activity``: the lognormal deviation of users within a kind.
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
            raise ValueError(f"users is {self.users}; it must be at least {len(GROUPS)}, one of each kind")
        if self.tasks < self.users:
            raise ValueError(f"tasks is {self.tasks}; it must be at least {self.users}, one for each user")
        if not (math.isfinite(self.days) and self.days > 0):
            raise ValueError(f"days is {self.days}; it must be a finite number above 0")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be 0 or more")


def generate_trace(parameters: GoogleLike) -> FairTrace:
    """Return the tasks of all users, in order of submission; the same parameters give the same tasks.

    Demands are (T, 2) whole numbers of 1/1024 of a machine's CPU and memory.
    """
    rng = np.random.default_rng(parameters.seed)
    horizon_us = int(parameters.days * DAY_US)
    sizes = _divide(parameters.users, [group.users for group in GROUPS], [1] * len(GROUPS))
    amounts = _divide(parameters.tasks, [group.tasks for group in GROUPS], sizes)
    jobs: list[tuple[Ints, Ints, Floats]] = []
    first = 0
    for group, users, tasks in zip(GROUPS, sizes, amounts, strict=True):
        counts = _job_sizes(parameters, tasks, users, rng)
        owners = _owners(parameters, counts.size, users, rng)
        times = _times(group.name, parameters, owners, users, rng)
        jobs.append((counts, owners + first, times))
        first += users
    counts, owners, times = (np.concatenate(column) for column in zip(*jobs, strict=True))
    order = np.argsort(times, kind="stable")
    counts, owners, times = counts[order], owners[order], times[order]
    mean_s = parameters.running * horizon_us / MICRO / parameters.tasks
    median = math.log(mean_s) - (parameters.runtime_spread**2 + parameters.runtime_jitter**2) / 2
    lengths = rng.normal(median, parameters.runtime_spread, counts.size)
    demands = _demands(parameters, counts.size, rng)
    jitter = rng.normal(0.0, parameters.runtime_jitter, int(counts.sum()))
    seconds = np.exp(np.repeat(lengths, counts) + jitter)
    return FairTrace(
        submit_us=np.repeat((times * MICRO).astype(np.int64), counts),
        duration_us=(np.clip(seconds, 1.0, horizon_us / MICRO) * MICRO).astype(np.int64),
        user=np.repeat(owners, counts),
        demands=np.repeat(demands, counts, axis=0),
        horizon_us=horizon_us,
        users=parameters.users,
    )


def _divide(total: int, shares: list[float], least: list[int]) -> list[int]:
    """Divide a total by shares, with a least value for each part; the last part absorbs rounding."""
    parts = [max(floor, round(total * share)) for share, floor in zip(shares, least, strict=True)]
    parts[-1] = max(least[-1], total - sum(parts[:-1]))
    # With few users or tasks the least values may exceed the total: reduce the parts that are above theirs.
    for at, floor in enumerate(least):
        parts[at] -= min(parts[at] - floor, sum(parts) - total)
    return parts


def _job_sizes(parameters: GoogleLike, tasks: int, users: int, rng: np.random.Generator) -> Ints:
    """Return the number of tasks in each job: Pareto, at least one job for each user, ``tasks`` in total."""
    most = max(1, int(parameters.job_share * parameters.tasks))
    sizes: list[Ints] = [np.ones(users, np.int64)]
    left = tasks - users
    while left > 0:
        drawn = np.minimum(rng.pareto(parameters.pareto, max(64, left // 8)) + 1.0, most).astype(np.int64)
        ends = np.cumsum(drawn)
        drawn = drawn[: int(np.searchsorted(ends, left)) + 1]
        if drawn.sum() > left:
            drawn[-1] -= int(drawn.sum()) - left
        sizes.append(drawn)
        left -= int(drawn.sum())
    return np.concatenate(sizes)


def _owners(parameters: GoogleLike, jobs: int, users: int, rng: np.random.Generator) -> Ints:
    """Return the user of each job: one job for each user, the others in proportion to activity."""
    active = np.exp(rng.normal(0.0, parameters.activity, users))
    drawn = rng.choice(users, jobs - users, p=active / active.sum())
    return np.concatenate([np.arange(users), drawn]).astype(np.int64)


def _times(kind: str, parameters: GoogleLike, owners: Ints, users: int, rng: np.random.Generator) -> Floats:
    """Return the submission time of each job in seconds."""
    span = parameters.days * DAY_US / MICRO
    if kind == "constant":
        return rng.uniform(0.0, span, owners.size)
    if kind == "daily":
        begin, end = WORK_HOURS
        days = rng.integers(0, max(1, round(parameters.days)), owners.size)
        hours = rng.uniform(begin, end, owners.size)
        # A trace shorter than a day compresses the day: working hours keep their fraction.
        return (
            np.minimum((days * 24.0 + hours) * 3600.0, span) if parameters.days >= 1 else hours / 24.0 * span
        )
    bursts = 1 + rng.poisson(max(0.0, parameters.bursts - 1.0), users)
    starts = rng.uniform(0.0, span, int(bursts.sum()))
    offsets = np.concatenate([[0], np.cumsum(bursts)[:-1]])
    which = offsets[owners] + (rng.random(owners.size) * bursts[owners]).astype(np.int64)
    times: Floats = np.minimum(starts[which] + rng.exponential(parameters.burst_s, owners.size), span)
    return times


def _demands(parameters: GoogleLike, jobs: int, rng: np.random.Generator) -> Floats:
    """Return (jobs, 2) whole numbers of a machine's parts, from one part to half a machine."""
    drawn = np.log(np.array(parameters.demand)) + rng.normal(0.0, parameters.demand_spread, (jobs, 2))
    parts: Floats = np.clip(np.rint(np.exp(drawn) * UNITS), 1.0, UNITS / 2)
    return parts
