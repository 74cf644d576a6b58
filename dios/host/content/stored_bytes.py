"""Counts the durable bytes that each principal stores, for meters and rates.

The store writes in the order of tickets and waits for no rate. Instead, a principal that has stored more than
its rate allows waits before its next storing call is accepted, at its own connection.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dios.core.effects import AppendLog, Outcome, PutObject, StoreOperation
from dios.core.events import Event, Received
from dios.host.bandwidth.meters import TrafficFlow
from dios.host.bandwidth.rates import Rates
from dios.host.loop.fair_queue import TaskPrincipals
from dios.ids import TaskId, Ticket
from dios.transport.unix.server import TaskChannel, hung_up
from dios.wire import dcp
from dios.wire.call_table import Effect, kinds
from dios.wire.messages import AnyCall, calls_of
from dios.wire.types import Traffic

_STORING: Final = kinds(lambda row: row.effect in {Effect.STORES, Effect.COMMITS, Effect.ENDS_WRITE})


class StoredBytes:
    """The bytes on their way to the store, with their principals."""

    def __init__(self, rates: Rates, owners: TaskPrincipals) -> None:
        self._rates: Final = rates
        self._owners: Final = owners
        self._staged: Final[deque[tuple[Ticket, TrafficFlow, int]]] = deque()

    def staged(self, event: Event, outcome: Outcome) -> None:
        """Count the bytes that a step stores."""
        for operation in outcome.persist:
            size = _size(operation)
            if size and isinstance(operation, PutObject | AppendLog):
                principal = self._for_whom(event) or operation.record.owner
                flow = self._rates.begin(principal, Traffic.STORE, size)
                self._staged.append((outcome.ticket, flow, size))
                self._rates.spend(principal, Traffic.STORE, size)

    def durable(self, last: Ticket) -> None:
        """Record that everything up to this ticket is on disk."""
        staged = self._staged
        while staged and staged[0][0] <= last:
            _, flow, size = staged.popleft()
            self._rates.change(flow, Traffic.STORE, size, -size)

    def failed(self) -> None:
        """Record that nothing on its way to the store was stored."""
        while self._staged:
            _, flow, size = self._staged.popleft()
            self._rates.change(flow, Traffic.STORE, 0, -size)

    def _for_whom(self, event: Event) -> str:
        if not isinstance(event, Received):
            return self._owners.of(getattr(event, "task", TaskId(0)))
        asked = event.message.body if isinstance(event.message, dcp.Ask) else None
        caller: dcp.Caller | None = getattr(asked, "caller", None)
        return "" if caller is None else caller.principal

    async def wait_for_credit(self, task: TaskId, call: AnyCall, channel: TaskChannel) -> None:
        """Delay a call that may store something while its principal has stored more than its rate allows.

        Return early if the caller closes its connection.
        """
        # A coordinator sets the rates; delayed by its own user's debt, it could not raise the rate.
        if task != self._rates.set_by and may_store(call):
            principal = self._owners.of(task)
            # First the debt for bytes inside messages: those were sent before they could be counted.
            await self._rates.wait_for_inline_credit(
                self._rates.account(task, principal), lambda: hung_up(channel.fileno())
            )
            await self._rates.wait_for_credit(principal, Traffic.STORE, lambda: hung_up(channel.fileno()))


def may_store(call: AnyCall) -> bool:
    """Return True if a call is of a kind that may store bytes."""
    return any(type(part) in _STORING for part in calls_of(call))


def _size(operation: StoreOperation) -> int:
    if isinstance(operation, AppendLog):
        return operation.source.length
    if isinstance(operation, PutObject) and operation.source is not None:
        return operation.record.size  # a content is written as a whole, even if little of it changes
    return 0
