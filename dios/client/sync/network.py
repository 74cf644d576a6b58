"""Network streams of the blocking face.

Not for: what the methods do, which both faces share (``dios.client.ops.network``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios.client.ops.handles import Data
from dios.client.ops.network import AcceptorOps, TcpOps, UdpOps, datagram, taken_apart
from dios.client.sync.handles import Reference, StreamEnds, blocking
from dios.errors import EndOfStreamError

if TYPE_CHECKING:
    from collections.abc import Iterator


class TcpConnection(TcpOps, StreamEnds):
    """One TCP connection; iterating gives bytes as they come, until the peer has sent its last."""

    __slots__ = ()

    send_eof = blocking(TcpOps.send_eof_op)

    def send(self, data: Data, timeout: float | None = None) -> None:
        """Send all of ``data``; waits while there is no room. ClosedError when the connection is gone,
        TimeLimitError when nothing moved for so long: some of it may have been sent.
        """
        self.writer.write(data, timeout)

    def receive(self, size: int = 0, timeout: float | None = None) -> bytes:
        """Wait for bytes: at least one, at most ``size`` (0: all that are here).

        EndOfStreamError when the peer has sent its last, ClosedError when the connection broke.
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
    """A UDP socket; iterating gives datagrams with their peers' addresses, for ever."""

    __slots__ = ()

    def send(self, data: Data, address: str, timeout: float | None = None) -> None:
        """Send one datagram to "HOST:PORT"; it may be lost on the way, as on any network."""
        self.writer.send(datagram(data, address), timeout)

    def receive(self, timeout: float | None = None) -> tuple[bytes, str]:
        """Wait for a datagram: its bytes, and where it came from."""
        return taken_apart(self.reader.receive(timeout))

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        while True:
            yield self.receive()


class Acceptor(AcceptorOps["TcpConnection"], Reference):
    """A listening socket; iterating gives connections, one after the other, for ever."""

    __slots__ = ()

    accept = blocking(AcceptorOps["TcpConnection"].accept_op)

    def __iter__(self) -> Iterator[TcpConnection]:
        while True:
            yield self.accept()
