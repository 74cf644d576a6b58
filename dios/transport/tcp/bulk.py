"""Many bytes over a connection between nodes, in a thread: reading and writing what ``Secured.detach`` gives.

Not for: the event loop, or saying what the bytes are. TLS encrypts while other threads run. One thread has
the connection: reading and writing one from two threads at a time is not safe.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from dios import limits
from dios.errors import UnreachableError


def send_all(sock: ssl.SSLSocket, parts: Iterable[memoryview]) -> None:
    """Send the bytes of all parts, in order, DATA_PIECE_BYTES at a time.

    Raises UnreachableError when the peer is gone, or the connection was cut
    (``dios.transport.tcp.secured.cut``):
    it must then be closed.
    """
    try:
        for part in parts:
            with part.cast("B") as view:
                for start in range(0, len(view), limits.DATA_PIECE_BYTES):
                    # Whole: a blocking TLS socket writes all that it is given.
                    sock.write(view[start : start + limits.DATA_PIECE_BYTES])
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the peer is gone in the middle of a transfer: {error}") from None


def receive_into(sock: ssl.SSLSocket, target: memoryview) -> None:
    """Fill ``target`` with what comes.

    Raises UnreachableError when the peer is gone, or the connection was cut.
    """
    try:
        with target.cast("B") as view:
            start = 0
            size = len(view)
            while start < size:
                got = sock.recv_into(view[start : start + limits.DATA_PIECE_BYTES])
                if not got:
                    raise UnreachableError(f"the peer left after {start} of {size} bytes")
                start += got
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the peer is gone in the middle of a transfer: {error}") from None
