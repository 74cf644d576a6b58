"""A short spin before a blocking wait, where spins were successful lately.

Waking a sleeping processor takes longer than most answers; but a spin only costs time where both ends share
a processor or the other end is slow. So a spin is short, and after a failed one the next waits block at once,
twice as many after each failure.

A spin never yields the processor: the system would run every other process first, for milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from dios.limits import SPIN_BACKOFF_WAITS_MAX, SPIN_BACKOFF_WAITS_MIN, SPIN_NS_MAX


class AdaptiveSpin:
    """The spin of one waiting end, ``most_ns`` at most, with the results of its earlier spins."""

    __slots__ = ("_asleep", "_most_ns", "_next")

    def __init__(self, most_ns: int = SPIN_NS_MAX) -> None:
        self._most_ns = most_ns
        self._asleep = 0
        self._next = SPIN_BACKOFF_WAITS_MIN

    def spin(self, ready: Callable[[], object]) -> bool:
        """Spin until ``ready`` returns something true or the time is over; return True if it did."""
        if self._asleep:
            self._asleep -= 1
            return False
        until = monotonic_ns() + self._most_ns
        while not ready():
            if monotonic_ns() > until:
                self._asleep = self._next
                self._next = min(2 * self._next, SPIN_BACKOFF_WAITS_MAX)
                return False
        self._next = SPIN_BACKOFF_WAITS_MIN
        return True
