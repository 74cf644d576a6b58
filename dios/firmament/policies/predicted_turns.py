"""The predicted turns of principals with waiting tasks, if no task starts or ends meanwhile.

Shares stay and commitments fade towards the present use beyond a right, so that priorities follow the curves
of the SDRF paper's equation 13, and the order changes only where two of them meet (equation 14).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dios.fairness.stateful.priority import Commitment, intersection, priority

PREDICTED_MAX: Final = 32
"""With more principals only the present order is stated: a prediction compares all of them."""
_MEETINGS_MAX: Final = 32
_AFTER: Final = 1e-6
"""The moment after a meeting at which the order is read, as a part of the memory."""


class PredictedTurn(NamedTuple):
    """The place in the present order, 1 for the next, and the seconds until it is the next one.

    ``next_in_s`` is None if it never becomes the next while nothing starts or ends.
    """

    place: int
    next_in_s: float | None


def predicted_turns(users: Mapping[str, Commitment]) -> dict[str, PredictedTurn]:
    """Return the turn of each principal; all commitments are those of time 0, with the same memory."""
    order = sorted(users, key=lambda name: (priority(0.0, users[name]), name))
    if not order:
        return {}
    current, now = order[0], 0.0
    since = {current: 0.0}
    for _ in range(_MEETINGS_MAX if len(order) <= PREDICTED_MAX else 0):
        meetings = [
            when
            for name in order
            if name != current and (when := intersection(now, users[current], users[name])) is not None
        ]
        if not meetings:
            break
        now += min(meetings) + _AFTER * users[current].tau
        at = now
        current = min(order, key=lambda name: (priority(at, users[name]), name))
        since.setdefault(current, now)
    return {name: PredictedTurn(place, since.get(name)) for place, name in enumerate(order, 1)}
