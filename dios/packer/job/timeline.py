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

_START_TOLERANCE: Final = 0.1
"""A start later than an instant's beginning by less than this fraction of it counts as its beginning."""


class TaskUsage(msgspec.Struct, frozen=True):
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


def convert_measurements(rows: object) -> list[TaskUsage]:
    """Convert the rows that a coordinator reported about a job's members.

    Raises:
        JobError: the rows are invalid.
    """
    try:
        return msgspec.convert(rows, type=list[TaskUsage])
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

    def __init__(self, members: Iterable[TaskUsage], instant_s: float, spare_s: float) -> None:
        if not (math.isfinite(instant_s) and instant_s > 0):
            raise JobError("instant_s", f"is {instant_s}; it must be finite and above 0")
        if not (math.isfinite(spare_s) and spare_s >= 0):
            raise JobError("spare_s", f"is {spare_s}; it must be finite and at least 0")
        self.members = {task.member: task for task in members}
        self.instant_s = instant_s
        self._spare_s = spare_s
        # Tasks start a moment after the job; that moment must not add an instant to each of their values.
        self._starts = {name: self._start(task.start_s) for name, task in self.members.items()}
        end_s = max((self._end(task) for task in self.members.values()), default=0.0)
        wanted = end_s / instant_s
        if wanted > PACKER_INSTANTS_MAX:
            least = math.ceil(end_s / PACKER_INSTANTS_MAX)
            raise JobError(
                "instant_s",
                f"is {instant_s:g}, but {end_s:.0f} s are more than the {PACKER_INSTANTS_MAX} instants "
                f"that are possible; use {least} or more",
            )
        self.instants = max(1, _round_up(wanted))

    def _start(self, start_s: float) -> float:
        whole = int(start_s / self.instant_s) * self.instant_s
        return whole if start_s - whole < _START_TOLERANCE * self.instant_s else start_s

    def _end(self, task: TaskUsage) -> float:
        """Return the end in seconds, including the spare time."""
        return self._starts[task.member] + task.length_s + self._spare_s

    def life(self, names: Iterable[str]) -> tuple[int, int]:
        """Return the first instant of the members and the end of the last one; (0, instants) without any."""
        tasks = [self.members[name] for name in names if name in self.members]
        if not tasks:
            return 0, self.instants
        first = min(int(self._starts[task.member] / self.instant_s + 1e-9) for task in tasks)
        return first, max(first + 1, *(_round_up(self._end(task) / self.instant_s) for task in tasks))

    def usage(self, name: str, channel: str) -> Floats | None:
        """Return a member's use (instants,) in the channel's unit, or None if it was not measured."""
        task = self.members.get(name)
        if task is None or channel not in task.values:
            return None
        usage = np.zeros(self.instants + 1)
        steps = task.values[channel]
        ends = [at for at, _ in steps[1:]] + [max(1, _round_up(task.length_s / task.instant_s))]
        for (at, value), after in zip(steps, ends, strict=True):
            begin_s = self._starts[name] + at * task.instant_s
            end_s = self._starts[name] + min(after * task.instant_s, task.length_s)
            first = int(begin_s / self.instant_s + 1e-9)
            span = slice(first, max(first + 1, _round_up(end_s / self.instant_s)))
            usage[span] = np.maximum(usage[span], value)
        last_s = self._starts[name] + task.length_s
        own = int(self._starts[name] / self.instant_s + 1e-9)
        end = max(own + 1, _round_up(last_s / self.instant_s))
        spare = _round_up(self._spare_s / self.instant_s)
        # A late task may be at any of these points of its usage.
        for at in range(end, min(self.instants, _round_up(self._end(task) / self.instant_s))):
            usage[at] = usage[max(own, min(at - spare, end - 1)) : end].max()
        return usage[: self.instants]

    def largest_usage(self, names: Iterable[str], channel: str) -> Floats | None:
        """Return the largest use (instants,) of these members, or None if no member was measured."""
        usages = [use for name in names if (use := self.usage(name, channel)) is not None]
        return np.max(usages, axis=0) if usages else None


def _round_up(value: float) -> int:
    """Round up, unless the value exceeds a whole number only by a rounding error."""
    return math.ceil(value - 1e-9)
