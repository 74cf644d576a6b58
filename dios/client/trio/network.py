"""Network streams of the face on trio.

Not for: what the methods do, which both faces share (``dios.client.ops.network``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dios.client.ops.handles import Data
from dios.client.ops.network import AcceptorOps, TcpOps, UdpOps, datagram, taken_apart
from dios.client.trio.handles import AsyncReference, AsyncStreamEnds, awaited
from dios.errors import EndOfStreamError
from dios.transport.rings import waiting_trio


class AsyncTcpConnection(TcpOps, AsyncStreamEnds):
    """One TCP connection; iterating gives bytes as they come, until the peer has sent its last."""

    __slots__ = ()

    send_eof = awaited(TcpOps.send_eof_op)

    async def send(self, data: Data, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the blocking client's argument
        """Send all of ``data``; waits while there is no room. ClosedError when the connection is gone,
        TimeLimitError when nothing moved for so long: some of it may have been sent.
        """
        await waiting_trio.write(await self.writer(), data, timeout)

    async def receive(self, size: int = 0, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the blocking client's argument
        """Wait for bytes: at least one, at most ``size`` (0: all that are here).

        EndOfStreamError when the peer has sent its last, ClosedError when the connection broke.
        """
        try:
            return await waiting_trio.read(await self.reader(), size, timeout)
        except EndOfStreamError as error:
            raise self.end_of(error) from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self.receive()
        except EndOfStreamError:
            return


class AsyncDatagrams(UdpOps, AsyncStreamEnds):
    """A UDP socket; iterating gives datagrams with their peers' addresses, for ever."""

    __slots__ = ()

    async def send(self, data: Data, address: str, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the blocking client's argument
        """Send one datagram to "HOST:PORT"; it may be lost on the way, as on any network."""
        await waiting_trio.send(await self.writer(), datagram(data, address), timeout)

    async def receive(self, timeout: float | None = None) -> tuple[bytes, str]:  # noqa: ASYNC109 - the blocking client's argument
        """Wait for a datagram: its bytes, and where it came from."""
        return taken_apart(await waiting_trio.receive(await self.reader(), timeout))

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, str]]:
        while True:
            yield await self.receive()


class AsyncAcceptor(AcceptorOps["AsyncTcpConnection"], AsyncReference):
    """A listening socket; iterating gives connections, one after the other, for ever."""

    __slots__ = ()

    accept = awaited(AcceptorOps["AsyncTcpConnection"].accept_op)

    async def __aiter__(self) -> AsyncIterator[AsyncTcpConnection]:
        while True:
            yield await self.accept()
