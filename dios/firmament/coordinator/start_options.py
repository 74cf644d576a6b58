"""What a coordinator is told when it starts, by its node's settings. Not for: what a node is told by it."""

from __future__ import annotations

from dataclasses import dataclass

from dios.firmament.coordinator.assignment import SetUp


@dataclass(frozen=True, slots=True)
class StartOptions:
    """``set_up`` says who schedules, ``model`` by which costs, ``fairness`` whose tasks go first."""

    set_up: SetUp
    model: str
    fairness: str = "sdrf"
    memory_s: float = 1e6
    """How long the past counts for ``fairness``, in seconds."""
