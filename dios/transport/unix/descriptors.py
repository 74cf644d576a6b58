"""The refusal of descriptors that arrive at a Unix socket.

A descriptor that is received and not wanted must be closed, and closing can block: a TCP socket with
SO_LINGER waits for its peer. Dropping it unread, or closing the socket with its queue, closes it too. So
the kernel has to refuse it at the sender.
"""

from __future__ import annotations

import socket
from typing import Final

_SO_PASSRIGHTS: Final = 83


def refuse_descriptors(sock: socket.socket) -> bool:
    """Let the sends of peers fail that carry descriptors to ``sock``, or to a socket that it accepts.

    Return False on kernels before Linux 6.16, which do not have the option. There nothing is changed.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True
