"""Measurements of a job's tasks in earlier runs, on the instants of a job (Packer paper, section III-A).

The measurements come as plain numbers from a cluster's coordinator; ``learned`` makes a job from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from dios.limits import PACKER_INSTANTS_MAX
from dios.packer.job.ti_mra import Floats, JobError

_MOMENT: Final = 0.1
"""A start later than an instant's beginning by less than this fraction of it counts as its beginning."""


class Measured(msgspec.Struct, frozen=True):
    """The measured use of one task over its runs, as a cluster's coordinator reports it."""

    member: str
    runs: int
    completed: int
    start_s: float
    """Seconds after the job's first task; the latest of all runs."""
    length_s: float
    instant_s: int
    values: dict[str, list[tuple[int, int]]]
    """The changes of each channel, as (instant, value): ``cpu_milli``, ``memory``, ``disk_write``,
    ``disk_read`` (bytes per second, as the next two), ``sent``, ``received``. Channels without a measurement
    are missing."""


def measured_in(rows: object) -> list[Measured]:
    """Convert the rows that a coordinator reported about a job's members.

    Raises:
        JobError: the rows are invalid.
    """
    try:
        return msgspec.convert(rows, type=list[Measured])
    except msgspec.ValidationError as error:
        raise JobError("the measurements", f"are invalid: {error}") from None


class Timeline:
    """A job's instants, and the measurements of its tasks on them.

    Args:
        members: the tasks.
        instant_s: the length of an instant in seconds.
        spare_s: the seconds that each task may take longer than measured.

    Raises:
        JobError: the job would have too many instants; the message names a length that works.
    """

    def __init__(self, members: Iterable[Measured], instant_s: float, spare_s: float) -> None:
        if not (math.isfinite(instant_s) and instant_s > 0):
            raise JobError("instant_s", f"is {instant_s}; it must be finite and above 0")
        if not (math.isfinite(spare_s) and spare_s >= 0):
            raise JobError("spare_s", f"is {spare_s}; it must be finite and at least 0")
        self.members = {one.member: one for one in members}
        self.instant_s = instant_s
        self._spare_s = spare_s
        # Tasks start a moment after the job; that moment must not add an instant to each of their values.
        self._starts = {name: self._start(one.start_s) for name, one in self.members.items()}
        end_s = max((self._end(one) for one in self.members.values()), default=0.0)
        wanted = end_s / instant_s
        if wanted > PACKER_INSTANTS_MAX:
            least = math.ceil(end_s / PACKER_INSTANTS_MAX)
            raise JobError(
                "instant_s",
                f"is {instant_s:g}, but {end_s:.0f} s are more than the {PACKER_INSTANTS_MAX} instants "
                f"that are possible; use {least} or more",
            )
        self.instants = max(1, _up(wanted))

    def _start(self, start_s: float) -> float:
        whole = int(start_s / self.instant_s) * self.instant_s
        return whole if start_s - whole < _MOMENT * self.instant_s else start_s

    def _end(self, one: Measured) -> float:
        """Return the end in seconds, including the spare time."""
        return self._starts[one.member] + one.length_s + self._spare_s

    def life(self, names: Iterable[str]) -> tuple[int, int]:
        """Return the first instant of the members and the end of the last one; (0, instants) without any."""
        found = [self.members[name] for name in names if name in self.members]
        if not found:
            return 0, self.instants
        first = min(int(self._starts[one.member] / self.instant_s + 1e-9) for one in found)
        return first, max(first + 1, *(_up(self._end(one) / self.instant_s) for one in found))

    def taken(self, name: str, channel: str) -> Floats | None:
        """Return a member's use (instants,) in the channel's unit, or None if it was not measured."""
        one = self.members.get(name)
        if one is None or channel not in one.values:
            return None
        found = np.zeros(self.instants + 1)
        steps = one.values[channel]
        ends = [at for at, _ in steps[1:]] + [max(1, _up(one.length_s / one.instant_s))]
        for (at, value), after in zip(steps, ends, strict=True):
            begin_s = self._starts[name] + at * one.instant_s
            end_s = self._starts[name] + min(after * one.instant_s, one.length_s)
            first = int(begin_s / self.instant_s + 1e-9)
            span = slice(first, max(first + 1, _up(end_s / self.instant_s)))
            found[span] = np.maximum(found[span], value)
        last_s = self._starts[name] + one.length_s
        own = int(self._starts[name] / self.instant_s + 1e-9)
        end = max(own + 1, _up(last_s / self.instant_s))
        spare = _up(self._spare_s / self.instant_s)
        # A late task may be at any of these points of its usage.
        for at in range(end, min(self.instants, _up(self._end(one) / self.instant_s))):
            found[at] = found[max(own, min(at - spare, end - 1)) : end].max()
        return found[: self.instants]

    def most(self, names: Iterable[str], channel: str) -> Floats | None:
        """Return the largest use (instants,) of these members, or None if no member was measured."""
        found = [taken for name in names if (taken := self.taken(name, channel)) is not None]
        return np.max(found, axis=0) if found else None


def _up(value: float) -> int:
    """Round up, unless the value exceeds a whole number only by a rounding error."""
    return math.ceil(value - 1e-9)
