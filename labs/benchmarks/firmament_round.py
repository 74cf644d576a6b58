"""Whole rounds of the cluster scheduler: events in, costs, solving, deltas out.

Two things are measured: a large cluster in which 1 % of the tasks end and as many come before each round
(thesis §8.4), and three nodes with a hundred tasks, from submission to placement. The costs are those of
Quincy's shape, drawn by a seed: up to seven machines and seven racks that a task prefers, running tasks that
become dearer to stop, waiting ones that become dearer to leave waiting.

Not for: solvers by themselves (``firmament_solvers.py``).
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from dios.firmament.cluster.columns import Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import JobDescriptor, Level, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.models.base import BaseModel
from dios.firmament.models.catalogue import make
from dios.firmament.models.protocol import Options
from dios.firmament.policies.fair_queue import TaskFairQueue
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.rounds.results import Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from labs.benchmarks.networks import PREFERENCES_MAX, RACK_MACHINES, SIZES
from labs.benchmarks.report import Row, Section, judge, number, times
from labs.simulate.scheduling.command import SimulationOptions, config_of
from labs.simulate.scheduling.run import simulate
from labs.simulate.scheduling.scheduler_bridge import Scheduler

JOB_TASKS = 50
PRINCIPALS = 600
CHANGED = 0.01
ROUNDS = 10
MACHINES = (1_000, 12_500)
SIMULATED_HOURS = 0.1
SEED = 1
THESIS_MS = 265
"""The solver alone, on average, at this size (§8.4)."""


class DrawnModel(BaseModel):
    """Quincy's arcs with costs drawn by a seed, which drift from round to round."""

    name = "drawn"

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Up to seven machines, their racks, and the cluster vertex."""
        machines = state.resources.at(Level.MACHINE)
        drawn = self._random.choice(machines, (len(tasks), PREFERENCES_MAX))
        racks = state.resources.rack[drawn]
        everywhere = np.full((len(tasks), 1), state.cluster)
        target = np.concatenate([drawn, racks, everywhere], axis=1)
        cost = np.concatenate(
            [
                self._random.integers(0, 100, drawn.shape),
                self._random.integers(100, 200, racks.shape),
                np.full((len(tasks), 1), 250),
            ],
            axis=1,
        )
        task = np.repeat(np.arange(len(tasks)), target.shape[1])
        order = np.lexsort((target.ravel(), task))
        task, flat, price = task[order], target.ravel()[order], cost.ravel()[order]
        first = np.ones(len(task), np.bool_)
        first[1:] = (np.diff(task) != 0) | (np.diff(flat) != 0)
        return Options(task[first], flat[first], price[first])

    def task_to_unscheduled(self, state: ClusterState, tasks: Ints) -> Ints:
        """Dearer by the second."""
        return 400 + (6 * state.tasks.waiting_time(tasks, state.now)).astype(np.int64)

    def task_continuation(self, state: ClusterState, tasks: Ints) -> Ints:
        """Cheaper by the second, and never dearer than placing it again."""
        return -np.minimum(state.tasks.running_time(tasks, state.now), 10_000).astype(np.int64)


class Cluster:
    """A cluster of size L at a load in per cent of its slots, in which tasks end and come."""

    def __init__(self, load: int, ledger: PrincipalAccounts | None = None) -> None:
        machines, self.tasks = SIZES["L"]
        slots = round(self.tasks * 100 / load / machines)
        self._random = np.random.default_rng(SEED)
        settings = SchedulerSettings(certify_every=0)
        self.scheduler = FlowScheduler(DrawnModel(SEED), settings, ledger=ledger)
        for machine in range(machines):
            rack = f"r{machine // RACK_MACHINES}"
            self.scheduler.add_machine(MachineDescriptor(machine, f"m{machine}", rack, slots=slots), 0.0)
        self._next = self._next_job = 0
        self.alive = np.zeros(0, np.int64)
        self.now = 0.0
        self.submit(self.tasks)

    def submit(self, count: int) -> None:
        """New jobs with so many tasks."""
        fresh = np.arange(self._next, self._next + count)
        self._next += count
        for start in range(0, count, JOB_TASKS):
            tasks = [TaskDescriptor(int(task_id)) for task_id in fresh[start : start + JOB_TASKS]]
            job = JobDescriptor(self._next_job, f"user {self._next_job % PRINCIPALS}")
            self.scheduler.submit(job, tasks, self.now)
            self._next_job += 1
        self.alive = np.concatenate([self.alive, fresh])

    def change(self) -> None:
        """One per cent of the tasks end, and as many come."""
        self.now += 1.0
        count = int(self.tasks * CHANGED)
        ends = self._random.choice(len(self.alive), count, replace=False)
        for task in self.alive[ends].tolist():
            self.scheduler.finished(task, self.now)
        self.alive = np.delete(self.alive, ends)
        self.submit(count)

    def round(self) -> Round:
        """A round that has to stand."""
        outcome = self.scheduler.round(self.now)
        assert outcome.stands, outcome.faults
        return outcome


class Measured(NamedTuple):
    """Milliseconds: of the first round, of processor time for each later one, and medians of its parts."""

    first: float
    cpu: list[float]
    events: float
    update: float
    solve: float
    wall: float


def large(load: int, rounds: int) -> Measured:
    """Rounds of a large cluster in which one per cent of the tasks changes."""
    cluster = Cluster(load)
    started = time.process_time()
    cluster.round()
    first = 1000 * (time.process_time() - started)
    events, cpu, parts = [], [], []
    for _ in range(rounds):
        started = time.process_time()
        cluster.change()
        events.append(1000 * (time.process_time() - started))
        outcome = cluster.round()
        cpu.append(1000 * (time.process_time() - started))
        parts.append((outcome.update_s, outcome.solve_s, outcome.total_s))
    update, solved, total = (1000 * statistics.median(column) for column in zip(*parts, strict=True))
    return Measured(first, cpu, statistics.median(events), update, solved, total)


def turns(load: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of processor time, medians: of whose turn it is, and of whole rounds with that."""
    ledger = PrincipalAccounts(wall=1e9)
    cluster = Cluster(load, ledger)
    cluster.round()
    state = cluster.scheduler.state
    apart = TaskFairQueue(ledger, preemption=True)
    choosing, whole = [], []
    for _ in range(rounds):
        started = time.process_time()
        cluster.change()
        changed = time.process_time()
        # A round does the same once more: it chooses, and at its end brings the ledger to the present.
        state.now = cluster.now
        apart.choose(state, record=False)
        ledger.sync(state)
        chosen = time.process_time()
        cluster.round()
        choosing.append(1000 * (chosen - changed))
        whole.append(1000 * (time.process_time() - chosen + changed - started))
    return statistics.median(choosing), statistics.median(whole)


def small(rounds: int) -> list[float]:
    """From submission to placement on three nodes, in ms."""
    scheduler = FlowScheduler(make("trivial"), SchedulerSettings(certify_every=0))
    for node in range(3):
        scheduler.add_machine(MachineDescriptor(node, f"n{node}", "r", Resources(64, 2**36), slots=40), 0.0)
    scheduler.submit(JobDescriptor(0), [TaskDescriptor(task) for task in range(99)], 0.0)
    scheduler.round(0.0)
    times = []
    for at in range(1, rounds + 1):
        started = time.perf_counter()
        scheduler.submit(JobDescriptor(at), [TaskDescriptor(98 + at)], float(at))
        outcome = scheduler.round(float(at))
        times.append(1000 * (time.perf_counter() - started))
        assert len(outcome.deltas) == 1, outcome
        scheduler.finished(98 + at, float(at))
    return times


class _TimedScheduler:
    """A scheduler with the milliseconds of processor time of each of its decisions."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.taken: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def round(self, now: float) -> Round:
        """Decide."""
        started = time.process_time()
        outcome = self._scheduler.round(now)
        self.taken.append(1000 * (time.process_time() - started))
        return outcome


def simulated(machines: int) -> list[float]:
    """Return the milliseconds of each decision for a simulated Google cluster: six minutes at half load.

    Half of its slots are requested in the first round; then most of the work is what comes and ends.
    """
    options = SimulationOptions(synthetic="google", machines=machines, hours=SIMULATED_HOURS, seed=SEED)
    config = config_of(options)
    timed = _TimedScheduler(config.scheduler)
    simulate(replace(config, scheduler=cast("Scheduler", timed)))
    return timed.taken


def _simulations(section: Section) -> None:
    """Measure decisions of simulated clusters with 1,000 and 12,500 machines, which start empty."""
    simulated(100)  # kernels are compiled or loaded
    medians = []
    late, taken = 0.0, [0.0]
    for machines in MACHINES:
        taken = simulated(machines)
        middle, late = (float(percentile) for percentile in np.percentile(taken, (50, 99)))
        subject = f"{machines:,} machines simulated, a decision, CPU"
        section.figure(f"{subject}, median", middle, "ms")
        section.figure(f"{subject}, 99th percentile of {len(taken)}", late, "ms")
        section.figure(f"{subject}, the first", taken[0], "ms")
        medians.append(middle)
    for name, own, least, wanted in (
        ("99th percentile of a decision", late, 300, 150),
        ("the first decision", taken[0], 1_000, 500),
    ):
        section.rows.append(
            Row(
                f"{MACHINES[1]:,} machines simulated: {name}, CPU",
                f"{number(own)} ms",
                "",
                "",
                judge(f"{least:,} ms", own, least),
                judge(f"{wanted} ms", own, wanted),
            )
        )
    growth = medians[1] / medians[0]
    section.rows.append(
        Row(
            f"{MACHINES[1]:,} machines simulated: median of a decision, CPU",
            f"{number(medians[1])} ms",
            f"{MACHINES[0]:,} machines: {number(medians[0])} ms",
            times(growth),
            judge("12.5 x", growth, 12.5),
            judge("10 x", growth, 10),
        )
    )


def _peak_gb() -> float:
    """The most memory that this process has had, in GB; the kernel counts KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def run(section: Section) -> None:
    """Measure and judge."""
    for load in (50, 92, 110):
        measured = large(load, ROUNDS)
        middle = statistics.median(measured.cpu)
        section.figure(f"L{load}, the first round, CPU", measured.first, "ms")
        section.figure(f"L{load}, the quickest round, CPU", min(measured.cpu), "ms")
        section.figure(f"L{load}, telling of events, CPU", measured.events, "ms")
        section.figure(f"L{load}, costs and changes", measured.update, "ms")
        section.figure(f"L{load}, solver", measured.solve, "ms")
        section.figure(f"L{load}, whole round on the wall", measured.wall, "ms")
        section.rows.append(
            Row(
                f"a whole round at L{load}, 1 % changed, CPU",
                f"{number(section.figure(f'L{load}, whole round, CPU', middle, 'ms'))} ms",
                "",
                "",
                judge("250 ms", middle, 250),
                judge("100 ms", middle, 100),
                f"on the wall {number(measured.wall)} ms, of it the solver {number(measured.solve)} ms"
                f" (the thesis: {THESIS_MS} ms on average)",
            )
        )
        section.figure(f"peak memory of the process, up to L{load}", _peak_gb(), "GB")
    peak = _peak_gb()
    section.rows.append(
        Row(
            "peak memory of the process that made all these rounds at L",
            f"{number(peak)} GB",
            "",
            "",
            judge("1 GB", peak, 1),
            judge("0.4 GB", peak, 0.4),
        )
    )
    for load in (92, 110):
        chosen, whole = turns(load, ROUNDS)
        section.figure(f"L{load}, whose turn it is among {PRINCIPALS} principals, CPU", chosen, "ms")
        section.figure(f"L{load}, whole round with turns, CPU", whole, "ms")
        part = chosen / whole
        section.rows.append(
            Row(
                f"SDRF's turns in a round at L{load}, {PRINCIPALS} principals",
                f"{number(chosen)} ms",
                f"{number(whole)} ms",
                number(part),
                judge("0.10", part, 0.10),
            )
        )
    _simulations(section)
    placed = statistics.median(small(200))
    section.rows.append(
        Row(
            "three nodes, 100 tasks: from submit to placed",
            f"{number(section.figure('from submit to placed', placed, 'ms'))} ms",
            "",
            "",
            judge("5 ms", placed, 5),
            judge("2 ms", placed, 2),
        )
    )
