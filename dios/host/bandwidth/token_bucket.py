"""Token buckets: so many bytes per second on average, and no more at once than a moment's worth.

Not for: waiting, or who may take how much (``dios.host.bandwidth.rates``). A bucket is told the time, and
is nobody's to share between threads.
"""

from __future__ import annotations

from typing import Final

from dios import limits

_S: Final = 1_000_000_000
_BURST_NS: Final = limits.RATE_BURST_MS * 1_000_000


class Bucket:
    """Bytes that may go, which come at ``bytes_s``; ``now`` is in nanoseconds and does not run back.

    Whoever finds no debt takes a piece, however large, and whoever comes next waits the debt off: what goes
    is over the rate by a burst and one piece at most. It begins empty. With a ``debt_ns`` nobody waits longer
    than that for what went before its rate was lowered.
    """

    __slots__ = ("_burst_ns", "_debt_ns", "_level", "_then", "bytes_s")

    def __init__(self, bytes_s: int, now: int, burst_ns: int = _BURST_NS, debt_ns: int = 0) -> None:
        self.bytes_s = bytes_s
        self._burst_ns = burst_ns
        self._debt_ns = debt_ns
        self._then = now
        self._level = 0  # in bytes times nanoseconds per second: exact

    def set_rate(self, bytes_s: int, now: int) -> None:
        """Go on at another rate."""
        self._fill(now)
        self.bytes_s = bytes_s
        self._fill(now)
        if self._debt_ns:
            least = -2 * limits.GUARANTEE_PIECE_BYTES_MIN * _S
            self._level = max(self._level, min(least, -bytes_s * self._debt_ns))

    def wait_ns(self, now: int) -> int:
        """So long until something may go; 0 for now."""
        self._fill(now)
        return -(self._level // self.bytes_s) if self._level < 0 else 0

    def take(self, size: int, now: int) -> None:
        """So many bytes go, whether there were so many or not."""
        self._fill(now)
        self._level -= size * _S

    def _fill(self, now: int) -> None:
        came = max(0, now - self._then) * self.bytes_s
        self._then = max(now, self._then)
        self._level = min(self._level + came, self.bytes_s * self._burst_ns)
