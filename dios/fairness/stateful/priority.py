"""SDRF's priority for the live tree: equations 13 and 14 in continuous time, for one user at a time.

Not for: many decisions a second, which ``dios.fairness.stateful.kernels`` takes with the same formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Commitment:
    """The paper's kappa: what a user holds and owes from ``t`` on, until its allocation changes.

    ``share`` (m,), ``over`` (m,), its part beyond 1/n, and ``owed`` (m,), the commitment at ``t``, are
    fractions; ``t`` and ``tau`` have one unit, and ``tau`` is the same for all who are compared. Make a new
    one where something changes.
    """

    t: float
    tau: float
    share: tuple[float, ...]
    over: tuple[float, ...]
    owed: tuple[float, ...]
    lines: tuple[tuple[float, float], ...] = field(init=False, repr=False)
    """What each resource's share plus commitment tends to, and how far from that it is at ``t``."""

    def __post_init__(self) -> None:
        """Add up once what is compared many times."""
        self.lines = tuple(
            (share + over, owed - over)
            for share, over, owed in zip(self.share, self.over, self.owed, strict=True)
        )


def priority(t: float, user: Commitment) -> float:
    """Equation 13: the largest share plus commitment at ``t``, which is not before the user's own time."""
    fade = math.exp((user.t - t) / user.tau)
    most = -math.inf
    for end, distance in user.lines:
        value = end + distance * fade
        if value > most:  # noqa: PLR1730 - a call of max takes longer than all the rest
            most = value
    return most


def intersection(t: float, a: Commitment, b: Commitment) -> float | None:
    """Equation 14: how long after ``t`` any resource of ``a`` next meets any of ``b``; None for never.

    Two that meet need not be the largest; such an event changes no order.
    """
    fade_a, fade_b = math.exp((a.t - t) / a.tau), math.exp((b.t - t) / b.tau)
    met = 0.0
    for end_a, distance_a in a.lines:
        for end_b, distance_b in b.lines:
            rate = distance_a * fade_a - distance_b * fade_b
            # end_a + f distance_a = end_b + f distance_b at some later fade f, which lies between 0 and 1.
            fade = (end_b - end_a) / rate if rate else 0.0
            if met < fade < 1.0:
                met = fade
    return -a.tau * math.log(met) if met else None
