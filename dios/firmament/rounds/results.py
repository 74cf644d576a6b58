"""The result of a scheduling round: the changes to carry out, and figures about the round."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Change(IntEnum):
    """The kinds of change of a task's placement (§6.2.1)."""

    PLACE = 0
    PREEMPT = 1
    """The task stops and waits again."""
    MIGRATE = 2
    """The task stops and starts on another machine."""


class Delta(NamedTuple):
    """One change of the schedule, in the caller's identifiers."""

    change: Change
    task: int
    source: int
    """The machine that the task leaves; -1 if it waited."""
    target: int
    """The machine that the task goes to; -1 if it will wait."""


class Fault(NamedTuple):
    """A cost model, a solver or a job that failed, and what was done instead."""

    source: str
    """The name of the cost model, the solver, or the job."""
    reason: str


@dataclass(slots=True)
class Round:
    """The result of one round."""

    number: int
    now: float
    model: str
    algorithm: str
    deltas: list[Delta] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    stands: bool = True
    """False if the last schedule was kept because of a fault."""
    cost: int = 0
    waiting: int = 0
    running: int = 0
    vertices: int = 0
    arcs: int = 0
    changes: int = 0
    """The number of entries in the change log since the last round."""
    update_s: float = 0.0
    """Seconds for asking the model and updating the solver; events are handled before the round."""
    solve_s: float = 0.0
    """Seconds in solvers, failed ones included."""
    total_s: float = 0.0
    certified: bool = False
    """True if the certificate was checked in this round (see ``SchedulerSettings.certify_every``)."""
