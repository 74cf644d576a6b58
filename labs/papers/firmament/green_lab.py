"""A simulation of §8.2.2 by seconds: five unlike machines, batch jobs with deadlines, and a web service.

The real scheduler decides. The simulation does the work, measures power every three seconds like the thesis'
meter, and scales the service like its load balancer. There is no interference: each core works at the speed
of its machine's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dios.firmament.cluster.columns import Floats
from dios.firmament.descriptors import (
    Constraint,
    FinalReport,
    JobDescriptor,
    Kind,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.green import GreenModel, ServiceScaler, first_to_stop
from dios.firmament.models.green_power import MACHINES, Power, PowerTable
from dios.firmament.models.protocol import CostModel
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler

SERVICE_JOB: Final = 0
WEB_CORES: Final = 1.0
"""Cores that a web server task requests."""
SAMPLE_EVERY: Final = 3
"""Steps between samples of power (§8.2.2)."""
SCALE_EVERY: Final = 5
"""Steps between decisions of the load balancer."""
X86: Final = ("r420", "r415")
_GB: Final = 1e9
_MEMORY: Final = {"pandaboard": 1, "wandboard": 2, "r420": 64, "r415": 64, "itanium": 16}
_BATCH: Final = Resources(cpus=1.0, memory=0.2 * _GB)
_WEB: Final = Resources(cpus=WEB_CORES, memory=0.1 * _GB)
_X86_ONLY: Final = (Constraint("arch", value="x86"),)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A batch job of one task."""

    task: int
    at: int
    """The step of its submission."""
    work: float
    """Seconds on the fastest machine."""
    deadline: float


def batch_jobs(seed: int, steps: int, running: float = 10.0, mean_s: float = 30.0) -> list[BatchJob]:
    """Return jobs over ``steps``, ``running`` of them at any time on fast machines.

    Deadlines are a factor from [2, 20) of the run time on the fastest machine (§8.2.2).
    """
    random = np.random.default_rng([seed, 5])
    count = round(steps * running / mean_s)
    at = np.sort(random.uniform(0, steps, count))
    # The first jobs are there at once, as in a system that is already running.
    at[: int(running)] = 0
    works = np.clip(mean_s * random.lognormal(-0.18, 0.6, count), mean_s / 3, 6 * mean_s)
    factors = random.uniform(2.0, 20.0, count)
    return [
        BatchJob(number + 1, int(when), float(work), int(when) + float(work * factor))
        for number, (when, work, factor) in enumerate(zip(at, works, factors, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class GreenSetup:
    """A way to run the cluster."""

    name: str
    model: Callable[[], CostModel]
    x86_only: bool = False
    web_tasks: tuple[int, int] = (1, 8)
    """The least and the largest number of web service tasks; equal numbers disable scaling."""
    web_first: int = 4
    """The initial number of tasks, within those bounds."""


@dataclass(slots=True)
class GreenRun:
    """The results of a run."""

    setup: GreenSetup
    joules: list[float] = field(default_factory=list)
    """Energy above idle in each step."""
    web_joules: list[float] = field(default_factory=list)
    """The web service's part of it."""
    served: list[float] = field(default_factory=list)
    """Requests per second served in each step."""
    offered: list[float] = field(default_factory=list)
    web_tasks: list[int] = field(default_factory=list)
    idle_watts: float = 0.0
    missed: int = 0
    """The number of batch jobs that ended after their deadline."""
    done: int = 0
    migrations: int = 0
    preemptions: int = 0
    batch_ended: int = 0
    """The step at which the last batch job ended."""


def machines() -> list[MachineDescriptor]:
    """Return the five machines of Table 8.3, with a slot for each core."""
    return [
        MachineDescriptor(
            number,
            name,
            rack="lab",
            capacity=Resources(float(power.cores), _MEMORY[name] * _GB),
            slots=power.cores,
            machine_type=name,
            labels=(("arch", "x86" if name in X86 else "other"),),
        )
        for number, (name, power) in enumerate(MACHINES.items())
    ]


def run(setup: GreenSetup, jobs: Sequence[BatchJob], load: Floats, steps_max: int) -> GreenRun:
    """Run until the load and all batch jobs have ended, or for ``steps_max`` steps.

    Args:
        setup: the cost model and the constraints.
        jobs: the batch jobs, by time.
        load: requests per second in each step; after its end there are none.
        steps_max: the largest number of steps of a second.
    """
    bench = _GreenSimulation(setup, jobs)
    for step in range(steps_max):
        if step >= len(load) and not bench.batch_left:
            break
        bench.step(step, float(load[step]) if step < len(load) else 0.0)
    return bench.green_run


class _GreenSimulation:
    """The state of a run."""

    def __init__(self, setup: GreenSetup, jobs: Sequence[BatchJob]) -> None:
        self.green_run = GreenRun(setup)
        model = setup.model()
        self._power: PowerTable | None = model.power if isinstance(model, GreenModel) else None
        self._scheduler = FlowScheduler(model)
        self._types: dict[int, Power] = {}
        for machine in machines():
            self._scheduler.add_machine(machine, 0.0)
            self._types[machine.machine] = MACHINES[machine.machine_type]
        self.green_run.idle_watts = sum(power.idle for power in self._types.values())
        self._scaler = ServiceScaler(*setup.web_tasks)
        self._coming = list(jobs)
        self._jobs = {job.task: job for job in jobs}
        self._left: dict[int, float] = {}
        self._at: dict[int, int] = {}
        """The machine of each running task."""
        self._web: list[int] = []
        self._next_web = 1_000_000
        least, most = setup.web_tasks
        self._scale_to(min(max(setup.web_first, least), most), 0.0)

    @property
    def batch_left(self) -> int:
        """The number of batch jobs that have not ended."""
        return len(self._coming) + len(self._left)

    def step(self, step: int, load: float) -> None:
        """Simulate one second."""
        now = float(step)
        while self._coming and self._coming[0].at <= step:
            self._submit(self._coming.pop(0), now)
        if step % SCALE_EVERY == 0 and self._scaler.least < self._scaler.most:
            self._scale(load, now)
        self._decide(now)
        busy, web_watts = self._serve(load)
        for task in [task for task in self._at if task in self._left]:
            machine = self._at[task]
            busy[machine] += 1.0
            self._left[task] -= self._types[machine].speed
            if self._left[task] <= 0:
                self._end(task, now + 1)
        watts = {machine: power.watts(busy[machine]) for machine, power in self._types.items()}
        if step % SAMPLE_EVERY == 0 and self._power:
            state = self._scheduler.state
            for machine, sample in watts.items():
                self._power.observe(state, state.machine_row(machine), sample)
        self.green_run.joules.append(sum(watts.values()) - self.green_run.idle_watts)
        self.green_run.web_joules.append(web_watts)

    def _decide(self, now: float) -> None:
        for delta in self._scheduler.round(now).deltas:
            self.green_run.preemptions += delta.change is Change.PREEMPT
            self.green_run.migrations += delta.change is Change.MIGRATE
            if delta.change is not Change.PLACE:
                del self._at[delta.task]
                if delta.task in self._left:
                    # A stopped job starts again.
                    self._left[delta.task] = self._jobs[delta.task].work
            if delta.change is not Change.PREEMPT:
                self._at[delta.task] = delta.target

    def _submit(self, job: BatchJob, now: float) -> None:
        task = TaskDescriptor(
            job.task,
            _BATCH,
            deadline=job.deadline,
            equivalence="batch",
            constraints=_X86_ONLY if self.green_run.setup.x86_only else (),
            expected_runtime=job.work,
        )
        self._scheduler.submit(JobDescriptor(job.task, name="batch"), [task], now)
        self._left[job.task] = job.work

    def _end(self, task: int, now: float) -> None:
        job = self._jobs[task]
        self._scheduler.finished(task, now, FinalReport(runtime=job.work))
        del self._left[task], self._at[task]
        self.green_run.done += 1
        self.green_run.missed += now > job.deadline
        self.green_run.batch_ended = int(now)

    # Service

    def _capacity(self, task: int) -> float:
        """Return the requests per second that a web task can serve on its machine."""
        return WEB_CORES * self._types[self._at[task]].requests

    def _serve(self, load: float) -> tuple[dict[int, float], float]:
        """Serve requests in proportion to capacity; return busy cores by machine, and the service's watts."""
        placed = [task for task in self._web if task in self._at]
        capacity = sum(map(self._capacity, placed))
        served = min(load, capacity)
        busy = dict.fromkeys(self._types, 0.0)
        watts = 0.0
        cores = WEB_CORES * served / capacity if capacity else 0.0
        for task in placed:
            machine = self._at[task]
            self._scheduler.measured(task, _WEB._replace(cpus=cores))
            busy[machine] += cores
            watts += cores * self._types[machine].marginal
        self.green_run.served.append(served)
        self.green_run.offered.append(load)
        self.green_run.web_tasks.append(len(placed))
        return busy, watts

    def _scale(self, load: float, now: float) -> None:
        placed = [task for task in self._web if task in self._at]
        if len(placed) < len(self._web):
            return
        self._scale_to(len(self._web) + self._scaler.change(load, [*map(self._capacity, placed)]), now)

    def _scale_to(self, count: int, now: float) -> None:
        job = JobDescriptor(SERVICE_JOB, name="web", kind=Kind.SERVICE)
        constraints = _X86_ONLY if self.green_run.setup.x86_only else ()
        while len(self._web) < count:
            task = TaskDescriptor(self._next_web, _WEB, equivalence="web", constraints=constraints)
            self._scheduler.submit(job, [task], now)
            self._web.append(self._next_web)
            self._next_web += 1
        while len(self._web) > count:
            costs = [
                self._types[self._at[task]].marginal / self._types[self._at[task]].requests
                for task in self._web
            ]
            task_id = self._web.pop(first_to_stop(costs))
            del self._at[task_id]
            self._scheduler.finished(task_id, now)
