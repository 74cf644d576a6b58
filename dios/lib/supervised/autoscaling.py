"""Scaling of a supervised service with its load; the rule decides, and this module applies it (§8.2.2).

``dios service autoscale`` runs it with the rule of the Green experiments, ``models.green.ServiceScaler``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dios.errors import InvalidError
from dios.lib.supervised.services import ServiceStatus


class ScalingRule(Protocol):
    """Decides from the load and the capacities of the replicas."""

    def change(self, load: float, capacities: Sequence[float], /) -> int:
        """Return the change of the number of replicas: 1, -1 or 0."""


class ScalableServices(Protocol):
    """The part of ``Services`` that scaling needs."""

    def describe(self, name: str) -> ServiceStatus:
        """Return the status of a service."""

    def scale(self, name: str, replicas: int) -> None:
        """Change the number of replicas."""


@dataclass(frozen=True, slots=True)
class ServiceAutoscaler:
    """One service that follows its load.

    ``capacity`` is the load that one replica can serve, in the unit of the load, such as requests per second.
    """

    services: ScalableServices
    name: str
    rule: ScalingRule
    capacity: float

    def __post_init__(self) -> None:
        if not 0 < self.capacity < float("inf"):
            raise InvalidError(f"the capacity of a replica is {self.capacity}; it must be above 0")

    def step(self, load: float) -> int:
        """Apply the rule once; return the number of replicas that is wanted from now on.

        While a replica is missing the service does not grow, because the missing one will take its part of
        the load. During an update nothing changes.

        Raises:
            InvalidError: the load is not a number from 0, or there is no such service.
        """
        if not 0 <= load < float("inf"):
            raise InvalidError(f"the load is {load}; it must be a number of at least 0")
        status = self.services.describe(self.name)
        if status.updating:
            return status.wanted
        change = self.rule.change(load, [self.capacity] * status.wanted)
        if status.running < status.wanted:
            change = min(change, 0)
        if change:
            self.services.scale(self.name, status.wanted + change)
        return status.wanted + change
