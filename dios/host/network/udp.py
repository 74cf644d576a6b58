"""Datagrams between a socket and the two rings of a UDP_STREAM.

Each datagram is one message in a ring: a byte with the length of its peer's address, the address as
"HOST:PORT", and the datagram's bytes. A datagram that arrives while the ring is full is dropped and counted,
and so is one that cannot be sent.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

import trio

from dios import limits
from dios.errors import ClosedError, DiosError, EndOfStreamError
from dios.host.handover.gate import Gate
from dios.host.network.addresses import Resolver, text_of
from dios.host.network.socket_pump import SocketBackend
from dios.ids import Principal
from dios.transport.rings import waiting_trio
from dios.transport.rings.waiting import RingReader, RingWriter

_PREFIX_BYTES: Final = 4
_MESSAGE_BYTES_MAX: Final = 1 + 255 + limits.DATAGRAM_BYTES_MAX


class UdpBackend(SocketBackend):
    """A UDP socket behind two rings; ``dropped`` is called with the number of newly dropped datagrams."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        broke: Callable[[OSError], None],
        closed: Callable[[], None],
        resolver: Resolver,
        dropped: Callable[[int], None],
        gate: Gate | None = None,
        principal: Principal = Principal(""),  # noqa: B008 - a text
    ) -> None:
        super().__init__(sock, nursery, broke, closed, gate)
        self._resolver: Final = resolver
        self._principal: Final = principal
        self._on_dropped: Final = dropped
        self._dropped = 0

    async def inbound(self, ring: RingWriter) -> None:
        """Receive until the reader has gone."""
        with contextlib.suppress(ClosedError):
            while True:
                with self.gate.passing() as scope:
                    data, peer = await self.socket.recvfrom(limits.DATAGRAM_BYTES_MAX)
                if scope.cancelled_caught:
                    await self.gate.wait_open()
                    continue
                address = text_of(peer).encode()
                message = bytes((len(address),)) + address + data
                if len(message) + _PREFIX_BYTES > min(ring.room, ring.ring_bytes // 2):
                    self._drop()
                else:
                    ring.send(message, timeout_s=0)

    async def outbound(self, ring: RingReader) -> None:
        """Send until the task ends its direction."""
        with contextlib.suppress(EndOfStreamError):
            while True:
                with self.gate.passing() as scope:
                    await waiting_trio.wait_ready(ring)
                if scope.cancelled_caught:
                    await self.gate.wait_open()
                    continue
                # A message that was begun cannot be left to another program.
                self.busy = True
                await self._send(await waiting_trio.receive(ring, size_max=_MESSAGE_BYTES_MAX))
                self.busy = False

    async def _send(self, message: bytes) -> None:
        # The task wrote the message: the address may be no text, no address, or one of another family.
        begin = 1 + message[0] if message else 1
        try:
            address = message[1:begin].decode()
            places = await self._resolver.resolve(address, socket.SOCK_DGRAM, self._principal, passive=False)
            fitting = [place.name for place in places if place.family == self.socket.family]
            await self.socket.sendto(message[begin:], fitting[0])
        except (OSError, UnicodeError, DiosError, IndexError):
            self._drop()

    def finish(self) -> None:
        """Do nothing, because datagrams have no end."""

    def reset(self) -> None:
        """Do nothing, because datagrams have no end."""

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            self.nursery.start_soon(self._report_dropped, name="datagrams dropped")

    async def _report_dropped(self) -> None:
        # Report many together: a flood of datagrams must not become a flood of events.
        await trio.sleep(limits.NETWORK_RETRY_MS / 1000)
        count, self._dropped = self._dropped, 0
        try:
            self._on_dropped(count)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this socket alone
            self.fail(error)
