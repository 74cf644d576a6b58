"""The usage profile of a task: its measured use in each second of one run (Packer paper, III-A, profiling).

The coordinator makes one for each task of an admitted job that ends. The knowledge base keeps and forwards
them, and ``dios.packer.job.learned`` makes jobs of them.

A profile has at most ``USAGE_PROFILE_INSTANTS_MAX`` instants of one second each. For a longer run the
instants have two seconds, or four, and so on. The value of an instant is the highest that was measured in any
part of it.
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
    """The values that a profile may hold. Numbers never change; a missing one was not measured."""

    CPU_MILLI = 1
    """Thousandths of a hardware thread in use or waited for: a task also needs the time that others had."""
    MEMORY = 2
    """Bytes of real memory."""
    DISK_WRITE = 3
    """Bytes per second: written by the task's processes, and stored durably for it by its node."""
    DISK_READ = 4
    """Bytes per second for which the task's processes waited for a disk."""
    SENT = 5
    """Bytes per second that the task moved from its node to others."""
    RECEIVED = 6
    """Bytes per second that the task moved from other nodes to its own."""


CHANNELS: Final = frozenset(int(channel) for channel in UsageChannel)
"""The numbers that this version knows. A newer coordinator may send others, which are forwarded."""


class UsageProfile(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The use of one task from its start to its end, instant by instant."""

    principal: str
    job: str
    """The job's name, the same in each of its runs."""
    member: str
    """The task's name in its job."""
    machine: str
    """The machine's name; its clock is ``began_ns``."""
    run: int
    """The number of the admitted job: equal for all tasks of one run."""
    task: int
    began_ns: int
    """Nanoseconds since 1970 by the machine's clock, which may be wrong."""
    length_ms: int
    instant_s: int
    """A power of two."""
    values: dict[int, tuple[int, ...]]
    """By ``UsageChannel``, of each instant."""
    completed: bool = True
    """False if the task failed or was stopped; the profile covers a part of its work then."""

    @property
    def channels(self) -> dict[UsageChannel, tuple[int, ...]]:
        """The values that this version knows."""
        return {UsageChannel(number): values for number, values in self.values.items() if number in CHANNELS}


def fault_of(profile: UsageProfile) -> str:
    """Return why a profile is invalid; empty if it is valid."""
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
    """Return the number of instants of a task of this length, at least one."""
    return max(1, -(-length_ms // (instant_s * _MS)))


def coarsened(values: Sequence[int], factor: int) -> list[int]:
    """Return the values for instants that are ``factor`` times as long: the highest of each."""
    return [max(values[at : at + factor]) for at in range(0, len(values), factor)]


@dataclass(frozen=True, slots=True)
class HighestUsage:
    """The highest use of several profiles at each instant since the start."""

    instant_s: int
    values: dict[UsageChannel, list[int]]
    """The channels that were measured in any of the profiles."""


def highest(profiles: Iterable[UsageProfile]) -> HighestUsage:
    """Return the highest value of each instant, in instants as long as the longest of any profile."""
    all_of = list(profiles)
    instant_s = max((profile.instant_s for profile in all_of), default=1)
    peaks: dict[UsageChannel, list[int]] = {}
    for profile in all_of:
        for channel, values in profile.channels.items():
            told = coarsened(values, instant_s // profile.instant_s)
            _raise_to(peaks.setdefault(channel, []), told)
    return HighestUsage(instant_s, peaks)


def _raise_to(kept: list[int], told: Sequence[int]) -> None:
    kept.extend([0] * (len(told) - len(kept)))
    for at, value in enumerate(told):
        kept[at] = max(kept[at], value)


class UsageRecording:
    """A usage profile that is being recorded: values of spans of time, added when each span is over."""

    def __init__(self) -> None:
        self._instant_s = 1
        self._values: dict[UsageChannel, list[int]] = {}

    def span(self, begin_ms: int, end_ms: int, values: Mapping[UsageChannel, int]) -> None:
        """Record the use from ``begin_ms`` to ``end_ms`` after the start; spans may overlap.

        Each instant that the span touches has at least these values afterwards. A channel that is never
        recorded is missing in the profile.
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
        """Return the seconds of an instant, and the values of each; later ones count at the end."""
        self.span(max(0, length_ms - 1), length_ms, {})
        instants = instants_of(length_ms, self._instant_s)
        by_channel: dict[int, tuple[int, ...]] = {}
        for channel, kept in self._values.items():
            within = [*kept[:instants], *[0] * (instants - len(kept))]
            within[-1] = max(within[-1], *kept[instants:], 0)
            by_channel[int(channel)] = tuple(min(value, VALUE_MAX) for value in within)
        return self._instant_s, by_channel
