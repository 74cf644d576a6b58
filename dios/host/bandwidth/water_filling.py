"""A link among those who send: guarantees first, the rest by weight (Packer paper, Algorithm 2).

Not for: what is guaranteed or wanted (``dios.host.bandwidth.guarantees``), or experiments with many tasks
(``dios.packer.share_bandwidth``, which needs numpy; a daemon has none). Here all numbers are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_FINE = 32
"""Bits behind the point by which needs for each weight are ordered: more than quotients can be apart."""


class Claim(NamedTuple):
    """What one sender may count on, what it wants, and how much it weighs when the rest is shared."""

    guarantee: int
    demand: int
    weight: int


def shared(capacity: int, claims: Sequence[Claim]) -> list[int]:
    """The rate of each, in the unit of the claims, rounded down to a whole one.

    Each gets the smaller of its guarantee and its demand, or that part of it which ``capacity`` has; what
    is left goes to those who want more, in proportion to their weights, until nothing is left or
    nobody wants more. Who has no weight gets of it, in equal parts, what those with one leave.
    """
    rates = [min(claim.guarantee, claim.demand) for claim in claims]
    certain = sum(rates)
    if certain >= capacity:
        return [rate * capacity // certain for rate in rates] if certain else rates
    left = capacity - certain
    hungry = [at for at, claim in enumerate(claims) if claim.demand > rates[at]]
    left = _pour(left, [at for at in hungry if claims[at].weight], claims, rates, equal=False)
    _pour(left, [at for at in hungry if not claims[at].weight], claims, rates, equal=True)
    return rates


def _pour(left: int, hungry: Iterable[int], claims: Sequence[Claim], rates: list[int], *, equal: bool) -> int:
    """Raise the rates of these; what is left when all have what they want, else 0."""
    found = [(claims[at].demand - rates[at], 1 if equal else claims[at].weight, at) for at in hungry]
    found.sort(key=lambda one: (one[0] << _FINE) // one[1])
    weights = sum(weight for _, weight, _ in found)
    for place, (need, weight, at) in enumerate(found):
        if need * weights > left * weight:
            for _, part, other in found[place:]:
                rates[other] += left * part // weights
            return 0
        rates[at] += need
        left -= need
        weights -= weight
    return left
