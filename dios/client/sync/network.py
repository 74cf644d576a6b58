"""Network streams of the blocking client; ``dios.client.ops.network`` has the operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios.client.ops.handles import Data
from dios.client.ops.network import AcceptorOps, TcpOps, UdpOps, datagram, taken_apart
from dios.client.sync.handles import Reference, StreamEnds, blocking
from dios.errors import EndOfStreamError

if TYPE_CHECKING:
    from collections.abc import Iterator


class TcpConnection(TcpOps, StreamEnds):
    """A TCP connection; iterating yields bytes as they come, until the peer has sent its last."""

    __slots__ = ()

    send_eof = blocking(TcpOps.send_eof_op)

    def send(self, data: Data, timeout: float | None = None) -> None:
        """Send all of ``data``; wait while there is no room. ClosedError if the connection is gone.

        Raises TimeLimitError if nothing moved for ``timeout`` seconds; a part may have been sent then.
        """
        self.writer.write(data, timeout)

    def receive(self, size: int = 0, timeout: float | None = None) -> bytes:
        """Wait for bytes and return them: at least one, at most ``size`` (0: all that are here).

        Raises EndOfStreamError after the peer's last byte, ClosedError if the connection broke, and
        TimeLimitError after ``timeout`` seconds.
        """
        try:
            return self.reader.read(size, timeout)
        except EndOfStreamError as error:
            raise self.end_of(error) from None

    def __iter__(self) -> Iterator[bytes]:
        try:
            while True:
                yield self.receive()
        except EndOfStreamError:
            return


class Datagrams(UdpOps, StreamEnds):
    """A UDP socket; iterating yields datagrams with their peers' addresses, for ever."""

    __slots__ = ()

    def send(self, data: Data, address: str, timeout: float | None = None) -> None:
        """Send one datagram to "HOST:PORT"; the network may lose it."""
        self.writer.send(datagram(data, address), timeout)

    def receive(self, timeout: float | None = None) -> tuple[bytes, str]:
        """Wait for a datagram; return its bytes and its sender's address."""
        return taken_apart(self.reader.receive(timeout))

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        while True:
            yield self.receive()


class Acceptor(AcceptorOps["TcpConnection"], Reference):
    """A listening socket; iterating yields connections, for ever."""

    __slots__ = ()

    accept = blocking(AcceptorOps["TcpConnection"].accept_op)

    def __iter__(self) -> Iterator[TcpConnection]:
        while True:
            yield self.accept()
