"""What can be set about scheduling, apart from the cost model: one frozen value.

Not for: parameters of cost models, which the models check themselves, and bounds that nobody may
move, which stand in ``dios.limits``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dios.firmament.descriptors import BadDescriptorError
from dios.firmament.solvers import algorithms


class Fairness(IntEnum):
    """How running tasks are divided between principals (§6.3.2)."""

    NONE = 0
    """Costs alone decide."""
    BOUNDED = 1
    """Nobody runs more than the fair share A_j while others wait: F_j = A_j."""
    STRICT = 2
    """Everybody runs exactly the fair share: E_j = A_j = F_j."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Costs are in the cost model's unit, times in seconds of the scheduler's clock."""

    solver: str = "auto"
    """A name of ``solvers.algorithms()``; "auto" also keeps the network solved between rounds."""
    certify_every: int = 50
    """The certificate is checked in one of so many rounds; 1: in each; 0: never."""
    model_time_limit_s: float = 10.0
    """A cost model that answers later is reported, and the last schedule stands."""
    preemption: bool = True
    """Whether running tasks may be stopped for others."""
    migration: bool = True
    """Whether running tasks may move to better places."""
    preemption_hysteresis: int = 1
    """Added to the cost of stopping a running task; 1 keeps ties from stopping anybody."""
    migration_hysteresis: int = 1
    """Added to the cost of each other place of a running task."""
    fit: bool = True
    """Placements that overflow a machine's known resources are held back."""
    soft_penalty: int = 1_000
    """What an unmet soft constraint adds to the cost of a machine."""
    gang_preempts: bool = True
    """A gang that is let in takes its places at any cost (§6.3.3); otherwise it waits for free slots."""
    retry_first_s: float = 1.0
    """A gang without room, or a machine that refused a task, is tried again after so long; then twice."""
    retry_last_s: float = 300.0
    """The longest such pause."""
    fairness: Fairness = Fairness.NONE

    def __post_init__(self) -> None:
        if self.solver not in algorithms():
            known = ", ".join(algorithms())
            raise BadDescriptorError(f"setting solver is {self.solver!r}; it must be one of {known}")
        for name in (
            "certify_every",
            "preemption_hysteresis",
            "migration_hysteresis",
            "soft_penalty",
            "retry_first_s",
        ):
            if not getattr(self, name) >= 0:
                raise BadDescriptorError(f"setting {name} is {getattr(self, name)}; it must be 0 or more")
        if not self.model_time_limit_s > 0:
            raise BadDescriptorError(f"setting model_time_limit_s is {self.model_time_limit_s}, not positive")
        if not self.retry_last_s >= self.retry_first_s:
            raise BadDescriptorError(f"setting retry_last_s is {self.retry_last_s}, less than retry_first_s")
