"""The bounds on the running tasks of jobs, E_j and F_j, as the tasks of each job state them.

Each run states bounds of its own. The largest minimum and the smallest maximum of the tasks that wait or run
hold for the job, so the order in which a coordinator learns of them is no matter.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dios.wire.messages import Work


class StatedBounds(NamedTuple):
    """The numbers of running tasks of a job: at least, and at most; None for no maximum."""

    minimum: int = 0
    maximum: int | None = None


class JobBounds:
    """The stated bounds of jobs. A job whose tasks state none takes no room here."""

    def __init__(self) -> None:
        self._stated: dict[int, Counter[tuple[int, int]]] = {}

    def add(self, job: int, work: Work) -> None:
        """Count the bounds that a further task of a job states."""
        if work.job_minimum or work.job_maximum:
            self._stated.setdefault(job, Counter())[work.job_minimum, work.job_maximum] += 1

    def remove(self, job: int, work: Work) -> bool:
        """Forget the bounds that a task stated; return True if those of the job may have changed."""
        stated = self._stated.get(job)
        pair = work.job_minimum, work.job_maximum
        if stated is None or pair not in stated:
            return False
        stated[pair] -= 1
        if stated[pair]:
            return False
        del stated[pair]
        if not stated:
            del self._stated[job]
        return True

    def of(self, job: int, gang: int) -> StatedBounds:
        """Return the bounds of a job, of which ``gang`` tasks start together; a maximum below that is raised.

        A minimum above the maximum is lowered to it.
        """
        stated = self._stated.get(job)
        if stated is None:
            return StatedBounds()
        minimum = max(least for least, _ in stated)
        named = [most for _, most in stated if most]
        if not named:
            return StatedBounds(minimum)
        maximum = max(min(named), gang)
        return StatedBounds(min(minimum, maximum), maximum)
