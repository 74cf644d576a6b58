"""The true state of the simulated machines: tasks start there, progress at their pace, and end.

The engine (``run``) applies decisions to it, and impossible ones raise an error. The scheduler has its own
view of the cluster; ``check`` compares the two.

Each machine queues one event: the next end of a task there. When a task starts or stops, the paces of all
tasks on the machine change, and their remaining work and the times of their ends are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dios.errors import InvariantError
from dios.firmament.descriptors import FinalReport, JobDescriptor, MachineDescriptor, Resources
from labs.simulate.workloads.events import SimulatedTask
from labs.simulate.workloads.interference import (
    MachineModel,
    Pace,
    ProgramModel,
    pace_alone,
    paces_together,
    usage,
)
from labs.simulate.workloads.machines import MACHINE_TYPES

PLAIN = Pace(1.0, 1.0, 0.0)
"""The pace of a task without a program: its work is its runtime."""


class HostDue(int):
    """An event: a task of the machine with this identifier may have reached its end."""


@dataclass(slots=True)
class TaskRecord:
    """The history of one task; times in simulated seconds."""

    task: int
    job: int
    name: str
    """Its program, or its equivalence class."""
    service: bool
    work: float
    submitted: float
    ideal: float = math.nan
    """Seconds for its work on the best idle machine type that the cluster had at its submission (§8.2.1)."""
    waiting_since: float = 0.0
    waited: float = 0.0
    started: float = math.nan
    """The time of its first placement."""
    placed: float = math.nan
    """The start of its present or last run."""
    ended: float = math.nan
    completed: bool = False
    withdrawn: bool = False
    machine: int = -1
    """Its present or last machine."""
    machine_type: str = ""
    machine_name: str = ""
    beside: tuple[str, ...] = ()
    """The programs that ran on the same machine when it ended."""
    running: bool = False
    placements: int = 0
    preemptions: int = 0
    migrations: int = 0
    machine_losses: int = 0
    wasted: float = 0.0
    """Seconds of runs that lost their work."""
    cpu_seconds: float = 0.0
    instructions: float = 0.0
    cycles: float = 0.0
    misses: float = 0.0

    @property
    def runtime(self) -> float:
        """Return the seconds of the run that ended; NaN before."""
        return self.ended - self.placed

    @property
    def normalised(self) -> float:
        """Return its runtime divided by the ideal: the metric of Figure 8.1."""
        return self.runtime / self.ideal

    @property
    def cycles_per_instruction(self) -> float:
        """Return the CPI of the run that ended (Figure 8.4); NaN without a program."""
        return self.cycles / self.instructions if self.instructions else math.nan

    def report(self) -> FinalReport:
        """Return the final report that a node would send (§6.5.3)."""
        return FinalReport(
            runtime=self.runtime,
            cpu_seconds=self.cpu_seconds,
            instructions=round(self.instructions),
            cycles=round(self.cycles),
            cache_misses=round(self.misses),
            completed=self.completed,
        )


class RunningTaskView(NamedTuple):
    """A running task as a profiler on its machine sees it."""

    record: TaskRecord
    program: ProgramModel
    pace: Pace
    machine: str
    beside: tuple[str, ...]
    """The programs of the other tasks on the machine."""

    @property
    def usage(self) -> Resources:
        """Return the resources that it uses."""
        return usage(self.program, self.pace)


@dataclass(slots=True)
class _Run:
    """One run of a task."""

    task: SimulatedTask
    record: TaskRecord
    left: float
    since: float
    ends: float = math.inf
    pace: Pace = PLAIN


@dataclass(slots=True)
class _Host:
    """One machine with its running tasks."""

    descriptor: MachineDescriptor
    model: MachineModel | None
    runs: dict[int, _Run] = field(default_factory=dict)
    due: float = math.inf
    """The time of the machine's earliest queued event."""


def _names(host: _Host, task: int) -> tuple[str, ...]:
    """Return the programs that share a host with a task."""
    return tuple(run.record.name for other, run in host.runs.items() if other != task and run.task.program)


class World:
    """All machines, and all tasks that have not ended.

    Args:
        put: queues an event for the time at which a machine is due.
        keeps_work: a stopped task later continues its work; otherwise it starts again, like a killed
            task (C.3).
    """

    def __init__(self, put: Callable[[float, HostDue], None], *, keeps_work: bool = False) -> None:
        self._put = put
        self._keeps_work = keeps_work
        self._hosts: dict[int, _Host] = {}
        self._tasks: dict[int, tuple[SimulatedTask, TaskRecord]] = {}
        self._left: dict[int, float] = {}
        self._models: dict[str, int] = {}
        self.running = 0
        self.slots = 0

    @property
    def machines(self) -> int:
        """Return the number of machines."""
        return len(self._hosts)

    @property
    def tasks(self) -> int:
        """Return the number of tasks that wait or run."""
        return len(self._tasks)

    def places(self) -> dict[int, int]:
        """Return the machine of each running task."""
        return {task: machine for machine, host in self._hosts.items() for task in host.runs}

    def waiting(self) -> set[int]:
        """Return the tasks that wait."""
        return self._tasks.keys() - self.places().keys()

    def records(self) -> list[TaskRecord]:
        """Return the records of the tasks that have not ended, in order of submission."""
        return [record for _, record in self._tasks.values()]

    # Machines -------------------------------------------------------------------------------------

    def machine_up(self, machine: MachineDescriptor, model: str) -> None:
        """Add a machine; ``model`` is its type, or empty for a machine without interference."""
        if machine.machine in self._hosts:
            raise InvariantError(f"machine {machine.name} joined twice")
        self._hosts[machine.machine] = _Host(machine, MACHINE_TYPES[model] if model else None)
        self.slots += machine.slots
        if model:
            self._models[model] = self._models.get(model, 0) + 1

    def machine_down(self, machine: int, now: float) -> list[int]:
        """Remove a machine; return the tasks that ran there, which wait again."""
        host = self._hosts[machine]
        lost = sorted(host.runs)
        for task in lost:
            host.runs[task].record.machine_losses += 1
            self._stop(host, task, now)
        del self._hosts[machine]
        self.slots -= host.descriptor.slots
        if host.model:
            self._models[host.model.name] -= 1
        return lost

    def has_machine(self, machine: int) -> bool:
        """Return True if the machine is in the cluster."""
        return machine in self._hosts

    # Tasks ----------------------------------------------------------------------------------------

    def submit(self, job: JobDescriptor, task: SimulatedTask, now: float) -> None:
        """Add a waiting task."""
        descriptor = task.descriptor
        if descriptor.task in self._tasks:
            raise InvariantError(f"task {descriptor.task} was submitted twice")
        self._tasks[descriptor.task] = (
            task,
            TaskRecord(
                task=descriptor.task,
                job=job.job,
                name=task.program.name if task.program else descriptor.equivalence or job.name,
                service=bool(job.kind),
                work=task.work,
                submitted=now,
                ideal=self._ideal(task),
                waiting_since=now,
            ),
        )

    def start(self, task: int, machine: int, now: float) -> bool:
        """Start a task on a machine; return False if the task or the machine has gone meanwhile.

        Raises:
            InvariantError: the task runs already, or the machine has no free slot.
        """
        host, known = self._hosts.get(machine), self._tasks.get(task)
        if host is None or known is None:
            return False
        simulated, record = known
        if task in host.runs or self._where(record) is not None:
            raise InvariantError(f"task {task} was started twice")
        if len(host.runs) >= host.descriptor.slots:
            raise InvariantError(f"task {task} was started on {host.descriptor.name}, which has no free slot")
        record.waited += now - record.waiting_since
        record.placed = now
        record.started = now if math.isnan(record.started) else record.started
        record.machine, record.machine_name = machine, host.descriptor.name
        record.machine_type = host.descriptor.machine_type
        record.placements += 1
        record.running = True
        record.cpu_seconds = record.instructions = record.cycles = record.misses = 0.0
        host.runs[task] = _Run(simulated, record, self._left.pop(task, simulated.work), now)
        self.running += 1
        self._pace(host, now, task)
        return True

    def stop(self, task: int, now: float) -> bool:
        """Stop a task so that it waits; return False if it was not running."""
        known = self._tasks.get(task)
        host = self._where(known[1]) if known else None
        if host is None:
            return False
        self._stop(host, task, now)
        self._pace(host, now, None)
        return True

    def count_stop(self, task: int, *, migrated: bool) -> None:
        """Count a stop as a migration or a preemption."""
        _, record = self._tasks[task]
        record.migrations += migrated
        record.preemptions += not migrated

    def withdraw(self, task: int, now: float) -> TaskRecord | None:
        """Withdraw a task and return its record, or None if it has ended already."""
        known = self._tasks.get(task)
        if known is None:
            return None
        record = known[1]
        record.withdrawn = True
        host = self._where(record)
        if host is None:
            record.waited += now - record.waiting_since
            record.ended = now
            # An earlier run lost its work, so the record must not show it as the run that ended.
            record.placed, record.instructions = math.nan, 0.0
            del self._tasks[task]
            self._left.pop(task, None)
        else:
            self._end(host, task, now, completed=False)
            self._pace(host, now, None)
        return record

    def due(self, machine: int, now: float) -> list[TaskRecord]:
        """End the tasks of a machine whose work is complete; return their records."""
        host = self._hosts.get(machine)
        if host is None:
            return []
        if host.due <= now:
            host.due = math.inf
        done = sorted(task for task, run in host.runs.items() if run.ends <= now)
        records = [self._end(host, task, now, completed=host.runs[task].task.completes) for task in done]
        self._pace(host, now, None)
        return records

    def runs(self, task: int) -> bool:
        """Return True if the task runs."""
        known = self._tasks.get(task)
        return known is not None and self._where(known[1]) is not None

    def measure(self) -> list[RunningTaskView]:
        """Return a view of each running task that has a program."""
        return [
            RunningTaskView(
                run.record, run.task.program, run.pace, host.descriptor.name, _names(host, run.record.task)
            )
            for host in self._hosts.values()
            if host.model
            for run in host.runs.values()
            if run.task.program
        ]

    # Inside ---------------------------------------------------------------------------------------

    def _ideal(self, task: SimulatedTask) -> float:
        if not task.program:
            return task.work
        there = [
            pace_alone(task.program, MACHINE_TYPES[name]).stretch for name, n in self._models.items() if n
        ]
        return task.work * min(there, default=math.nan)

    def _where(self, record: TaskRecord) -> _Host | None:
        host = self._hosts.get(record.machine)
        return host if host and record.task in host.runs else None

    def _advance(self, run: _Run, host: _Host, now: float) -> None:
        """Account for the work of a task since its last change of pace."""
        done = (now - run.since) / run.pace.stretch
        run.left = max(0.0, run.left - done)
        run.since = now
        record = run.record
        record.cpu_seconds += done * run.pace.busy
        if run.task.program and host.model:
            record.instructions += done * run.task.program.instructions
            record.cycles += done * run.pace.busy * host.model.clock_hz
            record.misses += done * run.pace.misses

    def _stop(self, host: _Host, task: int, now: float) -> None:
        run = host.runs[task]
        self._advance(run, host, now)
        del host.runs[task]
        self.running -= 1
        run.record.waiting_since = now
        run.record.running = False
        if self._keeps_work:
            self._left[task] = run.left
        else:
            run.record.wasted += now - run.record.placed

    def _end(self, host: _Host, task: int, now: float, *, completed: bool) -> TaskRecord:
        run = host.runs[task]
        self._advance(run, host, now)
        run.record.beside = _names(host, task)
        del host.runs[task]
        self.running -= 1
        run.record.ended = now
        run.record.running = False
        run.record.completed = completed
        del self._tasks[task]
        return run.record

    def _pace(self, host: _Host, now: float, fresh: int | None) -> None:
        """Update paces and ends after a change; ``fresh`` is the task that started, if any."""
        if host.model:
            self._interfere(host, host.model, now)
        elif fresh is not None:
            run = host.runs[fresh]
            run.ends = now + run.left
        soonest = min((run.ends for run in host.runs.values()), default=math.inf)
        if soonest < host.due:
            host.due = soonest
            self._put(soonest, HostDue(host.descriptor.machine))

    def _interfere(self, host: _Host, model: MachineModel, now: float) -> None:
        with_program = [run for run in host.runs.values() if run.task.program]
        programs = [run.task.program for run in with_program if run.task.program]
        paces = dict(zip(map(id, with_program), paces_together(programs, model), strict=True))
        for run in host.runs.values():
            self._advance(run, host, now)
            run.pace = paces.get(id(run), PLAIN)
            run.ends = now + run.left * run.pace.stretch
