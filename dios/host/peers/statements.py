"""The statements of members that other nodes send: each signer may change its statement at a bounded rate.

``dios.transport.identity.trust`` decides which statements count, and ``links`` relays them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

import trio

from dios import limits
from dios.errors import DiosError
from dios.host.loop.clock import Clock
from dios.ids import NodeId
from dios.transport.identity.statements import Statement

_log: Final = logging.getLogger(__name__)


class RevocationList(Protocol):
    """The members' statements about removed nodes; ``dios.transport.identity.trust`` implements it."""

    @property
    def statements(self) -> tuple[bytes, ...]:
        """The statements in their form for other nodes."""

    @property
    def revoked(self) -> frozenset[NodeId]:
        """The removed nodes."""

    async def accept(self, data: bytes, admit: Callable[[Statement], bool]) -> bool:
        """Accept a statement; return True if it changed anything. Raise ProtocolError, OSError.

        A statement that would change something is accepted only if ``admit`` returns True for it.
        """

    async def remove(self, node: NodeId, *, restore: bool = False) -> bytes:
        """Remove a node and return this node's new statement. Raise LimitError, OSError."""


class StatementAllowance:
    """The number of changed statements that count of a member at present; it grows again with time."""

    def __init__(self, left: int, since_ns: int) -> None:
        self._left = left
        self._since_ns = since_ns

    def take(self, now: int) -> bool:
        """Take one if there is one."""
        grown = (now - self._since_ns) * limits.STATEMENTS_PER_S // 1_000_000_000
        if grown:
            self._left = min(limits.STATEMENTS_BURST, self._left + grown)
            self._since_ns = now
        if not self._left:
            return False
        self._left -= 1
        return True


class SignerAllowances:
    """The allowances of all signers."""

    def __init__(self) -> None:
        self._allowances: Final[dict[int, StatementAllowance]] = {}

    def take(self, signer: int, now: int) -> bool:
        """Take one of a signer's if there is one."""
        allowance = self._allowances.pop(signer, None) or StatementAllowance(limits.STATEMENTS_BURST, 0)
        self._allowances[signer] = allowance
        if len(self._allowances) > limits.NODES_MAX:
            del self._allowances[next(iter(self._allowances))]
        return allowance.take(now)


class StatementReader:
    """Merges statements, at a bounded rate for each signer, whichever node relays them.

    A relay is never blamed for the number of statements that another member signs. A statement above its
    signer's rate waits. At most one statement waits for each signer, because a newer one replaces it.
    ``restated`` is called with the relay and each statement that changed something.
    """

    def __init__(
        self,
        guard: RevocationList,
        clock: Clock,
        nursery: trio.Nursery,
        restated: Callable[[NodeId, bytes], None],
    ) -> None:
        self._guard: Final = guard
        self._clock: Final = clock
        self._nursery: Final = nursery
        self._restated: Final = restated
        self._allowances: Final = SignerAllowances()
        self._waiting: Final[dict[int, tuple[NodeId, Statement]]] = {}
        self._works = False

    @property
    def waiting(self) -> int:
        """The number of statements that wait."""
        return len(self._waiting)

    async def merge(self, relay: NodeId, data: bytes) -> bool:
        """Merge a statement now or later, and store it.

        Return False if it is held already, so that nothing was checked. Raise ProtocolError if no member can
        have signed it, and OSError if it cannot be stored.
        """
        if data in self._guard.statements:
            return False
        if await self._guard.accept(data, lambda statement: self._admit(relay, statement)):
            self._restated(relay, data)
        return True

    def _admit(self, relay: NodeId, statement: Statement) -> bool:
        signer = statement.signer.number
        waiting = self._waiting.get(signer)
        newest = waiting is None or waiting[1].order <= statement.order
        if self._allowances.take(signer, self._clock.now()):
            if newest:
                self._waiting.pop(signer, None)
            return True
        if newest:
            self._waiting[signer] = relay, statement
        if not self._works:
            self._works = True
            self._nursery.start_soon(self._merge_waiting, name="merge statements that wait")
        return False

    async def _merge_waiting(self) -> None:
        try:
            while self._waiting:
                await trio.sleep(1 / limits.STATEMENTS_PER_S)
                for signer in tuple(self._waiting):
                    waiting = self._waiting.pop(signer, None)
                    if waiting is not None:
                        await self._merge_late(waiting[0], waiting[1].data)
                    await trio.lowlevel.checkpoint()
        finally:
            self._works = False

    async def _merge_late(self, relay: NodeId, data: bytes) -> None:
        try:
            await self.merge(relay, data)
        except (DiosError, OSError) as error:
            _log.warning("a statement that waited was dropped", extra={"why": str(error)})
