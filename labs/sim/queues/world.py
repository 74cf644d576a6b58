"""Runs of the scheduler in which nobody within his right may wait for ever (SDRF paper, Proposition 6).

Three users keep the cluster full of small tasks. Two others hold nothing and submit a large task, or a gang,
from time to time: they are within their right. Machines fail and return, and coordinators follow each other.
A new one learns of reservations only from the queues. Two claims hold under every cost model:

- *start*: a large job starts in the longest remaining time of what runs when its machines are kept, and a
  grace time before that; each other large job that waits or runs meanwhile adds its run time.
- *end*: when no more tasks come, all of them start.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from dios.errors import InvariantError
from dios.firmament.descriptors import (
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.models.catalogue import MODELS, make
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.limits import FAIR_QUEUE_TIMEOUT_S
from dios.wire.types import Affinity

_GIB: Final = 2.0**30
_STREAMS: Final = ("ann", "bob", "eve")
_RIGHTFUL: Final = ("sue", "tom")
_BUSY_S: Final = 240
"""The time in which tasks are submitted."""
_DRAIN_S: Final = 240
"""The time after it in which all of them have to start."""
_WAITING_MAX: Final = 6
"""The small tasks of a user that wait at a time."""
_LENGTHS: Final = ((10.0,), (4.0, 20.0), (1.0, 5.0, 30.0))
_GRACE_S: Final = FAIR_QUEUE_TIMEOUT_S + 3.0
"""The time until machines are kept for a job whose turn it is, with some rounds of one second."""


class QueueReport(NamedTuple):
    """The counts of one run."""

    model: str
    machines: int
    started: int
    large: int
    """Large jobs that started, each in its time."""
    preempted: int
    utilisation: float
    """The share of processors in use while tasks were submitted."""
    faults: dict[str, int]
    digest: str


@dataclass(slots=True)
class _Job:
    """A job of a play, with one task or those of a gang."""

    owner: str
    described: JobDescriptor
    tasks: list[TaskDescriptor]
    length: float
    submitted: float
    is_large: bool
    kept_by: float = 0.0
    """The time by which its machines have to be kept."""
    due: float = 0.0
    """The time by which it has to have started."""
    started: float | None = None
    others: set[int] = field(default_factory=set)
    """The other large jobs that its due time allows for."""


class _World:
    """One run."""

    def __init__(self, seed: int, model: str) -> None:
        self.random: Final = random.Random(seed)  # noqa: S311 - a simulation, no secret
        self.model: Final = model or list(MODELS)[seed % len(MODELS)]
        self.now = 0.0
        self.jobs: Final[dict[int, _Job]] = {}
        self.waiting: Final[dict[int, int]] = {}
        """The waiting tasks, and their jobs."""
        self.ends: Final[dict[int, float]] = {}
        """When running tasks end."""
        self.places: Final[dict[int, int]] = {}
        """The machines of running tasks."""
        self.machines: Final[dict[int, MachineDescriptor]] = {}
        self.absent: Final[dict[int, float]] = {}
        """When machines that failed return."""
        self.faults: Final = Counter[str]()
        self.preempted = self.started = 0
        self.used = self.offered = 0.0
        self.number = 0
        self.trace: Final = hashlib.blake2b(digest_size=16)
        self.lengths: Final = self.random.choice(_LENGTHS)
        self.may_restart: Final = self.random.random() < 0.3
        self.accounts = PrincipalAccounts(wall=1.0)
        self.scheduler = self._new_scheduler()
        racks = self.random.choice((0, 2))
        for number in range(self.random.randint(2, 6)):
            cpus = float(self.random.choice((2, 4, 8)))
            machine = MachineDescriptor(
                number, f"n{number}", f"r{number % racks}" if racks else "", Resources(cpus, 8 * _GIB), 32
            )
            self.machines[number] = machine
            self.scheduler.add_machine(machine, 0.0)

    def _new_scheduler(self) -> FlowScheduler:
        return FlowScheduler(make(self.model), ledger=self.accounts)

    # Users ------------------------------------------------------------------------------------------

    def submit_some(self) -> None:
        """Let users submit what they have now."""
        for user in _STREAMS:
            owned = sum(self.jobs[job].owner == user for job in self.waiting.values())
            if owned < _WAITING_MAX and self.random.random() < 0.6:
                memory = self.random.choice((0.0, 0.0, _GIB))
                self._submit(user, 1, Resources(self.random.choice((0.5, 1.0, 1.0)), memory))
        for user in _RIGHTFUL:
            if self.random.random() < 0.03 and not self._has_any(user):
                self._submit_large(user)

    def _has_any(self, user: str) -> bool:
        """Return True if any task of a user waits or runs."""
        return any(self.jobs[self._job_of(task)].owner == user for task in (*self.waiting, *self.ends))

    def _job_of(self, task: int) -> int:
        return task // 100

    def _submit_large(self, user: str) -> None:
        """Submit a job that fits into the empty machines, whichever of them fails."""
        sizes = sorted(machine.capacity.cpus for machine in self.machines.values())
        if self.random.random() < 0.6:
            self._submit(user, 1, Resources(self.random.uniform(1.1, sizes[-2]), _GIB), is_large=True)
            return
        count = self.random.randint(2, max(2, len(sizes) - 1))
        spread = self.random.choice((Affinity.NONE, Affinity.SPREAD_NODES))
        cpus = sizes[0] if spread is Affinity.NONE else sizes[-min(count + 1, len(sizes))]
        count = min(count, len(sizes) - 1)
        self._submit(user, count, Resources(cpus), gang=count, affinity=spread, is_large=True)

    def _submit(
        self,
        user: str,
        count: int,
        demand: Resources,
        *,
        gang: int = 0,
        affinity: Affinity = Affinity.NONE,
        is_large: bool = False,
    ) -> None:
        self.number += 1
        number, length = self.number, self.random.choice(self.lengths)
        is_known = self.random.random() < 0.5
        tasks = [
            TaskDescriptor(
                number * 100 + at,
                demand,
                expected_runtime=length if is_known else None,
                equivalence=f"p{number}",
                restartable=self.may_restart and not is_large,
            )
            for at in range(max(1, count))
        ]
        described = JobDescriptor(
            number, user, f"job {number}", gang=gang if gang > 1 else 0, affinity=affinity
        )
        job = _Job(user, described, tasks, length, self.now, is_large, self.now + _GRACE_S)
        self.jobs[number] = job
        self.waiting.update((task.task, number) for task in tasks)
        self.scheduler.submit(described, tasks, self.now)

    # Faults -----------------------------------------------------------------------------------------

    def trouble(self) -> None:
        """Let a machine fail or return, or another coordinator begin, now and then."""
        self.restore()
        draw = self.random.random()
        if draw < 0.004 and not self.absent:
            self._fail(self.random.choice(sorted(self.machines)))
        elif draw < 0.02:
            self._hand_over()

    def restore(self) -> None:
        """Let machines return whose time has come."""
        for number in [number for number, at in self.absent.items() if at <= self.now]:
            del self.absent[number]
            self.scheduler.add_machine(self.machines[number], self.now)

    def _fail(self, number: int) -> None:
        """Lose a machine for a while; its tasks wait again, and reservations there begin again."""
        self.faults["failed machine"] += 1
        self.absent[number] = self.now + self.random.choice((5.0, 40.0))
        for task in self.scheduler.remove_machine(number, self.now):
            self._waits_again(task)
        for job in self._waiting_large():
            self.jobs[job].kept_by = max(self.jobs[job].kept_by, self.now + _GRACE_S)

    def _waits_again(self, task: int) -> None:
        del self.ends[task], self.places[task]
        job = self.jobs[self._job_of(task)]
        self.waiting[task] = self._job_of(task)
        if job.is_large:
            job.started, job.kept_by = None, self.now + _GRACE_S

    def _hand_over(self) -> None:
        """Let a new coordinator begin; it knows the tasks, their machines, and the promised starts."""
        self.faults["new coordinator"] += 1
        before, stored = self.scheduler, self.accounts.to_stored(self.scheduler.state)
        self.accounts = PrincipalAccounts(wall=1.0)
        after = self._new_scheduler()
        promised = {task: machine for task, (machine, _) in before.promised_starts().items()}
        for number in sorted(self.machines.keys() - self.absent.keys()):
            after.add_machine(self.machines[number], self.now)
        for number in sorted({self._job_of(task) for task in (*self.waiting, *self.ends)}):
            job = self.jobs[number]
            living = [task for task in job.tasks if task.task in self.waiting or task.task in self.ends]
            running = [task.task for task in living if task.task in self.ends]
            # As a coordinator does: a gang that has started is none any more.
            has_started = bool(running) or len(living) < len(job.tasks)
            described = replace(job.described, gang=0) if has_started else job.described
            after.submit(described, living, job.submitted)
            for task in running:
                after.started(task, self.places[task], self.now, ran=self.now - self._began(task))
        after.state.now = self.now
        self.accounts.take_over(after.state, stored, commitments=True)
        after.recall(promised)
        self.scheduler = after
        for number in self._waiting_large():
            job = self.jobs[number]
            if not any(task.task in promised for task in job.tasks):
                job.kept_by = max(job.kept_by, self.now + _GRACE_S)

    def _began(self, task: int) -> float:
        return self.ends[task] - self.jobs[self._job_of(task)].length

    # Rounds -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """End what is over, play a round, and check the claim of each large job."""
        for task in [task for task, end in self.ends.items() if end <= self.now]:
            del self.ends[task], self.places[task]
            self.scheduler.finished(task, self.now, FinalReport(self.jobs[self._job_of(task)].length))
        result = self.scheduler.round(self.now)
        if result.faults and not result.stands:
            raise InvariantError(f"{self.model}: a round failed at {self.now:g}: {result.faults[0]}")
        for delta in result.deltas:
            self.trace.update(f"{self.now:g} {delta.change} {delta.task} {delta.target}\n".encode())
            if delta.change is Change.PLACE:
                self._start(delta.task, delta.target)
            elif delta.change is Change.PREEMPT:
                self.preempted += 1
                self._waits_again(delta.task)
            else:
                self.places[delta.task] = delta.target
        for number in self._waiting_large():
            self._check(number)
        busy = [self.machines[number].capacity.cpus for number in self.machines.keys() - self.absent.keys()]
        if self.now < _BUSY_S:
            self.offered += sum(busy)
            self.used += sum(self._demand(task).cpus for task in self.ends)

    def _demand(self, task: int) -> Resources:
        return self.jobs[self._job_of(task)].tasks[0].demand

    def _start(self, task: int, machine: int) -> None:
        job = self.jobs[self.waiting.pop(task)]
        self.ends[task], self.places[task] = self.now + job.length, machine
        self.started += 1
        if not any(other.task in self.waiting for other in job.tasks):
            job.started = self.now

    def _waiting_large(self) -> list[int]:
        return sorted({job for job in self.waiting.values() if self.jobs[job].is_large})

    def _check(self, number: int) -> None:
        """Move the time by which a large job has to start, or raise InvariantError if it is over."""
        job = self.jobs[number]
        if self.now <= job.kept_by:
            ends = [end for task, end in self.ends.items() if self._job_of(task) != number]
            job.due = max(job.due, job.kept_by, *ends)
        others = {self._job_of(task) for task in (*self.waiting, *self.ends)} - {number}
        for other in {other for other in others if self.jobs[other].is_large} - job.others:
            job.others.add(other)
            # It may be its turn first, and then its machines are kept first.
            job.due += self.jobs[other].length + max(self.lengths) + _GRACE_S
        if self.now > job.due + 2:
            kept = self.scheduler.promised_start(job.tasks[0].task)
            raise InvariantError(
                f"{self.model}: job {number} of {job.owner} ({len(job.tasks)} of "
                f"{job.tasks[0].demand.cpus:g} CPUs, {job.described.affinity.name}), "
                f"submitted at {job.submitted:g}, "
                f"had to start by {job.due:g} and waits at {self.now:g}; kept for it: {kept}"
            )

    def check_end(self) -> None:
        """Raise InvariantError if a task waits although nothing has come for long."""
        if self.waiting:
            raise InvariantError(f"{self.model}: tasks wait at the end: {sorted(self.waiting)[:5]}")


def simulate_queues(seed: int, model: str = "") -> QueueReport:
    """Play one run; without a name the seed chooses the cost model.

    Raises:
        InvariantError: a claim does not hold.
    """
    world = _World(seed, model)
    for second in range(_BUSY_S + _DRAIN_S):
        world.now = float(second)
        if second < _BUSY_S:
            world.trouble()
            world.submit_some()
        else:
            world.restore()
            if not world.waiting:
                break
        world.step()
    world.check_end()
    return QueueReport(
        world.model,
        len(world.machines),
        world.started,
        sum(job.is_large and job.started is not None for job in world.jobs.values()),
        world.preempted,
        world.used / max(1.0, world.offered),
        dict(world.faults),
        world.trace.hexdigest(),
    )
