"""How many tasks a service runs at its present load: the load balancer's part of the Green model (§7.4).

For: whoever submits and withdraws a service's tasks. Not for: where they run, which the cost model says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dios.errors import InvalidError


@dataclass(frozen=True, slots=True)
class ServiceScaler:
    """Grows a service above 55 % of its estimated capacity, shrinks it below 15 % (§8.2.2).

    The distance of the two is the hysteresis; besides, no task is taken away whose absence would make the
    next look bring it back.
    """

    least: int = 1
    most: int = 4
    grow_above: float = 0.55
    shrink_below: float = 0.15

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise InvalidError(
                f"a service of {self.least} to {self.most} tasks; 0 <= least <= most is wanted"
            )
        if not 0 <= self.shrink_below < self.grow_above <= 1:
            raise InvalidError(
                f"shrink below {self.shrink_below}, grow above {self.grow_above}; 0 <= one < other <= 1"
            )

    def change(self, load: float, capacities: Sequence[float]) -> int:
        """How many tasks more (1), fewer (-1) or neither (0).

        Args:
            load: requests per second that come.
            capacities: requests per second that each task can answer where it runs, or will run.
        """
        count, capacity = len(capacities), sum(capacities)
        if count < self.least or (count < self.most and load > self.grow_above * capacity):
            return 1
        if count > self.most:
            return -1
        without = capacity - min(capacities, default=0.0)
        if count > self.least and load < self.shrink_below * capacity and load <= self.grow_above * without:
            return -1
        return 0


def first_to_stop(costs: Sequence[float]) -> int:
    """Which task to take away when one is too many: the one whose requests cost the most energy.

    Raises:
        ValueError: there is none.
    """
    return max(range(len(costs)), key=costs.__getitem__)
