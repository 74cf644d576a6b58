"""The client's end of the socket to the node, waiting on trio; its blocking twin is ``unix_client``.

Not for: anything that starts without trio: a task imports the blocking face alone, and starts faster.
"""

from __future__ import annotations

import socket
from typing import Final

import trio

from dios import limits
from dios.errors import ClosedError
from dios.transport.unix.client import ANCILLARY_BYTES, FrameAssembler, Received, descriptors_of, take


class AsyncClientChannel:
    """Frames over a socket that does not block, which it owns; one sender and one receiver at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock: Final = sock
        self._assembler: Final = FrameAssembler()

    def fileno(self) -> int:
        """The socket's descriptor; -1 once closed."""
        return self._sock.fileno()

    @property
    def has_received(self) -> bool:
        """Whether a whole frame is here already."""
        return bool(self._assembler.ready)

    async def call(self, frame: bytes) -> Received:
        """Send one whole frame and wait for the next one from the node; errors as of ``receive``."""
        await self.send(frame)
        return await self.receive()

    async def send(self, frame: bytes) -> None:
        """Send one whole frame, length included; a node that is gone is reported by ``receive``.

        Cancelled in the middle of a frame, it leaves the stream unusable: close the channel then.
        """
        rest: bytes | memoryview = frame
        while rest:
            try:
                sent = self._sock.send(rest)
            except BlockingIOError:
                await self._wait(writable=True)
                continue
            except (BrokenPipeError, ConnectionResetError):
                return
            except OSError as error:
                raise ClosedError(f"the connection to the node is closed ({error.strerror})") from error
            rest = memoryview(rest)[sent:]

    async def receive(self) -> Received:
        """Wait for one frame: its body and its descriptors, which the caller owns from then on.

        Raises ClosedError when the node is gone and ProtocolError when it sent what is no frame; after
        them the channel is of no more use. Use trio's time limits.
        """
        assembler = self._assembler
        ready = assembler.ready
        if ready:
            await trio.lowlevel.checkpoint()
        while not ready:
            await self._wait(writable=False)
            if ready:
                break
            size = max(limits.RECEIVE_BYTES, assembler.missing)
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(size, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                raise assembler.end_of_stream() from None
            except OSError as error:
                raise ClosedError(f"the connection to the node is closed ({error.strerror})") from error
            take(assembler, data, descriptors_of(ancillary) if ancillary else (), flags)
        return ready.popleft()

    async def _wait(self, *, writable: bool) -> None:
        try:
            if writable:
                await trio.lowlevel.wait_writable(self._sock)
            else:
                await trio.lowlevel.wait_readable(self._sock)
        except (trio.ClosedResourceError, ValueError) as error:
            raise ClosedError("this channel was closed") from error

    def close(self) -> None:
        """Close the socket and every descriptor that nobody has taken; who waits gets ClosedError."""
        self._assembler.close()
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
