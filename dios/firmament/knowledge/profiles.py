"""The profile of one class of tasks on one type of machine, and the bounded tables of the knowledge base."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from dios import limits
from dios.firmament.knowledge.aggregates import Aggregate
from dios.firmament.knowledge.samples import SCORES, KnowledgeEntry, Metric, Sample

Order = tuple[int, tuple[int, int, str]]
K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V], Generic[K, V]):
    """A table with a bounded number of keys, which drops the key that was used longest ago."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def touch(self, key: K, fresh: V) -> V:
        """Return the value of a key; ``fresh`` is stored if there was none."""
        kept = self.setdefault(key, fresh)
        self.move_to_end(key)
        if len(self) > self._most:
            self.forget(self.popitem(last=False)[0])
        return kept

    def forget(self, key: K) -> None:
        """React to a key that was dropped; does nothing here."""


class ReceivedNumbers:
    """The sequence numbers received from one origin: all below one number, and some above it."""

    __slots__ = ("above", "below")

    def __init__(self, below: int = 0, above: tuple[int, ...] = ()) -> None:
        self.below = below
        self.above = set(above)

    def add(self, number: int) -> bool:
        """Add a number; return True if it is new.

        A gap that stays open too long is closed, and numbers that arrive for it later count as known.
        """
        if number < self.below or number in self.above:
            return False
        self.above.add(number)
        if len(self.above) > limits.KNOWLEDGE_GAPS_MAX:
            self.below = min(self.above)
        while self.below in self.above:
            self.above.remove(self.below)
            self.below += 1
        return True


class Profile:
    """The measurements of one class on one type of machine, or on all types."""

    def __init__(self, task_class: str, machine_type: str) -> None:
        self.task_class = task_class
        self.machine_type = machine_type
        self.samples = 0
        """The number of samples."""
        self.finished = 0
        """The number of final samples of tasks that completed."""
        self.aggregates: dict[Metric, Aggregate] = {}
        self.recent: list[KnowledgeEntry] = []
        """The newest samples, oldest first."""

    def add(self, entry: KnowledgeEntry, sample: Sample) -> None:
        """Add a sample; the scores of a failed task do not count."""
        self.samples += 1
        self.finished += sample.final and sample.completed
        for metric, value in sample.metrics.items():
            if metric in SCORES and not sample.completed:
                continue
            aggregate = self.aggregates.get(metric)
            if aggregate is None:
                aggregate = self.aggregates[metric] = Aggregate()
            aggregate.add(value)
        keep_newest(self.recent, entry, limits.PROFILE_SAMPLES_MAX)

    def merge(self, other: Profile) -> None:
        """Add all that another profile of the class holds."""
        self.samples += other.samples
        self.finished += other.finished
        for metric, aggregate in other.aggregates.items():
            self.aggregates.setdefault(metric, Aggregate()).merge(aggregate)
        for entry in other.recent:
            keep_newest(self.recent, entry, limits.PROFILE_SAMPLES_MAX)

    def mean(self, metric: Metric) -> float | None:
        """Return the mean of a metric, in its unit; None if it was never measured."""
        aggregate = self.aggregates.get(metric)
        return aggregate.moments.mean if aggregate else None

    def quantile(self, metric: Metric, share: float) -> int | None:
        """Return the value that ``share`` (0 to 1) of all did not exceed, to 3 %; None if never measured."""
        aggregate = self.aggregates.get(metric)
        return aggregate.quantile(share) if aggregate else None

    def score(self) -> tuple[Metric, float] | None:
        """Return the first of ``SCORES`` with a measurement, and its mean; a smaller mean is better."""
        return next(((m, self.aggregates[m].moments.mean) for m in SCORES if m in self.aggregates), None)


class Profiles(Recent[tuple[str, str], Profile]):
    """Profiles by class and type of machine, and also by class alone."""

    def __init__(self) -> None:
        super().__init__(limits.KNOWLEDGE_PROFILES_MAX)
        self.by_class: dict[str, dict[str, Profile]] = {}

    def at(self, task_class: str, machine_type: str) -> Profile:
        """Return a profile, which is new if there was none."""
        profile = self.touch((task_class, machine_type), Profile(task_class, machine_type))
        self.by_class.setdefault(task_class, {})[machine_type] = profile
        return profile

    def forget(self, key: tuple[str, str]) -> None:
        """Remove a dropped profile from the table by class."""
        types = self.by_class[key[0]]
        del types[key[1]]
        if not types:
            del self.by_class[key[0]]


def keep_newest(entries: list[KnowledgeEntry], entry: KnowledgeEntry, most: int) -> None:
    """Insert an entry at its place in the order of time; drop the first if there are more than ``most``."""
    at = len(entries)
    while at and by_time(entries[at - 1]) > by_time(entry):
        at -= 1
    entries.insert(at, entry)
    if len(entries) > most:
        del entries[0]


def by_time(entry: KnowledgeEntry) -> Order:
    """Return a key that sorts by the machines' clocks, then by identity."""
    return (entry.content.at_ns if isinstance(entry.content, Sample) else 0), entry.identity
