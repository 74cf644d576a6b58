"""A TCP connection between a socket and the two rings of a TCP_STREAM.

A full ring stops reading from the socket and thereby the peer; a peer that does not read stops the writing
task. Each direction ends on its own. If the connection fails, the core is notified before the ring ends, so
that the reader does not mistake the received bytes for the whole stream.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

import trio

from dios import limits
from dios.errors import ClosedError, EndOfStreamError
from dios.host.handover.gate import Gate
from dios.host.network.socket_pump import SocketBackend
from dios.transport.rings import waiting_trio
from dios.transport.rings.waiting import RingReader, RingWriter

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class TcpBackend(SocketBackend):
    """A TCP socket behind two rings."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        broke: Callable[[OSError], None],
        closed: Callable[[], None],
        gate: Gate | None = None,
    ) -> None:
        super().__init__(sock, nursery, broke, closed, gate)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def inbound(self, ring: RingWriter) -> None:
        """Receive until the peer ends its direction or the reader has gone."""
        with contextlib.suppress(ClosedError):
            while True:
                with self.gate.passing() as scope:
                    await self._receive_all(ring)
                if not scope.cancelled_caught:
                    return
                ring.give_up()
                await self.gate.wait_open()

    async def _receive_all(self, ring: RingWriter) -> None:
        while True:
            await waiting_trio.wait_ready(ring)
            view = ring.acquire_room(limits.NETWORK_PIECE_BYTES)
            got = await self.socket.recv_into(view)
            ring.commit_write(got)
            if not got:
                return

    async def outbound(self, ring: RingReader) -> None:
        """Send until the task ends its direction."""
        with contextlib.suppress(EndOfStreamError):
            while True:
                with self.gate.passing():
                    await self._send_all(ring)
                ring.give_up()
                await self.gate.wait_open()

    async def _send_all(self, ring: RingReader) -> None:
        """Send until an error or the end of the stream is raised."""
        while True:
            await waiting_trio.wait_ready(ring)
            view = ring.acquire_read(timeout_s=0)  # nothing here may wait, whatever the task writes
            ring.commit_read(await self.socket.send(view[: limits.NETWORK_PIECE_BYTES]))

    def finish(self) -> None:
        """End this direction."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Make the close a reset, so that the peer learns that bytes are missing."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
