"""Between a simulation and its scheduler: what happened goes to the one, deltas come from it.

For: the engine (``run``). Not for: time or order, which are the engine's. While a round is being decided
the scheduler hears nothing, as the thesis' one does not; what happens meanwhile waits here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dios.firmament.descriptors import (
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.rounds.results import Change, Delta, Round
from dios.firmament.simulate.events import JobSubmission, MachineDown, MachineUp
from dios.firmament.simulate.world import World


class Scheduler(Protocol):
    """What a simulation drives: ``FlowScheduler``, or a queue to compare it with (``queues``)."""

    def add_machine(self, machine: MachineDescriptor, now: float, /) -> None:
        """A machine came."""
        ...

    def remove_machine(self, machine: int, now: float, /) -> list[int]:
        """A machine went; the tasks that ran there wait again."""
        ...

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float, /) -> None:
        """Tasks came."""
        ...

    def finished(self, task: int, now: float, report: FinalReport | None = None, /) -> None:
        """A task ended or was withdrawn."""
        ...

    def measured(self, task: int, usage: Resources, /) -> None:
        """What a task uses."""
        ...

    def round(self, now: float, /) -> Round:
        """Decide, apply it to the scheduler's own state, and say what changed."""
        ...


class FinishedTask(NamedTuple):
    """A task ended."""

    task: int
    report: FinalReport | None
    """None: it was withdrawn before it ran."""


class MeasuredTask(NamedTuple):
    """What a task uses."""

    task: int
    usage: Resources


Message = JobSubmission | MachineUp | MachineDown | FinishedTask | MeasuredTask


class Bridge:
    """Carries messages to the scheduler, and its deltas into the world."""

    def __init__(self, scheduler: Scheduler, world: World) -> None:
        self._scheduler = scheduler
        self._world = world
        self._waiting: list[Message] = []
        self.deciding = False
        """Whether a round is under way."""
        self.changed = False
        """Whether the scheduler heard anything since it decided last."""

    def tell(self, message: Message, now: float) -> None:
        """Something happened: the scheduler hears of it now, or when it has decided."""
        if self.deciding:
            self._waiting.append(message)
        else:
            self._deliver(message, now)

    def decide(self, now: float) -> Round:
        """Let the scheduler decide; until ``carry_out`` it hears nothing."""
        self.changed = False
        self.deciding = True
        return self._scheduler.round(now)

    def carry_out(self, deltas: Sequence[Delta], now: float) -> None:
        """Do in the world what was decided, then tell what happened meanwhile.

        Stops come before starts: a slot that one leaves is another's. A delta about a task or a machine
        that is gone by now does nothing; the message about that is among those that follow.
        """
        for delta in deltas:
            if delta.change is not Change.PLACE and self._world.stop(delta.task, now):
                self._world.note(delta.task, migrated=delta.change is Change.MIGRATE)
        for delta in deltas:
            if delta.change is not Change.PREEMPT:
                self._world.start(delta.task, delta.target, now)
        self.deciding = False
        told, self._waiting = self._waiting, []
        for message in told:
            self._deliver(message, now)

    def _deliver(self, message: Message, now: float) -> None:
        match message:
            case JobSubmission():
                self._scheduler.submit(message.job, [task.descriptor for task in message.tasks], now)
            case MachineUp():
                self._scheduler.add_machine(message.machine, now)
            case MachineDown():
                self._scheduler.remove_machine(message.machine, now)
            case FinishedTask():
                self._scheduler.finished(message.task, now, message.report)
            case MeasuredTask():
                self._scheduler.measured(message.task, message.usage)
                return
        self.changed = True
