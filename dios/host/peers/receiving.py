"""What comes from other nodes: frames and transfers become messages for the core, in order and in turns.

Not for: connections (``dios.host.peers.links``), or what a message does (the core).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import trio

from dios import limits
from dios.errors import LimitError, ProtocolError
from dios.host.bandwidth.rates import Rates
from dios.host.content.contents import Content
from dios.host.content.memories import Memory
from dios.host.loop.clock import Clock
from dios.host.loop.driver import Driver
from dios.host.loop.fair_queue import Owners
from dios.host.loop.persister import Persister
from dios.host.peers.bulk import Arrived
from dios.host.peers.held_requests import HeldRequests
from dios.host.peers.link import Standing
from dios.ids import NodeId, Principal
from dios.wire import dcp
from dios.wire.dcp_frames import Revoked, decode_frame

_log: Final = logging.getLogger(__name__)


class Guard(Protocol):
    """Whose certificates are worth nothing any more; ``dios.transport.identity.trust`` knows."""

    def encode(self) -> bytes:
        """The list, for other nodes."""
        ...

    def merge(self, data: bytes) -> bool:
        """Take over another node's list; whether anything was new. Raises ProtocolError, LimitError."""
        ...

    def revoke(self, node: NodeId) -> None:
        """Put a node on the list."""
        ...


class Around(NamedTuple):
    """What links need of the rest of the host. ``denied`` records what a node was refused, and why."""

    driver: Driver
    persister: Persister
    clock: Clock
    owners: Owners
    rates: Rates
    denied: Callable[[Principal, str], None]


class Reading:
    """Reads what nodes send. ``revoked_more`` is called when they say that more nodes were revoked."""

    def __init__(
        self,
        around: Around,
        guard: Guard,
        nursery: trio.Nursery,
        counts: Counter[str],
        revoked_more: Callable[[], None],
    ) -> None:
        self._around: Final = around
        self._guard: Final = guard
        self._nursery: Final = nursery
        self._counts: Final = counts
        self._revoked_more: Final = revoked_more
        self._held: Final = HeldRequests(around.rates, nursery, self._take_held)

    async def read(self, node: NodeId, standing: Standing, bodies: list[bytes]) -> None:
        """Take ``bodies`` and all that comes after them, to the connection's end; raises ProtocolError."""
        line, persister, counts = standing.line, self._around.persister, self._counts
        while True:
            for number, body in enumerate(bodies, 1):
                counts["messages_received"] += 1
                counts["bytes_received"] += len(body)
                self._take(node, standing, body, None)
                if not number % limits.CALLS_PER_TURN_MAX:
                    await trio.lowlevel.checkpoint()
                if standing.closed:
                    return
            if persister.backlog >= limits.STORE_QUEUE_MAX:
                await persister.wait_for_room()
            bodies = await line.receive()
            if not bodies:
                return

    def _take(self, node: NodeId, standing: Standing, body: bytes, beside: Memory | None) -> None:
        try:
            message, inline = _message_of(body, beside)
        except ProtocolError:
            if beside is not None:
                beside.release()
            raise
        if isinstance(message, Revoked):
            self._merge(message)
        else:
            came = inline if beside is None else beside
            if (
                isinstance(message, dcp.Ask)
                and beside is None
                and self._held.some
                and self._held.keep(node, standing, message, inline)
            ):
                return
            self._receive(node, standing, message, came)

    def _receive(
        self, node: NodeId, standing: Standing, message: dcp.Message, beside: Content | None
    ) -> None:
        failure = self._around.driver.receive(node, standing.epoch, message, beside)
        if failure is not None and isinstance(message, dcp.Ask):
            standing.say(dcp.Reply(message.number, failure))

    def _take_held(self, node: NodeId, standing: Standing, asked: dcp.Ask, inline: bytes | None) -> None:
        try:
            self._receive(node, standing, asked, inline)
        except Exception as error:
            if not self._around.driver.sound:
                raise
            standing.end(error)

    def _merge(self, told: Revoked) -> None:
        try:
            if self._guard.merge(told.list):
                self._revoked_more()
        except LimitError as error:
            raise ProtocolError(error.message) from None

    def arrived(self, node: NodeId, standing: Standing, arrived: Arrived) -> None:
        """A transfer came whole; called in the loop, from outside of every task."""
        beside = Memory(arrived.fd, arrived.size) if arrived.size else None
        if standing.closed:
            if beside is not None:
                beside.release()
            return
        self._counts["transfers_received"] += 1
        self._counts["bytes_received"] += len(arrived.message) + arrived.size
        try:
            self._take(node, standing, arrived.message, beside)
        except Exception as error:  # noqa: BLE001 - a defect of a step is raised where the node ends of it
            if self._around.driver.sound:
                standing.end(error)
            else:
                self._nursery.start_soon(_raise, error)

    def data_ended(self, standing: Standing, reason: Exception | None) -> None:
        """A data connection of the node's is over."""
        if isinstance(reason, ProtocolError):
            standing.end(reason)
        elif reason is not None and not standing.closed:
            _log.warning("a data connection of a node ended", extra={"why": str(reason)})


def _message_of(body: bytes, beside: Memory | None) -> tuple[dcp.Message | Revoked, bytes | None]:
    message, inline = decode_frame(body)
    if beside is not None and inline is not None:
        raise ProtocolError("a message with bytes inside its frame and beside it")
    if isinstance(message, dcp.PeerHello):
        raise ProtocolError("a second hello on one connection")
    if isinstance(message, Revoked) and (beside is not None or inline is not None):
        raise ProtocolError("a list of revoked nodes with bytes beside it")
    return message, inline


async def _raise(error: Exception) -> None:
    raise error
