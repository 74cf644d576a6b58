"""Token buckets: a limit on the average rate in bytes per second, and on the size of a burst.

A bucket does not wait and is not thread-safe; its callers pass it the time.
"""

from __future__ import annotations

from typing import Final

from dios import limits

_S: Final = 1_000_000_000
_BURST_NS: Final = limits.RATE_BURST_MS * 1_000_000


class TokenBucket:
    """A token bucket that fills at ``bytes_s``; ``now`` is in nanoseconds and never decreases.

    A caller that finds no debt takes a piece of any size; the next caller waits until that debt is paid. So
    the rate is exceeded by at most a burst and one piece. The bucket starts empty. With a ``debt_ns`` no
    caller waits longer than that for bytes that were taken before the rate was lowered.
    """

    __slots__ = ("_burst_ns", "_debt_ns", "_level", "_then", "bytes_s")

    def __init__(self, bytes_s: int, now: int, burst_ns: int = _BURST_NS, debt_ns: int = 0) -> None:
        self.bytes_s = bytes_s
        self._burst_ns = burst_ns
        self._debt_ns = debt_ns
        self._then = now
        self._level = 0  # in bytes times nanoseconds per second: exact

    def set_rate(self, bytes_s: int, now: int) -> None:
        """Change the rate."""
        self._fill(now)
        self.bytes_s = bytes_s
        self._fill(now)
        if self._debt_ns:
            least = -2 * limits.GUARANTEE_PIECE_BYTES_MIN * _S
            self._level = max(self._level, min(least, -bytes_s * self._debt_ns))

    def wait_ns(self, now: int) -> int:
        """Return the time in nanoseconds until the bucket has no debt, 0 if it has none."""
        self._fill(now)
        return -(self._level // self.bytes_s) if self._level < 0 else 0

    def take(self, size: int, now: int) -> None:
        """Take ``size`` bytes, even if the bucket has fewer."""
        self._fill(now)
        self._level -= size * _S

    def _fill(self, now: int) -> None:
        came = max(0, now - self._then) * self.bytes_s
        self._then = max(now, self._then)
        self._level = min(self._level + came, self.bytes_s * self._burst_ns)
