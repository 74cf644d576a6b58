"""The descriptions of tasks, jobs and machines that Firmament receives: plain values, checked when made.

They are used by the scheduler's callers (simulator, coordinator, tests) and the cost models. The state of
tasks and machines is in the tables of ``cluster.state``.

Units everywhere: seconds, bytes, bytes per second, and CPUs as a number of hardware threads.
Identifiers are 63-bit integers that the caller chooses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Self

from dios.errors import InvalidError
from dios.wire.node_labels import NO_LIMBO
from dios.wire.types import Affinity, Operator


class Immutable:
    """A value that never changes, so that copies of a scheduler share it."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the value itself."""
        return self


class BadDescriptorError(InvalidError):
    """A description is impossible; the message names the field and the value."""


class Resources(NamedTuple):
    """An amount of each resource of machines: the four of the thesis (§7.3), and devices.

    As a demand, it is the amount that a task is given. As a capacity, it is the amount that a machine has;
    0 means that the amount is not known, and then it is not checked.
    """

    cpus: float = 0.0
    """Hardware threads."""
    memory: float = 0.0
    """Bytes."""
    disk_io: float = 0.0
    """Bytes per second, read and written together."""
    network: float = 0.0
    """Bytes per second, both directions together."""
    devices: float = 0.0
    """Devices of all kinds together, such as GPUs. Constraints exclude machines without the right kind."""


NOT_FIT = "not fit for pure tasks"
"""The label of machines that are not known to be fit for pure tasks. Operators give none with spaces."""

DIMENSIONS = len(Resources._fields)

COUNT_MAX = 2**31
"""The largest number of tasks in any count; as the maximum of a job's running tasks it means no limit."""


class Level(IntEnum):
    """The level of a vertex in the tree of resources (Figure 6.5); a child's level is larger."""

    CLUSTER = 0
    RACK = 1
    MACHINE = 2
    SOCKET = 3
    CACHE = 4
    CORE = 5
    THREAD = 6


class Kind(IntEnum):
    """The kind of a job: batch jobs end, services do not."""

    BATCH = 0
    SERVICE = 1


class Interference(IntEnum):
    """The classes of co-location behaviour (§7.3), from harmless to harmful.

    A turtle neither disturbs others nor is disturbed. A sheep disturbs others a little. A rabbit is easily
    disturbed. A devil disturbs everything else.
    """

    TURTLE = 0
    SHEEP = 1
    RABBIT = 2
    DEVIL = 3


class Constraint(NamedTuple):
    """A requirement of a task on a machine's labels (§6.3.1)."""

    key: str
    operator: Operator = Operator.EQUAL
    value: str = ""
    hard: bool = True
    """True: the task never runs elsewhere. False: running elsewhere costs more."""

    @property
    def unmet(self) -> str:
        """The end of a sentence about machines that do not satisfy it."""
        if self.key == NOT_FIT:
            return "are not fit for pure tasks: `dios node ls` and `dios node describe` say why"
        if self.key == NO_LIMBO:
            return "start tasks outside the sandbox only for their own users (setting limbo_from_nodes)"
        return {
            Operator.EQUAL: f"lack {self.key}={self.value}",
            Operator.UNEQUAL: f"have {self.key}={self.value}",
            Operator.PRESENT: f"lack the label {self.key}",
            Operator.ABSENT: f"have the label {self.key}",
        }[self.operator]


class Block(NamedTuple):
    """A part of a task's input, and the machines that hold a copy (C.3)."""

    size: int
    """Bytes."""
    machines: tuple[int, ...]
    """Identifiers of machines; one that the scheduler does not know counts as remote."""


@dataclass(frozen=True, slots=True)
class TaskDescriptor(Immutable):
    """A task as it is submitted."""

    task: int
    demand: Resources = field(default_factory=lambda: Resources(cpus=1.0))
    priority: int = 0
    """A larger priority is more important; models that know priorities apply them strictly."""
    deadline: float | None = None
    """The scheduler's time, in seconds, at which the task should be done."""
    equivalence: str = ""
    """The name of the class whose profile the task has, such as its program; empty: the job's name."""
    interference: Interference = Interference.SHEEP
    blocks: tuple[Block, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    pinned: int | None = None
    """The identifier of the only machine on which the task may run."""
    restartable: bool = True
    """True if the task may be stopped and started again elsewhere; else it stays where it is."""
    expected_runtime: float | None = None
    """The expected run time in seconds, if known; the simulator's oracle and Jockey-like models use it."""
    admitted: bool = False
    """True for a member of a job over time, whose place was chosen when the job was admitted."""
    copy_of: int | None = None
    """The identifier of the task of which it is a speculative copy."""

    def __post_init__(self) -> None:
        _check_identifier("task", self.task)
        for name, value in zip(Resources._fields, self.demand, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise BadDescriptorError(f"task {self.task}: demand.{name} is {value}; it must be 0 or more")
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise BadDescriptorError(f"task {self.task}: deadline is {self.deadline}; it must be finite")
        if not -(2**63) < self.priority < 2**63:
            raise BadDescriptorError(f"task {self.task}: priority is {self.priority}; it must fit 64 bits")
        if self.copy_of is not None:
            _check_identifier(f"task {self.task}: copy_of: task", self.copy_of)
        runtime = self.expected_runtime
        if runtime is not None and not (math.isfinite(runtime) and runtime >= 0):
            raise BadDescriptorError(f"task {self.task}: expected_runtime is {runtime}; it must be 0 or more")
        for block in self.blocks:
            if block.size < 0:
                raise BadDescriptorError(
                    f"task {self.task}: a block has {block.size} bytes; it must have 0 or more"
                )


@dataclass(frozen=True, slots=True)
class JobDescriptor(Immutable):
    """The properties that all tasks of a job share."""

    job: int
    principal: str = ""
    """The principal that owns the job; fairness divides between principals."""
    name: str = ""
    kind: Kind = Kind.BATCH
    minimum_running: int = 0
    """E_j: the number of tasks that run at any time, at any cost (Table C.1)."""
    maximum_running: int | None = None
    """F_j: the largest number of tasks that run at once; None: all."""
    gang: int = 0
    """The number of its tasks that start together or not at all (§6.3.3); 0: no gang."""
    affinity: Affinity = Affinity.NONE
    """The placement of its tasks relative to each other (§6.3.1, C.4.1); a node is a machine here."""

    def __post_init__(self) -> None:
        _check_identifier("job", self.job)
        most = COUNT_MAX if self.maximum_running is None else self.maximum_running
        _check_count(f"job {self.job}: minimum_running", self.minimum_running)
        _check_count(f"job {self.job}: maximum_running", most)
        _check_count(f"job {self.job}: gang", self.gang)
        if most < max(self.minimum_running, self.gang):
            raise BadDescriptorError(
                f"job {self.job}: maximum_running is {most}, below minimum_running or gang"
            )


@dataclass(frozen=True, slots=True)
class Inner:
    """A socket, cache, core or hardware thread of a machine. Parts without children run tasks."""

    level: Level
    name: str
    children: tuple[Inner, ...] = ()

    def __post_init__(self) -> None:
        if self.level <= Level.MACHINE:
            raise BadDescriptorError(
                f"{self.name}: level is {self.level.name}, but a part of a machine is below MACHINE"
            )
        for child in self.children:
            if child.level <= self.level:
                raise BadDescriptorError(
                    f"{child.name} in {self.name}: level is {child.level.name}, not below {self.level.name}"
                )


@dataclass(frozen=True, slots=True)
class MachineDescriptor:
    """A machine as it joins."""

    machine: int
    name: str
    rack: str = ""
    capacity: Resources = field(default_factory=Resources)
    slots: int = 1
    """K: the number of tasks that may run at once (Table C.1)."""
    machine_type: str = ""
    """Machines of one type share profiles; see ``monitor.topology``."""
    labels: tuple[tuple[str, str], ...] = ()
    inner: tuple[Inner, ...] = ()
    """The sockets; empty: the machine itself is the leaf."""

    def __post_init__(self) -> None:
        _check_identifier("machine", self.machine)
        _check_count(f"machine {self.name}: slots", self.slots)
        for name, value in zip(Resources._fields, self.capacity, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise BadDescriptorError(
                    f"machine {self.name}: capacity.{name} is {value}; it must be 0 or more"
                )


class FinalReport(NamedTuple):
    """The measurements of a task that has ended (§6.5.3); 0 where nothing was measured."""

    runtime: float
    """Seconds."""
    cpu_seconds: float = 0.0
    instructions: int = 0
    cycles: int = 0
    cache_misses: int = 0
    memory_peak: int = 0
    completed: bool = True
    """False if the task failed or was stopped."""


def _check_count(name: str, value: int) -> None:
    if not 0 <= value <= COUNT_MAX:
        raise BadDescriptorError(f"{name} is {value}; it must be from 0 to {COUNT_MAX}")


def _check_identifier(kind: str, value: int) -> None:
    if not 0 <= value < 2**63:
        raise BadDescriptorError(f"{kind} identifier {value} is not in 0 .. 2^63 - 1")
