"""What happens in a simulation, and when: the agenda, and the events that a workload brings.

For: the engine (``run``) and those who make workloads. Not for: what a machine does with its tasks
(``world``) or what the scheduler decides.

Times are simulated seconds from the beginning. Two events of one time happen in the order in which they
were put down, so that a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from dios.firmament.descriptors import JobDescriptor, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.simulate.interference import ProgramModel

Item = TypeVar("Item")


class SimulatedTask(NamedTuple):
    """A task with what only a simulator knows: how much it has to do."""

    descriptor: TaskDescriptor
    work: float
    """Units of its program's work; without a program: seconds on any machine. Infinity: it never ends."""
    program: ProgramModel | None = None
    completes: bool = True
    """False: what it runs into at the end of its work is a failure."""


class JobSubmission(NamedTuple):
    """Tasks of one job come; the job may be known already."""

    time: float
    job: JobDescriptor
    tasks: tuple[SimulatedTask, ...]


class MachineUp(NamedTuple):
    """A machine comes."""

    time: float
    machine: MachineDescriptor
    model: str = ""
    """Its kind in ``machines.MACHINE_TYPES``; empty: without interference."""


class MachineDown(NamedTuple):
    """A machine goes, and what ran there waits again."""

    time: float
    machine: int


class Withdrawal(NamedTuple):
    """Somebody takes a task back, whether it waits or runs."""

    time: float
    task: int


class UsageSample(NamedTuple):
    """What a trace says that a task used."""

    time: float
    task: int
    usage: Resources


Happening = JobSubmission | MachineUp | MachineDown | Withdrawal | UsageSample


class SimulatedWorkload(Protocol):
    """Where a simulation's events come from."""

    def events(self) -> Iterator[Happening]:
        """The events in order of time, made as they are asked for: a long run must not fill memory."""
        ...

    def job_done(self, job: int, now: float) -> JobSubmission | None:
        """What follows on the last task of a job, at ``now`` or later; None: nothing."""
        ...


class SimulationEvents(Generic[Item]):
    """What is to happen, ordered by time and then by when it was put down."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Item]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, time: float, item: Item, order: int = 0) -> None:
        """Something to happen at ``time``; of one time, what has the smaller ``order`` comes first."""
        heapq.heappush(self._heap, (time, order, self._sequence, item))
        self._sequence += 1

    def next_time(self) -> float:
        """When the first of them happens; infinity when nothing will."""
        return self._heap[0][0] if self._heap else float("inf")

    def take(self) -> tuple[float, Item]:
        """The first of them; IndexError when there is none."""
        time, _, _, item = heapq.heappop(self._heap)
        return time, item
