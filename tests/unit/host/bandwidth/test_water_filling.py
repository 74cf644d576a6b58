"""A link divided among senders, beside an oracle that pours water drop by drop, in fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.host.bandwidth.water_filling import LinkClaim, divide_link

AMOUNTS = st.one_of(st.integers(0, 60), st.integers(0, 2**50))
CLAIMS = st.lists(
    st.builds(LinkClaim, AMOUNTS, AMOUNTS, st.one_of(st.just(0), st.integers(0, 1_000))), max_size=9
)


def oracle(capacity: int, claims: list[LinkClaim]) -> list[Fraction]:
    """The same by definition: the level rises until the next one has enough, and again."""
    rates = [Fraction(min(claim.guarantee, claim.demand)) for claim in claims]
    certain = sum(rates)
    if certain > capacity:
        return [rate * capacity / certain for rate in rates]
    left = Fraction(capacity) - certain
    for equal in (False, True):
        while left > 0:
            weight = {
                at: 1 if equal else claim.weight
                for at, claim in enumerate(claims)
                if claim.demand > rates[at] and (equal or claim.weight)
            }
            if not weight:
                break
            rise = min((claims[at].demand - rates[at]) / weight[at] for at in weight)
            rise = min(rise, left / sum(weight.values()))
            for at, share in weight.items():
                rates[at] += rise * share
            left -= rise * sum(weight.values())
    return rates


@given(AMOUNTS, CLAIMS)
def test_rates_are_those_of_water_that_rises(capacity: int, claims: list[LinkClaim]) -> None:
    """Each is the oracle's, but for the part of one unit that is cut off."""
    wanted = oracle(capacity, claims)
    for rate, exact in zip(divide_link(capacity, claims), wanted, strict=True):
        assert exact - 1 < rate <= exact, (capacity, claims)


@given(AMOUNTS, CLAIMS)
def test_nobody_gets_too_little_and_all_together_not_too_much(capacity: int, claims: list[LinkClaim]) -> None:
    """Guarantees in use are kept if the link has them, it is never exceeded, and idle only without hunger."""
    rates = divide_link(capacity, claims)
    certain = [min(claim.guarantee, claim.demand) for claim in claims]
    assert sum(rates) <= max(capacity, 0)
    assert all(rate <= claim.demand for rate, claim in zip(rates, claims, strict=True))
    if sum(certain) <= capacity:
        assert all(rate >= least for rate, least in zip(rates, certain, strict=True))
    hungry = sum(rate < claim.demand for rate, claim in zip(rates, claims, strict=True))
    if hungry:
        assert capacity - sum(rates) < len(claims), "but for what is cut off"


@pytest.mark.parametrize(
    ("capacity", "claims", "rates"),
    [
        (100, [LinkClaim(50, 10, 0), LinkClaim(0, 500, 500)], [10, 90]),
        (100, [LinkClaim(50, 500, 0), LinkClaim(0, 500, 500)], [50, 50]),
        (90, [LinkClaim(30, 500, 1_000), LinkClaim(0, 500, 500)], [70, 20]),
        (100, [LinkClaim(80, 500, 1), LinkClaim(120, 500, 1)], [40, 60]),
        (100, [LinkClaim(0, 30, 0), LinkClaim(0, 90, 0), LinkClaim(0, 20, 7)], [30, 50, 20]),
        (100, [], []),
    ],
)
def test_small_cases(capacity: int, claims: list[LinkClaim], rates: list[int]) -> None:
    """Lent out; taken back; by weight; too much promised; without weights; nobody."""
    assert divide_link(capacity, claims) == rates
