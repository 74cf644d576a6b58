"""The node's clock: nanoseconds since the epoch that never run backwards.

Not for: waiting, which is trio's. The core gets every moment from here, in events.
"""

from __future__ import annotations

import time
from typing import Final


class Clock:
    """Wall-clock time as of the node's start, carried on by the monotonic clock.

    Audit records and ``dios ps`` need moments that people can read; time limits need a clock that nobody
    sets. One that starts as the first and runs as the second serves both.
    """

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset: Final = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return time.monotonic_ns() + self._offset
