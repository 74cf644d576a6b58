"""The events of a simulation, and the queue that orders them by time.

Times are simulated seconds from the beginning. Two events of the same time happen in the order in which they
were queued, so a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from dios.firmament.descriptors import JobDescriptor, MachineDescriptor, Resources, TaskDescriptor
from labs.simulate.workloads.interference import ProgramModel

Item = TypeVar("Item")


class SimulatedTask(NamedTuple):
    """A task with the facts that only the simulator knows: its amount of work, and its end."""

    descriptor: TaskDescriptor
    work: float
    """Units of its program's work; without a program, seconds on any machine. Infinity: it never ends."""
    program: ProgramModel | None = None
    completes: bool = True
    """False: the task fails at the end of its work."""


class JobSubmission(NamedTuple):
    """Tasks of a job are submitted; the job may be known already."""

    time: float
    job: JobDescriptor
    tasks: tuple[SimulatedTask, ...]


class MachineUp(NamedTuple):
    """A machine joins the cluster."""

    time: float
    machine: MachineDescriptor
    model: str = ""
    """Its type in ``machines.MACHINE_TYPES``; empty for a machine without interference."""


class MachineDown(NamedTuple):
    """A machine leaves the cluster. The tasks that ran there wait again."""

    time: float
    machine: int


class Withdrawal(NamedTuple):
    """A user withdraws a task that waits or runs."""

    time: float
    task: int


class UsageSample(NamedTuple):
    """The resource use of a task, as a trace has it."""

    time: float
    task: int
    usage: Resources


Happening = JobSubmission | MachineUp | MachineDown | Withdrawal | UsageSample


class SimulatedWorkload(Protocol):
    """A source of a simulation's events."""

    def events(self) -> Iterator[Happening]:
        """Yield the events in order of time, each made on demand so that a long run does not fill memory."""

    def job_done(self, job: int, now: float) -> JobSubmission | None:
        """Return the job that follows the last task of a job, at ``now`` or later; None for no job."""


class SimulationEvents(Generic[Item]):
    """The event queue, ordered by time and then by the order of insertion."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Item]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, time: float, item: Item, order: int = 0) -> None:
        """Queue an item for ``time``. Of items with the same time, the smaller ``order`` comes first."""
        heapq.heappush(self._heap, (time, order, self._sequence, item))
        self._sequence += 1

    def next_time(self) -> float:
        """Return the time of the first item; infinity for an empty queue."""
        return self._heap[0][0] if self._heap else float("inf")

    def take(self) -> tuple[float, Item]:
        """Remove and return the first item with its time; raise IndexError for an empty queue."""
        time, _, _, item = heapq.heappop(self._heap)
        return time, item
