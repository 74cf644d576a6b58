"""Network streams of the async client; ``dios.client.ops.network`` has the operations."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dios.client.aio import rings
from dios.client.aio.handles import AsyncReference, AsyncStreamEnds, awaited, loop_of
from dios.client.ops.handles import Data
from dios.client.ops.network import AcceptorOps, TcpOps, UdpOps, datagram, taken_apart
from dios.errors import EndOfStreamError


class AsyncTcpConnection(TcpOps, AsyncStreamEnds):
    """A TCP connection; iterating yields bytes as they come, until the peer has sent its last."""

    __slots__ = ()

    send_eof = awaited(TcpOps.send_eof_op)

    async def send(self, data: Data, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the blocking client's argument
        """Send all of ``data``; wait while there is no room. ClosedError if the connection is gone.

        Raises TimeLimitError if nothing moved for ``timeout`` seconds; a part may have been sent then.
        """
        await rings.write(loop_of(self), await self.writer(), data, timeout)

    async def receive(self, size: int = 0, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the blocking client's argument
        """Wait for bytes and return them: at least one, at most ``size`` (0: all that are here).

        Raises EndOfStreamError after the peer's last byte, ClosedError if the connection broke, and
        TimeLimitError after ``timeout`` seconds.
        """
        try:
            return await rings.read(loop_of(self), await self.reader(), size, timeout)
        except EndOfStreamError as error:
            raise self.end_of(error) from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self.receive()
        except EndOfStreamError:
            return


class AsyncDatagrams(UdpOps, AsyncStreamEnds):
    """A UDP socket; iterating yields datagrams with their peers' addresses, for ever."""

    __slots__ = ()

    async def send(self, data: Data, address: str, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the blocking client's argument
        """Send one datagram to "HOST:PORT"; the network may lose it."""
        await rings.send(loop_of(self), await self.writer(), datagram(data, address), timeout)

    async def receive(self, timeout: float | None = None) -> tuple[bytes, str]:  # noqa: ASYNC109 - the blocking client's argument
        """Wait for a datagram; return its bytes and its sender's address."""
        return taken_apart(await rings.receive(loop_of(self), await self.reader(), timeout))

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, str]]:
        while True:
            yield await self.receive()


class AsyncAcceptor(AcceptorOps["AsyncTcpConnection"], AsyncReference):
    """A listening socket; iterating yields connections, for ever."""

    __slots__ = ()

    accept = awaited(AcceptorOps["AsyncTcpConnection"].accept_op)

    async def __aiter__(self) -> AsyncIterator[AsyncTcpConnection]:
        while True:
            yield await self.accept()
