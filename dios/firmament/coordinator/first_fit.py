"""Place tasks by a simple rule in plain Python, while the flow scheduler's kernels are being compiled.

A task goes to the least loaded machine that satisfies its needs: room in every resource, a free slot, hard
constraints, affinity, and the quota of its principal. Tasks of jobs that run fewer than their minimum come
first, then those of higher priority, then those that were submitted first. No job runs more than its maximum.
A task that fits nowhere waits and does not hold up the tasks behind it. Nothing is stopped or moved. There
are no random choices: the same events give the same placements.

A round costs what changed. Tasks with the same needs are of one kind, and as room only shrinks during a
round, a kind whose first task fits nowhere is not looked at again until room appears.

This module loads neither NumPy nor Numba.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from dios.firmament.coordinator.best_effort import satisfies
from dios.firmament.coordinator.cluster_state import TaskScheduler
from dios.firmament.descriptors import (
    BadDescriptorError,
    Constraint,
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.limits import FIRST_FIT_KINDS_MAX
from dios.wire.types import Affinity

_TASKS_NEAR: Final = 4
"""Tasks for each processor up to which a machine is preferred for its input, as in the model ``spread``."""
_AVOID_S: Final = 5.0
"""A task that a machine refused is not sent there again for this time."""
_TOLERANCE: Final = 1e-9
"""Relative. Demands that fill a machine exactly may exceed its capacity by rounding."""
_STALE_MAX: Final = 64
"""Entries of tasks that wait no more, in addition to as many as there are waiting tasks of their kind."""
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


class _Kind(NamedTuple):
    """The needs that decide where tasks may run: if one task of a kind fits nowhere, none of them does."""

    priority: int
    demand: Resources
    constraints: tuple[Constraint, ...]
    pinned: int | None
    principal: str
    job: int | None
    """The job, if its tasks depend on each other."""
    refused: int | None
    """The task itself if a machine has refused it, because it avoids that machine for some time."""


class _Head(NamedTuple):
    """The first waiting task of a kind; heads are in the order in which they are tried."""

    enough: bool
    """True unless its job needs it to run its minimum."""
    lowness: int
    """Its priority, negated."""
    number: int
    task: int
    kind: _Kind


@dataclass(slots=True)
class _KindQueue:
    """The waiting tasks of one kind."""

    heap: list[tuple[int, int]] = field(default_factory=list)
    """Their order and identifiers; also of tasks that wait no more, which are removed later."""
    waiting: int = 0
    """The number of tasks that wait."""


@dataclass(slots=True)
class _FirstFitMachine:
    described: MachineDescriptor
    labels: dict[str, str]
    tasks: set[int] = field(default_factory=set)
    reserved: list[float] = field(default_factory=lambda: list(_NOTHING))
    load: float = 0.0
    """The largest fraction that is taken of its slots or of any resource, from 0 to 1."""
    drained: bool = False

    def account(self, demands: Iterable[Resources]) -> None:
        """Recompute the sums of its tasks' demands, so that no rounding errors accumulate."""
        self.reserved = [math.fsum(column) for column in zip(*demands, strict=True)] or list(_NOTHING)
        parts = [
            used / most for used, most in zip(self.reserved, self.described.capacity, strict=True) if most > 0
        ]
        self.load = max([*parts, len(self.tasks) / max(1, self.described.slots)])

    def free(self) -> list[float]:
        """Return the largest demand that has room, for each resource by itself."""
        return [
            most * (1 + _TOLERANCE) - used if most > 0 else math.inf
            for used, most in zip(self.reserved, self.described.capacity, strict=True)
        ]


@dataclass(slots=True)
class _FirstFitJob:
    described: JobDescriptor
    tasks: dict[int, None] = field(default_factory=dict)
    machines: Counter[int] = field(default_factory=Counter)
    """The machines on which its tasks run, and the number of tasks on each."""
    completed: int = 0
    """The number of its tasks that ended well; they count for a gang as if they ran."""


@dataclass(slots=True)
class _WaitingOrRunning:
    described: TaskDescriptor
    job: _FirstFitJob
    number: int
    """The order of submissions."""
    machine: int | None = None
    avoided: dict[int, float] = field(default_factory=dict)
    """Machines that refused it, and the time until which it avoids them."""

    @property
    def kind(self) -> _Kind:
        """The tasks that can run on the same machines."""
        described, job = self.described, self.job.described
        bounded = job.minimum_running or job.maximum_running is not None
        together = job.gang or job.affinity is not Affinity.NONE or bounded
        return _Kind(
            described.priority,
            described.demand,
            described.constraints,
            described.pinned,
            job.principal,
            job.job if together else None,
            described.task if self.avoided else None,
        )


class FirstFitScheduler(TaskScheduler):
    """The tasks and machines of a cluster, placed by first fit on the least loaded machine.

    Identifiers and descriptions are those of ``FlowScheduler``; an unknown or repeated identifier raises
    BadDescriptorError. Times are in seconds. ``tried`` counts the kinds that rounds have looked at, for tests
    and for figures.
    """

    def __init__(self) -> None:
        self._machines: dict[int, _FirstFitMachine] = {}
        self._jobs: dict[int, _FirstFitJob] = {}
        self._tasks: dict[int, _WaitingOrRunning] = {}
        self._submitted = 0
        self._waiting: dict[_Kind, _KindQueue] = {}
        self._open: dict[_Kind, None] = {}
        """The kinds that the next rounds look at, the one that was tried longest ago first."""
        self._closed: dict[_Kind, None] = {}
        """The kinds that found no place; they open again when room may have appeared."""
        self._running: dict[str, set[int]] = {}
        """The tasks that run, by principal."""
        self._held: dict[str, list[float]] = {}
        """The holdings of each principal with a quota: the number of tasks, then each resource."""
        self._quotas: Mapping[str, Sequence[float]] = {}
        self._excluded: Collection[str] = frozenset()
        self.tried = 0

    # Events -------------------------------------------------------------------------------------------

    def add_machine(self, machine: MachineDescriptor, now: float) -> None:
        del now
        if machine.machine in self._machines:
            raise BadDescriptorError(f"machine {machine.name} ({machine.machine}) already exists")
        self._machines[machine.machine] = _FirstFitMachine(machine, dict(machine.labels))
        self._open_again()

    def remove_machine(self, machine: int, now: float) -> list[int]:
        del now
        stopped = sorted(self._machine(machine).tasks)
        for task in stopped:
            self._stop(task)
        del self._machines[machine]
        return stopped

    def drain(self, machine: int, drained: bool) -> None:  # noqa: FBT001 - as FlowScheduler has it
        self._machine(machine).drained = drained
        self._open_again()

    def exclude(self, machines: Collection[str]) -> None:
        """Place nothing on machines with these names, because room there is promised to others."""
        self._excluded = machines
        self._open_again()

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
            self._submitted += 1
            tracked = self._tasks[task.task] = _WaitingOrRunning(task, known, self._submitted)
            known.tasks[task.task] = None
            self._wait(task.task, tracked)

    def set_bounds(self, job: int, minimum: int, maximum: int | None) -> None:
        known_job = self._jobs.get(job)
        if known_job is None:
            return
        waiting = [self._tasks[task] for task in known_job.tasks if self._tasks[task].machine is None]
        for tracked in waiting:
            self._wait_no_more(tracked)
        known_job.described = replace(known_job.described, minimum_running=minimum, maximum_running=maximum)
        for tracked in waiting:
            self._wait(tracked.described.task, tracked)
        self._open_again()

    def finished(self, task: int, now: float, report: FinalReport | None = None) -> None:
        """Remove a task that ended, failed or was withdrawn."""
        del now
        tracked = self._task(task)
        job = tracked.job
        if tracked.machine is not None:
            self._release(task, tracked)
            self._open_again()
        else:
            self._wait_no_more(tracked)
            if job.described.gang:
                # Fewer of the others have to start together.
                self._open_again()
        del self._tasks[task]
        del job.tasks[task]
        job.completed += report is None or report.completed
        if not job.tasks:
            del self._jobs[job.described.job]

    def started(self, task: int, machine: int, now: float, thread: str = "", ran: float = 0.0) -> None:
        """Record that a waiting task runs on a machine already."""
        del now, thread, ran
        self._machine(machine)
        if self._task(task).machine is not None:
            raise BadDescriptorError(f"task {task} runs already")
        self._start(task, machine)
        self._tidy(self._task(task))

    def progressed(self, task: int, share: float) -> None:
        """Ignore the progress of a task: first fit does not use it."""

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
        self._open_again()

    @property
    def quotas(self) -> Mapping[str, Sequence[float]]:
        """The limits that :meth:`set_quotas` has set."""
        return self._quotas

    # Questions ----------------------------------------------------------------------------------------

    def job(self, job: int) -> JobDescriptor | None:
        tracked = self._jobs.get(job)
        return None if tracked is None else tracked.described

    def is_running(self, task: int) -> bool:
        tracked = self._tasks.get(task)
        return tracked is not None and tracked.machine is not None

    def load_of(self, machine: int) -> MachineLoad:
        """Return the number of tasks on a machine, and the resources that they reserve."""
        tracked = self._machine(machine)
        return MachineLoad(len(tracked.tasks), Resources(*tracked.reserved))

    def why_waiting(self, task: int, now: float) -> list[str]:
        """Return one sentence for each reason that keeps machines from taking a task, with their number.

        The list is empty if some machine could take it now.
        """
        tracked = self._task(task)
        most = tracked.job.described.maximum_running
        if most is not None and tracked.job.machines.total() >= most:
            running = tracked.job.machines.total()
            return [f"its series runs as many tasks as it may at once: {running} of {most}"]
        reasons = Counter(self._obstacle(tracked, machine, now) for machine in self._machines.values())
        if reasons.pop("", 0):
            return []
        total = len(self._machines)
        if not total:
            return ["the scheduler knows no machine yet"]
        return [f"{count} of {total} machines: {reason}" for reason, count in sorted(reasons.items())]

    # Rounds -------------------------------------------------------------------------------------------

    def round(self, now: float) -> list[FirstFitPlacement]:
        """Place the waiting tasks that fit; return the new placements.

        A round looks at a bounded number of kinds; with more of them, they take turns.
        """
        heads: list[_Head] = []
        for kind in list(islice(self._open, FIRST_FIT_KINDS_MAX)):
            del self._open[kind]
            self._add_head(heads, kind)
        placed: list[FirstFitPlacement] = []
        gangs: set[int] = set()
        most_free, before = self._most_free(), 0
        while heads:
            *_, task, kind = heapq.heappop(heads)
            tracked, fresh = self._tasks[task], list[FirstFitPlacement]()
            if tracked.machine is not None:
                # It was placed together with another task of its gang.
                self._add_head(heads, kind)
                continue
            self.tried += 1
            if most_free is not None and len(placed) != before:
                most_free, before = self._most_free(), len(placed)
            if most_free is None:
                pass
            elif tracked.job.described.gang:
                if tracked.job.described.job not in gangs:
                    gangs.add(tracked.job.described.job)
                    fresh = self._place_gang(tracked.job, now)
            elif all(wanted <= free for wanted, free in zip(kind.demand, most_free, strict=True)):
                fresh = self._place([task], now)
            placed += fresh
            if fresh:
                self._add_head(heads, kind)
            elif kind.refused is None:
                self._closed[kind] = None
            else:
                # It may fit when it no longer avoids a machine.
                self._open[kind] = None
        return placed

    def _add_head(self, heads: list[_Head], kind: _Kind) -> None:
        """Push the first waiting task of a kind, or forget the kind if it has none."""
        heap = self._waiting[kind].heap
        while heap:
            number, task = heap[0]
            if self._waits(task, kind):
                # Numbers are unique, so that kinds are never compared.
                job = self._tasks[task].job
                enough = job.machines.total() >= job.described.minimum_running
                heapq.heappush(heads, _Head(enough, -kind.priority, number, task, kind))
                return
            heapq.heappop(heap)
        del self._waiting[kind]

    def _most_free(self) -> list[float] | None:
        """Return the largest free amount of each resource on a machine with a slot; None if there is none."""
        free = [
            machine.free()
            for machine in self._machines.values()
            if not machine.drained
            and machine.described.name not in self._excluded
            and len(machine.tasks) < machine.described.slots
        ]
        return [max(column) for column in zip(*free, strict=True)] if free else None

    def _place_gang(self, job: _FirstFitJob, now: float) -> list[FirstFitPlacement]:
        """Place enough of a gang's tasks for it to run, or none."""
        waiting = [(task, self._tasks[task]) for task in job.tasks]
        waiting = [pair for pair in waiting if pair[1].machine is None and not pair[1].described.admitted]
        members = [task for task, tracked in sorted(waiting, key=lambda pair: -pair[1].described.priority)]
        needed = job.described.gang - job.completed - job.machines.total()
        together = job.described.affinity in {Affinity.SAME_NODE, Affinity.SAME_RACK}
        # The first task decides on the machine or rack for all: every machine is tried as the first one.
        firsts = self._in_order(self._tasks[members[0]]) if together else [None]
        for first in firsts:
            placed = self._place(members, now, first)
            if placed and len(placed) >= needed:
                return placed
            for task, _ in placed:
                tracked = self._tasks[task]
                self._release(task, tracked)
                self._waiting[tracked.kind].waiting += 1
        return []

    def _place(
        self, tasks: Iterable[int], now: float, first: _FirstFitMachine | None = None
    ) -> list[FirstFitPlacement]:
        """Place those of the tasks that fit; with ``first`` the first of them goes to that machine."""
        placed: list[FirstFitPlacement] = []
        for at, task in enumerate(tasks):
            tracked = self._tasks[task]
            most = tracked.job.described.maximum_running
            if most is not None and tracked.job.machines.total() >= most:
                break
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
        On a machine that runs ``_TASKS_NEAR`` tasks for each processor, input counts no more.
        """
        soft = [constraint for constraint in tracked.described.constraints if not constraint.hard]
        if not soft and not tracked.described.blocks:
            return sorted(
                self._machines.values(), key=lambda candidate: (candidate.load, candidate.described.machine)
            )
        local = Counter[int]()
        for block in tracked.described.blocks:
            for machine in block.machines:
                local[machine] += block.size

        def rank(machine: _FirstFitMachine) -> tuple[int, int, float, int]:
            missed = sum(not satisfies(machine.labels, constraint) for constraint in soft)
            number, processors = machine.described.machine, max(1.0, machine.described.capacity.cpus)
            is_full = len(machine.tasks) >= _TASKS_NEAR * processors
            return missed, 0 if is_full else -local[number], machine.load, number

        return sorted(self._machines.values(), key=rank)

    def _obstacle(self, tracked: _WaitingOrRunning, machine: _FirstFitMachine, now: float) -> str:
        """Return why a machine cannot take a task now, as the end of a sentence; empty if it can."""
        described, has = tracked.described, machine.described
        if described.pinned is not None and described.pinned != has.machine:
            return f"are not machine {described.pinned}, to which the task is pinned"
        for constraint in described.constraints:
            if constraint.hard and not satisfies(machine.labels, constraint):
                return constraint.unmet
        for name, wanted, most in zip(Resources._fields, described.demand, has.capacity, strict=True):
            if 0 < most * (1 + _TOLERANCE) < wanted:
                return f"too small: {_amount(name, wanted)} wanted"
        if machine.drained:
            return "are drained"
        if has.name in self._excluded:
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
        used = [self._machines[number].described for number in tracked.job.machines]
        if affinity is Affinity.SPREAD_NODES:
            return all(other.machine != machine.machine for other in used)
        if affinity is Affinity.SPREAD_RACKS:
            return all(other.rack != machine.rack for other in used)
        if affinity is Affinity.SAME_NODE:
            return all(other.machine == machine.machine for other in used)
        return all(other.rack == machine.rack for other in used)

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
        tracked = self._machines.get(machine)
        if tracked is None:
            raise BadDescriptorError(f"machine {machine} does not exist")
        return tracked

    def _task(self, task: int) -> _WaitingOrRunning:
        tracked = self._tasks.get(task)
        if tracked is None:
            raise BadDescriptorError(f"task {task} does not exist")
        return tracked

    def _wait(self, task: int, tracked: _WaitingOrRunning) -> None:
        """Let a task wait, at the place of its submission."""
        if tracked.described.admitted:
            return
        kind = tracked.kind
        queue = self._waiting.setdefault(kind, _KindQueue())
        heapq.heappush(queue.heap, (tracked.number, task))
        queue.waiting += 1
        self._tidy(tracked)
        if tracked.job.described.gang:
            # One more task may be what the gang needs to start.
            self._closed.pop(kind, None)
        if kind not in self._closed:
            self._open[kind] = None

    def _wait_no_more(self, tracked: _WaitingOrRunning) -> None:
        """Forget a waiting task that ends."""
        if not tracked.described.admitted:
            self._waiting[tracked.kind].waiting -= 1
            self._tidy(tracked)

    def _tidy(self, tracked: _WaitingOrRunning) -> None:
        """Drop the queue of a task's kind if it is empty; else drop tasks that wait no more."""
        kind = tracked.kind
        queue = self._waiting.get(kind)
        if queue is None:
            return
        if not queue.waiting:
            del self._waiting[kind]
            self._open.pop(kind, None)
            self._closed.pop(kind, None)
        elif len(queue.heap) > 2 * queue.waiting + _STALE_MAX:
            queue.heap = sorted({(number, task) for number, task in queue.heap if self._waits(task, kind)})

    def _waits(self, task: int, kind: _Kind) -> bool:
        tracked = self._tasks.get(task)
        return tracked is not None and tracked.machine is None and tracked.kind == kind

    def _open_again(self) -> None:
        """Look at all kinds in the next rounds, because there may be room for them."""
        if self._closed:
            self._open |= self._closed
            self._closed = {}

    def _start(self, task: int, machine: int) -> None:
        tracked, place = self._tasks[task], self._machines[machine]
        tracked.machine = machine
        if not tracked.described.admitted:
            self._waiting[tracked.kind].waiting -= 1
        place.tasks.add(task)
        tracked.job.machines[machine] += 1
        self._running.setdefault(tracked.job.described.principal, set()).add(task)
        self._account(tracked, place)

    def _stop(self, task: int) -> None:
        """Take a task off its machine; it waits again."""
        tracked = self._tasks[task]
        if tracked.machine is not None:
            self._release(task, tracked)
            self._wait(task, tracked)
            self._open_again()

    def _release(self, task: int, tracked: _WaitingOrRunning) -> None:
        """Free the room of a task."""
        assert tracked.machine is not None  # noqa: S101 - callers check it
        place, job = self._machines[tracked.machine], tracked.job
        job.machines -= Counter([tracked.machine])
        tracked.machine = None
        place.tasks.discard(task)
        principal = job.described.principal
        self._running[principal].discard(task)
        if not self._running[principal]:
            del self._running[principal]
        self._account(tracked, place)

    def _account(self, tracked: _WaitingOrRunning, place: _FirstFitMachine) -> None:
        """Recompute the sums of the machine and the principal."""
        place.account(self._tasks[task].described.demand for task in place.tasks)
        principal = tracked.job.described.principal
        if principal in self._quotas:
            self._held[principal] = self._held_by(principal)

    def _held_by(self, principal: str) -> list[float]:
        demands = [(1.0, *self._tasks[task].described.demand) for task in self._running.get(principal, ())]
        return [math.fsum(column) for column in zip(*demands, strict=True)] or [0.0, *_NOTHING]


def _amount(name: str, amount: float) -> str:
    if name == "cpus":
        return f"{amount:g} CPUs"
    return f"{amount:g} {'B' if name == 'memory' else 'B/s'} of {name.replace('_', ' ')}"
