"""Sums and sketches that do not know the order in which values came (§6.5.3)."""

from __future__ import annotations

import statistics

import pytest

from dios import limits
from dios.errors import InvalidError
from dios.firmament.knowledge.aggregates import Aggregate, Moments
from tests.support.firmament.samples import chances


@pytest.mark.parametrize("seed", range(4))
def test_moments_and_quantiles_are_those_of_the_values(seed: int) -> None:
    """Count, mean, variance, least and most are exact; quantiles are within a bucket's width."""
    rng = chances(seed)
    values = [int(rng.lognormvariate(12, 0.5 + seed / 3)) for _ in range(2_000)]
    aggregate = Aggregate()
    for value in values:
        aggregate.add(value)
    assert aggregate.moments.count == 2_000, seed
    assert aggregate.moments.mean == pytest.approx(statistics.fmean(values)), seed
    assert aggregate.moments.variance == pytest.approx(statistics.variance(values)), seed
    assert (aggregate.moments.least, aggregate.moments.most) == (min(values), max(values)), seed
    ordered = sorted(values)
    for share in (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0):
        true = ordered[max(round(share * 2_000) - 1, 0)]
        assert aggregate.quantile(share) == pytest.approx(true, rel=0.0625 * 2**aggregate.level), (
            seed,
            share,
        )


def test_huge_values_do_not_lose_a_bit() -> None:
    """Where floating point would see no variance, the exact sums do."""
    moments = Moments()
    for value in (2**62, 2**62 + 2):
        moments.add(value)
    assert moments.variance == 2.0


@pytest.mark.parametrize("seed", range(6))
def test_aggregates_do_not_know_the_order(seed: int) -> None:
    """Split, shuffled and merged in any way, the packed aggregate is the same, buckets and level included."""
    rng = chances(seed)
    values = [rng.randrange(1 << rng.randrange(1, 63)) for _ in range(1_500)]
    whole = Aggregate()
    for value in values:
        whole.add(value)
    parts = [Aggregate() for _ in range(5)]
    rng.shuffle(values)
    for value in values:
        rng.choice(parts).add(value)
    merged = Aggregate()
    for part in parts:
        assert part.level > 0, seed
        merged.merge(Aggregate.unpack(part.pack()))
    assert merged.pack() == whole.pack(), seed
    assert 1 < len(merged.buckets) <= limits.PROFILE_BUCKETS_MAX, seed
    assert merged.level > 0, seed


def test_small_values_are_exact() -> None:
    """Counts below 32 have a bucket each: their quantiles are themselves."""
    aggregate = Aggregate()
    for value in range(32):
        aggregate.add(value)
    assert [aggregate.quantile((value + 1) / 32) for value in range(32)] == list(range(32))


@pytest.mark.parametrize("values", [(0,), (7, 7, 7), (2**63 - 1,) * 2, (0, 2**63 - 1)])
def test_what_is_packed_comes_back(values: tuple[int, ...]) -> None:
    """Also values without variance, and the least and greatest that there may be."""
    aggregate = Aggregate()
    for value in values:
        aggregate.add(value)
    again = Aggregate.unpack(aggregate.pack())
    assert again.pack() == aggregate.pack()
    assert (again.quantile(0), again.quantile(1)) == (min(values), max(values))
    assert again.moments.variance == pytest.approx(statistics.variance(values) if len(values) > 1 else 0)


def test_nothing_has_no_mean() -> None:
    """An empty aggregate answers zero, and does not divide by it."""
    assert (Moments().mean, Moments().variance, Aggregate().quantile(0.5)) == (0.0, 0.0, 0)


def test_sums_that_contradict_themselves_are_refused() -> None:
    """A stored aggregate whose buckets, bounds or sums do not fit its count is damage."""
    whole = Aggregate()
    for value in (3, 5):
        whole.add(value)
    packed = whole.pack()
    with pytest.raises(InvalidError, match="buckets"):
        Aggregate.unpack(type(packed)(packed.moments, 0, {3: 1}))
    with pytest.raises(InvalidError, match="out of range"):
        Aggregate.unpack(type(packed)(packed.moments, 0, {10**6: 2}))
    for wrong in ((0, b"\x08", b"\x22", 3, 5), (2, b"\x08", b"\x08", 3, 5), (2, b"\x08", b"\x22", 5, 5)):
        with pytest.raises(InvalidError, match="contradict each other"):
            Moments.unpack(type(packed.moments)(*wrong))
