"""The connection between a simulation and its scheduler: messages to the scheduler, deltas from it.

The engine (``run``) determines time and order. While a round is computed the scheduler receives no
messages, like the thesis' scheduler; they are queued here until the round's deltas have been applied.
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
from labs.simulate.scheduling.world import World
from labs.simulate.workloads.events import JobSubmission, MachineDown, MachineUp


class Scheduler(Protocol):
    """The scheduler of a simulation: ``FlowScheduler``, or a baseline from ``queues``."""

    def add_machine(self, machine: MachineDescriptor, now: float, /) -> None:
        """Add a machine that joined the cluster."""

    def remove_machine(self, machine: int, now: float, /) -> list[int]:
        """Remove a machine and return the tasks that ran there, which wait again."""

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float, /) -> None:
        """Add tasks that wait."""

    def finished(self, task: int, now: float, report: FinalReport | None = None, /) -> None:
        """Remove a task that ended or was withdrawn."""

    def measured(self, task: int, usage: Resources, /) -> None:
        """Record the resource use of a task."""

    def round(self, now: float, /) -> Round:
        """Decide, apply the decision to the scheduler's own state, and return it."""


class FinishedTask(NamedTuple):
    """A message: a task ended."""

    task: int
    report: FinalReport | None
    """None: the task was withdrawn before it ran."""


class MeasuredTask(NamedTuple):
    """A message: a measurement of a task's resource use."""

    task: int
    usage: Resources


Message = JobSubmission | MachineUp | MachineDown | FinishedTask | MeasuredTask


class Bridge:
    """Delivers messages to the scheduler and applies its deltas to the world."""

    def __init__(self, scheduler: Scheduler, world: World) -> None:
        self._scheduler = scheduler
        self._world = world
        self._undelivered: list[Message] = []
        self.deciding = False
        """True while a round is computed."""
        self.changed = False
        """True if the scheduler has received a message since its last decision."""

    def send(self, message: Message, now: float) -> None:
        """Deliver a message now, or after the present round."""
        if self.deciding:
            self._undelivered.append(message)
        else:
            self._deliver(message, now)

    def decide(self, now: float) -> Round:
        """Let the scheduler decide; messages are queued until ``apply_deltas``."""
        self.changed = False
        self.deciding = True
        return self._scheduler.round(now)

    def apply_deltas(self, deltas: Sequence[Delta], now: float) -> None:
        """Apply a round's deltas to the world, then deliver the queued messages.

        Stops come before starts, because a task may start in a slot that another one leaves. A delta about a
        task or a machine that has gone meanwhile has no effect; a queued message reports that it has gone.
        """
        for delta in deltas:
            if delta.change is not Change.PLACE and self._world.stop(delta.task, now):
                self._world.count_stop(delta.task, migrated=delta.change is Change.MIGRATE)
        for delta in deltas:
            if delta.change is not Change.PREEMPT:
                self._world.start(delta.task, delta.target, now)
        self.deciding = False
        messages, self._undelivered = self._undelivered, []
        for message in messages:
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
