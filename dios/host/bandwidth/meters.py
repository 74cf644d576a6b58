"""Counters of moved and waiting bytes, of one account and of all together.

Not thread-safe: ``dios.host.bandwidth.rates`` has the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dios import limits

_S: Final = 1_000_000_000


class TrafficFlow:
    """The bytes that an account moved and wants to move, for one kind of traffic.

    ``last`` is the size of its last request. ``streams`` means that some of it belongs to streams, whose
    next bytes are unknown in advance.
    """

    __slots__ = ("last", "moved", "streams", "waiting")

    def __init__(self) -> None:
        self.moved = 0
        self.waiting = 0
        self.last = 1
        self.streams = False


class TrafficTotal:
    """All flows of one kind of traffic, and the highest rate measured while bytes were waiting.

    A sample covers a second or more in which bytes waited nearly all the time; then the moved bytes are what
    could be moved. ``now`` is in nanoseconds.
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
        """Count bytes that moved or began or ceased to wait."""
        before = self.waiting
        self.moved += moved
        self.waiting += waiting
        if not before and waiting:
            self._idle += now() - self._idle_since
        elif before and not self.waiting:
            self._idle_since = now()

    def sample(self, now: int) -> None:
        """Take a sample if the last one is at least a second old."""
        passed = now - self._then
        if passed < _S:
            return
        if not self.waiting:
            self._idle += now - self._idle_since
        if self._idle * 100 <= passed * limits.RATE_IDLE_PERCENT:
            self.best = max(self.best, (self.moved - self._moved) * _S // passed)
        self._moved, self._then, self._idle, self._idle_since = self.moved, now, 0, now
