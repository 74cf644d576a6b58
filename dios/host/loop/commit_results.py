"""What becomes of a batch of tickets when the store takes it, or refuses a part of it (ADR 0007).

Not for: threads or stores (``dios.host.loop.persister``); the simulator asks the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from dios.errors import DiosError
from dios.ids import Ticket


class Settled(NamedTuple):
    """Tickets ``first`` to ``last`` are durable, or failed together when ``error`` is there."""

    first: Ticket
    last: Ticket
    error: DiosError | None = None


class Ticketed(Protocol):
    """Whatever is made durable under one ticket."""

    @property
    def ticket(self) -> Ticket:
        """Its place in the order of all."""
        ...


_Job = TypeVar("_Job", bound=Ticketed)


def settle(batch: Sequence[_Job], apply: Callable[[Sequence[_Job]], DiosError | None]) -> list[Settled]:
    """Apply all jobs in one, or, where that is refused, one by one up to the one at fault.

    Returns consecutive ranges of tickets; after a failed one nothing is tried, for it may build on that.
    """
    if not batch:
        return []
    error = apply(batch)
    if error is None:
        return [Settled(batch[0].ticket, batch[-1].ticket)]
    if len(batch) == 1:
        return [Settled(batch[0].ticket, batch[0].ticket, error)]
    # One of them is at fault: those before it can still hold. Those behind it may build on it.
    for done, job in enumerate(batch):
        failed = apply([job])
        if failed is not None:
            results = [Settled(batch[0].ticket, batch[done - 1].ticket)] if done else []
            return [*results, Settled(job.ticket, batch[-1].ticket, failed)]
    return [Settled(batch[0].ticket, batch[-1].ticket)]
