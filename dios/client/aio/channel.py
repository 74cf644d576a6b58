"""The async client's end of the socket to the node; it never waits, its caller does.

``dios.transport.unix.client`` has its blocking counterpart.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Final

from dios import limits
from dios.errors import ClosedError
from dios.transport.unix.client import ANCILLARY_BYTES, FrameAssembler, Received, descriptors_of, take


class AsyncChannel:
    """Frames over a non-blocking socket, which it owns.

    Frames for which the socket has no room are kept, in order: as many as there are calls that wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock: Final = sock
        self._send: Final = sock.send
        self._assembler: Final = FrameAssembler()
        self._unsent: Final[deque[bytes | memoryview]] = deque()
        """Frames that have not been sent; of the first one, a part may have been."""

    def send(self, frame: bytes) -> bool:
        """Send one whole frame with its length; return False if ``flush`` must send the rest.

        The end of the node is not reported here: ``receive`` reports it, after the last frames.
        """
        self._unsent.append(frame)
        return len(self._unsent) == 1 and self.flush()

    def flush(self) -> bool:
        """Send as much as the socket takes; return True if nothing is left. ClosedError if it is closed."""
        unsent = self._unsent
        try:
            while unsent:
                first = unsent[0]
                sent = self._send(first)
                if sent < len(first):
                    unsent[0] = memoryview(first)[sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            unsent.clear()
        except OSError as error:
            unsent.clear()
            raise ClosedError(f"the connection to the node is closed ({error.strerror})") from error
        return True

    def withdraw(self, frame: bytes) -> bool:
        """Take back a frame of which nothing has been sent; return False if it is too late."""
        for place, unsent in enumerate(self._unsent):
            if unsent is frame:
                del self._unsent[place]
                return True
        return False

    def receive(self) -> deque[Received]:
        """Receive what is here; return the complete frames, which the caller removes.

        Raises ClosedError if the node is gone, ProtocolError if it sent bytes that are not a frame; then
        the channel is unusable.
        """
        assembler = self._assembler
        size = max(limits.RECEIVE_BYTES, assembler.missing)
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(size, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return assembler.ready
        except ConnectionResetError:
            raise assembler.end_of_stream() from None
        except OSError as error:
            raise ClosedError(f"the connection to the node is closed ({error.strerror})") from error
        take(assembler, data, descriptors_of(ancillary) if ancillary else (), flags)
        return assembler.ready

    @property
    def within_frame(self) -> bool:
        """Return True if a part of a frame has been received."""
        return self._assembler.pending > 0

    def block(self) -> None:
        """Send all frames, and make the socket blocking."""
        self.sock.setblocking(True)
        self.flush()

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken; its watches must have been stopped."""
        self._assembler.close()
        self._unsent.clear()
        self.sock.close()
