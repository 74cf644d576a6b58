"""A workload from the 2011 Google cluster trace: its machines, its tasks and their runtimes (§8.4).

It simulates the cluster of the trace, or a part of it. The scheduling decisions in the trace are not
replayed: as in the thesis, the simulated scheduler decides when and where tasks run.

The rows are interpreted as follows:

- A task is submitted at its time in the trace, with its requests there, and runs for as long as its last run
  in the trace. A task that was evicted or lost and submitted again is still the same task, because the
  simulated scheduler decides about evictions. A task that failed and was submitted again is a new task.
- A task that was killed while it waited is withdrawn at that time. A task whose end is not in the simulated
  hours runs until they are over.
- Every machine has 24 slots and, at capacity 1, the CPUs and memory of ``machines`` (§8.4). The trace has
  no racks; machines are put into racks of 48 in the order in which they join.
- Updates of machines and of tasks' requests are ignored, and so are rows of a task that go back in time;
  ``passed_over`` counts them.
- Jobs of production priority (9 and more) are services.
- A scale, or a number of machines, selects a part of the machines and the same share of the jobs by a hash
  of their identifiers, so the selection is always the same.

Tasks of the simulated hours are held in memory, about 1,200 bytes each. The measurements of task_usage are
read on demand.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.firmament.descriptors import Block, JobDescriptor, Kind, Resources, TaskDescriptor
from dios.wire.types import Affinity
from labs import limits
from labs.simulate.workloads.block_map import BlockMap, file_size, hash64
from labs.simulate.workloads.events import (
    Happening,
    JobSubmission,
    MachineDown,
    MachineUp,
    SimulatedTask,
    UsageSample,
    Withdrawal,
)
from labs.simulate.workloads.machines import (
    GOOGLE_CPUS,
    GOOGLE_MEMORY,
    MACHINE_TYPES,
    RACK_MACHINES,
    google_machine,
    inner_tree,
)
from labs.simulate.workloads.trace_rows import (
    BEFORE,
    WINDOW_US,
    MachineEvent,
    TaskEvent,
    TraceError,
    TraceTaskRow,
    UsageRow,
    machine_rows,
    task_rows,
    usage_rows,
)

PRODUCTION: Final = 9
"""The lowest priority of production work."""
_HASHES: Final = 2**64


@dataclass(frozen=True, slots=True)
class TraceChoice:
    """The selected part of a trace.

    Attributes:
        directory: the folder with machine_events/ and task_events/, and optionally task_usage/.
        seconds: the length of the simulated window, from its beginning.
        scale: the share of machines and jobs to simulate.
        machines: the number of machines to simulate, of those present at the beginning; overrides ``scale``.
        blocks: give batch tasks random inputs on a file system of the initial machines (§8.4).
        topology: give machines the sockets, caches, cores and threads of type C as vertices (§8.4).
        seed: the seed of the inputs.
    """

    directory: Path
    seconds: float
    scale: float = 1.0
    machines: int | None = None
    blocks: bool = False
    topology: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InvalidError(f"seconds is {self.seconds}; it must be more than 0, and finite")
        if not 0 < self.scale <= 1:
            raise InvalidError(f"scale is {self.scale}; it must be over 0 and at most 1")
        if self.machines is not None and self.machines < 1:
            raise InvalidError(f"a cluster of {self.machines} machines; it must have 1 or more")


@dataclass(slots=True)
class _TaskHistory:
    """One task from its submission to its end, as the trace has it."""

    task: int
    row: TraceTaskRow
    submitted: float
    latest: float
    """The time of the last row about the task."""
    scheduled: float | None = None
    work: float = math.inf
    completes: bool = True
    withdrawn: float | None = None
    over: bool = False


class TraceWorkload:
    """The events of a part of a trace.

    Raises:
        TraceError: during iteration over the events, if the trace does not exist or a line is invalid.
    """

    def __init__(self, choice: TraceChoice) -> None:
        self._choice = choice
        self._until_us = WINDOW_US + int(choice.seconds * 1e6)
        self._lives: dict[tuple[int, int], list[_TaskHistory]] = {}
        self._tasks = 0
        self._job_share = choice.scale
        self._blocks: BlockMap | None = None
        self.passed_over: Counter[str] = Counter()
        """Counts of the rows that change nothing here, by the reason."""

    def events(self) -> Iterator[Happening]:
        """Yield the events of machines and tasks in order of time."""
        machines = self._machines()
        if self._choice.blocks:
            first = [
                up.machine for up in machines if isinstance(up, MachineUp) and up.time == machines[0].time
            ]
            self._blocks = BlockMap(first, self._choice.seed)
        tasks = self._submissions()
        yield from heapq.merge(machines, tasks, self._usages(), key=lambda event: event.time)

    def job_done(self, job: int, now: float) -> JobSubmission | None:
        """Return None: all jobs are in the trace."""
        del job, now
        return None

    # Machines -----------------------------------------------------------------------------------------

    def _machines(self) -> list[MachineUp | MachineDown]:
        rows = sorted(machine_rows(self._choice.directory, self._until_us), key=lambda row: row.time)
        share = self._machine_share([row.machine for row in rows if row.time == BEFORE])
        there: set[int] = set()
        racks: dict[int, int] = {}
        inner = inner_tree(MACHINE_TYPES["C"]) if self._choice.topology else ()
        events: list[MachineUp | MachineDown] = []
        for row in rows:
            if hash64(row.machine) > share:
                continue
            at = _seconds(row.time)
            if row.event is MachineEvent.REMOVE and row.machine in there:
                there.remove(row.machine)
                events.append(MachineDown(at, row.machine))
            elif row.event is not MachineEvent.REMOVE and row.machine not in there:
                there.add(row.machine)
                rack = racks.setdefault(row.machine, len(racks) // RACK_MACHINES)
                descriptor = google_machine(
                    row.machine,
                    row.cpus or 0.0,
                    row.memory or 0.0,
                    rack=rack,
                    inner=inner,
                    platform=row.platform[:8],
                )
                events.append(MachineUp(at, descriptor))
            else:
                self.passed_over[f"machine {row.event.name}"] += 1
        if not events:
            raise TraceError(
                f"{self._choice.directory}: no machine exists in the simulated time; simulate more --hours, "
                "or a larger part with --machines or --scale"
            )
        return events

    def _machine_share(self, first: list[int]) -> int:
        """Return the largest hash of a selected machine, and set the same share for jobs."""
        wanted = self._choice.machines
        if wanted is None:
            return int(self._choice.scale * (_HASHES - 1))
        hashes = sorted(hash64(machine) for machine in set(first))
        if wanted > len(hashes):
            raise TraceError(
                f"{self._choice.directory}: cannot simulate {wanted} machines, because the trace begins with "
                f"{len(hashes)}; give --machines {len(hashes)} or fewer"
            )
        self._job_share = wanted / len(hashes)
        return hashes[wanted - 1]

    # Tasks --------------------------------------------------------------------------------------------

    def _submissions(self) -> list[JobSubmission | Withdrawal]:
        """Read the rows of all tasks, then return submissions and withdrawals in order of time."""
        share = int(self._job_share * (_HASHES - 1))
        for row in task_rows(self._choice.directory, self._until_us):
            if hash64(row.job ^ _HASHES - 1) <= share:
                self._note(row)
        lives = sorted(
            (life for job_lives in self._lives.values() for life in job_lives), key=lambda life: life.task
        )
        jobs = _jobs(lives)
        together: dict[tuple[float, int], list[_TaskHistory]] = {}
        for life in lives:
            together.setdefault((life.submitted, life.row.job), []).append(life)
        events: list[JobSubmission | Withdrawal] = [
            JobSubmission(at, jobs[job], tuple(map(self._task, members)))
            for (at, job), members in together.items()
        ]
        events += [Withdrawal(life.withdrawn, life.task) for life in lives if life.withdrawn is not None]
        return sorted(events, key=lambda event: event.time)

    def _note(self, row: TraceTaskRow) -> None:
        """Update the state of a task by a row."""
        at = _seconds(row.time)
        lives = self._lives.setdefault((row.job, row.number), [])
        life = lives[-1] if lives else None
        if life and at < life.latest:
            # A run that ended before it began would have negative work.
            self.passed_over[f"task {row.event.name} that goes back in time"] += 1
            return
        if row.event in {TaskEvent.UPDATE_PENDING, TaskEvent.UPDATE_RUNNING} and life:
            self.passed_over["task UPDATE"] += 1
            return
        if life is None or life.over:
            if life and row.event is not TaskEvent.SUBMIT:
                self.passed_over[f"task {row.event.name} after its end"] += 1
                return
            # A task without a submission (the trace has such) is submitted at its first row.
            life = self._begin(row, at)
            lives.append(life)
        life.latest = at
        _apply(life, row.event, at)

    def _begin(self, row: TraceTaskRow, at: float) -> _TaskHistory:
        if self._tasks >= limits.TRACE_TASKS_MAX:
            raise TraceError(
                f"{self._choice.directory}: more than {limits.TRACE_TASKS_MAX} tasks; simulate "
                "fewer --hours, or a part with --machines or --scale"
            )
        self._tasks += 1
        return _TaskHistory(self._tasks - 1, row, at, at)

    def _task(self, life: _TaskHistory) -> SimulatedTask:
        row = life.row
        blocks: tuple[Block, ...] = ()
        if self._blocks and row.priority < PRODUCTION:
            # One file for each job and index. Its size is random, but the same in every simulation.
            file = hash64(hash64(row.job) ^ row.number)
            blocks = self._blocks.input_of(file, file_size((file % 2**32 + 0.5) / 2**32))
        descriptor = TaskDescriptor(
            task=life.task,
            demand=_resources(row.cpus, row.memory),
            priority=row.priority,
            blocks=blocks,
            expected_runtime=life.work if math.isfinite(life.work) else None,
        )
        return SimulatedTask(descriptor, life.work, completes=life.completes)

    def _usages(self) -> Iterator[UsageSample]:
        """Yield measurements at the times of their ends; the rows are in order of their beginnings."""
        pending: list[tuple[float, int, UsageSample]] = []
        last = 0.0
        for number, row in enumerate(usage_rows(self._choice.directory, self._until_us)):
            while pending and pending[0][0] <= _seconds(row.start):
                last, _, usage = heapq.heappop(pending)
                yield usage
            # A measurement that is out of order is delayed, because events must not go back in time.
            at = max(last, _seconds(row.end))
            task = self._task_at(row, at)
            if task is not None and at <= self._choice.seconds:
                heapq.heappush(pending, (at, number, UsageSample(at, task, _resources(row.cpus, row.memory))))
        while pending:
            yield heapq.heappop(pending)[2]

    def _task_at(self, row: UsageRow, at: float) -> int | None:
        """Return the task of a measurement: the latest with its job and index that was submitted by then."""
        lives = self._lives.get((row.job, row.number), ())
        which = bisect_right([life.submitted for life in lives], at) - 1
        return lives[which].task if which >= 0 else None


def _seconds(time_us: int) -> float:
    """Return the simulated time of a trace time; times before the window become its beginning."""
    return max(0, time_us - WINDOW_US) / 1e6


def _resources(cpus: float | None, memory: float | None) -> Resources:
    """Convert normalised amounts into CPUs and bytes; missing amounts become 0."""
    return Resources((cpus or 0.0) * GOOGLE_CPUS, (memory or 0.0) * GOOGLE_MEMORY)


def _apply(life: _TaskHistory, event: TaskEvent, at: float) -> None:
    """Apply the event of a row to a task."""
    match event:
        case TaskEvent.SUBMIT | TaskEvent.UPDATE_PENDING:
            pass
        case TaskEvent.SCHEDULE | TaskEvent.UPDATE_RUNNING:
            life.scheduled, life.work = at, math.inf
        case TaskEvent.EVICT | TaskEvent.LOST:
            # If the task never returns, the time of this run is its work.
            if life.scheduled is not None:
                life.work, life.completes, life.scheduled = at - life.scheduled, False, None
        case TaskEvent.FINISH | TaskEvent.FAIL | TaskEvent.KILL:
            life.over = True
            life.completes = event is TaskEvent.FINISH
            if life.scheduled is None:
                life.withdrawn = at
            else:
                life.work = at - life.scheduled


def _jobs(lives: list[_TaskHistory]) -> dict[int, JobDescriptor]:
    """Return the descriptor of each job, derived from the rows of its tasks."""
    spread = {life.row.job for life in lives if life.row.spread}
    jobs: dict[int, JobDescriptor] = {}
    for life in lives:
        row = life.row
        if row.job not in jobs:
            jobs[row.job] = JobDescriptor(
                row.job,
                principal=row.user[:16],
                name=f"job {row.job}",
                kind=Kind.SERVICE if row.priority >= PRODUCTION else Kind.BATCH,
                affinity=Affinity.SPREAD_NODES if row.job in spread else Affinity.NONE,
            )
    return jobs
