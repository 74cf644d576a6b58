"""Copies the measured profiles into another process: the differences are sent, with bounds.

The copy is a ``KnowledgeBase`` with profiles and co-runners. It has no single samples, final reports, places
of blocks and usage profiles.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from dios.firmament.knowledge.aggregates import Aggregate, Moments, PackedAggregate, PackedMoments
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.profiles import Profile
from dios.firmament.knowledge.samples import METRICS, Metric
from dios.limits import PROFILE_TEXT_BYTES_MAX, SCHED_MODEL_PAIRS_MAX, SCHED_MODEL_PROFILES_MAX

COPY_NAME: Final = "copy"
_METRICS_MAX: Final = 64

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=PROFILE_TEXT_BYTES_MAX)]
_ProfileKey: TypeAlias = tuple[_Text, _Text]
_PairKey: TypeAlias = tuple[_Text, _Text, _Text]
_Sums: TypeAlias = tuple[int, int]


class ProfileChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The present numbers of one profile."""

    key: _ProfileKey
    """The class, and the type of machine."""
    samples: int
    finished: int
    aggregates: Annotated[dict[int, PackedAggregate], msgspec.Meta(max_length=_METRICS_MAX)]


class PairChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The present scores of a class next to another one."""

    key: _PairKey
    """The class, its neighbour, and the type of machine."""
    moments: Annotated[dict[int, PackedMoments], msgspec.Meta(max_length=_METRICS_MAX)]


class KnowledgeChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The difference between a knowledge base and what was sent of it before."""

    afresh: bool
    """True if another knowledge base begins; the copy of the last one is dropped."""
    position: int
    profiles: Annotated[list[ProfileChange], msgspec.Meta(max_length=SCHED_MODEL_PROFILES_MAX)]
    pairs: Annotated[list[PairChange], msgspec.Meta(max_length=SCHED_MODEL_PAIRS_MAX)]
    profiles_gone: list[_ProfileKey]
    pairs_gone: list[_PairKey]


class KnowledgeSender:
    """Finds the differences between a knowledge base and what was sent of it.

    At most ``SCHED_MODEL_PROFILES_MAX`` profiles and ``SCHED_MODEL_PAIRS_MAX`` pairs are sent at a time; the
    others follow with the next changes.
    """

    def __init__(self) -> None:
        self._base: KnowledgeBase | None = None
        self._position = -1
        self._profiles: dict[tuple[str, str], _Sums] = {}
        self._pairs: dict[tuple[str, str, str], _Sums] = {}

    def change(self, base: KnowledgeBase | None) -> KnowledgeChange | None:
        """Return the differences, and count them as sent; None if there are none."""
        if base is None:
            return None
        afresh = base is not self._base
        if afresh:
            self._base, self._position, self._profiles, self._pairs = base, -1, {}, {}
        if base.position == self._position:
            return None
        profiles = [
            (key, _sums(*(aggregate.moments for aggregate in profile.aggregates.values())), profile)
            for key, profile in base.profiles.items()
        ]
        pairs = [(key, _sums(*by_metric.values()), by_metric) for key, by_metric in base.pairs.items()]
        fresh = [entry for entry in profiles if self._profiles.get(entry[0]) != entry[1]]
        new = [entry for entry in pairs if self._pairs.get(entry[0]) != entry[1]]
        gone = [key for key in self._profiles if key not in base.profiles]
        pairs_gone = [key for key in self._pairs if key not in base.pairs]
        for key in gone:
            del self._profiles[key]
        for pair in pairs_gone:
            del self._pairs[pair]
        complete = len(fresh) <= SCHED_MODEL_PROFILES_MAX and len(new) <= SCHED_MODEL_PAIRS_MAX
        self._position = base.position if complete else -1
        del fresh[SCHED_MODEL_PROFILES_MAX:], new[SCHED_MODEL_PAIRS_MAX:]
        self._profiles.update((key, sums) for key, sums, _ in fresh)
        self._pairs.update((key, sums) for key, sums, _ in new)
        return KnowledgeChange(
            afresh,
            base.position,
            [_profile_change(key, profile) for key, _, profile in fresh],
            [
                PairChange(key, {int(metric): moments.pack() for metric, moments in by_metric.items()})
                for key, _, by_metric in new
            ],
            gone,
            pairs_gone,
        )


def apply_knowledge(base: KnowledgeBase | None, change: KnowledgeChange) -> KnowledgeBase:
    """Apply differences to a copy, and return it.

    Raises:
        InvalidError: the numbers of a profile contradict each other.
    """
    if base is None or change.afresh:
        base = KnowledgeBase(COPY_NAME, 1)
    for key in change.profiles_gone:
        del base.profiles[key]
        base.profiles.forget(key)
    for pair in change.pairs_gone:
        del base.pairs[pair]
    for profile_change in change.profiles:
        profile = base.profiles.at(*profile_change.key)
        profile.samples, profile.finished = profile_change.samples, profile_change.finished
        profile.aggregates = {
            Metric(number): Aggregate.unpack(packed)
            for number, packed in profile_change.aggregates.items()
            if number in METRICS
        }
    for pair_change in change.pairs:
        base.pairs.touch(pair_change.key, {}).update(
            {
                Metric(number): Moments.unpack(packed)
                for number, packed in pair_change.moments.items()
                if number in METRICS
            }
        )
    base.position = change.position
    return base


def _sums(*several: Moments) -> _Sums:
    """Return numbers that differ if the values differ: an entry may have been dropped and begun again."""
    return sum(moments.count for moments in several), sum(
        moments.total + moments.squares for moments in several
    )


def _profile_change(key: tuple[str, str], profile: Profile) -> ProfileChange:
    packed = {int(metric): aggregate.pack() for metric, aggregate in profile.aggregates.items()}
    return ProfileChange(key, profile.samples, profile.finished, packed)
