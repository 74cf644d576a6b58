"""Workloads and schedulers written down event by event, for tests of the cluster simulator.

Not for: tests of the real scheduler's decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dios.firmament.descriptors import (
    FinalReport,
    JobDescriptor,
    MachineDescriptor,
    Resources,
    TaskDescriptor,
)
from dios.firmament.rounds.results import Change, Delta, Round
from labs.simulate.workloads.events import Happening, JobSubmission, MachineUp, SimulatedTask
from labs.simulate.workloads.interference import ProgramModel


def place(task: int, machine: int) -> Delta:
    """A waiting task starts."""
    return Delta(Change.PLACE, task, -1, machine)


def preempt(task: int, machine: int) -> Delta:
    """A running task waits again."""
    return Delta(Change.PREEMPT, task, machine, -1)


def migrate(task: int, source: int, target: int) -> Delta:
    """A running task goes elsewhere."""
    return Delta(Change.MIGRATE, task, source, target)


def machine(number: int, slots: int = 2, *, time: float = 0.0, model: str = "") -> MachineUp:
    """A machine comes."""
    return MachineUp(time, MachineDescriptor(number, f"m{number}", slots=slots, machine_type=model), model)


def submission(
    time: float, job: int, works: Mapping[int, float], program: ProgramModel | None = None
) -> JobSubmission:
    """A job's tasks come, with the work of each by its identifier."""
    tasks = tuple(SimulatedTask(TaskDescriptor(task), work, program) for task, work in works.items())
    return JobSubmission(time, JobDescriptor(job), tasks)


@dataclass
class ScriptedWorkload:
    """Events as listed; ``follows`` says what a job's end brings."""

    happenings: Sequence[Happening]
    follows: dict[int, JobSubmission] = field(default_factory=dict)

    def events(self) -> Iterator[Happening]:
        """In the order of the list."""
        yield from self.happenings

    def job_done(self, job: int, now: float) -> JobSubmission | None:
        """What follows on the job, at its time or now if that is past."""
        follow = self.follows.pop(job, None)
        return follow._replace(time=max(follow.time, now)) if follow else None


@dataclass
class ScriptedScheduler:
    """Decides what is listed for the time of the round, and writes down what it hears."""

    decisions: Mapping[float, Sequence[Delta]] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)

    def add_machine(self, machine: MachineDescriptor, now: float, /) -> None:
        """A machine came."""
        self.heard.append(f"{now:g}: machine {machine.machine} up")

    def remove_machine(self, machine: int, now: float, /) -> list[int]:
        """A machine went."""
        self.heard.append(f"{now:g}: machine {machine} down")
        return []

    def submit(self, job: JobDescriptor, tasks: Sequence[TaskDescriptor], now: float, /) -> None:
        """Tasks came."""
        self.heard.append(f"{now:g}: job {job.job} brings {', '.join(str(task.task) for task in tasks)}")

    def finished(self, task: int, now: float, report: FinalReport | None = None, /) -> None:
        """A task ended."""
        how = "withdrawn" if report is None else f"after {report.runtime:g}"
        self.heard.append(f"{now:g}: task {task} ended, {how}")

    def measured(self, task: int, usage: Resources, /) -> None:
        """A task was measured."""
        self.heard.append(f"task {task} uses {usage.cpus:g} cpus")

    def round(self, now: float, /) -> Round:
        """What the script says for this time."""
        self.rounds.append(now)
        return Round(len(self.rounds), now, "scripted", "none", deltas=list(self.decisions.get(now, ())))
