"""Moves one stream between a ring and a data connection, in a thread of its own.

``dios.host.peers.streams`` makes the rings and connections.

The connection carries pieces with a length prefix. A piece of length 0 is the end of the stream; if the
connection ends without it, the reader learns that the stream was interrupted. A full ring stops the
connection and thereby the writer on the other node. A length of PAUSE is the end of the connection alone: the
stream goes on over another one, after the program of one of the nodes was replaced.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ClosedError, DiosError, EndOfStreamError, ProtocolError
from dios.host.bandwidth.accounts import Account
from dios.host.bandwidth.rates import Rates
from dios.ids import TaskId
from dios.transport.rings.end import RingEnd
from dios.transport.rings.reader import RingReader
from dios.transport.rings.waiting import wait_any
from dios.transport.rings.writer import RingWriter
from dios.transport.tcp.tls_socket import TlsSocket
from dios.wire.types import Traffic

PAUSE: Final = 2**32 - 1
_LENGTH: Final = struct.Struct("<I")
_END: Final = _LENGTH.pack(0)
_PAUSE: Final = _LENGTH.pack(PAUSE)


class AttachedTask(NamedTuple):
    """The task of another node that attached to an end of a stream, and its principal."""

    task: TaskId
    principal: str


class _PausedError(Exception):
    """The connection has ended, and the stream has not."""


class StreamPump:
    """One stream between nodes, with a ring and a socket of its own.

    Its bytes are charged to ``taker``, the task that attached from another node. ``ended`` is called in the
    event loop when the pump has ended. If it is ``paused`` then, the ring is open, and ``pending`` are bytes
    that have left the other node and are not in the ring; a later pump begins with them. They are all that is
    left of the stream if there is no socket, and after a pause if the pump is ``finished``.
    """

    def __init__(
        self,
        ring: RingEnd,
        sock: socket.socket | None,
        rates: Rates,
        taker: AttachedTask,
        ended: Callable[[], None],
        pending: bytes = b"",
    ) -> None:
        self.paused = False
        self.finished = sock is None
        self.pending = bytearray(pending)
        self._ring: Final = ring
        self._sock: Final = socket.socket() if sock is None else sock
        self._rates: Final = rates
        self._taker: Final = taker
        self._task_rate: Final = rates.task_rate(taker.task)
        self._ended: Final = ended
        self._token: Final = trio.lowlevel.current_trio_token()
        self._lock: Final = threading.Lock()
        self._closed = False
        self._broken_off = False
        self._pausing = False
        self._wakeup: Final = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # A reader that does not read for a while is not a node that is gone. The control connection notices
        # such a node, and this connection ends with it.
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        threading.Thread(target=self._live, name="stream between nodes", daemon=True).start()

    def pause(self) -> None:
        """Stop the pump, so that the stream can go on over another connection.

        A sender stops after a whole piece. A receiver keeps what arrives until the sender has stopped, in
        memory if the ring is full.
        """
        self._pausing = True
        self._rates.wake()
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Interrupt the stream."""
        self._broken_off = True
        self._rates.wake()
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
                os.eventfd_write(self._wakeup, 1)

    def _live(self) -> None:
        try:
            if isinstance(self._ring, RingReader):
                self._outward(self._ring)
            elif isinstance(self._ring, RingWriter):
                self._inward(self._ring)
        except _PausedError:
            self.paused = True
        finally:
            with self._lock:
                self._closed = True
                self._sock.close()
                os.close(self._wakeup)
            if not self.paused:
                self._ring.close()
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._ended)

    # -- from the ring to the other node --------------------------------------------------------------
    def _outward(self, ring: RingReader) -> None:
        try:
            while True:
                ready, heard = wait_any((ring,), None, (self._sock.fileno(), self._wakeup))
                if self._pausing and not self._broken_off:
                    self._sock.sendall(_PAUSE)
                    raise _PausedError
                if heard and not ready:
                    return  # the other node does not read any more: closing the ring notifies the writer
                data = ring.read(self._rates.piece(self._account(), Traffic.OUT))
                task, principal = self._taker
                taken = self._take_for_task(len(data)) and self._rates.take_stream_bytes(
                    principal, Traffic.OUT, len(data), self._must_stop, task
                )
                # Bytes that have left the ring are sent before a pause, whatever the rate.
                if not taken and (self._broken_off or not self._pausing):
                    return
                self._sock.sendall(_LENGTH.pack(len(data)) + data)
        except EndOfStreamError:
            with contextlib.suppress(OSError):
                self._sock.sendall(_END)
        except (DiosError, OSError, ValueError):
            return

    def _account(self) -> Account:
        return self._rates.account(self._taker.task, self._taker.principal)

    def _take_for_task(self, size: int) -> bool:
        """Wait for the rate of the task itself, which also holds for what it leaves in the ring."""
        return self._rates.take_for_task(self._task_rate, size, self._must_stop, beyond_end=True)

    def _must_stop(self) -> bool:
        return self._broken_off or self._pausing

    # -- from the other node to the ring --------------------------------------------------------------
    def _inward(self, ring: RingWriter) -> None:
        head = memoryview(bytearray(_LENGTH.size))
        block = memoryview(bytearray(limits.STREAM_PIECE_BYTES))
        try:
            self._give_pending(ring)
            while not self.finished:
                self._fill(ring, head)
                (size,) = _LENGTH.unpack(head)
                if not size:
                    self.finished = True
                    break
                if size == PAUSE:
                    raise _PausedError
                if size > len(block):
                    raise ProtocolError(f"a piece of a stream has {size} bytes, over {len(block)}")
                self._fill(ring, block[:size])
                if not self._take_for_task(size) and not self._pausing:
                    return
                self._rates.count(self._account(), Traffic.IN, size)
                self._give(ring, block[:size])
            if self.pending:
                raise _PausedError
        except ClosedError:
            return  # nobody reads any more: the end of the connection notifies the other node
        except (DiosError, OSError, ValueError):
            ring.break_off()

    def _give_pending(self, ring: RingWriter) -> None:
        waiting, self.pending = self.pending, bytearray()
        self._give(ring, memoryview(waiting))

    def _give(self, ring: RingWriter, data: memoryview) -> None:
        """Write bytes into the ring when it has room; put them aside while the pump is being stopped."""
        while data.nbytes:
            if self._pausing and (self.pending or not ring.writable()):
                if len(self.pending) + data.nbytes > limits.STREAM_PENDING_BYTES_MAX:
                    raise ProtocolError("too many bytes of a stream are on their way to a node that restarts")
                self.pending += data
                return
            if self._broken_off:
                raise ConnectionResetError("the stream was interrupted")
            if not ring.writable():
                if wait_any((ring,), None, (self._wakeup,))[1]:
                    os.eventfd_read(self._wakeup)
                continue
            room = ring.acquire_room(data.nbytes)
            room[:] = data[: room.nbytes]
            data = data[room.nbytes :]
            ring.commit_write()

    def _fill(self, ring: RingWriter, view: memoryview) -> None:
        done = 0
        while done < len(view):
            self._wait(ring)
            count = self._sock.recv_into(view[done:])
            if not count:
                raise ConnectionResetError("the connection of a stream ended before the stream")
            done += count

    def _wait(self, ring: RingWriter) -> None:
        """Wait until bytes arrive. Raise ClosedError if the reader leaves meanwhile."""
        if isinstance(self._sock, TlsSocket) and self._sock.pending():
            return
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        # Not POLLIN: the reader could wake this thread all the time.
        poll.register(ring.fileno(), select.POLLRDHUP)
        if ring.fileno() in {fd for fd, _ in poll.poll()}:
            raise ClosedError("the reader of this stream is gone")
