"""The options of a coordinator, which its node's settings give at its start."""

from __future__ import annotations

from dataclasses import dataclass

from dios.firmament.coordinator.assignment import SetUp


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The set-up, the name of the cost model, and the rule of fairness."""

    set_up: SetUp
    model: str
    fairness: str = "sdrf"
    memory_s: float = 1e6
    """The memory of ``fairness``: after this many seconds 1/e of a commitment is left."""
