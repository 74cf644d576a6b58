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
from collections.abc import Callable, Iterator
from typing import Final

import trio

from dios import limits
from dios.errors import ClosedError, DiosError, EndOfStreamError
from dios.transport import rings_trio
from dios.transport.rings import RingEnd, RingReader, RingWriter
from dios.wire.types import Mode

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Connection:
    """A far side with a TCP socket. ``broke`` is called once, with what the system said of it."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        broke: Callable[[OSError], None],
        closed: Callable[[], None],
    ) -> None:
        self._socket: Final = sock
        self._nursery: Final = nursery
        self._broke: Final = broke
        self._closed: Final = closed
        self._in: Final = trio.CancelScope()
        self._out: Final = trio.CancelScope()
        self._pumps = 0
        self._sending = False
        self._over = False
        self._told = False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def taken(self, mode: Mode, end: RingEnd) -> None:
        """A task reads or writes from now on."""
        if self._over or self._nursery.cancel_scope.cancel_called:
            end.close()
            return
        self._pumps += 1
        if mode is Mode.READ and isinstance(end, RingWriter):
            self._nursery.start_soon(self._inbound, end, name="tcp in")
        elif isinstance(end, RingReader):
            self._sending = True
            self._nursery.start_soon(self._outbound, end, name="tcp out")

    def left(self, mode: Mode) -> None:
        """Nobody will read, or write, any more."""
        if mode is Mode.WRITE:
            self._finish()

    def close(self) -> None:
        """The object is gone: what a task wrote is still sent, for NETWORK_LINGER_MS_MAX at most."""
        self._over = True
        self._in.cancel()
        if self._told:
            self._out.cancel()
        elif self._sending:
            self._out.deadline = trio.current_time() + limits.NETWORK_LINGER_MS_MAX / 1000
        self._close_when_idle()

    def abort(self) -> None:
        """At the node's end."""
        self._over = True
        self._in.cancel()
        self._out.cancel()
        self._close_when_idle()

    # -- pumps ----------------------------------------------------------------------------------------
    async def _inbound(self, ring: RingWriter) -> None:
        with self._pumping(ring), self._in:
            try:
                while True:
                    await rings_trio.wait_ready(ring)
                    view = ring.acquire_room(limits.NETWORK_PIECE_BYTES)
                    got = await self._socket.recv_into(view)
                    ring.commit_write(got)
                    if not got:
                        return
            except ClosedError:
                return  # nobody reads any more
            except OSError as error:
                await self._told_of(error)

    async def _outbound(self, ring: RingReader) -> None:
        with self._pumping(ring), self._out:
            try:
                while True:
                    await rings_trio.wait_ready(ring)
                    view = ring.acquire_read()
                    ring.commit_read(await self._socket.send(view[: limits.NETWORK_PIECE_BYTES]))
            except EndOfStreamError:
                self._finish()
            except OSError as error:
                await self._told_of(error)
        self._sending = False
        if self._out.cancelled_caught:
            self._reset()

    @contextlib.contextmanager
    def _pumping(self, ring: RingEnd) -> Iterator[None]:
        try:
            yield
        except DiosError as error:
            # A task that breaks its ring has broken its connection, and nothing else.
            self._reset()
            self._tell(OSError(0, error.message))
        finally:
            ring.close()
            self._pumps -= 1
            self._close_when_idle()

    async def _told_of(self, error: OSError) -> None:
        self._tell(error)
        if not self._over:
            # The ring ends when the core has said so to the page, not before.
            await trio.sleep_forever()

    def _tell(self, error: OSError) -> None:
        if not self._told and not self._over:
            self._told = True
            self._broke(error)

    # -- the socket -----------------------------------------------------------------------------------
    def _finish(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    def _close_when_idle(self) -> None:
        if self._over and not self._pumps and self._socket.fileno() >= 0:
            self._socket.close()
            self._closed()
