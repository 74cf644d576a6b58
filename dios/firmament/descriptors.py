"""What Firmament is told about tasks, jobs and machines: plain values, checked when they are made.

For: the scheduler's callers (simulator, coordinator, tests) and the cost models.
Not for: what the scheduler keeps about them while it works, which is in columns (``state``).

Units everywhere: seconds, bytes, bytes per second, and CPUs as a number of hardware threads.
Identifiers are 63-bit integers that the caller chooses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from dios.errors import InvalidError
from dios.wire.types import Affinity, Operator


class BadDescriptorError(InvalidError):
    """A description that cannot be meant; the message names the field and the value."""


class Resources(NamedTuple):
    """A vector over the four dimensions in which machines are divided (§7.3).

    As a demand: what a task is given. As a capacity: what a machine has; 0 there means "not known",
    and what is not known is not checked.
    """

    cpus: float = 0.0
    """Hardware threads."""
    memory: float = 0.0
    """Bytes."""
    disk_io: float = 0.0
    """Bytes per second, read and written together."""
    network: float = 0.0
    """Bytes per second, both directions together."""


DIMENSIONS = len(Resources._fields)

COUNT_MAX = 2**31
"""As many tasks as anything here may count; as a job's largest number that runs it means no limit."""


class Level(IntEnum):
    """Where in the tree of resources a vertex stands (Figure 6.5); a child's level is larger."""

    CLUSTER = 0
    RACK = 1
    MACHINE = 2
    SOCKET = 3
    CACHE = 4
    CORE = 5
    THREAD = 6


class Kind(IntEnum):
    """How a job runs: to its end, or for ever."""

    BATCH = 0
    SERVICE = 1


class Interference(IntEnum):
    """The classes of co-location behaviour (§7.3), from the harmless to the harmful.

    A turtle neither disturbs nor is disturbed; a sheep is gentle; a rabbit is delicate and easily
    disturbed; a devil disturbs everybody.
    """

    TURTLE = 0
    SHEEP = 1
    RABBIT = 2
    DEVIL = 3


class Constraint(NamedTuple):
    """What a task asks of a machine's labels (§6.3.1)."""

    key: str
    operator: Operator = Operator.EQUAL
    value: str = ""
    hard: bool = True
    """Hard: elsewhere it never runs. Soft: elsewhere costs more."""


class Block(NamedTuple):
    """A piece of a task's input and the machines that hold a copy (C.3)."""

    size: int
    """Bytes."""
    machines: tuple[int, ...]
    """Identifiers; one that the scheduler does not know counts as far away."""


@dataclass(frozen=True, slots=True)
class TaskDescriptor:
    """One task as it is submitted."""

    task: int
    demand: Resources = field(default_factory=lambda: Resources(cpus=1.0))
    priority: int = 0
    """The larger the more important; strict between tasks of one model that knows priorities."""
    deadline: float | None = None
    """Scheduler's time in seconds at which it should be done."""
    equivalence: str = ""
    """The class whose profile is its profile, such as the program's name; empty: the job's."""
    interference: Interference = Interference.SHEEP
    blocks: tuple[Block, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    pinned: int | None = None
    """The machine on which it has to run."""
    restartable: bool = True
    """Whether it may be stopped and started again elsewhere; otherwise it stays where it is."""
    expected_runtime: float | None = None
    """Seconds, when known; the simulator's oracle and Jockey-like models use it."""

    def __post_init__(self) -> None:
        _check_identifier("task", self.task)
        for name, value in zip(Resources._fields, self.demand, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise BadDescriptorError(f"task {self.task}: demand.{name} is {value}; it must be 0 or more")
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise BadDescriptorError(f"task {self.task}: deadline is {self.deadline}, not a time")
        if not -(2**63) < self.priority < 2**63:
            raise BadDescriptorError(f"task {self.task}: priority is {self.priority}; it must fit 64 bits")
        runtime = self.expected_runtime
        if runtime is not None and not (math.isfinite(runtime) and runtime >= 0):
            raise BadDescriptorError(f"task {self.task}: expected_runtime is {runtime}; it must be 0 or more")
        for block in self.blocks:
            if block.size < 0:
                raise BadDescriptorError(f"task {self.task}: a block of {block.size} bytes")


@dataclass(frozen=True, slots=True)
class JobDescriptor:
    """What holds for all tasks of a job."""

    job: int
    principal: str = ""
    """Whose job it is; fairness divides between principals."""
    name: str = ""
    kind: Kind = Kind.BATCH
    minimum_running: int = 0
    """E_j: so many tasks run at any time, whatever it costs (Table C.1)."""
    maximum_running: int | None = None
    """F_j: never more than so many at once; None: all."""
    gang: int = 0
    """At least so many of its tasks start together or none (§6.3.3); 0: no gang."""
    affinity: Affinity = Affinity.NONE
    """How its tasks stand to each other (§6.3.1, C.4.1); a node is a machine here."""

    def __post_init__(self) -> None:
        _check_identifier("job", self.job)
        most = COUNT_MAX if self.maximum_running is None else self.maximum_running
        _check_count(f"job {self.job}: minimum_running", self.minimum_running)
        _check_count(f"job {self.job}: maximum_running", most)
        _check_count(f"job {self.job}: gang", self.gang)
        if most < max(self.minimum_running, self.gang):
            raise BadDescriptorError(f"job {self.job}: maximum_running is {most}, less than what has to run")


@dataclass(frozen=True, slots=True)
class Inner:
    """A part of a machine: a socket, a cache, a core or a hardware thread; one without parts takes tasks."""

    level: Level
    name: str
    children: tuple[Inner, ...] = ()

    def __post_init__(self) -> None:
        if self.level <= Level.MACHINE:
            raise BadDescriptorError(
                f"{self.name}: level is {self.level.name}, which is no part of a machine"
            )
        for child in self.children:
            if child.level <= self.level:
                raise BadDescriptorError(
                    f"{child.name} in {self.name}: level is {child.level.name}, not below {self.level.name}"
                )


@dataclass(frozen=True, slots=True)
class MachineDescriptor:
    """One machine as it joins."""

    machine: int
    name: str
    rack: str = ""
    capacity: Resources = field(default_factory=Resources)
    slots: int = 1
    """K: how many tasks may run at once (Table C.1)."""
    machine_type: str = ""
    """Machines of one type are alike for profiles; see ``topology``."""
    labels: tuple[tuple[str, str], ...] = ()
    inner: tuple[Inner, ...] = ()
    """Its sockets; empty: the machine itself is the leaf."""

    def __post_init__(self) -> None:
        _check_identifier("machine", self.machine)
        _check_count(f"machine {self.name}: slots", self.slots)
        for name, value in zip(Resources._fields, self.capacity, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise BadDescriptorError(f"machine {self.name}: capacity.{name} is {value}")


class FinalReport(NamedTuple):
    """What is known when a task has ended (§6.5.3); what was not measured is 0."""

    runtime: float
    """Seconds."""
    cpu_seconds: float = 0.0
    instructions: int = 0
    cycles: int = 0
    cache_misses: int = 0
    memory_peak: int = 0
    completed: bool = True
    """False: it failed or was stopped."""


def _check_count(what: str, value: int) -> None:
    if not 0 <= value <= COUNT_MAX:
        raise BadDescriptorError(f"{what} is {value}; it must be from 0 to {COUNT_MAX}")


def _check_identifier(what: str, value: int) -> None:
    if not 0 <= value < 2**63:
        raise BadDescriptorError(f"{what} identifier {value} is not in 0 .. 2^63 - 1")
