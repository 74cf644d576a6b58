"""A synthetic workload like that of the 2011 Google cluster, for any number of machines.

It allows experiments at scale without the 40 GB of the trace (§8.4). It has only the properties and numbers
listed here, so it does not support other conclusions about Google's workload.

These published numbers are used:

- about 12,550 machines of ten kinds (thesis §2.1.2; Reiss et al., SoCC 2012, Table 1: ``machines``);
- about 150,000 tasks at a time at full scale, 40,000 at 3,000 machines (§8.4); in 29 days some 670,000
  jobs with some 25 million tasks, which is 10 tasks a second and 38 tasks a job on average;
- three quarters of the jobs have one task, and few have thousands (Reiss et al., §4);
- most jobs and tasks are batch, but services hold 55 to 80 % of the resources (thesis §2.1.1;
  Schwarzkopf et al., EuroSys 2013, §2.1);
- runtimes are heavy-tailed: most tasks last minutes, a few last days and hold most resources (Reiss et
  al., §4);
- priorities 0 to 11: 0 and 1 free, 9 to 11 production (the trace's description);
- requests for CPU and memory are small compared with machines, and both are in similar demand;
- the submission rate follows a daily wave.

The constants below follow from these numbers. At load 0.5 and 12,550 machines, 150,000 tasks run, three
quarters of them services, and about 10 tasks are submitted each second.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dios.errors import InvalidError
from dios.firmament.descriptors import Block, JobDescriptor, Kind, Resources, TaskDescriptor
from labs import limits
from labs.simulate.workloads.block_map import BlockMap, file_size
from labs.simulate.workloads.events import Happening, JobSubmission, MachineUp, SimulatedTask
from labs.simulate.workloads.machines import GIB, GOOGLE_SLOTS, google_machines

SERVICE_SHARE: Final = 0.75
"""The share of the load that services hold."""
SINGLE_SHARE: Final = 0.75
"""The share of the jobs that have one task."""
JOB_TAIL: Final = 0.55
"""Pareto exponent of the sizes of the other jobs: the mean over all jobs is tens of tasks."""
JOB_TASKS_MAX: Final = 5_000
BATCH_MEDIAN_S: Final = 420.0
BATCH_SPREAD: Final = 1.3
"""Log-normal body of batch runtimes, with a median of seven minutes."""
TAIL_SHARE: Final = 0.15
TAIL_FROM_S: Final = 3_600.0
TAIL_EXPONENT: Final = 1.1
TAIL_MAX_S: Final = 7 * 86_400.0
"""Pareto tail: some of the batch jobs take hours, a few take days."""
SERVICE_MEDIAN_S: Final = 2 * 86_400.0
SERVICE_SPREAD: Final = 1.5
"""Services run for days; those that end are replaced at the same rate."""
TASK_SPREAD: Final = 0.25
"""Variation of the runtimes of a job's tasks: the standard deviation of the logarithm."""
CPU_MEDIAN: Final = 0.35
CPU_SPREAD: Final = 0.7
CPU_MAX: Final = 6.0
MEMORY_MEDIAN: Final = 0.45 * GIB
MEMORY_SPREAD: Final = 0.95
MEMORY_MAX: Final = 8 * GIB
"""Requests by job. A full machine of the most frequent kind (12 threads, 32 GB, 24 slots) has requests for
about nine tenths of its CPUs and half of its memory."""
WAVE: Final = 0.3
DAY_S: Final = 86_400.0
"""The submission rate varies by three tenths around its mean over a day."""
BATCH_PRIORITIES: Final = ((0, 0.40), (1, 0.12), (2, 0.08), (4, 0.35), (6, 0.05))
SERVICE_PRIORITIES: Final = ((9, 0.80), (10, 0.05), (11, 0.15))
INITIAL_CHUNK_TASKS: Final = 1_000
"""Tasks of the initial state are submitted in groups of at most this size, all at time 0."""


@dataclass(frozen=True, slots=True)
class GoogleLike:
    """The parameters of a Google-like workload.

    Attributes:
        machines: the number of machines.
        seed: the seed of all random choices.
        load: the demanded share of all slots (24 on each machine); over 1 for an overloaded cluster.
        seconds: the duration of arrivals.
        blocks: give batch tasks inputs on the machines' file system.
        topology: give machines sockets, caches, cores and threads as vertices.
        rate: the factor by which batch jobs are more frequent and shorter: more events, the same load.
    """

    machines: int
    seed: int = 0
    load: float = 0.5
    seconds: float = 3_600.0
    blocks: bool = False
    topology: bool = False
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.machines <= limits.SIMULATED_MACHINES_MAX:
            raise InvalidError(
                f"a cluster of {self.machines} machines; it must have 1 to {limits.SIMULATED_MACHINES_MAX}"
            )
        if not 0 < self.load <= 10:
            raise InvalidError(f"load is {self.load}; it must be over 0, 1 being all slots, and at most 10")
        if not self.rate > 0:
            raise InvalidError(f"rate is {self.rate}; it must be over 0")


class _GeneratedJob(NamedTuple):
    """A job whose tasks are not generated yet."""

    at: float
    service: bool
    tasks: int
    median: float
    """Seconds."""
    initial: bool


class GoogleWorkload:
    """The events of a ``GoogleLike``, generated on demand."""

    def __init__(self, parameters: GoogleLike) -> None:
        self._what = parameters
        self._random = np.random.default_rng([parameters.seed, 3])
        self._jobs = 0
        self._tasks = 0
        self._blocks: BlockMap | None = None
        slots = parameters.machines * GOOGLE_SLOTS
        self._job_tasks_max = max(1, min(JOB_TASKS_MAX, slots // 50))
        self.batch_target = parameters.load * slots * (1 - SERVICE_SHARE)
        """The number of running batch tasks, averaged over a day."""
        self.service_target = parameters.load * slots * SERVICE_SHARE

    def events(self) -> Iterator[Happening]:
        """Yield the machines, the tasks of the initial state, then arrivals until ``seconds`` are over."""
        machines: list[MachineUp] = []
        for machine in google_machines(self._what.machines, self._what.seed, topology=self._what.topology):
            machines.append(machine)
            yield machine
        if self._what.blocks:
            self._blocks = BlockMap([machine.machine for machine in machines], self._what.seed)
        yield from self._initial()
        streams = (self._arrivals(service=True), self._arrivals(service=False))
        yield from heapq.merge(*streams, key=lambda event: event.time)

    def job_done(self, job: int, now: float) -> JobSubmission | None:
        """Return None: arrivals do not depend on ends."""
        del job, now
        return None

    # Jobs -------------------------------------------------------------------------------------------

    def _initial(self) -> Iterator[JobSubmission]:
        """Yield the jobs that a long-running cluster has at one moment; long jobs are more likely there."""
        for service, target in ((True, self.service_target), (False, self.batch_target)):
            there = 0.0
            while there < target:
                size = min(self._size(), math.ceil(target - there), INITIAL_CHUNK_TASKS)
                there += size
                yield self._make(
                    _GeneratedJob(0.0, service, size, self._runtime_of_running(service=service), True)
                )

    def _arrivals(self, *, service: bool) -> Iterator[JobSubmission]:
        """Yield jobs at random times, at the rate that keeps the target running on average (Little's law)."""
        mean_s, mean_size = _mean_runtime(service=service), _mean_size(self._job_tasks_max)
        target = self.service_target if service else self.batch_target
        every = mean_s / target * mean_size / (1.0 if service else self._what.rate)
        # Thinning: generate jobs at the peak rate, then drop each with the probability that gives the wave.
        now = 0.0
        while True:
            now += float(self._random.exponential(every / (1 + WAVE)))
            if now >= self._what.seconds:
                return
            wave = 1 + WAVE * math.sin(2 * math.pi * now / DAY_S)
            if self._random.random() * (1 + WAVE) < wave:
                median = _runtime(self._random.random(), self._random.normal(), service=service)
                yield self._make(_GeneratedJob(now, service, self._size(), median, False))

    def _size(self) -> int:
        return min(_size_at(self._random.random()), self._job_tasks_max)

    def _runtime_of_running(self, *, service: bool) -> float:
        return _running_runtime(self._random.random(), self._random.normal(), service=service)

    # Tasks ------------------------------------------------------------------------------------------

    def _make(self, job: _GeneratedJob) -> JobSubmission:
        """Return a job's tasks, all submitted at once."""
        random = self._random
        number, self._jobs = self._jobs, self._jobs + 1
        name = f"{'service' if job.service else 'batch'}{number}"
        demand = Resources(
            min(CPU_MAX, CPU_MEDIAN * math.exp(CPU_SPREAD * float(random.normal()))),
            min(MEMORY_MAX, MEMORY_MEDIAN * math.exp(MEMORY_SPREAD * float(random.normal()))),
        )
        priority = _pick(SERVICE_PRIORITIES if job.service else BATCH_PRIORITIES, random.random())
        # The factors have a mean of 1, so they do not change the mean runtime on which the rate is based.
        factors = np.exp(random.normal(-(TASK_SPREAD**2) / 2, TASK_SPREAD, job.tasks))
        runtimes = job.median * factors / (1.0 if job.service else self._what.rate)
        if job.initial:
            runtimes *= random.random(job.tasks)
        size = file_size(self._input_quantile(job)) if self._blocks and not job.service else 0
        tasks = tuple(
            self._task(name, demand, priority, float(runtime), size, restartable=not job.service)
            for runtime in runtimes
        )
        kind = Kind.SERVICE if job.service else Kind.BATCH
        return JobSubmission(
            job.at, JobDescriptor(number, principal=f"user{number % 97}", name=name, kind=kind), tasks
        )

    def _task(
        self, name: str, demand: Resources, priority: int, runtime: float, size: int, *, restartable: bool
    ) -> SimulatedTask:
        number, self._tasks = self._tasks, self._tasks + 1
        blocks: tuple[Block, ...] = ()
        if size and self._blocks:
            blocks = self._blocks.input_of(number, size)
        return SimulatedTask(
            TaskDescriptor(
                task=number,
                demand=demand,
                priority=priority,
                equivalence=name,
                blocks=blocks,
                restartable=restartable,
                expected_runtime=runtime,
            ),
            runtime,
        )

    def _input_quantile(self, job: _GeneratedJob) -> float:
        """Return a random quantile that is correlated with the runtime: long jobs tend to read more."""
        rank = 1 / (1 + math.pow(BATCH_MEDIAN_S / max(job.median, 1e-3), 1.6 / BATCH_SPREAD))
        return min(max((rank + float(self._random.random())) / 2, 1e-6), 1 - 1e-6)


def _pick(choices: tuple[tuple[int, float], ...], at: float) -> int:
    """Return a value chosen by the shares; ``at`` is uniform in [0, 1)."""
    for value, share in choices:
        at -= share
        if at < 0:
            return value
    return choices[-1][0]


def _size_at(uniform: float) -> int:
    """Return the heavy-tailed number of tasks of a job; ``uniform`` is in [0, 1)."""
    if uniform < SINGLE_SHARE:
        return 1
    rest = (1 - uniform) / (1 - SINGLE_SHARE)
    return int(min(JOB_TASKS_MAX, 2 * math.pow(rest, -1 / JOB_TAIL)))


def _mean_size(most: int) -> float:
    """Return the mean of ``_size``, integrated over quantiles that are fine enough for the tail."""
    steps = 1 - np.logspace(0, -7, 20_001)
    sizes = np.array([min(_size_at(float(at)), most) for at in steps])
    return float(np.sum((sizes[1:] + sizes[:-1]) / 2 * np.diff(steps)) + sizes[-1] * (1 - steps[-1]))


def _runtime(uniform: float, normal: float, *, service: bool) -> float:
    """Return a job's median runtime in seconds, from a uniform and a normal number."""
    if service:
        return SERVICE_MEDIAN_S * math.exp(SERVICE_SPREAD * normal)
    if uniform < TAIL_SHARE:
        return min(TAIL_MAX_S, TAIL_FROM_S * math.pow(uniform / TAIL_SHARE + 1e-12, -1 / TAIL_EXPONENT))
    return BATCH_MEDIAN_S * math.exp(BATCH_SPREAD * normal)


def _running_runtime(uniform: float, normal: float, *, service: bool) -> float:
    """Return the runtime of a job that is running at a random moment: ``_runtime`` weighted by length.

    A log-normal distribution weighted by its value has a median that is higher by the square of its spread.
    A weighted Pareto tail has an exponent that is lower by 1, plus the part cut off at the end.
    """
    if service:
        return SERVICE_MEDIAN_S * math.exp(SERVICE_SPREAD**2 + SERVICE_SPREAD * normal)
    body, tail, cut = _batch_parts()
    at = uniform * (body + tail + cut)
    if at < body:
        return BATCH_MEDIAN_S * math.exp(BATCH_SPREAD**2 + BATCH_SPREAD * normal)
    if at >= body + tail:
        return TAIL_MAX_S
    over = TAIL_EXPONENT - 1
    least = math.pow(TAIL_FROM_S / TAIL_MAX_S, over)
    return TAIL_FROM_S * math.pow(1 - (at - body) / tail * (1 - least), -1 / over)


def _batch_parts() -> tuple[float, float, float]:
    """Return the seconds that body, tail and cut-off end contribute to the mean runtime of batch jobs."""
    over = TAIL_EXPONENT - 1
    least = math.pow(TAIL_FROM_S / TAIL_MAX_S, over)
    body = (1 - TAIL_SHARE) * BATCH_MEDIAN_S * math.exp(BATCH_SPREAD**2 / 2)
    tail = TAIL_SHARE * TAIL_FROM_S * TAIL_EXPONENT / over * (1 - least)
    return body, tail, TAIL_SHARE * TAIL_FROM_S * least


def _mean_runtime(*, service: bool) -> float:
    """Return the mean of ``_runtime`` in seconds, by the distributions' formulas."""
    if service:
        return SERVICE_MEDIAN_S * math.exp(SERVICE_SPREAD**2 / 2)
    return sum(_batch_parts())
