"""Lamport's clock in a small object: the order of events among tasks without a common clock (thesis §4.7).

It does not give the time of day, and does not show that two events are *not* ordered: an event with the lower
stamp did not happen after the other, no more.

Two rules: an event of a task is later than all events that it knows (``tick``); the reception of a message is
later than its sending (``observe``). So if one event happened before another, its stamp is lower. Tasks may
share a clock's object: each event advances it by an I/O request, and the stamps of all tasks are distinct.
Otherwise each task has its own clock, and stamps are sent with messages.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from dios.client.ops.attributes import ClientLink, Handle
from dios.client.ops.requests import WriteOps
from dios.client.session import Operation
from dios.client.sync.node import Reference
from dios.errors import Conflict, DamagedError
from dios.lib.retrying import insist
from dios.wire.types import Semantics

_BYTES: Final = 8
_TIME_MAX: Final = 2**62


class Stamp(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """The time of an event. If one event happened before another, its stamp is lower.

    The order of stamps is total and equal for all tasks: the clock orders equal times.
    """

    time: int
    clock: int


class ClockOps:
    """The attempts on a clock, written once for both clients; Conflict if one must be repeated."""

    def __init__(self, reference: Handle, timeout: float | None = None) -> None:
        self.reference: Final = reference
        self.timeout: Final = timeout

    @property
    def link(self) -> ClientLink:
        """Return the connection of the clock's handle."""
        return self.reference.link

    def advance_op(self, seen: int = 0) -> Operation[Stamp]:
        """Return the stamp of an event after everything this clock knows and after the time ``seen``."""
        if not 0 <= seen < _TIME_MAX:
            raise DamagedError(f"{seen} cannot be the time of a clock")
        request = WriteOps(self.reference, _BYTES, 0, Semantics.MRSW, blank=False, replace=True)
        try:
            yield from request.acquire_op()
            time = max(seen, int.from_bytes(request.view, "little")) + 1
            request.view[:] = time.to_bytes(_BYTES, "little")
            yield from request.finish_op()
        finally:
            with suppress(Conflict):
                yield from request.release_op()
        return Stamp(time, self.reference.object_id)


class LamportClock(ClockOps):
    """A clock of the blocking client, in its own blob, which is empty at first.

    Each event is one I/O request, repeated while others come between; TimeLimitError after ``timeout``
    seconds, None for no timeout.
    """

    def __init__(self, reference: Reference, timeout: float | None = None) -> None:
        super().__init__(reference, timeout)

    def tick(self) -> Stamp:
        """Return the stamp of an event of this task, for example of sending a message with the stamp."""
        return insist(self, self.advance_op, self.timeout)

    def observe(self, stamp: Stamp) -> Stamp:
        """Return the stamp of receiving a message with the stamp ``stamp``."""
        return insist(self, lambda: self.advance_op(stamp.time), self.timeout)
