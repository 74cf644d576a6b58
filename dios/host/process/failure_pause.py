"""The pauses between attempts to make processes in advance, after several have failed in a row."""

from __future__ import annotations

import math

import trio

from dios import limits


class FailurePause:
    """Failures in a row: after POOL_FAILURES_MAX nothing is tried for a time, which then doubles.

    Meanwhile tasks start on demand, which shows the reason to their callers.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._retry_at = -math.inf

    def failed(self) -> None:
        """Note a failure."""
        self._failures += 1
        late = self._failures - limits.POOL_FAILURES_MAX
        if late >= 0:
            pause_ms = min(limits.POOL_RETRY_MS_MIN * 2 ** min(late, 16), limits.POOL_RETRY_MS_MAX)
            self._retry_at = trio.current_time() + pause_ms / 1000

    def succeeded(self) -> None:
        """Note that a process that was made in advance was good for a task."""
        self._failures, self._retry_at = 0, -math.inf

    @property
    def is_over(self) -> bool:
        """Return True if processes may be made now."""
        return trio.current_time() >= self._retry_at

    @property
    def end(self) -> float:
        """Return the time at which the pause ends; infinity if there is none."""
        return math.inf if self.is_over else self._retry_at
