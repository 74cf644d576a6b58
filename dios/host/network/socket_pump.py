"""What stands behind a network stream's two rings: a socket, and a pump for each direction.

Not for: what a pump does (``dios.host.network.tcp``, ``dios.host.network.udp``).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final

import trio

from dios import limits
from dios.errors import DiosError
from dios.transport.rings.waiting import RingEnd, RingReader, RingWriter
from dios.wire.types import Mode


class FarSocket(ABC):
    """A far side with a socket, which is closed when its object is gone and both pumps have ended.

    ``broke`` is called once, with what the system said of it.
    """

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        broke: Callable[[OSError], None],
        closed: Callable[[], None],
    ) -> None:
        self.socket: Final = sock
        self.nursery: Final = nursery
        self._broke: Final = broke
        self._closed: Final = closed
        self._in: Final = trio.CancelScope()
        self._out: Final = trio.CancelScope()
        self._pumps = 0
        self._sending = False
        self._over = False
        self._told = False

    def taken(self, mode: Mode, end: RingEnd) -> None:
        """A task reads or writes from now on."""
        if self._over or self.nursery.cancel_scope.cancel_called:
            end.close()
            return
        self._pumps += 1
        if mode is Mode.READ and isinstance(end, RingWriter):
            self.nursery.start_soon(self._run_in, end, name="socket in")
        elif isinstance(end, RingReader):
            self._sending = True
            self.nursery.start_soon(self._run_out, end, name="socket out")

    def left(self, mode: Mode) -> None:
        """Nobody will read, or write, any more."""
        if mode is Mode.WRITE:
            self.finish()

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

    @abstractmethod
    async def inbound(self, ring: RingWriter) -> None:
        """Carry what comes from the socket into the ring, until either ends; raises OSError, DiosError."""

    @abstractmethod
    async def outbound(self, ring: RingReader) -> None:
        """Carry what the ring holds to the socket, until either ends; raises OSError, DiosError."""

    @abstractmethod
    def finish(self) -> None:
        """Nothing more will be sent: let the peer know, where there is one."""

    @abstractmethod
    def reset(self) -> None:
        """What is still to be sent will not be: let the peer know, where there is one."""

    async def _run_in(self, ring: RingWriter) -> None:
        with self._pumping(ring), self._in:
            try:
                await self.inbound(ring)
            except OSError as error:
                await self._told_of(error)

    async def _run_out(self, ring: RingReader) -> None:
        with self._pumping(ring), self._out:
            try:
                await self.outbound(ring)
                self.finish()
            except OSError as error:
                await self._told_of(error)
        self._sending = False
        if self._out.cancelled_caught:
            self.reset()

    @contextlib.contextmanager
    def _pumping(self, ring: RingEnd) -> Iterator[None]:
        try:
            yield
        except DiosError as error:
            # A task that breaks its ring has broken its stream, and nothing else.
            self.reset()
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

    def _close_when_idle(self) -> None:
        if self._over and not self._pumps and self.socket.fileno() >= 0:
            self.socket.close()
            self._closed()
