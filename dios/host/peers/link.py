"""One other node: its address, and the connection with it.

``dios.host.peers.links`` makes the connections.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from dios import limits
from dios.errors import ProtocolError, WouldBlockError
from dios.host.bandwidth.rates import Charge, Rates
from dios.host.peers.bulk import (
    DataReceiver,
    FileRange,
    IncomingTransfer,
    ReceiveAllowance,
    ReceivedTransfer,
    ReceivingMemory,
    Transfer,
)
from dios.host.peers.connection_protocols import PeerConnection
from dios.host.peers.incoming import IncomingQueue
from dios.host.peers.sending import TransferQueue
from dios.ids import NodeId, TaskId
from dios.wire import dcp, messages
from dios.wire.dcp_frames import (
    AuditHeads,
    Continuing,
    Control,
    Resting,
    Revoked,
    decode_frame,
    encode_frame,
)
from dios.wire.types import Traffic

_log: Final = logging.getLogger(__name__)
_FRAME_MAX: Final = limits.DCP_FRAME_BYTES_MAX + 4
_SMALL: Final = limits.DCP_SMALL_FRAME_BYTES_MAX
CONNECTIONS_MAX: Final = limits.DATA_CONNECTIONS_MAX + limits.GUARANTEED_CONNECTIONS_MAX
_NOBODY: Final = TaskId(0)
_UNKNOWN: Final = ("", _NOBODY)


class PeerSession:
    """An established control connection, with its data connections.

    ``ours`` means that this node made it; ``fault`` is the reason why it must end, or None. ``under_way`` is
    called with the number of a request to that node while many attached bytes of it or of its answer are
    being transferred.
    """

    def __init__(
        self,
        line: PeerConnection,
        epoch: int,
        sending: TransferQueue,
        counts: Counter[str],
        rates: Rates,
        memory: ReceivingMemory,
        *,
        under_way: Callable[[int], None],
        ours: bool,
    ) -> None:
        self.line = line
        self.epoch = epoch
        self.ours = ours
        self.sending = sending
        self.fault: Exception | None = None
        self.allowance = ReceiveAllowance(memory)
        self.receivers: set[DataReceiver] = set()
        self.ends: set[Callable[[], None]] = set()
        """Functions to call when the connection ends."""
        self.closed = False
        self.resting = False
        """True if one of the nodes ends the connection because it was not used."""
        self.used_s = trio.current_time()
        """The time of the last message."""
        self.sent_bytes = 0
        self.received_bytes = 0
        """The bytes of messages and transfers on this connection."""
        self.version = 0
        """The version of the messages that both nodes speak."""
        self.continues = False
        """True while the other node replaces its program."""
        self.incoming = IncomingQueue()
        self._counts = counts
        self._rates = rates
        self._report_under_way = under_way
        self._askers: dict[int, tuple[str, TaskId]] = {}
        self._under_way: set[tuple[type, int]] = set()
        self._quiet = trio.Event()
        self._quiet.set()

    # -- sending --------------------------------------------------------------------------------------
    def send_message(
        self, message: dcp.Message | Control, attached: bytes | None = None, task: TaskId = _NOBODY
    ) -> None:
        """Send a message now, with few attached bytes, on behalf of ``task``."""
        self.used_s = trio.current_time()
        if type(message) is dcp.Ask:
            self._note_asker(message)
        frame = encode_frame(message, attached, self.version)
        size = len(frame)
        if type(message) is dcp.Ask and self._must_wait(task, message):
            if (type(message), message.number) in self._under_way:
                self._report_under_way(message.number)
            else:
                self._transfer_once(task, message, Transfer(frame[4:], (), _nothing))
            return
        if size > _SMALL and (
            size > _FRAME_MAX or self.line.queued_bytes > limits.DCP_QUEUE_HIGH_WATER_BYTES
        ):
            # Many bytes are queued: send this as a transfer, so that small messages need not wait behind it.
            self._transfer(_NOBODY, Transfer(frame[4:], (), _nothing))
            return
        if task:
            self._rates.spend_inline(self.sending.charged(task), size)
            self._rates.spend_for_task(task, size)
        counts = self._counts
        counts["messages_sent"] += 1
        counts["bytes_sent"] += size
        self.sent_bytes += size
        try:
            self.line.send_nowait(frame, urgent=_is_control(message))
        except WouldBlockError as error:
            self.end(error)

    def send_bulk(
        self, task: TaskId, message: dcp.Message, pieces: tuple[FileRange, ...], done: Callable[[], None]
    ) -> None:
        """Send a message with many attached bytes when it is the turn of ``task``; ``done`` is called once.

        A repeated request or answer whose bytes are still being transferred is not sent twice.
        """
        if not isinstance(message, dcp.Ask | dcp.PeerReply):
            self._transfer(task, Transfer(encode_frame(message, version=self.version)[4:], pieces, done))
            return
        key = (type(message), message.number)
        if key in self._under_way:
            done()
            if isinstance(message, dcp.PeerReply):
                self.send_message(dcp.PeerReply(message.number, dcp.Working()))
            else:
                self._report_under_way(message.number)
            return
        if isinstance(message, dcp.Ask):
            self._note_asker(message)
        self._transfer_once(
            task, message, Transfer(encode_frame(message, version=self.version)[4:], pieces, done)
        )

    def _transfer_once(self, task: TaskId, message: dcp.Ask | dcp.PeerReply, transfer: Transfer) -> None:
        """Queue a transfer, and remember until it ends that the message is under way."""
        key = (type(message), message.number)
        self._under_way.add(key)

        def over() -> None:
            self._under_way.discard(key)
            transfer.done()

        self._transfer(task, transfer._replace(done=over))

    def _must_wait(self, task: TaskId, asked: dcp.Ask) -> bool:
        """Return True if a request has to wait because its task has moved more than its own rate allows.

        It is sent as a transfer then, which waits for its turn and for the rate, and delays no other task.
        """
        return type(asked.body) is dcp.Forward and (
            (type(asked), asked.number) in self._under_way or self._rates.is_task_in_debt(task)
        )

    def _transfer(self, task: TaskId, transfer: Transfer) -> None:
        if len(transfer.message) > limits.DCP_MESSAGE_BYTES_MAX:
            _log.error(
                "cannot send a message to a node: it is too long", extra={"bytes": len(transfer.message)}
            )
            transfer.done()
            return
        self._counts["transfers_sent"] += 1
        self._counts["bytes_sent"] += len(transfer.message) + transfer.size
        self.sent_bytes += len(transfer.message) + transfer.size
        try:
            self.sending.send(task, transfer)
        except WouldBlockError as error:
            self.end(error)

    def _note_asker(self, asked: dcp.Ask) -> None:
        """Remember the task of a call, which is charged for the bytes of the answer."""
        if type(asked.body) is dcp.Forward:
            askers = self._askers
            askers[asked.number] = _charged_to(asked.body)
            if len(askers) > limits.DCP_REQUESTS_MAX:
                del askers[next(iter(askers))]

    # -- receiving ------------------------------------------------------------------------------------
    def charge_answer(self, number: int, size: int) -> None:
        """Charge the task of a request for an answer whose bytes came in its frame."""
        _, task = self._askers.get(number, _UNKNOWN)
        self._rates.spend_for_task(task, size)

    def receive_on(
        self,
        sock: socket.socket,
        arrived: Callable[[ReceivedTransfer], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        """Receive transfers from a socket. Raise ProtocolError if there are too many data connections."""
        if len(self.receivers) >= CONNECTIONS_MAX:
            sock.close()
            raise ProtocolError(f"a node opened more than {CONNECTIONS_MAX} data connections")

        def over(reason: Exception | None) -> None:
            self.receivers.discard(receiver)
            if not self.receivers:
                self._quiet.set()
            ended(reason)

        self._quiet = trio.Event()
        receiver = DataReceiver(
            sock,
            self.allowance,
            incoming=self._start_incoming,
            arrived=arrived,
            ended=over,
        )
        self.receivers.add(receiver)

    def _report_working(self, number: int) -> None:
        """Answer that a request is in progress whose bytes are being received, before the core gets it."""
        if not self.closed:
            self.send_message(dcp.PeerReply(number, dcp.Working()))

    def _start_incoming(self, receiver: DataReceiver, body: bytes, size: int) -> IncomingTransfer:
        """Return the counter for the bytes of a transfer. Runs in the thread of ``receiver``."""
        try:
            message, _ = decode_frame(body)
        except ProtocolError:
            message = None  # the message is refused when the transfer is complete
        whose, tell = _UNKNOWN, _nothing
        if isinstance(message, dcp.PeerReply):
            whose = self._askers.get(message.number, _UNKNOWN)
            tell = partial(self._report_under_way, message.number)
        elif isinstance(message, dcp.Ask):
            whose = _charged_to(message.body)
            tell = partial(self._report_working, message.number)
        principal, task = whose
        return IncomingTransfer(
            Charge(self._rates, principal, Traffic.IN, size, task), size, partial(receiver.in_loop, tell)
        )

    def is_idle(self, since_s: float) -> bool:
        """Return True if nothing was sent or received since then, and nothing is open."""
        busy = self.closed or self.receivers or self.ends or self._under_way or self.incoming
        return not busy and self.used_s < since_s and not self.sending.queued

    async def rest(self) -> None:
        """End the connection, and let the other node know that it was only not used."""
        self.resting = True
        self.send_message(Resting())
        with trio.move_on_after(limits.HANDSHAKE_MS_MAX / 1000):
            await self.line.flush()
        self.end()

    def end(self, fault: Exception | None = None) -> None:
        """End the connection; the task that serves it notices."""
        if self.closed:
            return
        self.closed = True
        self.fault = fault
        self.line.close()
        self.sending.close()
        self.allowance.close()
        for receiver in self.receivers:
            receiver.close()
        for end in list(self.ends):
            end()

    async def wait_ended(self) -> None:
        """Wait until all transfers have ended, after ``end``."""
        await self.sending.wait_empty()
        await self._quiet.wait()


_CONTROL: Final[frozenset[type]] = frozenset(
    {dcp.Gossip, dcp.Leased, Revoked, Resting, Continuing, AuditHeads}
)
"""Notices that overtake others. A lease must come before the answer to the same request."""


def _is_control(message: dcp.Message | Control) -> bool:
    """Return True for messages that overtake others: gossip, acknowledgements, progress, statements."""
    if type(message) is dcp.PeerReply:
        return isinstance(message.result, dcp.Working | messages.Done | messages.Failure)
    return type(message) in _CONTROL


def _charged_to(body: dcp.RequestBody) -> tuple[str, TaskId]:
    """Return the principal and the task on whose behalf a node makes a request."""
    if isinstance(body, dcp.KeepOutput):
        return body.principal, _NOBODY
    caller: dcp.Caller | None = getattr(body, "caller", None)
    return _UNKNOWN if caller is None else (caller.principal, caller.task)


def _nothing() -> None:
    return


class PeerLink:
    """The record of another node."""

    def __init__(self, node: NodeId, name: str, address: str) -> None:
        self.node = node
        self.name = name
        self.address = address
        self.session: PeerSession | None = None
        self.dialling: trio.CancelScope | None = None
        """Cancels the attempt to connect, while there is one."""
        self.keeper_scope: trio.CancelScope | None = None
        """Cancels the task that keeps the node connected, while there is one."""
        self.kept = True
        """True if the connection is made again when it is lost; otherwise only when gossip is sent."""
        self.waiting: list[dcp.Gossip] = []
        """Gossip that waits for the connection, at most PEER_WAITING_GOSSIP_MAX messages."""
        self.lost = trio.Event()
        self.last_error = ""
        """The reason why the last attempt to connect failed."""
        self.reported_epoch: int | None = None
        """The epoch of the node's last PeerUp event; None after a PeerDown event."""
