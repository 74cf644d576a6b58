"""The offset of another node's clock, estimated from the pings that are sent anyway.

An answer to a ping carries the clock of the node that answered. Its moment was between the ping and the
arrival of the answer, so the middle of the two is wrong by at most half the round trip (Cristian's method).
No decision of a node uses an offset: it is shown to operators, and a node that lies spoils its own row alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from dios import limits

_MILLION: Final = 1_000_000


class ClockOffset(NamedTuple):
    """A clock is ahead of this node's by ``offset_ns``, give or take ``error_ns``."""

    offset_ns: int
    error_ns: int


class ClockRecord(Struct):
    """The last ping, and the best estimate so far of the clock of the node that was pinged.

    Both clocks are never set while their nodes run, but drift.
    """

    number: int = -1
    sent_ns: int = 0
    offset_ns: int = 0
    error_ns: int = -1  # -1 without an estimate
    measured_ns: int = 0

    def note_ping(self, number: int, now: int) -> None:
        """Note the ping whose answer will measure the clock; -1 for none."""
        self.number, self.sent_ns = number, now

    def note_answer(self, number: int, clock_ns: int, now: int) -> None:
        """Note an answer: keep the estimate with the smaller error, or the new one if both cannot be true."""
        if number != self.number or not clock_ns or now < self.sent_ns:
            return
        self.number = -1
        error = (now - self.sent_ns + 1) // 2
        offset = clock_ns - (self.sent_ns + error)
        held = self.reading(now)
        if held is None or error <= held.error_ns or abs(offset - held.offset_ns) > error + held.error_ns:
            self.offset_ns, self.error_ns, self.measured_ns = offset, error, now

    def reading(self, now: int) -> ClockOffset | None:
        """Return the estimate, whose error grows with its age, or None."""
        if self.error_ns < 0:
            return None
        drift = max(now - self.measured_ns, 0) * limits.CLOCK_DRIFT_PPM // _MILLION
        return ClockOffset(self.offset_ns, self.error_ns + drift)
