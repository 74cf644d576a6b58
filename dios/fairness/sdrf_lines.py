"""SDRF's priority for the live tree: equations 13 and 14 in continuous time, for one user at a time.

Not for: many decisions a second, which ``dios.fairness.sdrf_kernels`` takes with the same formulas.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Commitment(NamedTuple):
    """The paper's kappa: what a user holds and owes from ``t`` on, until its allocation changes.

    ``share`` (m,), ``over`` (m,), its part beyond 1/n, and ``owed`` (m,), the commitment at ``t``, are
    fractions; ``t`` and ``tau`` have one unit, and ``tau`` is the same for all who are compared.
    """

    t: float
    tau: float
    share: tuple[float, ...]
    over: tuple[float, ...]
    owed: tuple[float, ...]

    def lines(self, t: float) -> list[tuple[float, float]]:
        """(end, distance from it at ``t``) for each resource's share plus commitment."""
        fade = math.exp(-(t - self.t) / self.tau)
        return [
            (share + over, (owed - over) * fade)
            for share, over, owed in zip(self.share, self.over, self.owed, strict=True)
        ]


def priority(t: float, user: Commitment) -> float:
    """Equation 13: the largest share plus commitment at ``t``, which is not before the user's own time."""
    return max(end + distance for end, distance in user.lines(t))


def intersection(t: float, a: Commitment, b: Commitment) -> float | None:
    """Equation 14: how long after ``t`` any resource of ``a`` next meets any of ``b``; None for never.

    Two that meet need not be the largest; such an event changes no order.
    """
    met = None
    for end_a, distance_a in a.lines(t):
        for end_b, distance_b in b.lines(t):
            rate = distance_a - distance_b
            # end_a + f distance_a = end_b + f distance_b at some later fade f, which lies between 0 and 1.
            fade = (end_b - end_a) / rate if rate else 0.0
            if 0.0 < fade < 1.0:
                span = -a.tau * math.log(fade)
                met = span if met is None else min(met, span)
    return met
