"""The wake-ups between the two ends of a ring: a pair of connected sockets, of which each end has one.

No operation here can block, whatever the other end does to its socket and to the flags of open files that
it shares with the node: each says for itself that it must not wait (MSG_DONTWAIT). An end cannot remove the
wake-ups that the other end gets. It hangs up when it closes, or the node does so for it; unlike a word in
shared memory, that cannot be undone.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from dios.transport.unix.descriptors import refuse_descriptors

_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_received: Final = bytearray(4096)
"""The place of received bytes, which have no meaning."""


def create_wakeups() -> tuple[socket.socket, socket.socket]:
    """Return the two sockets, which the caller closes. Raise OSError without descriptors."""
    pair = socket.socketpair()
    for sock in pair:
        refuse_descriptors(sock)
        # A byte out of band would make the socket readable, and no receive would return it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    return pair


def wake(sock: socket.socket) -> None:
    """Wake the other end. Do nothing if it has hung up, or if earlier wake-ups still fill its queue."""
    with contextlib.suppress(OSError):
        sock.send(b"\0", _FLAGS)


def hang_up(sock: socket.socket) -> None:
    """Wake the other end for good: it finds the end of its socket in every later wait."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def hang_up_other(sock: socket.socket) -> None:
    """Hang up for the other end of ``sock``, as ``hang_up`` does with its socket."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)


def receive_wakeups(sock: socket.socket) -> int:
    """Remove wake-ups that have come, and return their number; 0 if the other end has hung up.

    Raise BlockingIOError if there are none.
    """
    try:
        return sock.recv_into(_received, 0, _FLAGS)
    except ConnectionResetError:
        return 0
