"""Place tasks by a simple rule in plain Python, while the flow scheduler's kernels are being compiled.

A task goes to the least loaded machine that satisfies its needs: room in every resource, a free slot, hard
constraints, affinity, and the quota of its principal. Tasks of higher priority come first, then those that
were submitted first. A task that fits nowhere waits and does not hold up the tasks behind it. Nothing is
stopped or moved. There are no random choices: the same events give the same placements.

This module loads neither NumPy nor Numba.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.wire.types import Affinity, Operator

_AVOID_S: Final = 5.0
"""A task that a machine refused is not sent there again for this time."""
_TOLERANCE: Final = 1e-9
"""Relative. Demands that fill a machine exactly may exceed its capacity by rounding."""
_NOTHING: Final = (0.0,) * len(Resources._fields)
_APART: Final = {
    Affinity.SPREAD_NODES: "run a task of this job already, and its tasks have to be on different machines",
    Affinity.SPREAD_RACKS: "are in a rack that runs a task of this job, whose tasks need different racks",
    Affinity.SAME_NODE: "are not the machine on which the tasks of this job run together",
    Affinity.SAME_RACK: "are not in the rack in which the tasks of this job run together",
}


class MachineLoad(NamedTuple):
    """The resources that the tasks on a machine hold."""

    tasks: int
    reserved: Resources


class FirstFitPlacement(NamedTuple):
    """A task and the machine where it goes, by their identifiers."""

    task: int
    machine: int


@dataclass(slots=True)
class _FirstFitMachine:
    described: MachineDescriptor
    labels: dict[str, str]
    tasks: set[int] = field(default_factory=set)
    reserved: list[float] = field(default_factory=lambda: list(_NOTHING))
    drained: bool = False

    @property
    def load(self) -> float:
        """The largest fraction that is taken of its slots or of any resource, from 0 to 1."""
        parts = [
            used / most for used, most in zip(self.reserved, self.described.capacity, strict=True) if most > 0
        ]
        return max([*parts, len(self.tasks) / max(1, self.described.slots)])


@dataclass(slots=True)
class _FirstFitJob:
    described: JobDescriptor
    tasks: set[int] = field(default_factory=set)
    completed: int = 0
    """The number of its tasks that ended well; they count for a gang as if they ran."""


@dataclass(slots=True)
class _WaitingOrRunning:
    described: TaskDescriptor
    job: _FirstFitJob
    machine: int | None = None
    avoided: dict[int, float] = field(default_factory=dict)
    """Machines that refused it, and the time until which it avoids them."""


class FirstFitScheduler:
    """The tasks and machines of a cluster, placed by first fit on the least loaded machine.

    Identifiers and descriptions are those of ``FlowScheduler``; an unknown or repeated identifier raises
    BadDescriptorError. Times are in seconds.
    """

    def __init__(self) -> None:
        self._machines: dict[int, _FirstFitMachine] = {}
        self._jobs: dict[int, _FirstFitJob] = {}
        self._tasks: dict[int, _WaitingOrRunning] = {}
        """In the order of their submission."""
        self._held: dict[str, list[float]] = {}
        """The holdings of each principal with a quota: the number of tasks, then each resource."""
        self._quotas: Mapping[str, Sequence[float]] = {}
        self.excluded_machines: Collection[str] = frozenset()
        """Names of machines on which nothing is placed, because room there is promised to others."""

    # Events -------------------------------------------------------------------------------------------

    def add_machine(self, machine: MachineDescriptor, now: float) -> None:
        """Add a machine."""
        del now
        if machine.machine in self._machines:
            raise BadDescriptorError(f"machine {machine.name} ({machine.machine}) already exists")
        self._machines[machine.machine] = _FirstFitMachine(machine, dict(machine.labels))

    def remove_machine(self, machine: int, now: float) -> list[int]:
        """Remove a machine; return the tasks that ran there, which wait again."""
        del now
        stopped = sorted(self._machine(machine).tasks)
        for task in stopped:
            self._stop(task)
        del self._machines[machine]
        return stopped

    def drain(self, machine: int, drained: bool) -> None:  # noqa: FBT001 - as FlowScheduler has it
        """Place nothing new on a machine, or allow that again."""
        self._machine(machine).drained = drained

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float) -> None:
        """Add waiting tasks of a new or a known job.

        Raises:
            BadDescriptorError: a task already exists, or the job's gang can never start.
        """
        del now
        known = self._jobs.get(job.job)
        for task in tasks:
            if task.task in self._tasks:
                raise BadDescriptorError(f"task {task.task} already exists")
        if known is None and job.gang > len(tasks):
            raise BadDescriptorError(f"job {job.job}: a gang of {job.gang}, but only {len(tasks)} tasks")
        slots = sum(machine.described.slots for machine in self._machines.values())
        if self._machines and job.gang > slots:
            raise BadDescriptorError(
                f"job {job.job}: a gang of {job.gang}, but the cluster has {slots} slots"
            )
        if known is None:
            known = self._jobs[job.job] = _FirstFitJob(job)
        for task in tasks:
            self._tasks[task.task] = _WaitingOrRunning(task, known)
            known.tasks.add(task.task)

    def finished(self, task: int, now: float, report: FinalReport | None = None) -> None:
        """Remove a task that ended, failed or was withdrawn."""
        del now
        tracked = self._task(task)
        if tracked.machine is not None:
            self._stop(task)
        del self._tasks[task]
        job = tracked.job
        job.tasks.discard(task)
        job.completed += report is None or report.completed
        if not job.tasks:
            del self._jobs[job.described.job]

    def started(self, task: int, machine: int, now: float) -> None:
        """Record that a waiting task runs on a machine already."""
        del now
        self._machine(machine)
        if self._task(task).machine is not None:
            raise BadDescriptorError(f"task {task} runs already")
        self._start(task, machine)

    def rejected(self, task: int, now: float) -> None:
        """Record that the machine refused the task: it waits again and avoids that machine for 5 seconds."""
        tracked = self._task(task)
        if tracked.machine is None:
            raise BadDescriptorError(f"task {task} waits: there is no placement to reject")
        tracked.avoided[tracked.machine] = now + _AVOID_S
        self._stop(task)

    def set_quotas(self, quotas: Mapping[str, Sequence[float]]) -> None:
        """Limit what principals may hold at once: tasks, then each resource; infinity for no limit."""
        self._quotas = quotas
        self._held = {principal: self._held_by(principal) for principal in quotas}

    # Questions ----------------------------------------------------------------------------------------

    def job(self, job: int) -> JobDescriptor | None:
        """Return a known job's description."""
        found = self._jobs.get(job)
        return None if found is None else found.described

    def is_running(self, task: int) -> bool:
        """Return True if the scheduler knows the task and has placed it."""
        found = self._tasks.get(task)
        return found is not None and found.machine is not None

    def load_of(self, machine: int) -> MachineLoad:
        """Return the number of tasks on a machine, and the resources that they reserve."""
        found = self._machine(machine)
        return MachineLoad(len(found.tasks), Resources(*found.reserved))

    def why_waiting(self, task: int, now: float) -> list[str]:
        """Return one sentence for each reason that keeps machines from taking a task, with their number.

        The list is empty if some machine could take it now.
        """
        tracked = self._task(task)
        reasons = Counter(self._obstacle(tracked, machine, now) for machine in self._machines.values())
        if reasons.pop("", 0):
            return []
        total = len(self._machines)
        if not total:
            return ["the scheduler knows no machine yet"]
        return [f"{count} of {total} machines: {reason}" for reason, count in sorted(reasons.items())]

    # Rounds -------------------------------------------------------------------------------------------

    def round(self, now: float, withheld: Collection[int] = ()) -> list[FirstFitPlacement]:
        """Place the waiting tasks that fit, except those in ``withheld``; return the new placements."""
        waiting = [
            (task, tracked)
            for task, tracked in self._tasks.items()
            if tracked.machine is None and task not in withheld
        ]
        # The sort is stable: tasks of one priority stay in the order of their submission.
        waiting.sort(key=lambda pair: -pair[1].described.priority)
        placed: list[FirstFitPlacement] = []
        tried: set[int] = set()
        for task, tracked in waiting:
            job = tracked.job
            if not job.described.gang:
                placed += self._place([task], now)
            elif job.described.job not in tried:
                tried.add(job.described.job)
                members = [other for other, one in waiting if one.job is job]
                placed += self._place_gang(job, members, now)
        return placed

    def _place_gang(self, job: _FirstFitJob, members: list[int], now: float) -> list[FirstFitPlacement]:
        """Place enough of a gang's tasks for it to run, or none."""
        started = job.completed + sum(self.is_running(task) for task in job.tasks)
        needed = job.described.gang - started
        together = job.described.affinity in {Affinity.SAME_NODE, Affinity.SAME_RACK}
        # The first task decides on the machine or rack for all: every machine is tried as the first one.
        firsts = self._in_order(self._tasks[members[0]]) if together else [None]
        for first in firsts:
            placed = self._place(members, now, first)
            if placed and len(placed) >= needed:
                return placed
            for task, _ in placed:
                self._stop(task)
        return []

    def _place(
        self, tasks: Iterable[int], now: float, first: _FirstFitMachine | None = None
    ) -> list[FirstFitPlacement]:
        """Place those of the tasks that fit; with ``first`` the first of them goes to that machine."""
        placed: list[FirstFitPlacement] = []
        for at, task in enumerate(tasks):
            tracked = self._tasks[task]
            candidates = [first] if first is not None and at == 0 else self._in_order(tracked)
            for machine in candidates:
                if not self._obstacle(tracked, machine, now):
                    self._start(task, machine.described.machine)
                    placed.append(FirstFitPlacement(task, machine.described.machine))
                    break
        return placed

    def _in_order(self, tracked: _WaitingOrRunning) -> list[_FirstFitMachine]:
        """Return all machines, the best for a task first.

        Fewer missed soft constraints count first, then more bytes of input on the machine, then a lower load.
        """
        soft = [one for one in tracked.described.constraints if not one.hard]
        local = Counter[int]()
        for block in tracked.described.blocks:
            for machine in block.machines:
                local[machine] += block.size

        def rank(machine: _FirstFitMachine) -> tuple[int, int, float, int]:
            missed = sum(not _satisfies(machine.labels, constraint) for constraint in soft)
            number = machine.described.machine
            return missed, -local[number], machine.load, number

        return sorted(self._machines.values(), key=rank)

    def _obstacle(self, tracked: _WaitingOrRunning, machine: _FirstFitMachine, now: float) -> str:
        """Return why a machine cannot take a task now, as the end of a sentence; empty if it can."""
        described, has = tracked.described, machine.described
        if described.pinned is not None and described.pinned != has.machine:
            return f"are not machine {described.pinned}, to which the task is pinned"
        for constraint in described.constraints:
            if constraint.hard and not _satisfies(machine.labels, constraint):
                return _unmet(constraint)
        for name, wanted, most in zip(Resources._fields, described.demand, has.capacity, strict=True):
            if 0 < most * (1 + _TOLERANCE) < wanted:
                return f"too small: {_amount(name, wanted)} wanted"
        if machine.drained:
            return "are drained"
        if has.name in self.excluded_machines:
            return "have room that is promised to jobs over time"
        if tracked.avoided.get(has.machine, -math.inf) > now:
            return "refused the task a short while ago"
        if len(machine.tasks) >= has.slots:
            return "have no free slot"
        for at, (name, wanted) in enumerate(zip(Resources._fields, described.demand, strict=True)):
            free = has.capacity[at] * (1 + _TOLERANCE) - machine.reserved[at]
            if has.capacity[at] > 0 and wanted > free:
                return f"not enough free: {_amount(name, wanted)} wanted"
        if not self._affinity_allows(tracked, has):
            return _APART[tracked.job.described.affinity]
        return self._over_quota(tracked)

    def _affinity_allows(self, tracked: _WaitingOrRunning, machine: MachineDescriptor) -> bool:
        affinity = tracked.job.described.affinity
        if affinity is Affinity.NONE:
            return True
        running = [self._tasks[task].machine for task in tracked.job.tasks]
        used = [self._machines[one].described for one in running if one is not None]
        if affinity is Affinity.SPREAD_NODES:
            return all(one.machine != machine.machine for one in used)
        if affinity is Affinity.SPREAD_RACKS:
            return all(one.rack != machine.rack for one in used)
        if affinity is Affinity.SAME_NODE:
            return all(one.machine == machine.machine for one in used)
        return all(one.rack == machine.rack for one in used)

    def _over_quota(self, tracked: _WaitingOrRunning) -> str:
        principal = tracked.job.described.principal
        quota = self._quotas.get(principal)
        if quota is None:
            return ""
        held = self._held.get(principal, [0.0, *_NOTHING])
        wanted = (1.0, *tracked.described.demand)
        for name, has, more, most in zip(("tasks", *Resources._fields), held, wanted, quota, strict=True):
            if has + more > most * (1 + _TOLERANCE):
                return f"{principal} would hold {has + more:g} of {name}, and its quota is {most:g}"
        return ""

    # Tables -------------------------------------------------------------------------------------------

    def _machine(self, machine: int) -> _FirstFitMachine:
        found = self._machines.get(machine)
        if found is None:
            raise BadDescriptorError(f"machine {machine} does not exist")
        return found

    def _task(self, task: int) -> _WaitingOrRunning:
        found = self._tasks.get(task)
        if found is None:
            raise BadDescriptorError(f"task {task} does not exist")
        return found

    def _start(self, task: int, machine: int) -> None:
        tracked, place = self._tasks[task], self._machines[machine]
        tracked.machine = machine
        place.tasks.add(task)
        self._account(tracked, place)

    def _stop(self, task: int) -> None:
        tracked = self._tasks[task]
        if tracked.machine is None:
            return
        place = self._machines[tracked.machine]
        tracked.machine = None
        place.tasks.discard(task)
        self._account(tracked, place)

    def _account(self, tracked: _WaitingOrRunning, place: _FirstFitMachine) -> None:
        """Recompute the sums of the machine and the principal, so that no rounding errors accumulate."""
        demands = [self._tasks[task].described.demand for task in sorted(place.tasks)]
        place.reserved = [math.fsum(column) for column in zip(*demands, strict=True)] or list(_NOTHING)
        principal = tracked.job.described.principal
        if principal in self._quotas:
            self._held[principal] = self._held_by(principal)

    def _held_by(self, principal: str) -> list[float]:
        demands = [
            (1.0, *one.described.demand)
            for one in self._tasks.values()
            if one.machine is not None and one.job.described.principal == principal
        ]
        return [math.fsum(column) for column in zip(*demands, strict=True)] or [0.0, *_NOTHING]


def _satisfies(labels: Mapping[str, str], constraint: Constraint) -> bool:
    value = labels.get(constraint.key)
    if constraint.operator is Operator.PRESENT:
        return value is not None
    if constraint.operator is Operator.ABSENT:
        return value is None
    if constraint.operator is Operator.EQUAL:
        return value == constraint.value
    return value != constraint.value


def _unmet(constraint: Constraint) -> str:
    if constraint.operator is Operator.PRESENT:
        return f"lack the label {constraint.key}"
    if constraint.operator is Operator.ABSENT:
        return f"have the label {constraint.key}"
    if constraint.operator is Operator.EQUAL:
        return f"lack {constraint.key}={constraint.value}"
    return f"have {constraint.key}={constraint.value}"


def _amount(name: str, amount: float) -> str:
    if name == "cpus":
        return f"{amount:g} CPUs"
    return f"{amount:g} {'B' if name == 'memory' else 'B/s'} of {name.replace('_', ' ')}"
