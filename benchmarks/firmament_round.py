"""Whole rounds of the cluster scheduler: events in, costs, solving, deltas out.

    python benchmarks/firmament_round.py [--size L] [--loads 50,92] [--rounds 10]

Two things are measured: a large cluster in which 1 % of the tasks end and as many come before each round
(thesis §8.4), and three nodes with a hundred tasks, from submission to placement. The costs are those of
Quincy's shape, drawn by a seed: up to seven machines and seven racks that a task prefers, running tasks that
become dearer to stop, waiting ones that become dearer to leave waiting.

Not for: solvers by themselves (``firmament_solvers.py``).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import numpy as np

from dios.firmament.columns import Ints
from dios.firmament.descriptors import JobDescriptor, Level, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.models.base import BaseModel
from dios.firmament.models.catalogue import make
from dios.firmament.models.protocol import Options
from dios.firmament.rounds import Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings
from dios.firmament.state import ClusterState

HEAD = """# Rounds of the cluster scheduler

`benchmarks/firmament_round.py`: 1 % of the tasks end and as many come before each round, on a network of
Quincy's shape (S: 100 machines and 1,000 tasks; M: 3,000 and 40,000; L: 12,550 and 150,000), at a load in per
cent of the slots. CPU time of one thread, in ms, everything included: events in, costs, solving, deltas out.
"First" is the first round, in which all tasks come at once, with loading what is compiled. The columns from
"events" on are parts; "update", "solve" and "wall" are times on the wall, which are longer where others use
the machine. The thesis (section 8.4) has 265 ms on average for the solver alone.

| round | first | CPU, median | least | events | update | solve | wall | peak MB |
|---|---|---|---|---|---|---|---|---|"""

SIZES = {"S": (100, 1_000), "M": (3_000, 40_000), "L": (12_550, 150_000)}
RACK_MACHINES = 40
PREFERENCES = 7
JOB_TASKS = 50
CHANGED = 0.01


class DrawnModel(BaseModel):
    """Quincy's arcs with costs drawn by a seed, which drift from round to round."""

    name = "drawn"

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def task_options(self, state: ClusterState, tasks: Ints) -> Options:
        """Up to seven machines, their racks, and the cluster vertex."""
        machines = state.resources.at(Level.MACHINE)
        drawn = self._random.choice(machines, (len(tasks), PREFERENCES))
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
    """A cluster at a load, in which tasks end and come."""

    def __init__(self, size: str, load: int, seed: int = 1) -> None:
        machines, self.tasks = SIZES[size]
        slots = round(self.tasks * 100 / load / machines)
        self._random = np.random.default_rng(seed)
        self.scheduler = FlowScheduler(DrawnModel(seed), SchedulerSettings(certify_every=0))
        for number in range(machines):
            rack = f"r{number // RACK_MACHINES}"
            self.scheduler.add_machine(MachineDescriptor(number, f"m{number}", rack, slots=slots), 0.0)
        self._next = self._next_job = 0
        self.alive = np.zeros(0, np.int64)
        self.now = 0.0
        self.submit(self.tasks)

    def submit(self, count: int) -> None:
        """New jobs with so many tasks."""
        fresh = np.arange(self._next, self._next + count)
        self._next += count
        for start in range(0, count, JOB_TASKS):
            tasks = [TaskDescriptor(int(each)) for each in fresh[start : start + JOB_TASKS]]
            self.scheduler.submit(JobDescriptor(self._next_job), tasks, self.now)
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
        found = self.scheduler.round(self.now)
        assert found.stands, found.faults
        return found


def large(size: str, load: int, rounds: int) -> str:
    """A line of the table for a large cluster."""
    cluster = Cluster(size, load)
    started = time.process_time()
    cluster.round()
    first = 1000 * (time.process_time() - started)
    events, cpu, parts = [], [], []
    for _ in range(rounds):
        started = time.process_time()
        cluster.change()
        events.append(time.process_time() - started)
        found = cluster.round()
        cpu.append(time.process_time() - started)
        parts.append((found.update_s, found.solve_s, found.total_s))
    update, solved, total = (1000 * statistics.median(column) for column in zip(*parts, strict=True))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    middle, least = 1000 * statistics.median(cpu), 1000 * min(cpu)
    return (
        f"| {size}{load} | {first:.0f} | {middle:.0f} | {least:.0f} | {1000 * statistics.median(events):.0f}"
        f" | {update:.0f} | {solved:.0f} | {total:.0f} | {memory:.0f} |"
    )


def small(rounds: int) -> str:
    """From submission to placement on three nodes, in ms: median and least."""
    scheduler = FlowScheduler(make("trivial"), SchedulerSettings(certify_every=0))
    for number in range(3):
        scheduler.add_machine(
            MachineDescriptor(number, f"n{number}", "r", Resources(64, 2**36), slots=40), 0.0
        )
    scheduler.submit(JobDescriptor(0), [TaskDescriptor(task) for task in range(99)], 0.0)
    scheduler.round(0.0)
    times = []
    for at in range(1, rounds + 1):
        started = time.perf_counter()
        scheduler.submit(JobDescriptor(at), [TaskDescriptor(98 + at)], float(at))
        found = scheduler.round(float(at))
        times.append(time.perf_counter() - started)
        assert len(found.deltas) == 1, found
        scheduler.finished(98 + at, float(at))
    return f"| 3 nodes, 100 tasks | {1000 * statistics.median(times):.2f} | {1000 * min(times):.2f} |"


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="L")
    parser.add_argument("--loads", default="50,92")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(HEAD)
    for load in given.loads.split(","):
        print(large(given.size, int(load), given.rounds), flush=True)
    print("\n| from submit to placed | ms, median | least |\n|---|---|---|")
    print(small(200))


if __name__ == "__main__":
    main()
