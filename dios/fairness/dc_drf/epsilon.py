"""The search for DC-DRF's epsilon over the control intervals: raise and lower of Algorithm 2.

Not for: reading clocks. It is told how an interval ended, and says what the next one shall use.
"""

from __future__ import annotations

import math
from typing import Final

EPSILON_FIRST: Final = 1e-4
"""Where the search begins when the exact case timed out: hundreds of rounds at the scale of the paper."""

EPSILON_MIN: Final = 1e-7
"""Below this the search tries 0, the exact case: single precision tells no smaller parts of 1 apart."""

EPSILON_MAX: Final = 0.5
"""More is never thrown away; the first round is the same whatever epsilon is."""

STEP_FAST: Final = 16.0
STEP_MIN: Final = 1.05
STEP_GROWTH: Final = 1.5
"""The factor of a step: the fast start, the narrowest window, and the power by which a window opens again."""

HEADROOM: Final = 0.9
"""An interval that took this part of its deadline ended just short of it, and epsilon stays."""


class EpsilonSearch:
    """A window that is wide at first, halves (in logarithms) at every turn and opens on a straight way.

    It holds the next interval's ``epsilon``. Paper: DC-DRF section 3, which leaves raise() and lower() open.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon = epsilon
        self._step = STEP_FAST
        self._direction = 0
        self._kept = EPSILON_FIRST

    def ended(self, *, late: bool, used: float) -> None:
        """An interval ended after ``used`` of its deadline (a quotient); ``late``: not before it."""
        if late:
            self._turn(1)
            self.epsilon = min(EPSILON_MAX, self.epsilon * self._step) if self.epsilon else self._kept
            return
        if self.epsilon:
            self._kept = self.epsilon
        if used < HEADROOM and self.epsilon:
            self._turn(-1)
            lower = self.epsilon / self._step
            self.epsilon = lower if lower >= EPSILON_MIN else 0.0

    def _turn(self, direction: int) -> None:
        if self._direction == -direction:
            self._step = max(STEP_MIN, math.sqrt(self._step))
        elif self._direction == direction:
            self._step = min(STEP_FAST, self._step**STEP_GROWTH)
        self._direction = direction
