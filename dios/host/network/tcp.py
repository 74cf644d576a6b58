"""One TCP connection between a socket and the two rings of a TCP_STREAM.

Not for: opening sockets (``dios.host.network.sockets``), or what the bytes mean.

A full ring stops the reading of the socket, and with it the peer; a peer that does not read stops the task
that writes. The end of either direction is carried over alone. A connection that breaks is told to the core
first, so that nobody takes what came before for all there was.
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
from dios.host.network.socket_pump import FarSocket
from dios.transport.rings import waiting_trio
from dios.transport.rings.waiting import RingReader, RingWriter

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Connection(FarSocket):
    """A far side with a TCP socket."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        broke: Callable[[OSError], None],
        closed: Callable[[], None],
    ) -> None:
        super().__init__(sock, nursery, broke, closed)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def inbound(self, ring: RingWriter) -> None:
        """Until the peer has sent its last, or nobody reads any more."""
        with contextlib.suppress(ClosedError):
            while True:
                await waiting_trio.wait_ready(ring)
                view = ring.acquire_room(limits.NETWORK_PIECE_BYTES)
                got = await self.socket.recv_into(view)
                ring.commit_write(got)
                if not got:
                    return

    async def outbound(self, ring: RingReader) -> None:
        """Until the task has sent its last."""
        with contextlib.suppress(EndOfStreamError):
            while True:
                await waiting_trio.wait_ready(ring)
                view = ring.acquire_read()
                ring.commit_read(await self.socket.send(view[: limits.NETWORK_PIECE_BYTES]))

    def finish(self) -> None:
        """Send the end of this direction."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Let the peer learn that what it got is not all."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
