"""Looking for a moment before sleeping, where that has paid lately.

Not for: waiting. Waking a sleeping processor costs both ends more than most answers take to come; but where
both ends share one processor, or the other end takes its time, looking only costs. So a look is short, and
after one in vain the next waits are slept through, twice as many each time.

It never yields the processor: the system takes that as a wish to stand behind everybody, for milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from dios.limits import SPIN_BACKOFF_WAITS_MAX, SPIN_BACKOFF_WAITS_MIN, SPIN_NS_MAX


class AdaptiveSpin:
    """One waiting end's memory of whether looking has paid."""

    __slots__ = ("_asleep", "_next")

    def __init__(self) -> None:
        self._asleep = 0
        self._next = SPIN_BACKOFF_WAITS_MIN

    def pays(self, ready: Callable[[], object]) -> bool:
        """Call ``ready`` until it gives something true, for SPIN_NS_MAX at most; whether it did."""
        if self._asleep:
            self._asleep -= 1
            return False
        until = monotonic_ns() + SPIN_NS_MAX
        while not ready():
            if monotonic_ns() > until:
                self._asleep = self._next
                self._next = min(2 * self._next, SPIN_BACKOFF_WAITS_MAX)
                return False
        self._next = SPIN_BACKOFF_WAITS_MIN
        return True
