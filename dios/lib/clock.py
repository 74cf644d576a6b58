"""Lamport's clock in a small object: what came first, among tasks that share no clock (thesis §4.7).

Not for: the time of day, or telling that two events are *not* ordered: a clock says that an event with the
lower stamp did not happen after the other, no more.

Two rules make it: an event of one's own is later than all that one has seen (``tick``); what one learns of
by a message happened after the message was sent (``observe``). So if one event happened before another, its
stamp is lower. Tasks may share a clock's object: each event advances it by an I/O request of its own, and the
stamps of all who share it are distinct. Otherwise each has one, and stamps travel with what they send.
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
    """When an event was. If one event happened before another, its stamp is lower.

    The order of stamps is total, the same for everybody: equal times are told apart by the clock.
    """

    time: int
    clock: int


class ClockOps:
    """The attempts on a clock, written once for both faces; Conflict when one is to be repeated."""

    def __init__(self, reference: Handle, timeout: float | None = None) -> None:
        self.reference: Final = reference
        self.timeout: Final = timeout

    @property
    def link(self) -> ClientLink:
        """The connection of the clock's handle."""
        return self.reference.link

    def advance_op(self, seen: int = 0) -> Operation[Stamp]:
        """The stamp of an event that happens after everything this clock knows and a time ``seen``."""
        if not 0 <= seen < _TIME_MAX:
            raise DamagedError(f"{seen} is no time that a clock can have come to")
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
    """A clock on the blocking face, kept in a blob of its own that is empty at first.

    Each event is one I/O request, repeated while others come between: for ``timeout`` seconds at most
    (TimeLimitError), None for ever.
    """

    def __init__(self, reference: Reference, timeout: float | None = None) -> None:
        super().__init__(reference, timeout)

    def tick(self) -> Stamp:
        """The stamp of an event of one's own: doing something, or sending a message, with which it goes."""
        return insist(self, self.advance_op, self.timeout)

    def observe(self, stamp: Stamp) -> Stamp:
        """The stamp of learning what happened at ``stamp``: receiving a message that carries it."""
        return insist(self, lambda: self.advance_op(stamp.time), self.timeout)
