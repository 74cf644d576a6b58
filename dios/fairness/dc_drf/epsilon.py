"""The search for DC-DRF's epsilon over the control intervals: raise() and lower() of Algorithm 2."""

from __future__ import annotations

import math
from typing import Final

EPSILON_FIRST: Final = 1e-4
"""The first epsilon after the exact case timed out: hundreds of rounds at the paper's scale."""

EPSILON_MIN: Final = 1e-7
"""Below this the search tries 0, the exact case: single precision has no smaller fractions of 1."""

EPSILON_MAX: Final = 0.5
"""The largest epsilon; the first round is the same for every epsilon."""

STEP_FAST: Final = 16.0
STEP_MIN: Final = 1.05
STEP_GROWTH: Final = 1.5
"""Step factors: the first and largest, the smallest, and the exponent by which a step grows again."""

HEADROOM: Final = 0.9
"""An interval that used at least this fraction of its deadline leaves epsilon unchanged."""


class EpsilonSearch:
    """A search whose step is large at first, shrinks at every change of direction and grows otherwise.

    ``epsilon`` is the value for the next interval. The DC-DRF paper (section 3) leaves raise() and lower()
    open.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon = epsilon
        self._step = STEP_FAST
        self._direction = 0
        self._kept = EPSILON_FIRST

    def record_interval(self, *, late: bool, used: float) -> None:
        """Record an interval that took the fraction ``used`` of its deadline; ``late``: it timed out."""
        if late:
            self._change_step(1)
            self.epsilon = min(EPSILON_MAX, self.epsilon * self._step) if self.epsilon else self._kept
            return
        if self.epsilon:
            self._kept = self.epsilon
        if used < HEADROOM and self.epsilon:
            self._change_step(-1)
            lower = self.epsilon / self._step
            self.epsilon = lower if lower >= EPSILON_MIN else 0.0

    def _change_step(self, direction: int) -> None:
        if self._direction == -direction:
            self._step = max(STEP_MIN, math.sqrt(self._step))
        elif self._direction == direction:
            self._step = min(STEP_FAST, self._step**STEP_GROWTH)
        self._direction = direction
