"""An event queue in virtual time.

Actions for the same moment run in the order in which they were added.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000 * MS


class EventQueue:
    """A clock in nanoseconds, and the actions that wait for their time."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: Final[list[tuple[int, int, Callable[[], None]]]] = []
        self._order: Final = count()

    def at(self, when: int, action: Callable[[], None]) -> None:
        """Run an action at a time in nanoseconds, or now if that time is past."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), action))

    def after(self, span_ns: int, action: Callable[[], None]) -> None:
        """Run an action after a number of nanoseconds."""
        self.at(self.now + span_ns, action)

    def next_at(self) -> int | None:
        """Return the time of the next action, or None."""
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        """Advance the clock to the next action, and run it."""
        self.now, _, action = heapq.heappop(self._heap)
        action()

    def run(self, span_ns: int) -> None:
        """Advance the clock, and run the actions that become due."""
        end = self.now + span_ns
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end
