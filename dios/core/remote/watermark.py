"""The acknowledgement watermark: which requests between two nodes need no answer any more (§4.8).

A request is *settled* once its asker has its answer, or does not want it any more. It never becomes
unsettled, so that every statement about it stays true, even if it is lost, duplicated, late or out of order,
and no statement has to be confirmed.
"""

from __future__ import annotations

from dios.wire import dcp


class Watermark:
    """What an asker has said: all below ``below`` are settled, and below ``until`` all but ``waiting``."""

    __slots__ = ("below", "until", "waiting")

    def __init__(self) -> None:
        self.below = 0
        self.until = 0
        self.waiting: frozenset[int] = frozenset()

    def has(self, number: int) -> bool:
        """Whether the request with this number is known to be settled."""
        return number < self.below or (number < self.until and number not in self.waiting)

    def learn(self, said: dcp.Ask) -> bool:
        """Take in what a request says; whether it may have told of something new."""
        news = bool(said.waiting) or said.settled > self.below
        self.below = max(self.below, said.settled)
        if said.waiting:
            told, until = frozenset(said.waiting), max(said.waiting)
            # Whatever one of the two could have named and did not is settled.
            if until < self.until:
                self.waiting = frozenset(one for one in self.waiting if one >= until or one in told)
            else:
                self.waiting = frozenset(one for one in told if one >= self.until or one in self.waiting)
                self.until = until
        return news
