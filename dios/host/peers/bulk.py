"""Data connections: large messages and bytes, moved by threads that do nothing else (thesis §4.8).

Not for: which transfer goes when (``dios.host.peers.sending``), or what a message means.

One connection carries transfers one way, one after another: a head, the message, the bytes, and a BLAKE3 of
them all. Bytes are copied into a block of this thread before they are hashed and sent: a task may change its
buffer meanwhile, and what was hashed must be what was sent.
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
from blake3 import blake3

from dios import limits
from dios.errors import ClosedError, DamagedError, DiosError, ProtocolError
from dios.host.bandwidth.rates import Charge
from dios.transport.memory.memfd import create_memory, write_all
from dios.wire.dcp_frames import DIGEST_BYTES, HEAD_BYTES, decode_head, encode_head

_MS: Final = 1_000_000


class Piece(NamedTuple):
    """Some bytes of a memory or file: its descriptor, where they begin, how many they are."""

    fd: int
    start: int
    length: int


class Transfer(NamedTuple):
    """A message and the bytes beside it. ``done`` is called in the loop, once, whatever became of it.

    ``charge`` is told of each piece, and how fast they may go.
    """

    message: bytes
    pieces: tuple[Piece, ...]
    done: Callable[[], None]
    charge: Charge | None = None

    @property
    def size(self) -> int:
        """The bytes beside the message."""
        return sum(piece.length for piece in self.pieces)


class Arrived(NamedTuple):
    """A transfer that came whole: its message, and a memory with the bytes beside it (-1 for none)."""

    message: bytes
    fd: int
    size: int


class Allowance:
    """How many bytes may be on their way in from one peer at once; for threads."""

    def __init__(self, most: int = limits.DCP_RECEIVING_BYTES_MAX) -> None:
        self._most: Final = most
        self._used = 0
        self._closed = False
        self._changed: Final = threading.Condition()

    def take(self, size: int) -> bool:
        """Wait for room; False when there will be none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._used or self._used + size <= self._most)
            self._used += size
            return not self._closed

    def give_back(self, size: int) -> None:
        """These bytes are somebody's now, or were dropped."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Arrival:
    """A transfer on its way in, on somebody's meter; for one thread.

    ``tell`` is called, when it takes long, and that is as soon as it can be known, and then now and again.
    """

    def __init__(self, charge: Charge, size: int, tell: Callable[[], None]) -> None:
        self._charge: Final = charge
        self._size: Final = size
        self._tell: Final = tell
        self._began: Final = time.monotonic_ns()
        self._told = 0
        self._came = 0
        if size >= limits.DCP_TOLD_BYTES_MIN:
            self._tell_at(self._began)

    def went(self, size: int) -> None:
        """So many bytes more have come."""
        self._charge.went(size)
        self._came += size
        now = time.monotonic_ns()
        if self._told:
            if now - self._told >= limits.DCP_TOLD_MS * _MS:
                self._tell_at(now)
        elif (now - self._began) * self._size >= limits.DCP_TOLD_BEFORE_MS * _MS * self._came:
            # At this pace it is not here by then.
            self._tell_at(now)

    def _tell_at(self, now: int) -> None:
        self._told = now
        self._tell()

    def close(self) -> None:
        """No more will come."""
        self._charge.close()


class _Threaded(ABC):
    """A thread with a socket; ``ended`` is told in the loop when it is over, with the reason if there is
    one.
    """

    def __init__(self, sock: socket.socket, ended: Callable[[Exception | None], None], name: str) -> None:
        self.sock: Final = sock
        self._ended: Final = ended
        self._token: Final = trio.lowlevel.current_trio_token()
        self._lock: Final = threading.Lock()
        self._closed = False
        self._thread: Final = threading.Thread(target=self._live, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """What the thread does until the connection ends."""

    def _last(self) -> None:  # noqa: B027 - not every thread has something to do then
        """The connection is closed, and takes nothing more."""

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
        """Call this in the loop, soon; nothing once the loop has ended."""
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return

    def close(self) -> None:
        """End the connection; its thread ends by itself soon."""
        with self._lock:
            if not self._closed:
                self._closed = True
                # Not a TLS socket's own method, which takes TLS away from under the thread.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the thread, after ``close``."""
        self._thread.join(limits.TASK_DRAIN_MS_MAX / 1000)


class DataSender(_Threaded):
    """Sends transfers. ``sent`` is told in the loop of each that it is over, and whether it was sent."""

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
        """Send this after what was given before."""
        with self._lock:
            if not self._closed:
                self._queue.put(transfer)
                return
        self._sent(self, transfer, False)

    def close(self) -> None:
        """End the connection; what was not sent is not sent any more."""
        super().close()
        self._queue.put(None)

    def _run(self) -> None:
        while (transfer := self._queue.get()) is not None:
            done = False
            try:
                self._transmit(transfer)
                done = True
            finally:
                self._tell(transfer, done=done)

    def _has_ended(self) -> bool:
        return self._closed

    def _last(self) -> None:
        while not self._queue.empty():
            left = self._queue.get()
            if left is not None:
                self._tell(left, done=False)

    def _tell(self, transfer: Transfer, *, done: bool) -> None:
        self.in_loop(lambda: self._sent(self, transfer, done))

    def _transmit(self, transfer: Transfer) -> None:
        head = encode_head(len(transfer.message), transfer.size) + transfer.message
        digest = blake3(head)
        charge = transfer.charge
        self.sock.sendall(head)
        for fd, start, length in transfer.pieces:
            done = 0
            while done < length:
                most = length - done if charge is None else min(length - done, charge.piece())
                count = os.preadv(fd, [self._block[:most]], start + done)
                if not count:
                    raise DamagedError(f"{length - done} bytes less are there than were promised to a node")
                part = self._block[:count]
                digest.update(part)
                if charge is not None and not charge.take(count, self._has_ended):
                    raise ClosedError("the connection was closed within a transfer")
                self.sock.sendall(part)
                if charge is not None:
                    charge.went(count)
                done += count
        self.sock.sendall(digest.digest())


class DataReceiver(_Threaded):
    """Receives transfers. ``arrived`` is told in the loop of each that came whole.

    ``incoming`` says by its message, in this thread, who is told of the bytes of one.
    """

    def __init__(
        self,
        sock: socket.socket,
        allowance: Allowance,
        *,
        incoming: Callable[[DataReceiver, bytes, int], Arrival],
        arrived: Callable[[Arrived], None],
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
            if not self._allowance.take(size):
                return
            fd = -1
            try:
                digest = blake3(head)
                digest.update(message)
                fd = create_memory(size, "received") if size else -1
                if size:
                    self._receive_bytes(fd, size, digest, self._incoming(self, bytes(message), size))
                self._receive_digest(digest)
            except BaseException:
                self._allowance.give_back(size)
                if fd >= 0:
                    os.close(fd)
                raise
            self._hand_on(Arrived(bytes(message), fd, size))

    def _receive_bytes(self, fd: int, size: int, digest: blake3, incoming: Arrival) -> None:
        place = 0
        try:
            while place < size:
                part = self._block[: size - place]
                self._fill(part)
                incoming.went(len(part))
                digest.update(part)
                write_all(fd, part, place)
                place += len(part)
        finally:
            incoming.close()

    def _receive_digest(self, digest: blake3) -> None:
        told = self._block[:DIGEST_BYTES]
        self._fill(told)
        if bytes(told) != digest.digest():
            raise ProtocolError("a transfer came with other bytes than its digest tells")

    def _hand_on(self, arrived: Arrived) -> None:
        def take() -> None:
            self._allowance.give_back(arrived.size)
            self._arrived(arrived)

        self.in_loop(take)

    def _fill(self, view: memoryview, *, at_rest: bool = False) -> bool:
        """Fill ``view``; False at an end before its first byte, where that is allowed (``at_rest``)."""
        done = 0
        while done < len(view):
            count = self.sock.recv_into(view[done:])
            if not count:
                if at_rest and not done:
                    return False
                raise ConnectionResetError("a data connection ended within a transfer")
            done += count
        return True
