"""One connection between two nodes: TLS 1.3 over TCP, both ends authenticated, frames in both directions.

Not for: making it (``dios.transport.tcp.tls``), or what frames mean (``dios.wire``).

The socket does not block and belongs to the event loop: one read brings what one TLS record holds, and a
frame is encrypted and sent at once when nothing waits before it. Many bytes would hold the loop up:
they travel on connections of their own, which ``detach`` gives to a thread (``dios.transport.tcp.bulk``).
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import weakref
from collections import deque
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import ProtocolError, WouldBlockError
from dios.ids import NodeId
from dios.transport.identity.certificates import Card, CertificateRole
from dios.transport.identity.trust import Trust
from dios.wire.codec import FrameSplitter

_LENGTH: Final = struct.Struct("<I")


class PeerIdentity(NamedTuple):
    """Who is at the other end, as its certificates say."""

    role: CertificateRole
    node: NodeId
    """The node's id; of role JOIN the token's number."""
    name: str
    chain: tuple[Card, ...]


def frame_of(body: bytes) -> bytes:
    """A body as ``send_nowait`` takes it: its length first."""
    return _LENGTH.pack(len(body)) + body


class Secured:
    """A connection to ``peer``; ``nursery`` runs what sends what the peer did not take at once.

    Whoever has it closes it. It closes itself as soon as ``trust`` refuses the peer; without one the
    peer is judged by its certificates alone.
    """

    def __init__(
        self, sock: ssl.SSLSocket, peer: PeerIdentity, nursery: trio.Nursery, trust: Trust | None
    ) -> None:
        self.peer: Final = peer
        self._trust: Final = trust
        self._sock: Final = sock
        self._nursery: Final = nursery
        limit = (
            limits.DCP_FRAME_BYTES_MAX if peer.role is CertificateRole.NODE else limits.JOIN_FRAME_BYTES_MAX
        )
        self._splitter: Final = FrameSplitter(limit)
        self._readable: Final = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._queue: Final[deque[bytes]] = deque()
        self._queued_bytes = 0
        self._drained = trio.Event()
        self._drained.set()
        self._closed = False
        self._stays = False
        self._unwatch = trust.watch(self._reconsider) if trust else lambda: None

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the peer to read."""
        return self._queued_bytes

    @property
    def closed(self) -> bool:
        """Whether this end was closed, or given away."""
        return self._closed

    async def receive(self) -> list[bytes]:
        """Wait for the next frames, and return the bodies of all that are there; none means the end.

        The end is the peer's, the network's or our own closing. Raises ProtocolError for a frame over the
        limit and for bytes that are not TLS: the connection must then be closed.
        """
        ready = self._readable.poll
        bodies: list[bytes] = []
        taken = 0
        waited = False
        while not self._closed:
            try:
                if not ready(0):
                    # One read brings one record; what has come meanwhile is taken in the same turn.
                    if bodies:
                        return bodies
                    await trio.lowlevel.wait_readable(self._sock)
                elif not waited:
                    # Something is here already: the others get their turn all the same.
                    await trio.lowlevel.checkpoint()
                waited = True
                data = self._sock.read(limits.RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                raise ProtocolError(f"{self.peer.name} sent what is not TLS: {_reason(error)}") from None
            except (trio.ClosedResourceError, OSError, ValueError):
                return bodies
            if not data:
                return bodies
            bodies += self._splitter.feed(data)
            taken += len(data)
            if bodies and (taken >= limits.RECEIVE_BYTES or not self._stays):
                return bodies
        return []

    def stay(self) -> None:
        """Never give this connection away: ``receive`` then takes all records that have come, not one.

        Where it may be given away, what comes behind a frame need not be frames and is left where it is.
        """
        self._stays = True

    def send_nowait(self, frame: bytes) -> None:
        """Send one whole frame, length included. Never waits.

        A frame to a peer that is gone is dropped: ``receive`` is what tells of the end. Raises
        WouldBlockError when more than DCP_QUEUE_BYTES_MAX would wait for the peer to read: the connection
        must then be closed.
        """
        if self._queue:
            self._enqueue(frame)
            return
        try:
            # All of it, or none yet: TLS wants a frame that it could not finish once more, the same.
            self._sock.write(frame)
        except ssl.SSLWantWriteError:
            self._enqueue(frame)
        except (OSError, ValueError):
            self._sever()

    def _enqueue(self, frame: bytes) -> None:
        if self._closed:
            return
        size = len(frame) + limits.SEND_QUEUE_ENTRY_BYTES
        if self._queued_bytes + size > limits.DCP_QUEUE_BYTES_MAX:
            raise WouldBlockError(
                f"{self._queued_bytes} bytes wait for {self.peer.name}, which does not read"
            )
        self._queue.append(frame)
        self._queued_bytes += size
        if self._drained.is_set():
            self._drained = trio.Event()
            self._nursery.start_soon(self._drain, name="send what waits for a node")

    async def _drain(self) -> None:
        queue = self._queue
        try:
            while queue:
                await trio.lowlevel.wait_writable(self._sock)
                with contextlib.suppress(ssl.SSLWantWriteError):
                    while queue:
                        self._sock.write(queue[0])
                        self._queued_bytes -= len(queue.popleft()) + limits.SEND_QUEUE_ENTRY_BYTES
        except (trio.ClosedResourceError, OSError, ValueError):
            self._sever()
        finally:
            self._drop_queue()

    def _sever(self) -> None:
        """Let ``receive`` find the end: what could not be written leaves TLS unable to go on."""
        self._drop_queue()
        if not self._closed:
            cut(self._sock)

    def _reconsider(self) -> None:
        if self._trust and self._trust.refusal(self.peer.chain):
            self.close()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self._drained.set()

    async def flush(self) -> None:
        """Wait until the peer has been sent all that was queued, or is gone."""
        await self._drained.wait()

    def close(self) -> None:
        """Close at once; what is queued is lost, and who waits in ``receive`` gets the end."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        unfinished = bool(self._queue)
        self._drop_queue()
        trio.lowlevel.notify_closing(self._sock)
        close_socket(self._sock, say_so=not unfinished)

    def detach(self) -> ssl.SSLSocket:
        """Give the connection away, as a socket that blocks, for one thread to read or write.

        Whoever takes it closes it, and uses ``cut`` to end a wait in it; it also ends when ``trust`` refuses
        the peer. Raises ProtocolError when frames are on their way in or out, or the connection stays.
        """
        if self._closed or self._stays or self._queue or self._splitter.pending:
            raise ProtocolError("a connection with unfinished frames cannot be given away")
        self._closed = True
        self._unwatch()
        trio.lowlevel.notify_closing(self._sock)
        # A time limit would cost every read a system call and a turn of the interpreter's lock more.
        self._sock.settimeout(None)
        if self._trust:
            _watch_detached(self._sock, self.peer, self._trust)
        return self._sock


def _watch_detached(sock: ssl.SSLSocket, peer: PeerIdentity, trust: Trust) -> None:
    held = weakref.ref(sock)

    def reconsider() -> None:
        found = held()
        if found is not None and trust.refusal(peer.chain):
            cut(found)

    weakref.finalize(sock, trust.watch(reconsider)).atexit = False


def cut(sock: ssl.SSLSocket) -> None:
    """End a connection from outside of whoever reads or writes it, also in another thread.

    Closing would not wake that thread; it still has to close the socket.
    """
    # Not SSLSocket's own, which would take TLS away from under a thread that is in it.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def close_socket(sock: ssl.SSLSocket, *, say_so: bool = True) -> None:
    """Close without waiting; ``say_so`` tells the peer that nothing was cut off."""
    if say_so:
        # It would then wait for the peer's own goodbye, which nobody needs.
        with contextlib.suppress(OSError, ValueError):
            sock.unwrap()
    sock.close()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
