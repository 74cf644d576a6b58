"""Bulk bytes over a connection between nodes, in a thread: send and receive on a detached connection.

``Secured.detach`` gives the connection to one thread; two threads must not read and write it at the same
time. TLS encrypts while other threads run.
"""

from __future__ import annotations

from collections.abc import Iterable

from dios import limits
from dios.errors import UnreachableError
from dios.transport.tcp.tls_socket import TlsSocket


def send_all(sock: TlsSocket, parts: Iterable[memoryview]) -> None:
    """Send the bytes of all parts, in order, DATA_PIECE_BYTES at a time.

    Raises UnreachableError if the peer is gone, or the connection was cut
    (``dios.transport.tcp.secured.cut``); then it must be closed.
    """
    try:
        for part in parts:
            with part.cast("B") as view:
                for start in range(0, len(view), limits.DATA_PIECE_BYTES):
                    sock.sendall(view[start : start + limits.DATA_PIECE_BYTES])
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the peer is gone in the middle of a transfer: {error}") from None


def receive_into(sock: TlsSocket, target: memoryview) -> None:
    """Fill ``target`` with the received bytes.

    Raises UnreachableError if the peer is gone, or the connection was cut.
    """
    start = 0
    size = target.nbytes
    try:
        with target.cast("B") as view:
            while start < size:
                got = sock.recv_into(view[start : start + limits.DATA_PIECE_BYTES])
                if not got:
                    break
                start += got
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the connection ended after {start} of {size} bytes: {error}") from None
    if start < size:
        raise UnreachableError(f"the peer closed after {start} of {size} bytes")
