"""Data connections: threads that move large messages and bytes between nodes (thesis §4.8).

``dios.host.peers.sending`` orders the transfers.

A connection carries transfers in one direction, one after another: a head, the message, and the bytes. TLS
authenticates them. A sending thread reads the bytes into a block of its own, a piece at a time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import (
    ClosedError,
    DamagedError,
    DiosError,
    OutOfMemoryError,
    WouldBlockError,
)
from dios.host.bandwidth.rates import Charge
from dios.transport.memory.memfd import create_memory, write_all
from dios.wire.dcp_frames import HEAD_BYTES, Head, decode_head, encode_head

_MS: Final = 1_000_000
RECEIVING_PERCENT: Final = 50
"""The memory for bytes that are arriving from other nodes, of what objects in memory may use."""
RECEIVING_WAIT_MS_MAX: Final = 10_000
"""The longest wait of a transfer for memory that other transfers use."""


class FileRange(NamedTuple):
    """A range of bytes in a memory or file: its descriptor, start and length."""

    fd: int
    start: int
    length: int


class Transfer(NamedTuple):
    """A message with the bytes attached to it.

    ``done`` is called once in the event loop, when the transfer has ended, successfully or not. ``charge``
    counts each piece and limits the rate of the transfer.
    """

    message: bytes
    pieces: tuple[FileRange, ...]
    done: Callable[[], None]
    charge: Charge | None = None

    @property
    def size(self) -> int:
        """The number of attached bytes."""
        return sum(piece.length for piece in self.pieces)


class ReceivedTransfer(NamedTuple):
    """A complete received transfer: its message, and a memory with the attached bytes (-1 for none).

    With ``refused``, there was no room for the bytes, and they were dropped.
    """

    message: bytes
    fd: int
    size: int
    refused: DiosError | None = None


class ReceivingMemory:
    """The memory for bytes that are arriving from all nodes; for threads.

    Nodes share ``most`` bytes, and one node may use half of them. They are not counted with a principal
    before the message is complete, because a node can name any principal.
    """

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self.most_of_one: Final = min(limits.DCP_RECEIVING_BYTES_MAX, most // 2)
        self.used = 0
        self.changed: Final = threading.Condition()


class ReceiveAllowance:
    """The share of one connection in the memory for arriving bytes; for threads.

    A transfer waits at most ``wait_ms`` for room.
    """

    def __init__(self, memory: ReceivingMemory, wait_ms: int = RECEIVING_WAIT_MS_MAX) -> None:
        self._memory: Final = memory
        self._wait_ms: Final = wait_ms
        self._used = 0
        self._closed = False

    def take(self, size: int) -> bool:
        """Wait for room and take it. Return False if the allowance was closed.

        Raise OutOfMemoryError if there is never room for the bytes, WouldBlockError if there is none now.
        """
        memory = self._memory
        if size > memory.most_of_one:
            raise OutOfMemoryError(
                f"cannot receive {size} bytes from another node: at most {memory.most_of_one} are received "
                "at a time. Move them in parts, or raise volatile_bytes_max of the receiving node."
            )
        with memory.changed:
            wait_s = self._wait_ms / 1000
            if not memory.changed.wait_for(lambda: self._closed or self._has_room(size), wait_s):
                raise WouldBlockError(
                    f"cannot receive {size} bytes from another node: other transfers use the memory for "
                    "arriving bytes. Try again later."
                )
            if self._closed:
                return False
            self._count(size)
            return True

    def _has_room(self, size: int) -> bool:
        memory = self._memory
        return self._used + size <= memory.most_of_one and memory.used + size <= memory.most

    def _count(self, size: int) -> None:
        self._used += size
        self._memory.used += size

    def give_back(self, size: int) -> None:
        """Return room for bytes that were passed on or dropped."""
        with self._memory.changed:
            self._count(-size)
            self._memory.changed.notify_all()

    def close(self) -> None:
        """Wake all waiting threads; ``take`` returns False from now on."""
        with self._memory.changed:
            self._closed = True
            self._memory.changed.notify_all()


class IncomingTransfer:
    """A transfer that is being received, with the meter of its principal; for one thread.

    If the transfer takes long, ``report`` is called as early as that can be predicted, and repeatedly after.
    """

    def __init__(self, charge: Charge, size: int, report: Callable[[], None]) -> None:
        self._charge: Final = charge
        self._size: Final = size
        self._report: Final = report
        self._began: Final = time.monotonic_ns()
        self._reported_at = 0
        self._came = 0
        if size >= limits.DCP_PROGRESS_BYTES_MIN:
            self._report_at(self._began)

    def went(self, size: int) -> None:
        """Count ``size`` more received bytes."""
        self._charge.went(size)
        self._came += size
        now = time.monotonic_ns()
        if self._reported_at:
            if now - self._reported_at >= limits.DCP_PROGRESS_PERIOD_MS * _MS:
                self._report_at(now)
        elif (now - self._began) * self._size >= limits.DCP_PROGRESS_FIRST_MS * _MS * self._came:
            # At this rate the transfer will last longer than DCP_PROGRESS_FIRST_MS.
            self._report_at(now)

    def _report_at(self, now: int) -> None:
        self._reported_at = now
        self._report()

    def close(self) -> None:
        """Stop counting: no more bytes will be received."""
        self._charge.close()


class _SocketThread(ABC):
    """A thread with a socket. ``ended`` is called in the event loop at its end, with its error or None."""

    def __init__(self, sock: socket.socket, ended: Callable[[Exception | None], None], name: str) -> None:
        self.sock: Final = sock
        self._ended: Final = ended
        self._token: Final = trio.lowlevel.current_trio_token()
        self._lock: Final = threading.Lock()
        self._closed = False
        self._thread: Final = threading.Thread(target=self._live, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Run until the connection ends."""

    def _last(self) -> None:  # noqa: B027 - only some threads have work to do here
        """Clean up after the connection was closed."""

    def _live(self) -> None:
        reason: Exception | None = None
        try:
            self._run()
        except (OSError, DiosError, ValueError) as error:
            reason = error
        with self._lock:
            self._closed = True
            self.sock.close()
        self._last()
        self.in_loop(lambda: self._ended(reason))

    def in_loop(self, call: Callable[[], None]) -> None:
        """Call a function in the event loop soon; do nothing if the loop has ended."""
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return

    def close(self) -> None:
        """End the connection; its thread ends soon after."""
        with self._lock:
            if not self._closed:
                self._closed = True
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the thread to end, after ``close``."""
        self._thread.join(limits.TASK_DRAIN_MS_MAX / 1000)


class DataSender(_SocketThread):
    """A thread that sends transfers. It calls ``sent`` in the loop for each, with True if it was sent."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        sent: Callable[[DataSender, Transfer, bool], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(sock, ended, "send bytes to a node")
        self._sent: Final = sent
        self._queue: Final[SimpleQueue[Transfer | None]] = SimpleQueue()
        self._block: Final = memoryview(bytearray(limits.DATA_PIECE_BYTES))
        self._thread.start()

    def send(self, transfer: Transfer) -> None:
        """Queue a transfer."""
        with self._lock:
            if not self._closed:
                self._queue.put(transfer)
                return
        self._sent(self, transfer, False)

    def close(self) -> None:
        """End the connection; queued transfers are not sent."""
        super().close()
        self._queue.put(None)

    def _run(self) -> None:
        while (transfer := self._queue.get()) is not None:
            done = False
            try:
                self._transmit(transfer)
                done = True
            finally:
                self._report_sent(transfer, done=done)

    def _has_ended(self) -> bool:
        return self._closed

    def _last(self) -> None:
        while not self._queue.empty():
            left = self._queue.get()
            if left is not None:
                self._report_sent(left, done=False)

    def _report_sent(self, transfer: Transfer, *, done: bool) -> None:
        self.in_loop(lambda: self._sent(self, transfer, done))

    def _transmit(self, transfer: Transfer) -> None:
        head = encode_head(Head(len(transfer.message), transfer.size)) + transfer.message
        charge = transfer.charge
        if charge is not None and not charge.take_message(len(head), self._has_ended):
            raise ClosedError("the connection was closed before a transfer")
        self.sock.sendall(head)
        for fd, start, length in transfer.pieces:
            done = 0
            while done < length:
                most = length - done if charge is None else min(length - done, charge.piece())
                count = os.preadv(fd, [self._block[:most]], start + done)
                if not count:
                    raise DamagedError(f"cannot send bytes to a node: {length - done} of them are missing")
                part = self._block[:count]
                if charge is not None and not charge.take(count, self._has_ended):
                    raise ClosedError("the connection was closed during a transfer")
                self.sock.sendall(part)
                if charge is not None:
                    charge.went(count)
                done += count


class DataReceiver(_SocketThread):
    """A thread that receives transfers. It calls ``arrived`` in the loop for each complete transfer.

    ``incoming`` is called in this thread with the message of a transfer before its bytes are received, and
    returns the object that counts them.
    """

    def __init__(
        self,
        sock: socket.socket,
        allowance: ReceiveAllowance,
        *,
        incoming: Callable[[DataReceiver, bytes, int], IncomingTransfer],
        arrived: Callable[[ReceivedTransfer], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(sock, ended, "receive bytes of a node")
        self._allowance: Final = allowance
        self._incoming: Final = incoming
        self._arrived: Final = arrived
        self._block: Final = memoryview(bytearray(limits.DATA_PIECE_BYTES))
        self._thread.start()

    def _run(self) -> None:
        head = memoryview(bytearray(HEAD_BYTES))
        while self._fill(head, at_rest=True):
            message_bytes, size = decode_head(head)
            message = memoryview(bytearray(message_bytes))
            self._fill(message)
            kept, refused = size, None
            try:
                if not self._allowance.take(size):
                    return
            except (OutOfMemoryError, WouldBlockError) as error:
                kept, refused = 0, error
            fd = -1
            try:
                fd = create_memory(size, "received") if kept else -1
                if size:
                    self._receive_bytes(fd, size, self._incoming(self, bytes(message), size))
            except BaseException:
                self._allowance.give_back(kept)
                if fd >= 0:
                    os.close(fd)
                raise
            self._hand_on(ReceivedTransfer(bytes(message), fd, kept, refused))

    def _receive_bytes(self, fd: int, size: int, incoming: IncomingTransfer) -> None:
        place = 0
        try:
            while place < size:
                part = self._block[: size - place]
                self._fill(part)
                incoming.went(len(part))
                if fd >= 0:
                    write_all(fd, part, place)
                place += len(part)
        finally:
            incoming.close()

    def _hand_on(self, arrived: ReceivedTransfer) -> None:
        def take() -> None:
            self._allowance.give_back(arrived.size)
            self._arrived(arrived)

        self.in_loop(take)

    def _fill(self, view: memoryview, *, at_rest: bool = False) -> bool:
        """Fill ``view``. Return False at an end before its first byte, if ``at_rest`` allows an end there."""
        done = 0
        while done < len(view):
            count = self.sock.recv_into(view[done:])
            if not count:
                if at_rest and not done:
                    return False
                raise ConnectionResetError("a data connection ended during a transfer")
            done += count
        return True
