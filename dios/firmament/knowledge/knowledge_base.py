"""The knowledge base: the measurements of classes of tasks on types of machines (§6.5.3).

Cost models ask how a class runs on a machine or next to other classes. Coordinators add measurements, forward
them to their parents in batches, and keep all of it in a durable object.

A knowledge base is plain data: no threads, no clock, no files. Everything is bounded, and the entries used
longest ago are dropped first. While nothing has been dropped, two knowledge bases that received the same
entries, in any order and any number of times, give exactly the same answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dios import limits
from dios.errors import InvalidError
from dios.firmament.cluster.block_locations import BlockLocations
from dios.firmament.knowledge.aggregates import Aggregate, Moments
from dios.firmament.knowledge.profiles import (
    Profile,
    Profiles,
    ReceivedNumbers,
    Recent,
    by_time,
)
from dios.firmament.knowledge.samples import (
    BATCH_HEAD_BYTES,
    METRICS,
    SCORES,
    BadKnowledgeError,
    BatchMark,
    KnowledgeBatch,
    KnowledgeEntry,
    Metric,
    Placing,
    Sample,
    check_entry,
    encoded_bytes,
)
from dios.firmament.knowledge.storage import (
    STORED_VERSION,
    EntryTable,
    StoredKnowledge,
    decode,
    encode,
    pack_profile,
)
from dios.firmament.knowledge.usage_profile import UsageProfile
from dios.firmament.knowledge.usage_profiles import UsageProfiles

ALONE: Final = ""
"""In place of a co-runner's class: no other task was on the machine."""

_BEST_SHARE: Final = 0.1
"""The best tenth of a class's scores on a type of machine counts as undisturbed. Profiling a class alone is
too expensive (§7.2.1), and the very best score may be a measuring error."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of merging a batch."""

    new: int
    known: int
    """The number of entries that had arrived before."""


class KnowledgeBase:
    """The measurements of a coordinator and those below it: profiles, co-runners, final reports and places.

    Args:
        node: the coordinator's name.
        incarnation: larger at every start of the coordinator than at any start before, such as the node's
            epoch. Otherwise entries that an earlier start forwarded after its last saving would be confused
            with new ones.
    """

    def __init__(self, node: str, incarnation: int) -> None:
        check_entry(KnowledgeEntry(node, incarnation, 0, Placing(b"-", node, 0)))
        self.node = node
        self.incarnation = incarnation
        self.sequence = 0
        self.profiles = Profiles()
        self.pairs: Recent[tuple[str, str, str], dict[Metric, Moments]] = Recent(limits.KNOWLEDGE_PAIRS_MAX)
        self.reports: Recent[int, KnowledgeEntry] = Recent(limits.KNOWLEDGE_REPORTS_MAX)
        self.places = BlockLocations()
        self.usage_profiles = UsageProfiles()
        self.heard: Recent[tuple[str, int], ReceivedNumbers] = Recent(limits.KNOWLEDGE_ORIGINS_MAX)
        self.journal: deque[KnowledgeEntry] = deque(maxlen=limits.KNOWLEDGE_JOURNAL_MAX)
        self.position = 0
        """The number of entries that the journal has ever had."""

    # Adding -------------------------------------------------------------------------------------------

    def add(self, sample: Sample) -> None:
        """Add a measurement of this coordinator.

        Raises:
            BadKnowledgeError: a field of the sample is invalid; nothing is changed.
        """
        self._own(sample)

    def add_usage_profile(self, profile: UsageProfile) -> None:
        """Add a usage profile that this coordinator measured.

        Raises:
            BadKnowledgeError: a field is invalid; nothing is changed.
        """
        self._own(profile)

    def place(self, block: bytes, machine: str, size: int) -> None:
        """Record that a machine has ``size`` bytes of a block; -1 for none any more.

        A block is named by the fingerprint of its object's name.

        Raises:
            BadKnowledgeError: a value is invalid; nothing is changed.
        """
        self._own(Placing(block, machine, size))

    def merge(self, data: bytes) -> Merged:
        """Add a batch of another coordinator; entries that were added before change nothing.

        Raises:
            BadKnowledgeError: the bytes are no valid batch; nothing is changed.
        """
        batch = KnowledgeBatch.from_bytes(data)
        new = sum(self.take(entry) for entry in batch.entries)
        return Merged(new, len(batch.entries) - new)

    def take(self, entry: KnowledgeEntry) -> bool:
        """Add one checked entry; return False if it was added before."""
        fresh = self.heard.touch((entry.node, entry.incarnation), ReceivedNumbers()).add(entry.sequence)
        if isinstance(entry.content, UsageProfile):
            # Usage profiles are sent repeatedly, with other numbers: they are recognised by themselves.
            fresh = self.usage_profiles.add(entry, entry.content)
        if not fresh:
            return False
        self.journal.append(entry)
        self.position += 1
        if isinstance(entry.content, Placing):
            self.places.take(entry, entry.content)
        elif isinstance(entry.content, Sample):
            self._take_sample(entry, entry.content)
        return True

    def _own(self, content: Sample | Placing | UsageProfile) -> None:
        entry = KnowledgeEntry(self.node, self.incarnation, self.sequence, content)
        check_entry(entry)
        self.sequence += 1
        self.take(entry)

    def _take_sample(self, entry: KnowledgeEntry, sample: Sample) -> None:
        self.profiles.at(sample.task_class, sample.machine_type).add(entry, sample)
        metrics = sample.metrics
        scores = {m: metrics[m] for m in SCORES if m in metrics and sample.completed}
        for beside in sorted(set(sample.beside)) or [ALONE]:
            moments = self.pairs.touch((sample.task_class, beside, sample.machine_type), {})
            for metric, value in scores.items():
                moments.setdefault(metric, Moments()).add(value)
        if sample.final:
            known = self.reports.get(sample.task)
            # Two coordinators may have made reports of one task; the later one stays.
            if known is None or by_time(known) < by_time(entry):
                self.reports[sample.task] = entry
            self.reports.touch(sample.task, entry)

    # Questions ------------------------------------------------------------------------------------------

    def classes(self) -> list[str]:
        """Return the classes that have a profile, sorted."""
        return sorted(self.profiles.by_class)

    def profile(self, task_class: str, machine_type: str | None = None) -> Profile | None:
        """Return a class's profile on a type of machine, or on all types; None without samples."""
        if machine_type is not None:
            return self.profiles.get((task_class, machine_type))
        every = Profile(task_class, "")
        for profile in self.profiles_of(task_class):
            every.merge(profile)
        return every if every.samples else None

    def profiles_of(self, task_class: str) -> Iterable[Profile]:
        """Return a class's profiles, one for each type of machine."""
        return self.profiles.by_class.get(task_class, {}).values()

    def report(self, task: int) -> Sample | None:
        """Return the final sample of a task (Table 6.4); None while it runs, or if it was dropped since."""
        entry = self.reports.get(task)
        return entry.content if entry is not None and isinstance(entry.content, Sample) else None

    def score_beside(self, task_class: str, beside: tuple[str, ...], machine_type: str) -> float | None:
        """Return Whare-MCs' Xi(c_t, L_m, c_m) (§7.2.2): the expected score next to co-runners.

        Sets of co-runners seldom recur, so the effects of the single classes are added. If a task takes s
        alone, s + x next to a and s + y next to b, then s + x + y is expected next to both. If the class
        never ran alone, the best known score on this type of machine stands for s. Without a score for any of
        the co-runners, the result is Psi, the mean of the profile.

        Returns:
            The expected mean in the metric of the profile's ``score``; None without a profile or a score.
        """
        profile = self.profiles.get((task_class, machine_type))
        scored = profile.score() if profile else None
        if profile is None or scored is None:
            return None
        metric, mean = scored
        known = [self._pair(task_class, neighbour, machine_type, metric) for neighbour in sorted(set(beside))]
        scores = [score for score in known if score is not None]
        alone = self._pair(task_class, ALONE, machine_type, metric)
        if beside and not scores:
            return mean
        if alone is None:
            alone = min(float(profile.aggregates[metric].quantile(_BEST_SHARE)), *scores, mean)
        return alone + sum(max(score - alone, 0.0) for score in scores)

    def slow_down(self, task_class: str, beside: str, machine_type: str) -> float | None:
        """Return the factor by which a class takes longer next to another; None without a profile."""
        together = self.score_beside(task_class, (beside,), machine_type)
        alone = self.score_beside(task_class, (), machine_type)
        return together / alone if together is not None and alone else None

    def _pair(self, task_class: str, beside: str, machine_type: str, metric: Metric) -> float | None:
        moments = self.pairs.get((task_class, beside, machine_type), {}).get(metric)
        return moments.mean if moments else None

    # Forwarding -----------------------------------------------------------------------------------------

    def batch(
        self, since: BatchMark | None = None, bytes_max: int = limits.KNOWLEDGE_BATCH_BYTES
    ) -> KnowledgeBatch:
        """Return the entries since a mark that the parent needs: the own ones and those from children.

        Args:
            since: the ``upto`` of the last batch that the parent has merged. With None, or with a mark of an
                earlier start, everything that is still there is returned.
            bytes_max: the largest encoded size. One entry is always included, which may have 32 KiB.

        Returns:
            At most ``KNOWLEDGE_BATCH_MAX`` entries; none if nothing is new.

        Raises:
            BadKnowledgeError: the mark is of this start, and beyond the end of the journal.
        """
        first = self.position - len(self.journal)
        begin = since.position if since is not None and since.incarnation == self.incarnation else 0
        if not 0 <= begin <= self.position:
            raise BadKnowledgeError(f"mark {begin} is beyond {self.position}, the last that was forwarded")
        start = max(begin, first)
        room = bytes_max - BATCH_HEAD_BYTES
        entries: list[KnowledgeEntry] = []
        for entry in islice(self.journal, start - first, start - first + limits.KNOWLEDGE_BATCH_MAX):
            room -= encoded_bytes(entry)
            if room < 0 and entries:
                break
            entries.append(entry)
        end = start + len(entries)
        return KnowledgeBatch(
            BatchMark(self.incarnation, end), start - begin, end < self.position, tuple(entries)
        )

    # Storing --------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the stored form of the whole knowledge base; docs/profiling.md describes the format."""
        table = EntryTable()
        stored = StoredKnowledge(
            version=STORED_VERSION,
            node=self.node,
            incarnation=self.incarnation,
            position=self.position,
            profiles=[pack_profile(profile, table) for profile in self.profiles.values()],
            pairs=[
                (*key, {int(metric): moments.pack() for metric, moments in by_metric.items()})
                for key, by_metric in self.pairs.items()
            ],
            unused=[],
            reports=[table.index(entry) for entry in self.reports.values()],
            places=[table.index(entry) for entry in self.places.entries()],
            heard=[(*key, heard.below, sorted(heard.above)) for key, heard in self.heard.items()],
            journal=[table.index(entry) for entry in self.journal],
            usage_profiles=[table.index(entry) for entry in self.usage_profiles.entries()],
            entries=table.entries,
        )
        return encode(stored)

    @classmethod
    def from_bytes(cls, data: bytes, node: str, incarnation: int) -> KnowledgeBase:
        """Return a stored knowledge base, with which a new start of the coordinator continues.

        Args:
            data: the result of ``to_bytes``.
            node: the coordinator's name.
            incarnation: larger than the one that stored it, if it is the same coordinator.

        Raises:
            BadKnowledgeError: the bytes are damaged or of another version, or the incarnation is too small.
        """
        stored = decode(data)
        if stored.node == node and incarnation <= stored.incarnation:
            raise BadKnowledgeError(
                f"incarnation {incarnation} must be over {stored.incarnation}, the one stored"
            )
        base = cls(node, incarnation)
        try:
            base._restore(stored)
        except (IndexError, InvalidError) as error:
            raise BadKnowledgeError(f"damaged knowledge: {error}; begin with an empty one") from None
        return base

    def _restore(self, stored: StoredKnowledge) -> None:
        table = EntryTable(stored.entries)
        for packed in stored.profiles:
            profile = self.profiles.at(packed.task_class, packed.machine_type)
            profile.samples, profile.finished = packed.samples, packed.finished
            profile.aggregates = {
                Metric(number): Aggregate.unpack(aggregate)
                for number, aggregate in packed.aggregates.items()
                if number in METRICS
            }
            profile.recent = table.at(packed.recent)[-limits.PROFILE_SAMPLES_MAX :]
        for task_class, beside, machine_type, packed_moments in stored.pairs:
            moments = self.pairs.touch((task_class, beside, machine_type), {})
            for number, summary in packed_moments.items():
                if number in METRICS:
                    moments[Metric(number)] = Moments.unpack(summary)
        for entry in table.at(stored.reports):
            if isinstance(entry.content, Sample):
                self.reports.touch(entry.content.task, entry)
        for entry in table.at(stored.places):
            if isinstance(entry.content, Placing):
                self.places.take(entry, entry.content)
        for entry in table.at(stored.usage_profiles):
            if isinstance(entry.content, UsageProfile):
                self.usage_profiles.add(entry, entry.content)
        for node, incarnation, below, above in stored.heard:
            self.heard.touch((node, incarnation), ReceivedNumbers(below, tuple(above)))
        self.journal.extend(table.at(stored.journal))
        self.position = max(stored.position, len(self.journal))
