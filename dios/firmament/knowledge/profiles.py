"""One class's profile on one type of machine, and the bounded tables in which knowledge is kept.

For: the knowledge base (``knowledge``). Not for: what it answers, or what a sample means (``samples``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from dios import limits
from dios.firmament.knowledge.aggregates import Aggregate
from dios.firmament.knowledge.samples import SCORES, KnowledgeEntry, Metric, Sample

Order = tuple[int, tuple[int, int, str]]
K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V], Generic[K, V]):
    """A table that forgets what was touched longest ago."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def touch(self, key: K, fresh: V) -> V:
        """The value at a key, which is ``fresh`` when there was none."""
        found = self.setdefault(key, fresh)
        self.move_to_end(key)
        if len(self) > self._most:
            self.forget(self.popitem(last=False)[0])
        return found

    def forget(self, key: K) -> None:
        """Something fell out."""


class ReceivedNumbers:
    """Which numbers of one origin have come: all below one, and some above."""

    __slots__ = ("above", "below")

    def __init__(self, below: int = 0, above: tuple[int, ...] = ()) -> None:
        self.below = below
        self.above = set(above)

    def add(self, number: int) -> bool:
        """Whether it is new. A gap that stays open too long is closed, and what would fill it is lost."""
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
    """What is known of one class on one type of machine, or on all of them."""

    def __init__(self, task_class: str, machine_type: str) -> None:
        self.task_class = task_class
        self.machine_type = machine_type
        self.samples = 0
        """How many were taken in."""
        self.finished = 0
        """How many of them were final and of tasks that completed."""
        self.aggregates: dict[Metric, Aggregate] = {}
        self.recent: list[KnowledgeEntry] = []
        """The newest samples, oldest first."""

    def add(self, entry: KnowledgeEntry, sample: Sample) -> None:
        """Take in a sample; a task that failed says nothing about how well its like run."""
        self.samples += 1
        self.finished += sample.final and sample.completed
        for metric, value in sample.metrics.items():
            if metric in SCORES and not sample.completed:
                continue
            aggregate = self.aggregates.get(metric)
            if aggregate is None:
                aggregate = self.aggregates[metric] = Aggregate()
            aggregate.add(value)
        keep_newest(self.recent, entry, limits.PROFILE_SAMPLES_MAX, by_time)

    def merge(self, other: Profile) -> None:
        """Take in all that another profile of the class has seen."""
        self.samples += other.samples
        self.finished += other.finished
        for metric, aggregate in other.aggregates.items():
            self.aggregates.setdefault(metric, Aggregate()).merge(aggregate)
        for entry in other.recent:
            keep_newest(self.recent, entry, limits.PROFILE_SAMPLES_MAX, by_time)

    def mean(self, metric: Metric) -> float | None:
        """The mean of a metric, in its unit; None when it was never measured."""
        found = self.aggregates.get(metric)
        return found.moments.mean if found else None

    def quantile(self, metric: Metric, share: float) -> int | None:
        """The value that ``share`` (0 to 1) of all did not exceed, to 3 %; None when never measured."""
        found = self.aggregates.get(metric)
        return found.quantile(share) if found else None

    def score(self) -> tuple[Metric, float] | None:
        """How well it runs: the first of ``SCORES`` that is known, and its mean; less is better."""
        return next(((m, self.aggregates[m].moments.mean) for m in SCORES if m in self.aggregates), None)


class Profiles(Recent[tuple[str, str], Profile]):
    """Profiles by class and type of machine, and also by class alone."""

    def __init__(self) -> None:
        super().__init__(limits.KNOWLEDGE_PROFILES_MAX)
        self.by_class: dict[str, dict[str, Profile]] = {}

    def at(self, task_class: str, machine_type: str) -> Profile:
        """The profile there, which is a new one when there was none."""
        found = self.touch((task_class, machine_type), Profile(task_class, machine_type))
        self.by_class.setdefault(task_class, {})[machine_type] = found
        return found

    def forget(self, key: tuple[str, str]) -> None:
        """Out of both tables."""
        types = self.by_class[key[0]]
        del types[key[1]]
        if not types:
            del self.by_class[key[0]]


def keep_newest(
    entries: list[KnowledgeEntry], entry: KnowledgeEntry, most: int, order: Callable[[KnowledgeEntry], Order]
) -> None:
    """Put an entry into its place in the order, and drop the first over ``most``."""
    at = len(entries)
    while at and order(entries[at - 1]) > order(entry):
        at -= 1
    entries.insert(at, entry)
    if len(entries) > most:
        del entries[0]


def by_time(entry: KnowledgeEntry) -> Order:
    """As the clocks of the machines say, and where they say the same, by identity."""
    return (entry.what.at_ns if isinstance(entry.what, Sample) else 0), entry.identity


def by_identity(entry: KnowledgeEntry) -> Order:
    """As one coordinator measured, whatever its clock did meanwhile."""
    return 0, entry.identity
