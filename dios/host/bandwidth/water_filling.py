"""Divides a link among senders: guarantees first, the rest by weight (Packer paper, Algorithm 2).

All numbers are integers, because a daemon loads no numpy. ``dios.packer.share_bandwidth`` is the version for
experiments with many tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_FINE = 32
"""Fractional bits of the quotients by which senders are ordered: more than two quotients can differ by."""


class LinkClaim(NamedTuple):
    """One sender's guarantee, demand, and weight in the division of the remainder."""

    guarantee: int
    demand: int
    weight: int


def divide_link(capacity: int, claims: Sequence[LinkClaim]) -> list[int]:
    """Return the rate of each sender, in the unit of the claims, rounded down.

    Each sender gets the smaller of its guarantee and its demand, scaled down if ``capacity`` is too small.
    The remainder goes to senders that want more, in proportion to their weights, until nothing remains or no
    sender wants more. Divide what the senders with a weight leave equally among senders without a weight.
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


def _pour(
    left: int, hungry: Iterable[int], claims: Sequence[LinkClaim], rates: list[int], *, equal: bool
) -> int:
    """Raise the rates of these senders. Return the remainder once all have their demands, else 0."""
    needs = [(claims[at].demand - rates[at], 1 if equal else claims[at].weight, at) for at in hungry]
    needs.sort(key=lambda entry: (entry[0] << _FINE) // entry[1])
    weights = sum(weight for _, weight, _ in needs)
    for place, (need, weight, at) in enumerate(needs):
        if need * weights > left * weight:
            for _, part, other in needs[place:]:
                rates[other] += left * part // weights
            return 0
        rates[at] += need
        left -= need
        weights -= weight
    return left
