"""Turns incoming frames and transfers of other nodes into messages for the core, in order.

``dios.host.peers.links`` keeps the connections.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import DiosError, ProtocolError
from dios.host.audit.charges import AuditCharges
from dios.host.bandwidth.rates import Rates
from dios.host.content.contents import Content
from dios.host.content.memories import ContentMemory
from dios.host.loop.call_tracer import CallTracer
from dios.host.loop.clock import Clock
from dios.host.loop.driver import Driver
from dios.host.loop.fair_queue import TaskPrincipals
from dios.host.loop.persister import Persister
from dios.host.peers.bulk import ReceivedTransfer, ReceivingMemory
from dios.host.peers.heads import HeadKeeper
from dios.host.peers.held_requests import HeldRequests
from dios.host.peers.incoming import WaitingRequest
from dios.host.peers.link import PeerSession
from dios.host.peers.shared_documents import SharedDocuments
from dios.host.peers.statements import RevocationList, StatementReader
from dios.ids import NodeId, Principal
from dios.transport.batch import BATCH
from dios.wire import dcp
from dios.wire.dcp_frames import (
    AuditHeads,
    Continuing,
    Control,
    LaterSecrets,
    Principals,
    Resting,
    Revoked,
    decode_frame,
)
from dios.wire.messages import Failure

_log: Final = logging.getLogger(__name__)

_ANSWERS_EACH: Final = 2
"""One message often leads to several messages to the same node, which are sent together."""


class LinkParts(NamedTuple):
    """The parts of the host that links need. ``denied`` records a refused request and the reason."""

    driver: Driver
    persister: Persister
    clock: Clock
    owners: TaskPrincipals
    rates: Rates
    charges: AuditCharges
    denied: Callable[[Principal, str], None]
    receiving: ReceivingMemory
    tracer: CallTracer
    heads: HeadKeeper


class MessageReader:
    """Reads the messages of other nodes.

    ``restated`` is called with a node and a statement that is new, ``continued`` with a node that replaces
    its program, or does not after all. ``documents`` takes the register of principals and later secrets.
    """

    def __init__(
        self,
        around: LinkParts,
        guard: RevocationList,
        nursery: trio.Nursery,
        counts: Counter[str],
        restated: Callable[[NodeId, bytes], None],
        continued: Callable[[NodeId, PeerSession, bool], None],
        documents: SharedDocuments,
    ) -> None:
        self._documents: Final = documents
        self._parts: Final = around
        self._continued: Final = continued
        self._nursery: Final = nursery
        self._counts: Final = counts
        self._statements: Final = StatementReader(guard, around.clock, nursery, restated)
        self._held: Final = HeldRequests(
            around.rates, around.charges, nursery, self._deliver_held, around.driver.holder_id
        )

    async def read(self, node: NodeId, session: PeerSession, bodies: list[bytes]) -> None:
        """Process ``bodies`` and all later frames until the connection ends. Raise ProtocolError.

        A request waits in the session's queue once the requests of this turn have done a turn's work; all
        other messages are processed at once.
        """
        line, persister, counts = session.line, self._parts.persister, self._counts
        driver, incoming = self._parts.driver, session.incoming
        line.stay()
        try:
            while True:
                turn = begun = driver.units
                BATCH.begin(_ANSWERS_EACH * len(bodies))
                for body in bodies:
                    counts["messages_received"] += 1
                    counts["bytes_received"] += len(body)
                    session.received_bytes += len(body)
                    message, inline = _decode(body, None)
                    if isinstance(message, dcp.Ask):
                        is_full = (
                            driver.units - turn >= limits.TURN_UNITS_MAX
                            or persister.backlog >= limits.STORE_QUEUE_MAX
                        )
                        if (incoming or is_full) and self._enqueue(node, session, message, inline, len(body)):
                            continue
                    session.used_s = trio.current_time()
                    if type(message) is dcp.PeerReply and inline is not None:
                        session.charge_answer(message.number, len(body))
                    if isinstance(message, Resting):
                        session.resting = True
                    elif isinstance(message, Continuing):
                        self._continued(node, session, message.begins)
                    elif isinstance(message, AuditHeads):
                        self._parts.heads.receive(node, line.peer, session, message)
                    elif isinstance(message, Revoked):
                        if await self._statements.merge(node, message.statement):
                            driver.units += limits.TURN_UNITS_MAX  # its signatures take as long as a turn
                    elif isinstance(message, Principals):
                        if await self._documents.receive_register(node, message.register):
                            driver.units += limits.TURN_UNITS_MAX  # the same
                    elif isinstance(message, LaterSecrets):
                        if await self._documents.receive_secrets(node, message.document):
                            driver.units += limits.TURN_UNITS_MAX  # the same
                    else:
                        self._admit(node, session, message, inline, None)
                    if driver.units - begun >= limits.TURN_UNITS_MAX:
                        BATCH.end()
                        begun = await driver.let_others_work(begun)
                        BATCH.begin(_ANSWERS_EACH * len(bodies))
                    if session.closed:
                        return
                BATCH.end()
                await incoming.wait_for_room()
                bodies = await line.receive()
                if not bodies:
                    return
        finally:
            BATCH.end()
            incoming.clear()

    def _enqueue(
        self, node: NodeId, session: PeerSession, asked: dcp.Ask, inline: bytes | None, frame_bytes: int
    ) -> bool:
        """Let a request wait for its turn. Return False if it must be processed now.

        A repeat is answered at once: here if the first one still waits, else by the core.
        """
        incoming = session.incoming
        if incoming.has(asked.number):
            session.send_message(dcp.PeerReply(asked.number, dcp.Working()))
            return True
        if self._parts.driver.has_request(node, asked.number):
            return False
        incoming.put(asked, inline, frame_bytes)
        if not incoming.is_served:
            incoming.is_served = True
            self._nursery.start_soon(self._serve_queue, node, session, name="serve a node's requests")
        return True

    async def _serve_queue(self, node: NodeId, session: PeerSession) -> None:
        """Process the requests that wait, a turn's work at a time, until none is left."""
        driver, persister, incoming = self._parts.driver, self._parts.persister, session.incoming
        try:
            await trio.lowlevel.checkpoint()
            begun = driver.units
            BATCH.begin(_ANSWERS_EACH * len(incoming))
            while incoming:
                if persister.backlog >= limits.STORE_QUEUE_MAX:
                    BATCH.end()
                    await persister.wait_for_room()
                    begun = driver.units
                    BATCH.begin(_ANSWERS_EACH * len(incoming))
                    continue
                waiting = incoming.take()
                self._serve_queued(node, session, waiting)
                if session.closed:
                    incoming.clear()
                if driver.units - begun >= limits.TURN_UNITS_MAX:
                    BATCH.end()
                    begun = await driver.let_others_work(begun)
                    BATCH.begin(_ANSWERS_EACH * len(incoming))
        finally:
            BATCH.end()
            incoming.is_served = False

    def _serve_queued(self, node: NodeId, session: PeerSession, waiting: WaitingRequest) -> None:
        try:
            self._admit(node, session, waiting.asked, waiting.inline, None)
        except Exception as error:
            if not self._parts.driver.sound:
                raise
            session.end(error)

    def _admit_transfer(
        self, node: NodeId, session: PeerSession, body: bytes, attached: ContentMemory | None
    ) -> None:
        try:
            message, inline = _decode_transfer(body, attached)
        except ProtocolError:
            if attached is not None:
                attached.release()
            raise
        self._admit(node, session, message, inline, attached)

    def _admit(
        self,
        node: NodeId,
        session: PeerSession,
        message: dcp.Message,
        inline: bytes | None,
        attached: ContentMemory | None,
    ) -> None:
        if (
            isinstance(message, dcp.Ask)
            and attached is None
            and self._held.may_hold
            and not self._parts.driver.has_request(node, message.number)
            and self._held.keep(node, session, message, inline)
        ):
            return
        self._deliver(node, session, message, inline if attached is None else attached)

    def _deliver(
        self, node: NodeId, session: PeerSession, message: dcp.Message, attached: Content | None
    ) -> None:
        failure = self._parts.driver.receive(node, session.epoch, message, attached)
        if failure is not None and isinstance(message, dcp.Ask):
            session.send_message(dcp.PeerReply(message.number, failure))

    def _deliver_held(self, node: NodeId, session: PeerSession, asked: dcp.Ask, inline: bytes | None) -> None:
        try:
            self._deliver(node, session, asked, inline)
        except Exception as error:
            if not self._parts.driver.sound:
                raise
            session.end(error)

    def arrived(self, node: NodeId, session: PeerSession, arrived: ReceivedTransfer) -> None:
        """Process a complete transfer. Called in the event loop, outside of every trio task."""
        attached = ContentMemory(arrived.fd, arrived.size) if arrived.size else None
        if session.closed:
            if attached is not None:
                attached.release()
            return
        self._counts["transfers_received"] += 1
        self._counts["bytes_received"] += len(arrived.message) + arrived.size
        session.received_bytes += len(arrived.message) + arrived.size
        try:
            if arrived.refused is None:
                self._admit_transfer(node, session, arrived.message, attached)
            else:
                self._refuse(node, session, arrived.message, arrived.refused)
        except Exception as error:  # noqa: BLE001 - an error inside a step is raised in the nursery instead
            if self._parts.driver.sound:
                session.end(error)
            else:
                self._nursery.start_soon(_raise, error)

    def _refuse(self, node: NodeId, session: PeerSession, body: bytes, reason: DiosError) -> None:
        """Answer a message whose bytes were dropped because there was no room for them."""
        message, _ = _decode(body, None)
        failure = Failure(int(reason.code), reason.message)
        if isinstance(message, dcp.PeerReply):
            self._deliver(node, session, dcp.PeerReply(message.number, failure), None)
        elif isinstance(message, dcp.Ask):
            if self._parts.driver.has_request(node, message.number):
                self._deliver(node, session, message, None)  # a repeat, which gets the first one's answer
            else:
                session.send_message(dcp.PeerReply(message.number, failure))

    def data_ended(self, session: PeerSession, reason: Exception | None) -> None:
        """Handle the end of a data connection of the node."""
        if isinstance(reason, ProtocolError):
            session.end(reason)
        elif reason is not None and not session.closed:
            _log.warning("a data connection of a node ended", extra={"why": str(reason)})


def _decode(body: bytes, attached: ContentMemory | None) -> tuple[dcp.Message | Control, bytes | None]:
    message, inline = decode_frame(body)
    if attached is not None and inline is not None:
        raise ProtocolError("a message has bytes inside its frame and attached to it")
    if isinstance(message, dcp.PeerHello):
        raise ProtocolError("a second hello on one connection")
    if isinstance(message, Control) and (attached is not None or inline is not None):
        raise ProtocolError("a message between hosts has bytes attached to it")
    return message, inline


def _decode_transfer(body: bytes, attached: ContentMemory | None) -> tuple[dcp.Message, bytes | None]:
    message, inline = _decode(body, attached)
    if isinstance(message, Control):
        raise ProtocolError("a message between hosts came as a transfer")
    return message, inline


async def _raise(error: Exception) -> None:
    raise error
