"""The choice of the mapper to run a second time: LATE (Zaharia et al., OSDI 2008), within one job.

The cost model ``late`` applies the same rule to all tasks of a cluster. A controller knows more about its own
mappers: the rates of those that have ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from dios.limits import JOB_COPY_AFTER_MS

_SLOW_PART: Final = 4
"""A mapper is slow if its rate is below that of this part of all mappers: the first quarter."""


class MapperProgress(NamedTuple):
    """The progress of a running mapper."""

    number: int
    share: float
    """The share of its input that it has read, from 0 to 1."""
    seconds: float
    """The time for which it has run."""

    @property
    def rate(self) -> float:
        """The share of its input that it reads in a second."""
        return self.share / self.seconds

    @property
    def seconds_left(self) -> float:
        """The time until its end at its present rate."""
        return (1 - self.share) / self.rate if self.share else math.inf


def slowest(running: Sequence[MapperProgress], ended: Sequence[float]) -> int | None:
    """Return the number of the mapper that ends last, if it is slow; else None.

    ``ended`` are the durations in seconds of the mappers that have ended. A mapper is slow if its rate is
    below the first quarter of the rates of all mappers, and if a typical one would end before it.
    """
    judged = [mapper for mapper in running if mapper.seconds * 1000 >= JOB_COPY_AFTER_MS]
    rates = sorted([*(mapper.rate for mapper in judged), *(1 / max(seconds, 1e-3) for seconds in ended)])
    if not rates:
        return None
    bound, typical = rates[len(rates) // _SLOW_PART], rates[len(rates) // 2]
    slow = [mapper for mapper in judged if mapper.rate < bound and mapper.seconds_left * typical > 1]
    return max(slow, key=lambda mapper: mapper.seconds_left).number if slow else None
