"""What a scheduling round answers with: deltas, and what it took to find them.

For: the scheduler's callers, who carry deltas out. Not for: how they are found (``scheduler``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Change(IntEnum):
    """What a delta does to a task (§6.2.1)."""

    PLACE = 0
    PREEMPT = 1
    """It stops and waits again."""
    MIGRATE = 2
    """It stops and starts elsewhere."""


class Delta(NamedTuple):
    """One change of the schedule, in the caller's identifiers."""

    change: Change
    task: int
    source: int
    """The machine that it leaves; -1 when it waited."""
    target: int
    """The machine where it goes; -1 when it will wait."""


class Fault(NamedTuple):
    """A cost model, a solver or a job that could not be used, and what was done instead."""

    where: str
    """The name of the cost model, the solver, or the job."""
    what: str


@dataclass(slots=True)
class Round:
    """The outcome of one round."""

    number: int
    now: float
    model: str
    algorithm: str
    deltas: list[Delta] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    stands: bool = True
    """False when the last good schedule was kept because of a fault."""
    cost: int = 0
    waiting: int = 0
    running: int = 0
    vertices: int = 0
    arcs: int = 0
    changes: int = 0
    """Entries of the change log since the last round."""
    update_s: float = 0.0
    """Seconds for asking the model and for what is told to the solver; events come before the round."""
    solve_s: float = 0.0
    """Seconds in solvers, in vain or not."""
    total_s: float = 0.0
    certified: bool = False
    """Whether the certificate was checked in this round (it is sampled in production)."""
