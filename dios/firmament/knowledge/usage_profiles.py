"""The usage profiles that a knowledge base keeps, and its answers about earlier runs of a job.

`dios pack learn` reads them. ``dios.packer.job.learned`` makes a job of the answers.

The last ``USAGE_PROFILE_RUNS_MAX`` profiles of each task of a job are kept. All profiles are bounded in
number and in bytes. The profiles of the task that was used longest ago are dropped first, all of them at
once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from dios import limits
from dios.firmament.knowledge.samples import KnowledgeEntry, encoded_bytes
from dios.firmament.knowledge.usage_profile import HighestUsage, UsageChannel, UsageProfile, highest

_NS: Final = 1_000_000_000
_BETWEEN_NODES: Final = frozenset({int(UsageChannel.SENT), int(UsageChannel.RECEIVED)})


class ProfileKey(NamedTuple):
    """The key of the profiles of one task of a job, over all runs."""

    principal: str
    job: str
    member: str
    whole: bool = True
    """False for traffic between nodes alone, as the coordinator that governs measured it."""


@dataclass(frozen=True, slots=True)
class ProfiledTask:
    """A summary of all profiles of one task of a job."""

    name: str
    runs: int
    """The number of runs in which it was measured."""
    completed: int
    """The number of profiles of tasks that did not fail."""
    start_s: float
    """Seconds after the start of the job's first task, the largest of all runs."""
    length_s: float
    """The longest."""
    machines: tuple[str, ...]
    highest: HighestUsage


class UsageProfiles:
    """Usage profiles by principal, job and member."""

    def __init__(self) -> None:
        self.kept: OrderedDict[ProfileKey, list[KnowledgeEntry]] = OrderedDict()
        self.bytes = 0
        """The stored size of all profiles together."""

    def add(self, entry: KnowledgeEntry, profile: UsageProfile) -> bool:
        """Add one profile; if its task has too many then, the one that began first is dropped.

        Returns:
            False if the profile was added before, or would be the one to be dropped.
        """
        key = ProfileKey(profile.principal, profile.job, profile.member, _is_whole(profile))
        entries = self.kept.get(key, [])
        at = len(entries)
        while at and _order(entries[at - 1]) > _order(entry):
            at -= 1
        if (at and entries[at - 1].identity == entry.identity) or (
            not at and len(entries) >= limits.USAGE_PROFILE_RUNS_MAX
        ):
            return False
        entries.insert(at, entry)
        self.kept[key] = entries
        self.kept.move_to_end(key)
        self.bytes += encoded_bytes(entry)
        if len(entries) > limits.USAGE_PROFILE_RUNS_MAX:
            self.bytes -= encoded_bytes(entries.pop(0))
        while (
            len(self.kept) > limits.USAGE_PROFILE_MEMBERS_MAX or self.bytes > limits.USAGE_PROFILES_BYTES_MAX
        ):
            _, gone = self.kept.popitem(last=False)
            self.bytes -= sum(map(encoded_bytes, gone))
        return True

    def entries(self) -> list[KnowledgeEntry]:
        """Return all profiles, those used last at the end."""
        return [entry for entries in self.kept.values() for entry in entries]

    def knows(self, principal: str, job: str, member: str, task: int) -> bool:
        """Return True if this task has a profile."""
        return any(profile.task == task for profile in self._of(ProfileKey(principal, job, member)))

    def jobs(self, principal: str) -> list[str]:
        """Return the jobs of a principal with any profile, the one used last first."""
        names = (key.job for key in reversed(self.kept) if key.whole and key.principal == principal)
        return list(dict.fromkeys(names))

    def runs(self, principal: str, job: str) -> int:
        """Return the number of runs in which any task of a job was measured."""
        return len({profile.run for profile in self._of_job(principal, job)})

    def names(self, principal: str, job: str) -> list[str]:
        """Return the tasks of a job with any profile, sorted."""
        return sorted(
            key.member for key in self.kept if key.whole and (key.principal, key.job) == (principal, job)
        )

    def members(self, principal: str, job: str) -> list[ProfiledTask]:
        """Return summaries of a job's tasks, by name."""
        return list(self.summaries(principal, job, self.names(principal, job)))

    def summaries(self, principal: str, job: str, names: Iterable[str]) -> Iterator[ProfiledTask]:
        """Yield the summary of each of these tasks; each takes milliseconds."""
        began: dict[int, int] = {}
        for profile in self._of_job(principal, job):
            began[profile.run] = min(began.get(profile.run, profile.began_ns), profile.began_ns)
        for name in names:
            whole, part = (self._of(ProfileKey(principal, job, name, whole)) for whole in (True, False))
            yield _member(name, whole, part, began)

    def _of(self, key: ProfileKey) -> list[UsageProfile]:
        return [entry.content for entry in self.kept.get(key, ()) if isinstance(entry.content, UsageProfile)]

    def _of_job(self, principal: str, job: str) -> Iterable[UsageProfile]:
        for key in self.kept:
            if key.whole and (key.principal, key.job) == (principal, job):
                yield from self._of(key)


def _is_whole(profile: UsageProfile) -> bool:
    return not profile.values or not profile.values.keys() <= _BETWEEN_NODES


def _member(
    name: str, profiles: list[UsageProfile], moved: list[UsageProfile], began: dict[int, int]
) -> ProfiledTask:
    first: dict[int, int] = {}
    for profile in profiles:
        # A task that was started again in the same run counts from its first start.
        first[profile.run] = min(first.get(profile.run, profile.began_ns), profile.began_ns)
    return ProfiledTask(
        name,
        runs=len(first),
        completed=sum(profile.completed for profile in profiles),
        start_s=max(at - began[run] for run, at in first.items()) / _NS,
        length_s=max(profile.length_ms for profile in profiles) / 1000,
        machines=tuple(sorted({profile.machine for profile in profiles})),
        highest=highest([*profiles, *moved]),
    )


def _order(entry: KnowledgeEntry) -> tuple[int, tuple[int, int, str]]:
    """Return a key that sorts by start, according to the machines' clocks."""
    return (entry.content.began_ns if isinstance(entry.content, UsageProfile) else 0), entry.identity
