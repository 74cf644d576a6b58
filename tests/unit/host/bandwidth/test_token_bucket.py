"""Buckets against a model that counts: over the rate by a burst and a piece at most, and never under it."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from dios import limits
from dios.host.bandwidth.token_bucket import TokenBucket

S = 1_000_000_000
PIECE = limits.DATA_PIECE_BYTES
BURST_NS = limits.RATE_BURST_MS * 1_000_000

rates = st.integers(min_value=limits.RATE_BYTES_S_MIN, max_value=10**11)


@settings(deadline=None)
@given(
    rates, st.integers(0, 2**62), st.lists(st.tuples(st.integers(1, PIECE), st.integers(0, S)), max_size=60)
)
def test_what_goes_is_never_over_the_rate(bytes_s: int, began: int, wants: list[tuple[int, int]]) -> None:
    """Whatever is asked for when: over any stretch goes what the rate gives, a burst and one piece."""
    bucket = TokenBucket(bytes_s, began)
    now, went = began, [(began, 0)]
    for size, pause in wants:
        now += pause
        now += bucket.wait_ns(now)
        assert bucket.wait_ns(now) == 0, "what was waited for has come"
        bucket.take(size, now)
        went.append((now, size))
    for first in range(len(went)):
        for last in range(first, len(went)):
            given_ns = went[last][0] - went[first][0] + BURST_NS
            allowed = Fraction(bytes_s * given_ns, S) + PIECE
            assert sum(size for _, size in went[first + 1 : last + 1]) <= allowed


@settings(deadline=None)
@given(rates, st.integers(1, PIECE), st.integers(1, 300))
def test_who_always_wants_gets_the_whole_rate(bytes_s: int, size: int, times: int) -> None:
    """Pieces that are taken as soon as they may go take no longer than the rate asks for."""
    bucket, now = TokenBucket(bytes_s, 0), 0
    for _ in range(times):
        now += bucket.wait_ns(now)
        bucket.take(size, now)
    assert (
        Fraction((times - 1) * size * S, bytes_s) <= now <= Fraction((times - 1) * size * S, bytes_s) + times
    )


@given(rates, rates)
def test_a_debt_is_paid_at_the_rate_that_holds(first: int, second: int) -> None:
    """Who took a piece and is given another rate waits as that one says."""
    bucket = TokenBucket(first, 0)
    bucket.take(PIECE, 0)
    bucket.set_rate(second, 0)
    wait = bucket.wait_ns(0)
    assert Fraction(PIECE * S, second) <= wait < Fraction(PIECE * S, second) + 1


def test_time_that_runs_back_gives_nothing() -> None:
    """A thread that comes late with its time neither gives bytes twice nor takes them away."""
    bucket = TokenBucket(1_000_000, 0)
    bucket.take(500_000, 100)
    wait = bucket.wait_ns(1_000)
    assert bucket.wait_ns(0) == wait
    assert bucket.wait_ns(1_000) == wait
