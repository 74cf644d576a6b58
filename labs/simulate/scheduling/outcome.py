"""The records that a simulation returns: one for each task and each round, and the cluster's utilisation.

``report`` turns them into text and tables, ``plots`` into pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dios.firmament.rounds.results import Change, Delta, Round
from labs.simulate.scheduling.world import TaskRecord


class RoundLine(NamedTuple):
    """One round. All times are in seconds: ``at`` is simulated time, the others are real time."""

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
    """The slots and tasks of the cluster at one moment."""

    at: float
    machines: int
    slots: int
    running: int
    waiting: int


@dataclass(slots=True)
class SimulationOutcome:
    """The complete result of a simulation."""

    model: str
    seconds: float
    """The length of the simulation in simulated seconds."""
    ended: list[TaskRecord] = field(default_factory=list)
    """Ordered by the time of their ends."""
    unfinished: list[TaskRecord] = field(default_factory=list)
    """The tasks that wait or run at the end."""
    rounds: list[RoundLine] = field(default_factory=list)
    levels: list[UtilisationSample] = field(default_factory=list)
    deltas: list[tuple[float, Delta]] = field(default_factory=list)
    """Each delta with the time at which it was applied; empty unless the configuration has
    ``keep_deltas``."""
    digest: str = ""
    """A hash of all deltas and their times; equal for two runs with the same decisions."""
    submitted: int = 0
    placed: int = 0
    preempted: int = 0
    migrated: int = 0
    faults: int = 0
    fault_texts: list[str] = field(default_factory=list)
    slot_seconds: float = 0.0
    """The integral of the number of slots over time."""
    busy_seconds: float = 0.0
    """The integral of the number of occupied slots over time."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """Counts of a trace's rows that change nothing in a simulation, by the reason."""
    interrupted: bool = False
    real_s: float = 0.0

    @property
    def utilisation(self) -> float:
        """Return the share of all slots that were occupied, averaged over the whole time."""
        return self.busy_seconds / self.slot_seconds if self.slot_seconds else 0.0

    def of(self, name: str) -> list[TaskRecord]:
        """Return the records of a program's tasks that completed."""
        return [record for record in self.ended if record.name == name and record.completed]


class DeltaDigest:
    """A hash over the deltas of a simulation."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, now: float, deltas: Sequence[Delta]) -> None:
        """Add deltas that were applied at ``now``."""
        for delta in deltas:
            self._hash.update(repr((now, *map(int, delta))).encode())

    def text(self) -> str:
        """Return the hash of all deltas so far, in hexadecimal."""
        return self._hash.hexdigest()


def line_of(done: Round) -> RoundLine:
    """Return the record of a round."""
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
