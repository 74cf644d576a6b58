"""The settings of the scheduler, apart from the choice of the cost model: one frozen value.

Cost models check their own parameters. Bounds that an operator cannot change are in ``dios.limits``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dios.firmament.descriptors import BadDescriptorError
from dios.firmament.solvers import algorithms


class Fairness(IntEnum):
    """The rule that divides running tasks between principals (§6.3.2)."""

    NONE = 0
    """Only costs decide."""
    BOUNDED = 1
    """No principal runs more than its fair share A_j while others wait: F_j = A_j."""
    STRICT = 2
    """Every principal runs exactly its fair share: E_j = A_j = F_j."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings. Costs are in the unit of the cost model, times in seconds of the scheduler's clock."""

    solver: str = "auto"
    """A name of ``solvers.algorithms()``; with "auto" the network also stays solved between rounds."""
    certify_every: int = 50
    """The certificate is checked every this many rounds; 1: in each round; 0: never."""
    model_time_limit_s: float = 10.0
    """The time after which a cost model that has not answered is reported; the last schedule then stays."""
    preemption: bool = True
    """True if running tasks may be stopped for others."""
    migration: bool = True
    """True if running tasks may move to better machines."""
    preemption_hysteresis: int = 1
    """The addition to the cost of stopping a running task; with 1, ties stop no task."""
    migration_hysteresis: int = 1
    """The addition to the cost of every other place of a running task."""
    fit: bool = True
    """True if placements that exceed the known resources of a machine are held back."""
    soft_penalty: int = 1_000
    """The addition to the cost of a machine for each soft constraint that it does not meet."""
    gang_preempts: bool = True
    """True if an admitted gang takes its places at any cost (§6.3.3); else it waits for free slots."""
    retry_first_s: float = 1.0
    """The delay before a gang without room, or a machine that refused a task, is tried again; it doubles."""
    retry_last_s: float = 300.0
    """The longest such delay."""
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
            raise BadDescriptorError(
                f"setting model_time_limit_s is {self.model_time_limit_s}; it must be positive"
            )
        if not self.retry_last_s >= self.retry_first_s:
            raise BadDescriptorError(
                f"setting retry_last_s is {self.retry_last_s}; it must be at least retry_first_s"
            )
