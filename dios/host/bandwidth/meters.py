"""What is moved and wants to: of one account, and of all together.

Not for: threads (``dios.host.bandwidth.rates`` has the lock), or who may move how much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dios import limits

_S: Final = 1_000_000_000


class Flow:
    """What one account moved of one kind of traffic, and wants to; ``last`` as many as it began last.

    ``streams`` says that some of it is streams, of which one does not know what will come.
    """

    __slots__ = ("last", "moved", "streams", "waiting")

    def __init__(self) -> None:
        self.moved = 0
        self.waiting = 0
        self.last = 1
        self.streams = False


class Total:
    """All flows of one kind of traffic, and the highest rate that was seen while somebody waited.

    A sample is of a second or more in which, but for moments, something always waited: then what moved is
    what could be moved. ``now`` in nanoseconds.
    """

    __slots__ = ("_idle", "_idle_since", "_moved", "_then", "best", "moved", "waiting")

    def __init__(self, now: int) -> None:
        self.moved = 0
        self.waiting = 0
        self.best = 0
        self._moved = 0
        self._then = now
        self._idle = 0
        self._idle_since = now

    def change(self, moved: int, waiting: int, now: Callable[[], int]) -> None:
        """Something moved, or waits."""
        before = self.waiting
        self.moved += moved
        self.waiting += waiting
        if not before and waiting:
            self._idle += now() - self._idle_since
        elif before and not self.waiting:
            self._idle_since = now()

    def sample(self, now: int) -> None:
        """Look at what moved since the last look, if that was a second ago."""
        passed = now - self._then
        if passed < _S:
            return
        if not self.waiting:
            self._idle += now - self._idle_since
        if self._idle * 100 <= passed * limits.RATE_IDLE_PERCENT:
            self.best = max(self.best, (self.moved - self._moved) * _S // passed)
        self._moved, self._then, self._idle, self._idle_since = self.moved, now, 0, now
