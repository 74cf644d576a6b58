"""The client's end of the socket to the node on trio; ``client`` is its blocking counterpart.

A task without trio never imports this module, and starts faster.
"""

from __future__ import annotations

import socket
from typing import Final

import trio

from dios import limits
from dios.errors import ClosedError
from dios.transport.unix.client import ANCILLARY_BYTES, FrameAssembler, Received, descriptors_of, take


class AsyncClientChannel:
    """Frames over a non-blocking socket, which it owns; for one sender and one receiver at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock: Final = sock
        self._assembler: Final = FrameAssembler()

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 after closing."""
        return self._sock.fileno()

    @property
    def has_received(self) -> bool:
        """Return True if a complete frame has been received."""
        return bool(self._assembler.ready)

    async def call(self, frame: bytes) -> Received:
        """Send one whole frame and wait for the next one from the node; raises the errors of ``receive``."""
        await self.send(frame)
        return await self.receive()

    async def send(self, frame: bytes) -> None:
        """Send one whole frame with its length; ``receive`` reports the end of the node.

        If it is cancelled within a frame, the stream is unusable: close the channel then.
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
        """Wait for one frame; return its body and its descriptors, which the caller owns.

        Raises ClosedError if the node is gone, ProtocolError if it sent bytes that are not a frame; then
        the channel is unusable. Use trio's timeouts.
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
        """Close the socket and every descriptor that was not taken; waiting callers get ClosedError."""
        self._assembler.close()
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
