"""Find out which jobs of a batch became durable when the store refuses a part of it (ADR 0007).

Pure functions: the writer thread (``dios.host.loop.persister``) and the simulator share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from dios.errors import DiosError
from dios.ids import Ticket


class CommitResult(NamedTuple):
    """The tickets ``first`` to ``last``, which became durable together, or failed together with ``error``."""

    first: Ticket
    last: Ticket
    error: DiosError | None = None


class Ticketed(Protocol):
    """Anything that is made durable under one ticket."""

    @property
    def ticket(self) -> Ticket:
        """The ticket: the job's position in the order of all jobs."""


_Job = TypeVar("_Job", bound=Ticketed)


def commit_batch(
    batch: Sequence[_Job], apply: Callable[[Sequence[_Job]], DiosError | None]
) -> list[CommitResult]:
    """Apply all jobs in one commit; if the store refuses it, apply each separately up to the failing job.

    Return consecutive ranges of tickets. Jobs after the failing job are not tried, because they may build
    on it.
    """
    if not batch:
        return []
    error = apply(batch)
    if error is None:
        return [CommitResult(batch[0].ticket, batch[-1].ticket)]
    if len(batch) == 1:
        return [CommitResult(batch[0].ticket, batch[0].ticket, error)]
    # At least one job fails. Jobs before it can still succeed; jobs after it may build on it.
    for done, job in enumerate(batch):
        failed = apply([job])
        if failed is not None:
            results = [CommitResult(batch[0].ticket, batch[done - 1].ticket)] if done else []
            return [*results, CommitResult(job.ticket, batch[-1].ticket, failed)]
    return [CommitResult(batch[0].ticket, batch[-1].ticket)]
