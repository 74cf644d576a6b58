"""What will happen when, in virtual time.

Not for: deciding anything. Things for the same moment happen in the order in which they were noted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000 * MS


class Agenda:
    """A clock in nanoseconds, and the actions that wait for their moment."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: Final[list[tuple[int, int, Callable[[], None]]]] = []
        self._order: Final = count()

    def at(self, when: int, action: Callable[[], None]) -> None:
        """Do something at a moment, or at once where that is over."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), action))

    def after(self, span_ns: int, action: Callable[[], None]) -> None:
        """Do something when a span of time is over."""
        self.at(self.now + span_ns, action)

    def run(self, span_ns: int) -> None:
        """Let time pass."""
        end = self.now + span_ns
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end

    def run_until(self, ready: Callable[[], bool], within_ns: int) -> bool:
        """Let time pass until something is so; whether it came to be."""
        end = self.now + within_ns
        while not ready():
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return ready()
            self.now, _, action = heapq.heappop(self._heap)
            action()
        return True
