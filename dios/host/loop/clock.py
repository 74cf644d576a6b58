"""The node's clock: nanoseconds since the epoch that never run backwards.

Every event that goes to the core carries a time from this clock. Waiting is trio's.
"""

from __future__ import annotations

import time
from typing import Final


class Clock:
    """The wall-clock time at the node's start, advanced by a clock that is never set.

    Audit records and ``dios ps`` show wall-clock times; time limits need a clock that is never set back.
    This clock serves both. It goes on while the machine is suspended: a lease must not outlast its end at
    the other node because this machine slept.
    """

    __slots__ = ("offset",)

    def __init__(self, offset: int | None = None) -> None:
        now = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.offset: Final = now if offset is None else offset
        """The difference to the clock that is never set, which a program that continues the node keeps."""

    def now(self) -> int:
        """Return the nanoseconds since the epoch."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self.offset
