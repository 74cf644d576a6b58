"""A made-up workload like that of the Google cell of 2011, for any number of machines.

For: experiments at scale without the 40 GB of the trace (§8.4). Not for: statements about Google's
workload; it has the properties listed here, by the numbers listed here, and no others.

What is published, and taken from there:

- about 12,550 machines of ten kinds (thesis §2.1.2; Reiss et al., SoCC 2012, Table 1: ``machines``);
- about 150,000 tasks at a time at full scale, 40,000 at 3,000 machines (§8.4); in 29 days some 670,000
  jobs with some 25 million tasks, which is 10 tasks a second and 38 tasks a job on average;
- three quarters of the jobs have one task, and few have thousands (Reiss et al., §4);
- most jobs and tasks are batch, most resources go to services, 55 to 80 % of them (thesis §2.1.1;
  Schwarzkopf et al., EuroSys 2013, §2.1);
- runtimes are heavy-tailed: most tasks last minutes, a few days, and these hold most resources (Reiss et
  al., §4);
- priorities 0 to 11: 0 and 1 free, 9 to 11 production (the trace's description);
- requests for CPU and memory are small beside machines, and memory is asked for as heavily as CPU;
- submissions have a wave over the day.

From these follow the constants below. At load 0.5 and 12,550 machines: 150,000 tasks run, three quarters
of them services, and about 10 tasks come each second.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dios import limits
from dios.errors import InvalidError
from dios.firmament.descriptors import Block, JobDescriptor, Kind, Resources, TaskDescriptor
from dios.firmament.simulate.block_map import BlockMap, file_size
from dios.firmament.simulate.events import Happening, JobSubmission, MachineUp, SimulatedTask
from dios.firmament.simulate.machines import GIB, GOOGLE_SLOTS, google_machines

SERVICE_SHARE: Final = 0.75
"""Of the load: what services hold."""
SINGLE_SHARE: Final = 0.75
"""Of the jobs: those with one task."""
JOB_TAIL: Final = 0.55
"""Pareto exponent of the sizes of the other jobs: the mean of all comes to tens of tasks."""
JOB_TASKS_MAX: Final = 5_000
BATCH_MEDIAN_S: Final = 420.0
BATCH_SPREAD: Final = 1.3
"""Log-normal body of batch runtimes: the middle one takes seven minutes."""
TAIL_SHARE: Final = 0.15
TAIL_FROM_S: Final = 3_600.0
TAIL_EXPONENT: Final = 1.1
TAIL_MAX_S: Final = 7 * 86_400.0
"""Pareto tail: some of the batch jobs take hours, a few take days."""
SERVICE_MEDIAN_S: Final = 2 * 86_400.0
SERVICE_SPREAD: Final = 1.5
"""Services live for days; those that end are replaced at the same rate."""
TASK_SPREAD: Final = 0.25
"""How tasks of one job differ in runtime, as a standard deviation of the logarithm."""
CPU_MEDIAN: Final = 0.35
CPU_SPREAD: Final = 0.7
CPU_MAX: Final = 6.0
MEMORY_MEDIAN: Final = 0.45 * GIB
MEMORY_SPREAD: Final = 0.95
MEMORY_MAX: Final = 8 * GIB
"""Requests by job: a full machine of the most frequent kind (12 threads, 32 GB, 24 slots) is asked for
about nine tenths of its CPUs and half of its memory."""
WAVE: Final = 0.3
DAY_S: Final = 86_400.0
"""Submissions go up and down by three tenths over a day."""
BATCH_PRIORITIES: Final = ((0, 0.40), (1, 0.12), (2, 0.08), (4, 0.35), (6, 0.05))
SERVICE_PRIORITIES: Final = ((9, 0.80), (10, 0.05), (11, 0.15))
INITIAL_CHUNK_TASKS: Final = 1_000
"""Tasks of the initial state come in submissions of about so many, all at time 0."""


@dataclass(frozen=True, slots=True)
class GoogleLike:
    """What to make up.

    Attributes:
        machines: how many.
        seed: of everything.
        load: the share of all slots (24 on each machine) that is asked for, over 1 for an overloaded one.
        seconds: how long arrivals go on.
        blocks: batch tasks have inputs on the machines' file system.
        topology: machines have sockets, caches, cores and threads as vertices.
        rate: batch jobs come so many times as often and last as much shorter: more events, the same load.
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
    """A job before its tasks are made."""

    at: float
    service: bool
    tasks: int
    median: float
    """Seconds."""
    initial: bool


class GoogleWorkload:
    """Events of a ``GoogleLike``, made as they are asked for."""

    def __init__(self, what: GoogleLike) -> None:
        self._what = what
        self._random = np.random.default_rng([what.seed, 3])
        self._jobs = 0
        self._tasks = 0
        self._blocks: BlockMap | None = None
        slots = what.machines * GOOGLE_SLOTS
        self._job_tasks_max = max(1, min(JOB_TASKS_MAX, slots // 50))
        self.batch_target = what.load * slots * (1 - SERVICE_SHARE)
        """How many batch tasks run at a time, on average over the day."""
        self.service_target = what.load * slots * SERVICE_SHARE

    def events(self) -> Iterator[Happening]:
        """Machines, what ran already, then arrivals until ``seconds`` are over."""
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
        """Nothing follows: arrivals do not depend on what ended."""
        del job, now
        return None

    # Jobs -------------------------------------------------------------------------------------------

    def _initial(self) -> Iterator[JobSubmission]:
        """What a cluster that has run for long has at a moment; long jobs are more likely there."""
        for service, target in ((True, self.service_target), (False, self.batch_target)):
            there = 0.0
            while there < target:
                size = min(self._size(), math.ceil(target - there), INITIAL_CHUNK_TASKS)
                there += size
                yield self._make(
                    _GeneratedJob(0.0, service, size, self._runtime_of_running(service=service), True)
                )

    def _arrivals(self, *, service: bool) -> Iterator[JobSubmission]:
        """Jobs at random times, at such a rate that on average the target runs (Little's law)."""
        mean_s, mean_size = _mean_runtime(service=service), _mean_size(self._job_tasks_max)
        target = self.service_target if service else self.batch_target
        every = mean_s / target * mean_size / (1.0 if service else self._what.rate)
        # Jobs at the top of the wave, of which as many are left out as the wave is below its top.
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
        """A job's tasks, all submitted at once."""
        random = self._random
        number, self._jobs = self._jobs, self._jobs + 1
        name = f"{'service' if job.service else 'batch'}{number}"
        demand = Resources(
            min(CPU_MAX, CPU_MEDIAN * math.exp(CPU_SPREAD * float(random.normal()))),
            min(MEMORY_MAX, MEMORY_MEDIAN * math.exp(MEMORY_SPREAD * float(random.normal()))),
        )
        priority = _pick(SERVICE_PRIORITIES if job.service else BATCH_PRIORITIES, random.random())
        # The mean of the factors is 1, so that the mean of all runtimes stays what the rate was made for.
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
        """Long jobs tend to read much: half of it is their rank among runtimes, half chance."""
        rank = 1 / (1 + math.pow(BATCH_MEDIAN_S / max(job.median, 1e-3), 1.6 / BATCH_SPREAD))
        return min(max((rank + float(self._random.random())) / 2, 1e-6), 1 - 1e-6)


def _pick(choices: tuple[tuple[int, float], ...], at: float) -> int:
    """One of some values by their shares; ``at`` is uniform in [0, 1)."""
    for value, share in choices:
        at -= share
        if at < 0:
            return value
    return choices[-1][0]


def _size_at(uniform: float) -> int:
    """The number of tasks of a job, heavy-tailed; ``uniform`` is in [0, 1)."""
    if uniform < SINGLE_SHARE:
        return 1
    rest = (1 - uniform) / (1 - SINGLE_SHARE)
    return int(min(JOB_TASKS_MAX, 2 * math.pow(rest, -1 / JOB_TAIL)))


def _mean_size(most: int) -> float:
    """The mean of ``_size`` by its quantiles, fine enough for the tail."""
    steps = 1 - np.logspace(0, -7, 20_001)
    sizes = np.array([min(_size_at(float(at)), most) for at in steps])
    return float(np.sum((sizes[1:] + sizes[:-1]) / 2 * np.diff(steps)) + sizes[-1] * (1 - steps[-1]))


def _runtime(uniform: float, normal: float, *, service: bool) -> float:
    """A job's typical runtime in seconds, from a uniform and a normal number."""
    if service:
        return SERVICE_MEDIAN_S * math.exp(SERVICE_SPREAD * normal)
    if uniform < TAIL_SHARE:
        return min(TAIL_MAX_S, TAIL_FROM_S * math.pow(uniform / TAIL_SHARE + 1e-12, -1 / TAIL_EXPONENT))
    return BATCH_MEDIAN_S * math.exp(BATCH_SPREAD * normal)


def _running_runtime(uniform: float, normal: float, *, service: bool) -> float:
    """The runtime of a job that is met at some moment: as likely as it is long, besides ``_runtime``.

    A log-normal weighted by its value is one whose middle is higher by the square of its spread; a Pareto
    tail is one with an exponent less by 1, and what was cut off at the end.
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
    """What the body, the tail and its cut-off end give to the mean runtime of batch jobs, in seconds."""
    over = TAIL_EXPONENT - 1
    least = math.pow(TAIL_FROM_S / TAIL_MAX_S, over)
    body = (1 - TAIL_SHARE) * BATCH_MEDIAN_S * math.exp(BATCH_SPREAD**2 / 2)
    tail = TAIL_SHARE * TAIL_FROM_S * TAIL_EXPONENT / over * (1 - least)
    return body, tail, TAIL_SHARE * TAIL_FROM_S * least


def _mean_runtime(*, service: bool) -> float:
    """The mean of ``_runtime`` in seconds, by the distributions' formulas."""
    if service:
        return SERVICE_MEDIAN_S * math.exp(SERVICE_SPREAD**2 / 2)
    return sum(_batch_parts())
