"""The profile of a task: what it took in each second of one run, measured (Packer paper, III-A, profiling).

For: the coordinator, which makes one of each task of an admitted job that ends, and the knowledge base,
which keeps and forwards them. Not for: looking at tasks (``coordinator.tracing``), or jobs made of profiles
(``dios.packer.job.learned``).

A profile has at most ``USAGE_PROFILE_INSTANTS_MAX`` instants. They are of one second each, of two where that is not
enough, of four, and so on; what stands in an instant is the highest of what was seen in any part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

from dios import limits
from dios.firmament.knowledge.aggregates import VALUE_MAX

_MS: Final = 1000


class UsageChannel(IntEnum):
    """What a profile may hold. Numbers never change; one that is not there was not measured."""

    CPU_MILLI = 1
    """Thousandths of a hardware thread in use, or waited for: what others had is no less needed."""
    MEMORY = 2
    """Bytes of real memory."""
    DISK_WRITE = 3
    """Bytes per second: written by the task's processes, and stored durably for it by its node."""
    DISK_READ = 4
    """Bytes per second that the task's processes had to wait for a disk for."""
    SENT = 5
    """Bytes per second that the task moved from its node to others."""
    RECEIVED = 6
    """Bytes per second that the task moved from other nodes to its own."""


CHANNELS: Final = frozenset(int(channel) for channel in UsageChannel)
"""The numbers that this version knows; a newer coordinator may send others, which are handed on."""


class UsageProfile(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What one task took from its start to its end, instant by instant."""

    principal: str
    job: str
    """The job's name, the same in each of its runs."""
    member: str
    """Which of the job's tasks it is, as the job calls it."""
    machine: str
    """The machine's name; its clock is ``began_ns``."""
    run: int
    """The number of the admitted job: equal for all tasks of one run."""
    task: int
    began_ns: int
    """Nanoseconds since 1970 by the machine's clock, however wrong that is."""
    length_ms: int
    instant_s: int
    """A power of two."""
    values: dict[int, tuple[int, ...]]
    """By ``UsageChannel``, of each instant."""
    completed: bool = True
    """False when it failed or was stopped: then it is the profile of a part."""

    @property
    def channels(self) -> dict[UsageChannel, tuple[int, ...]]:
        """The values that this version knows."""
        return {UsageChannel(number): values for number, values in self.values.items() if number in CHANNELS}


def fault_of(profile: UsageProfile) -> str:
    """Why a profile cannot be meant; empty where it can."""
    for name in ("principal", "job", "member", "machine"):
        text: str = getattr(profile, name)
        if not text or len(text.encode()) > limits.PROFILE_TEXT_BYTES_MAX:
            return f"{name} is {text[:40]!r}; it must have 1 to {limits.PROFILE_TEXT_BYTES_MAX} bytes"
    for name in ("run", "task", "began_ns", "length_ms"):
        number: int = getattr(profile, name)
        if not 0 <= number <= VALUE_MAX:
            return f"{name} is {number}; it must be 0 or more, and fit 63 bits"
    seconds = profile.instant_s
    if not 1 <= seconds <= limits.USAGE_PROFILE_INSTANT_S_MAX or seconds & (seconds - 1):
        return f"instant_s is {seconds}; it must be a power of two up to {limits.USAGE_PROFILE_INSTANT_S_MAX}"
    if len(profile.values) > limits.USAGE_PROFILE_CHANNELS_MAX:
        return f"a profile of {len(profile.values)} channels, over {limits.USAGE_PROFILE_CHANNELS_MAX}"
    instants = instants_of(profile.length_ms, seconds)
    if instants > limits.USAGE_PROFILE_INSTANTS_MAX:
        return f"a profile of {instants} instants, over {limits.USAGE_PROFILE_INSTANTS_MAX}"
    for channel, values in profile.values.items():
        name = UsageChannel(channel).name if channel in CHANNELS else str(channel)
        if len(values) != instants:
            return f"{name} has {len(values)} values; {instants} instants are needed"
        if not all(0 <= value <= VALUE_MAX for value in values):
            return f"{name} holds {min(values)} to {max(values)}; it must be 0 or more, and fit 63 bits"
    return ""


def instants_of(length_ms: int, instant_s: int) -> int:
    """How many instants a task of such a length has; one at least."""
    return max(1, -(-length_ms // (instant_s * _MS)))


def coarsened(values: Sequence[int], factor: int) -> list[int]:
    """The values in instants that are so many times as long: the highest of each."""
    return [max(values[at : at + factor]) for at in range(0, len(values), factor)]


@dataclass(frozen=True, slots=True)
class HighestUsage:
    """The most that any of some profiles took at each instant since its start."""

    instant_s: int
    values: dict[UsageChannel, list[int]]
    """What was measured in any of them."""


def highest(profiles: Iterable[UsageProfile]) -> HighestUsage:
    """The highest of each instant; in instants as long as the longest of any of the profiles."""
    all_of = list(profiles)
    instant_s = max((profile.instant_s for profile in all_of), default=1)
    found: dict[UsageChannel, list[int]] = {}
    for profile in all_of:
        for channel, values in profile.channels.items():
            told = coarsened(values, instant_s // profile.instant_s)
            _raise_to(found.setdefault(channel, []), told)
    return HighestUsage(instant_s, found)


def _raise_to(kept: list[int], told: Sequence[int]) -> None:
    kept.extend([0] * (len(told) - len(kept)))
    for at, value in enumerate(told):
        kept[at] = max(kept[at], value)


class UsageRecording:
    """A profile in the making: values of spans of time, each of them as soon as it is over."""

    def __init__(self) -> None:
        self._instant_s = 1
        self._values: dict[UsageChannel, list[int]] = {}

    def span(self, begin_ms: int, end_ms: int, values: Mapping[UsageChannel, int]) -> None:
        """From ``begin_ms`` to ``end_ms`` after its start the task took so much; spans may overlap.

        Each instant that the span touches has at least these values afterwards. What was never heard of is
        no part of the profile.
        """
        while end_ms > limits.USAGE_PROFILE_INSTANTS_MAX * self._instant_s * _MS:
            self._instant_s *= 2
            self._values = {channel: coarsened(kept, 2) for channel, kept in self._values.items()}
        length = self._instant_s * _MS
        first, after = begin_ms // length, max(-(-end_ms // length), begin_ms // length + 1)
        for channel, value in values.items():
            kept = self._values.setdefault(channel, [])
            kept.extend([0] * (after - len(kept)))
            for at in range(first, after):
                kept[at] = max(kept[at], value)

    def values(self, length_ms: int) -> tuple[int, dict[int, tuple[int, ...]]]:
        """The length of an instant, and what was taken in each until the end; what came after, at the end."""
        self.span(max(0, length_ms - 1), length_ms, {})
        instants = instants_of(length_ms, self._instant_s)
        found: dict[int, tuple[int, ...]] = {}
        for channel, kept in self._values.items():
            within = [*kept[:instants], *[0] * (instants - len(kept))]
            within[-1] = max(within[-1], *kept[instants:], 0)
            found[int(channel)] = tuple(min(value, VALUE_MAX) for value in within)
        return self._instant_s, found
