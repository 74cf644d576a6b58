"""What a simulation gives back: a record for each task, a line for each round, and how full it was.

For: experiments (``repro``), reports and plots. Not for: text (``report``) or pictures (``plots``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dios.firmament.rounds.results import Change, Delta, Round
from dios.firmament.simulate.world import TaskRecord


class RoundLine(NamedTuple):
    """One round; times in seconds, ``at`` simulated and the others real."""

    at: float
    placed: int
    preempted: int
    migrated: int
    waiting: int
    running: int
    cost: int
    vertices: int
    arcs: int
    update_s: float
    solve_s: float
    total_s: float
    algorithm: str
    stands: bool


class UtilisationSample(NamedTuple):
    """How full the cluster was at a moment."""

    at: float
    machines: int
    slots: int
    running: int
    waiting: int


@dataclass(slots=True)
class SimulationOutcome:
    """All that a simulation found out."""

    model: str
    seconds: float
    """Simulated seconds that it ran over."""
    ended: list[TaskRecord] = field(default_factory=list)
    """In the order in which they ended."""
    unfinished: list[TaskRecord] = field(default_factory=list)
    """Those that wait or run at the end."""
    rounds: list[RoundLine] = field(default_factory=list)
    levels: list[UtilisationSample] = field(default_factory=list)
    deltas: list[tuple[float, Delta]] = field(default_factory=list)
    """With the time at which each was carried out; empty unless it was asked for."""
    digest: str = ""
    """Of all deltas and their times: equal for two runs that did the same."""
    submitted: int = 0
    placed: int = 0
    preempted: int = 0
    migrated: int = 0
    faults: int = 0
    fault_texts: list[str] = field(default_factory=list)
    slot_seconds: float = 0.0
    """Slots that there were, times seconds."""
    busy_seconds: float = 0.0
    """Slots that were taken, times seconds."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """Rows of a trace that change nothing in a simulation, by what they are."""
    interrupted: bool = False
    real_s: float = 0.0

    @property
    def utilisation(self) -> float:
        """The share of all slots that was taken, over the whole time."""
        return self.busy_seconds / self.slot_seconds if self.slot_seconds else 0.0

    def of(self, name: str) -> list[TaskRecord]:
        """The tasks of one program that ran to their end."""
        return [record for record in self.ended if record.name == name and record.completed]


class DeltaDigest:
    """A digest over deltas as they come."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, now: float, deltas: Sequence[Delta]) -> None:
        """Take in deltas that were carried out at ``now``."""
        for delta in deltas:
            self._hash.update(repr((now, *map(int, delta))).encode())

    def text(self) -> str:
        """Of all so far."""
        return self._hash.hexdigest()


def line_of(done: Round) -> RoundLine:
    """What is kept of a round."""
    changes = [delta.change for delta in done.deltas]
    return RoundLine(
        at=done.now,
        placed=changes.count(Change.PLACE),
        preempted=changes.count(Change.PREEMPT),
        migrated=changes.count(Change.MIGRATE),
        waiting=done.waiting,
        running=done.running,
        cost=done.cost,
        vertices=done.vertices,
        arcs=done.arcs,
        update_s=done.update_s,
        solve_s=done.solve_s,
        total_s=done.total_s,
        algorithm=done.algorithm,
        stands=done.stands,
    )
