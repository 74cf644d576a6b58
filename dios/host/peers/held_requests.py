"""Delays requests of other nodes' tasks whose principal has moved, stored or recorded more than it may.

This node's own tasks are delayed by ``dios.host.content.stored_bytes``. The connection with a node is shared
by all its tasks. Therefore such a request is set aside until the debt is paid; later requests of the same
task are queued behind it.

A request with many attached bytes is never delayed, because its sender would repeat it with all its bytes.
Instead, the acquire of the buffer before it is delayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import trio

from dios import limits
from dios.errors import Code
from dios.host.audit.charges import AuditCharges
from dios.host.bandwidth.rates import Rates
from dios.host.content.stored_bytes import may_store
from dios.host.peers.link import PeerSession
from dios.ids import NodeId, TaskId
from dios.wire import dcp
from dios.wire.call_table import Exemption, kinds
from dios.wire.messages import AcquireWrite, Failure
from dios.wire.types import Traffic

Take: TypeAlias = Callable[[NodeId, PeerSession, dcp.Ask, bytes | None], None]
_TOO_MANY: Final = Failure(
    int(Code.EAGAIN),
    "too many of your calls wait to store or send bytes on that node. Try again later.",
)


_PROMPT: Final[frozenset[type]] = kinds(lambda row: Exemption.PROMPT in row.exemptions)


class _HeldRequest(NamedTuple):
    """A request and the bytes inside its frame."""

    asked: dcp.Ask
    inline: bytes | None


class HeldRequests:
    """The delayed requests by connection and task. ``take`` is called with each request in the end.

    ``holder_id`` returns the id here of a task of another node, to which its audit records are
    charged. Waiting happens in ``nursery``.
    """

    def __init__(
        self,
        rates: Rates,
        charges: AuditCharges,
        nursery: trio.Nursery,
        take: Take,
        holder_id: Callable[[NodeId, TaskId], TaskId],
    ) -> None:
        self._rates: Final = rates
        self._charges: Final = charges
        self._nursery: Final = nursery
        self._take: Final = take
        self._holder_id: Final = holder_id
        self._queues: Final[dict[tuple[PeerSession, TaskId], deque[_HeldRequest]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def may_hold(self) -> bool:
        """True if a request may have to be delayed, or is delayed."""
        return self._rates.hold or self._charges.any_debts or bool(self._queues)

    def keep(self, node: NodeId, session: PeerSession, asked: dcp.Ask, inline: bytes | None) -> bool:
        """Delay a request if it must wait. Return False if it must be processed now."""
        body = asked.body
        caller: dcp.Caller | None = getattr(body, "caller", None)
        if caller is None:
            return False
        key, principal = (session, caller.task), caller.principal
        queue = self._queues.get(key)
        if queue is None and self._charges.owes(principal, self._holder_id(node, caller.task)):
            queue = self._begin_queue(node, key, principal)
        elif not isinstance(body, dcp.Forward):
            return False
        elif queue is None:
            storing = isinstance(body.call, AcquireWrite) or may_store(body.call)
            asking = type(body.call) not in _PROMPT
            owes = asking and self._rates.owes_inline(self._rates.account(body.caller.task, principal))
            if not (owes or (storing and self._rates.in_debt(principal, Traffic.STORE))):
                return False
            queue = self._begin_queue(node, key, principal)
        if any(held.asked.number == asked.number for held in queue):
            session.send_message(dcp.PeerReply(asked.number, dcp.Working()))
        elif len(self) >= limits.HELD_REQUESTS_MAX:
            session.send_message(dcp.PeerReply(asked.number, _TOO_MANY))
        else:
            queue.append(_HeldRequest(asked, inline))
        return True

    def _begin_queue(
        self, node: NodeId, key: tuple[PeerSession, TaskId], principal: str
    ) -> deque[_HeldRequest]:
        queue = self._queues[key] = deque()
        self._nursery.start_soon(self._take_later, node, key, principal, name="hold requests")
        return queue

    async def _take_later(self, node: NodeId, key: tuple[PeerSession, TaskId], principal: str) -> None:
        session, queue = key[0], self._queues[key]
        try:
            while queue and not session.closed:
                job = self._holder_id(node, key[1])
                await self._charges.wait_for_credit(principal, job, lambda: session.closed)
                account = self._rates.account(key[1], principal)
                await self._rates.wait_for_inline_credit(account, lambda: session.closed)
                await self._rates.wait_for_credit(principal, Traffic.STORE, lambda: session.closed)
                if not session.closed:
                    self._take(node, session, *queue.popleft())
        finally:
            del self._queues[key]
