"""SDRF's priority for the live tree, in plain Python: equations 13 and 14 in continuous time.

``dios.fairness.stateful.kernels`` has the same formulas compiled, for many decisions a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Commitment:
    """The paper's kappa: a user's shares and commitments from ``t`` on, until its allocation changes.

    ``share`` (m,), ``over`` (m,), its part beyond 1/n, and ``owed`` (m,), the commitment at ``t``, are
    fractions. ``t`` and ``tau`` have the same unit, and all users that are compared have the same ``tau``.
    Create a new object when the allocation changes.
    """

    t: float
    tau: float
    share: tuple[float, ...]
    over: tuple[float, ...]
    owed: tuple[float, ...]
    lines: tuple[tuple[float, float], ...] = field(init=False, repr=False)
    """For each resource, the limit of share plus commitment, and the distance from it at ``t``."""

    def __post_init__(self) -> None:
        """Compute the sums once that are compared many times."""
        self.lines = tuple(
            (share + over, owed - over)
            for share, over, owed in zip(self.share, self.over, self.owed, strict=True)
        )


def priority(t: float, user: Commitment) -> float:
    """Equation 13: return the largest share plus commitment at ``t``, which must not be before ``user.t``."""
    fade = math.exp((user.t - t) / user.tau)
    most = -math.inf
    for end, distance in user.lines:
        value = end + distance * fade
        if value > most:  # noqa: PLR1730 - a call of max would dominate the running time
            most = value
    return most


def intersection(t: float, a: Commitment, b: Commitment) -> float | None:
    """Equation 14: return the time after ``t`` until a resource of ``a`` next meets one of ``b``, or None.

    The two resources that meet need not be the largest ones; such an event does not change the order.
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
