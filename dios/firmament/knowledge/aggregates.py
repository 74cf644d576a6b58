"""Sums over measured values: moments, and a sketch of the distribution.

All values are integers and all sums are exact, so the order in which values are added or partial sums are
merged makes no difference. Two coordinators that received the same values give the same answers. Running
means in floating point would be smaller, but would depend on the order.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dios import limits
from dios.errors import InvalidError

VALUE_MAX: Final = 2**63 - 1
_SUB_BITS: Final = 4
_SUBS: Final = 1 << _SUB_BITS
_SUMS_BYTES_MAX: Final = 32
_BUCKET_MAX: Final = 61 * _SUBS


class PackedMoments(msgspec.Struct, array_like=True, frozen=True):
    """The stored form of moments. Sums may be longer than 64 bits."""

    count: int
    total: bytes
    squares: bytes
    least: int
    most: int


class PackedAggregate(msgspec.Struct, array_like=True, frozen=True):
    """The stored form of an aggregate."""

    moments: PackedMoments
    level: int
    buckets: dict[int, int]


class Moments:
    """Count, mean, variance, smallest and largest of values from 0 to 2^63 - 1."""

    __slots__ = ("count", "least", "most", "squares", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.squares = 0
        self.least = VALUE_MAX
        self.most = 0

    def add(self, value: int) -> None:
        """Add one value."""
        self.count += 1
        self.total += value
        self.squares += value * value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def merge(self, other: Moments) -> None:
        """Add all values of another."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    @property
    def mean(self) -> float:
        """The mean; 0 without values."""
        return self.total / self.count if self.count else 0.0

    @property
    def variance(self) -> float:
        """The unbiased estimate of the variance; 0 with fewer than two values."""
        if self.count < 2:
            return 0.0
        return (self.count * self.squares - self.total**2) / (self.count * (self.count - 1))

    def pack(self) -> PackedMoments:
        """Return the stored form."""
        return PackedMoments(self.count, _bytes(self.total), _bytes(self.squares), self.least, self.most)

    @classmethod
    def unpack(cls, packed: PackedMoments) -> Moments:
        """Return moments from their stored form.

        Raises:
            InvalidError: the numbers contradict each other.
        """
        moments = cls()
        if max(len(packed.total), len(packed.squares)) > _SUMS_BYTES_MAX:
            raise InvalidError("the sums of a profile are too large")
        moments.count, moments.least, moments.most = packed.count, packed.least, packed.most
        moments.total = int.from_bytes(packed.total, "little")
        moments.squares = int.from_bytes(packed.squares, "little")
        # In integers: a mean in floating point may be rounded to more than the largest value.
        bounded = 0 <= moments.least * moments.count <= moments.total <= moments.most * moments.count
        if moments.count < 1 or not bounded or moments.total**2 > moments.count * moments.squares:
            raise InvalidError("count, sums and bounds of a profile contradict each other")
        return moments


class Aggregate:
    """Moments, and a histogram whose buckets widen with the value and are bounded in number.

    An octave has sixteen buckets, so a quantile is within 3 % of a measured value. If there are more than
    ``PROFILE_BUCKETS_MAX`` buckets, pairs of neighbours are merged everywhere and the error doubles. This
    depends only on the values, not on their order.
    """

    __slots__ = ("buckets", "level", "moments")

    def __init__(self) -> None:
        self.moments = Moments()
        self.level = 0
        self.buckets: dict[int, int] = {}

    def add(self, value: int) -> None:
        """Add one value from 0 to 2^63 - 1."""
        self.moments.add(value)
        bucket = _bucket(value) >> self.level
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self._coarsen()

    def merge(self, other: Aggregate) -> None:
        """Add all values of another."""
        self.moments.merge(other.moments)
        while self.level < other.level:
            self._halve()
        for bucket, count in other.buckets.items():
            wide = bucket >> (self.level - other.level)
            self.buckets[wide] = self.buckets.get(wide, 0) + count
        self._coarsen()

    def quantile(self, share: float) -> int:
        """Return a value that about ``share`` (0 to 1) of all values do not exceed; 0 without values."""
        wanted = min(max(share, 0.0), 1.0) * self.moments.count
        if wanted <= 1:
            return self.moments.least if self.moments.count else 0
        if wanted >= self.moments.count:
            return self.moments.most
        passed = 0
        for bucket in sorted(self.buckets):
            passed += self.buckets[bucket]
            if passed >= wanted:
                low, high = _lowest(bucket << self.level), _lowest((bucket + 1) << self.level) - 1
                return min(max((low + high) // 2, self.moments.least), self.moments.most)
        return self.moments.most

    def pack(self) -> PackedAggregate:
        """Return the stored form."""
        return PackedAggregate(self.moments.pack(), self.level, dict(sorted(self.buckets.items())))

    @classmethod
    def unpack(cls, packed: PackedAggregate) -> Aggregate:
        """Return an aggregate from its stored form.

        Raises:
            InvalidError: the numbers contradict each other.
        """
        aggregate = cls()
        aggregate.moments = Moments.unpack(packed.moments)
        aggregate.level, aggregate.buckets = packed.level, packed.buckets
        fit = 0 <= packed.level <= 10 and len(packed.buckets) <= limits.PROFILE_BUCKETS_MAX
        if not fit or any(not 0 <= bucket < _BUCKET_MAX for bucket in packed.buckets):
            raise InvalidError("the buckets of a profile are out of range")
        if (
            min(packed.buckets.values(), default=0) < 1
            or sum(packed.buckets.values()) != aggregate.moments.count
        ):
            raise InvalidError("the buckets of a profile do not add up to its count")
        return aggregate

    def _coarsen(self) -> None:
        while len(self.buckets) > limits.PROFILE_BUCKETS_MAX:
            self._halve()

    def _halve(self) -> None:
        self.level += 1
        halved: dict[int, int] = {}
        for bucket, count in self.buckets.items():
            halved[bucket >> 1] = halved.get(bucket >> 1, 0) + count
        self.buckets = halved


def _bucket(value: int) -> int:
    """Return a value's bucket: the value itself if it is small, else its leading bits and their shift."""
    shift = max(value.bit_length() - 1 - _SUB_BITS, 0)
    return shift * _SUBS + (value >> shift)


def _lowest(bucket: int) -> int:
    """Return the smallest value of a bucket."""
    shift = max(bucket // _SUBS - 1, 0)
    return (bucket - shift * _SUBS) << shift


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "little")
