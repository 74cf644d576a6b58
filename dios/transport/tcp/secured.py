"""One connection between two nodes: TLS 1.3 over TCP, both ends authenticated, frames in both directions.

``dios.transport.tcp.tls`` makes connections; ``dios.wire`` has the frames.

The socket does not block and belongs to the event loop. A frame is encrypted and sent at once if nothing is
queued before it. Bulk bytes would block the loop: they have connections of their own, which ``detach`` gives
to a thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import weakref
from collections import deque
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ProtocolError, UnreachableError, WouldBlockError
from dios.ids import NodeId
from dios.transport.batch import BATCH
from dios.transport.identity.certificates import CertificateDetails, CertificateRole
from dios.transport.identity.trust import Trust
from dios.transport.tcp.tls_socket import TlsSocket
from dios.wire.codec import FrameSplitter

_LENGTH: Final = struct.Struct("<I")
_TCP_NOTSENT_LOWAT: Final = 25  # of Linux; the socket module of Python 3.11 lacks it
_TCP_INFO_BYTES: Final = 72
_TCP_INFO_RTT: Final = 68  # the place of tcpi_rtt in struct tcp_info of Linux


class PeerIdentity(NamedTuple):
    """The identity of the peer in its certificates."""

    role: CertificateRole
    node: NodeId
    """The node's id; for the role JOIN the number of the token."""
    name: str
    chain: tuple[CertificateDetails, ...]
    renews: bool = False
    """True on a connection on which the peer gets its next certificate and nothing else."""
    certificates: tuple[bytes, ...] = ()
    """The verified certificates (DER) of that connection, from the peer's to the root's; else none."""

    @property
    def key(self) -> bytes:
        """The SHA-256 of the peer's public key."""
        return self.chain[0].key

    @property
    def roles(self) -> str:
        """The roles of a node, as in its certificate."""
        return str(self.chain[0].node_role)


def frame_of(body: bytes) -> bytes:
    """Return a body with its length, as ``send_nowait`` takes it."""
    return _LENGTH.pack(len(body)) + body


class Secured:
    """A connection to ``peer``; a task in ``nursery`` sends the bytes that the peer did not accept at once.

    Its owner closes it. It closes itself when ``trust`` refuses the peer; without a ``trust`` only the
    peer's certificates count.
    """

    def __init__(
        self, sock: TlsSocket, peer: PeerIdentity, nursery: trio.Nursery, trust: Trust | None
    ) -> None:
        self.peer: Final = peer
        self._trust: Final = trust
        self._sock: Final = sock
        self._nursery: Final = nursery
        limit = (
            limits.DCP_FRAME_BYTES_MAX if peer.role is CertificateRole.NODE else limits.JOIN_FRAME_BYTES_MAX
        )
        self._splitter: Final = FrameSplitter(limit)
        self._queue: Final[deque[bytes]] = deque()
        self._urgent: Final[deque[bytes]] = deque()
        self._held: list[bytes] = []  # small frames of this turn, see dios.transport.batch
        self._held_bytes = 0
        self._begun_bytes = 0
        """The part of ``_queued_bytes`` of the frame of which the kernel has accepted a part."""
        self._urgent_run = 0
        self._queued_bytes = 0
        self._drained = trio.Event()
        self._drained.set()
        self._closed = False
        self._stays = False
        self._frame_begun_s: float | None = None
        """The time at which the first bytes of an unfinished frame arrived."""
        self._unwatch = trust.watch(self._reconsider) if trust else lambda: None

    @property
    def queued_bytes(self) -> int:
        """Return the number of bytes that wait for the peer to read."""
        return self._queued_bytes

    @property
    def _is_unfinished(self) -> bool:
        return bool(self._queue or self._urgent or self._held or self._begun_bytes)

    @property
    def closed(self) -> bool:
        """Return True if this end was closed or detached."""
        return self._closed

    async def receive(self) -> list[bytes]:
        """Wait for the next frames; return the bodies of all that are here, or an empty list at the end.

        The peer, the network or this node ended the connection. Raises ProtocolError for a frame over the
        limit and for bytes that are not TLS, and after ``stay`` UnreachableError for a frame whose rest does
        not come; then the connection must be closed.
        """
        sock = self._sock
        bodies: list[bytes] = []
        if sock.pending():
            # Bytes are here already; let the other tasks run nevertheless.
            await trio.lowlevel.checkpoint()
        while not self._closed:
            try:
                data = sock.read_record()
                if data is None:
                    if bodies:
                        return bodies
                    # The rest of a frame has often come meanwhile.
                    if self._frame_begun_s is None or not sock.fetch():
                        await self._wait_for_bytes()
                        sock.fetch()
                    continue
            except ssl.SSLError as error:
                raise ProtocolError(
                    f"{self.peer.name} sent bytes that are not TLS: {_reason(error)}"
                ) from None
            except UnreachableError:
                raise  # it is an OSError as well
            except (trio.ClosedResourceError, OSError, ValueError):
                return bodies
            if not data:
                return bodies
            whole = self._splitter.feed(data)
            if not self._splitter.pending:
                self._frame_begun_s = None
            elif whole or self._frame_begun_s is None:
                self._frame_begun_s = trio.current_time()
            bodies += whole
            if bodies and not (self._stays and sock.pending()):
                return bodies
        return []

    async def _wait_for_bytes(self) -> None:
        """Wait until bytes arrive. Raise UnreachableError if the rest of a frame does not come in time."""
        if self._frame_begun_s is None or not self._stays:
            await trio.lowlevel.wait_readable(self._sock)
            return
        # This node itself may have read late.
        earliest = trio.current_time() + limits.DCP_FRAME_MS_MAX / 10_000
        with trio.move_on_at(max(earliest, self._frame_begun_s + limits.DCP_FRAME_MS_MAX / 1000)) as scope:
            await trio.lowlevel.wait_readable(self._sock)
        if scope.cancelled_caught:
            raise UnreachableError(
                f"{self.peer.name} began a frame and did not send the rest within "
                f"{limits.DCP_FRAME_MS_MAX // 1000} s; the nodes connect again"
            )

    @property
    def round_trip_us(self) -> int:
        """The kernel's estimate of the time to the other node and back, in microseconds; 0 once closed."""
        if self._closed:
            return 0
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int.from_bytes(info[_TCP_INFO_RTT : _TCP_INFO_RTT + 4], sys.byteorder)

    def stay(self) -> None:
        """Never detach this connection: ``receive`` then reads all received records, not one.

        If it may be detached, bytes after a frame need not be frames and are not read.
        """
        if not self._stays and not self._closed:
            with contextlib.suppress(OSError):
                # Few bytes wait in the kernel, where urgent frames cannot overtake them.
                self._sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, limits.DCP_UNSENT_BYTES)
        self._stays = True

    def send_nowait(self, frame: bytes, *, urgent: bool = False) -> None:
        """Send one whole frame with its length; an urgent one overtakes the others that wait. Never waits.

        A frame to a peer that is gone is dropped; ``receive`` reports the end. Raises WouldBlockError if
        more than DCP_QUEUE_BYTES_MAX bytes would wait for the peer: then the connection must be closed.
        """
        if self._queue or self._urgent or self._begun_bytes:
            self._enqueue(frame, self._urgent if urgent else self._queue)
            return
        if BATCH.is_open and len(frame) < limits.BATCHED_BYTES_MAX:
            self._hold(frame)
            return
        if self._held:
            self.send_held()
            self.send_nowait(frame, urgent=urgent)
            return
        self._write(frame)

    def _hold(self, frame: bytes) -> None:
        """Hold a small frame back until the end of the batch, for as many as fit into one TLS record."""
        if self._held_bytes + len(frame) > limits.BATCHED_BYTES_MAX:
            self.send_held()
            if self._is_unfinished:
                self._enqueue(frame, self._queue)
                return
        if not self._held:
            BATCH.note(self)
        self._held.append(frame)
        self._held_bytes += len(frame)

    def send_held(self) -> None:
        """Send the frames that are held back, in one TLS record."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held and not self._closed:
            self._write(held[0] if len(held) == 1 else b"".join(held))

    def _write(self, frame: bytes) -> None:
        try:
            is_sent = self._sock.write(frame)
        except (OSError, ValueError):
            self._sever()
            return
        if not is_sent:
            self._enqueue(frame, None)

    def _enqueue(self, frame: bytes, queue: deque[bytes] | None) -> None:
        """Queue a frame, or count it as the begun one if ``queue`` is None."""
        if self._closed:
            return
        size = len(frame) + limits.SEND_QUEUE_ENTRY_BYTES
        if self._queued_bytes + size > limits.DCP_QUEUE_BYTES_MAX:
            raise WouldBlockError(
                f"{self._queued_bytes} bytes wait for {self.peer.name}, which does not read them"
            )
        if queue is None:
            self._begun_bytes = size
        else:
            queue.append(frame)
        self._queued_bytes += size
        if self._drained.is_set():
            self._drained = trio.Event()
            self._nursery.start_soon(self._drain, name="send what waits for a node")

    def _next_frame(self) -> bytes | None:
        """Remove and return the frame to send next: an urgent one, or now and then one of the others."""
        is_others_turn = self._queue and self._urgent_run >= limits.DCP_CONTROL_RUN_MAX
        if self._urgent and not is_others_turn:
            self._urgent_run += 1
            return self._urgent.popleft()
        self._urgent_run = 0
        return self._queue.popleft() if self._queue else None

    async def _drain(self) -> None:
        try:
            while self._begun_bytes:
                await trio.lowlevel.wait_writable(self._sock)
                while self._begun_bytes and self._sock.flush():
                    self._queued_bytes -= self._begun_bytes
                    self._begun_bytes = 0
                    frame = self._next_frame()
                    if frame is not None:
                        self._begun_bytes = len(frame) + limits.SEND_QUEUE_ENTRY_BYTES
                        self._sock.write(frame)
        except (trio.ClosedResourceError, OSError, ValueError):
            self._sever()
        finally:
            self._drop_queue()

    def _sever(self) -> None:
        """Make ``receive`` find the end: after an interrupted write, TLS cannot continue."""
        self._drop_queue()
        if not self._closed:
            cut(self._sock)

    def _reconsider(self) -> None:
        if self._trust and self._trust.refusal(self.peer.chain):
            self.close()

    def _drop_queue(self) -> None:
        self._held, self._held_bytes = [], 0
        self._queue.clear()
        self._urgent.clear()
        self._begun_bytes = 0
        self._queued_bytes = 0
        self._drained.set()

    async def flush(self) -> None:
        """Wait until all queued bytes were sent to the peer, or the peer is gone."""
        await self._drained.wait()

    def close(self) -> None:
        """Close at once; queued bytes are lost, and ``receive`` returns the end."""
        if self._closed:
            return
        self.send_held()
        self._closed = True
        self._unwatch()
        unfinished = self._is_unfinished
        self._drop_queue()
        trio.lowlevel.notify_closing(self._sock)
        close_socket(self._sock, say_so=not unfinished)

    def detach(self) -> TlsSocket:
        """Return the connection as a blocking socket for one thread to read or write.

        The receiver closes it, and uses ``cut`` to end a wait in it; it also ends when ``trust`` refuses
        the peer. Raises ProtocolError if frames are unfinished in either direction, or after ``stay``.
        """
        if self._closed or self._stays or self._is_unfinished or self._splitter.pending:
            raise ProtocolError("cannot detach a connection with unfinished frames")
        self._closed = True
        self._unwatch()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.block()
        if self._trust:
            _watch_detached(self._sock, self.peer, self._trust)
        return self._sock


def _watch_detached(sock: TlsSocket, peer: PeerIdentity, trust: Trust) -> None:
    held = weakref.ref(sock)

    def reconsider() -> None:
        connection = held()
        if connection is not None and trust.refusal(peer.chain):
            cut(connection)

    weakref.finalize(sock, trust.watch(reconsider)).atexit = False


def cut(sock: TlsSocket) -> None:
    """End a connection that another thread may read or write.

    Closing would not wake that thread; it still has to close the socket.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def close_socket(sock: TlsSocket, *, say_so: bool = True) -> None:
    """Close without waiting; with ``say_so`` the peer learns that nothing is missing."""
    if say_so:
        sock.say_end()
    sock.close()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
