"""Record which requests between two nodes are settled, so that their answers can be dropped (§4.8).

A request is *settled* once its sender has the answer or no longer wants it. A settled request stays settled,
so every statement about it remains true, even if the message is lost, duplicated, late or out of order. No
statement needs a confirmation.
"""

from __future__ import annotations

from dios.wire import dcp


class Watermark:
    """The requests that their sender has reported as settled.

    All requests below ``below`` are settled, and all below ``until`` except those in ``waiting``.
    """

    __slots__ = ("below", "until", "waiting")

    def __init__(self) -> None:
        self.below = 0
        self.until = 0
        self.waiting: frozenset[int] = frozenset()

    def has(self, number: int) -> bool:
        """Return True if a report has settled the request with this number."""
        return number < self.below or (number < self.until and number not in self.waiting)

    def learn(self, report: dcp.Ask) -> bool:
        """Merge the report in a request. Return True if it may contain something new."""
        is_new = bool(report.waiting) or report.settled > self.below
        self.below = max(self.below, report.settled)
        if report.waiting:
            named, until = frozenset(report.waiting), max(report.waiting)
            # A number that either report covers but does not name is settled.
            if until < self.until:
                self.waiting = frozenset(
                    number for number in self.waiting if number >= until or number in named
                )
            else:
                self.waiting = frozenset(
                    number for number in named if number >= self.until or number in self.waiting
                )
                self.until = until
        return is_new
