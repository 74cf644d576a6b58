"""What a job's tasks took in earlier runs, on the instants of a job (Packer paper, III-A).

For: ``learned``, which makes a job of it. Not for: measuring. What is measured comes as plain numbers from a
cluster's coordinator.
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
"""A start so small a part of an instant after its beginning is at its beginning."""


class Measured(msgspec.Struct, frozen=True):
    """What one task of a job took in its runs, as a cluster's coordinator tells it."""

    member: str
    runs: int
    completed: int
    start_s: float
    """After the job's first task, at the latest in any run."""
    length_s: float
    instant_s: int
    values: dict[str, list[tuple[int, int]]]
    """Where it changes, and to what: ``cpu_milli``, ``memory``, ``disk_write``, ``disk_read`` (bytes per
    second, as the next two), ``sent``, ``received``. What was not measured is not there."""


def measured_in(rows: object) -> list[Measured]:
    """What a coordinator told of a job's members.

    Raises:
        JobError: it makes no sense.
    """
    try:
        return msgspec.convert(rows, type=list[Measured])
    except msgspec.ValidationError as error:
        raise JobError("what was measured", f"makes no sense: {error}") from None


class Timeline:
    """A job's instants, and what was measured of its tasks on them.

    Args:
        members: the tasks.
        instant_s: the length of an instant.
        spare_s: how much longer than it was measured each may take.

    Raises:
        JobError: there would be more instants than a job may have; the message says which length does.
    """

    def __init__(self, members: Iterable[Measured], instant_s: float, spare_s: float) -> None:
        if not (math.isfinite(instant_s) and instant_s > 0):
            raise JobError("instant_s", f"is {instant_s}: a time above 0 is needed")
        if not (math.isfinite(spare_s) and spare_s >= 0):
            raise JobError("spare_s", f"is {spare_s}: a time of 0 or more is needed")
        self.members = {one.member: one for one in members}
        self.instant_s = instant_s
        self._spare_s = spare_s
        # A task is never as quick as the job: a moment must not make each of its seconds two.
        self._starts = {name: self._start(one.start_s) for name, one in self.members.items()}
        end_s = max((self._end(one) for one in self.members.values()), default=0.0)
        wanted = end_s / instant_s
        if wanted > PACKER_INSTANTS_MAX:
            least = math.ceil(end_s / PACKER_INSTANTS_MAX)
            raise JobError(
                "instant_s",
                f"is {instant_s:g}: in {end_s:.0f} s there are more than the {PACKER_INSTANTS_MAX} instants "
                f"that are possible; take {least} or more",
            )
        self.instants = max(1, _up(wanted))

    def _start(self, start_s: float) -> float:
        whole = int(start_s / self.instant_s) * self.instant_s
        return whole if start_s - whole < _MOMENT * self.instant_s else start_s

    def _end(self, one: Measured) -> float:
        """With what it has to spare."""
        return self._starts[one.member] + one.length_s + self._spare_s

    def life(self, names: Iterable[str]) -> tuple[int, int]:
        """From the first instant of any of them to the last; all of the job's where none was measured."""
        found = [self.members[name] for name in names if name in self.members]
        if not found:
            return 0, self.instants
        first = min(int(self._starts[one.member] / self.instant_s + 1e-9) for one in found)
        return first, max(first + 1, *(_up(self._end(one) / self.instant_s) for one in found))

    def taken(self, name: str, channel: str) -> Floats | None:
        """(instants,): what a member took, in the channel's unit; None where nobody measured it."""
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
        # Who is late is at any of these points of its course.
        for at in range(end, min(self.instants, _up(self._end(one) / self.instant_s))):
            found[at] = found[max(own, min(at - spare, end - 1)) : end].max()
        return found[: self.instants]

    def most(self, names: Iterable[str], channel: str) -> Floats | None:
        """(instants,): the most that any of these took; None where it was measured of none."""
        found = [taken for name in names if (taken := self.taken(name, channel)) is not None]
        return np.max(found, axis=0) if found else None


def _up(value: float) -> int:
    """To the next whole number, if it is more than a moment above the last."""
    return math.ceil(value - 1e-9)
