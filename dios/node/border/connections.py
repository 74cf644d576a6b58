"""The two kinds of connections of a border: of programs of this machine, and of nodes of trusted clusters."""

from __future__ import annotations

import socket
from typing import Final, Protocol

import trio

from dios import limits
from dios.errors import ProtocolError, UnreachableError
from dios.node.border.pace import MinimumRate
from dios.transport.tcp.secured import Secured
from dios.wire.border import BorderAnswer, FilePart, decode_part, encode_frame
from dios.wire.codec import FrameSplitter

IDLE_S: Final = limits.BORDER_IDLE_MS_MAX / 1000


class Line(Protocol):
    """A connection with frames in both directions."""

    async def receive(self) -> bytes | None:
        """Return the next body; None at the end. Raise ProtocolError for a frame over the limit."""

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait until the other end has taken most of it."""


class CallConnection:
    """The connection of the caller of one call. A caller below the minimum rate is given up."""

    def __init__(self, line: Line) -> None:
        self._line: Final = line
        self._rate: Final = MinimumRate()

    async def send(self, message: BorderAnswer) -> None:
        """Send an answer. Raise BrokenPipeError if the caller does not read it in time."""
        frame = encode_frame(message)
        await self._rate.wait(lambda: self._line.send(frame), lambda _: len(frame))

    async def receive_part(self) -> FilePart:
        """Wait for the next bytes that the caller writes. Raise BrokenPipeError if they are late."""
        body = await self._rate.wait(self._line.receive, lambda body: len(body or b""))
        if body is None:
            raise BrokenPipeError("the other end stopped in the middle of a file")
        return decode_part(body)


async def next_answer(line: Line, name: str) -> bytes:
    """Wait for the next body that the border of a cluster sends. Raise UnreachableError if none comes."""
    with trio.move_on_after(IDLE_S):
        body = await line.receive()
        if body is not None:
            return body
    raise UnreachableError(f"the border of {name} stopped in the middle. Try again later.")


class LocalLine:
    """The connection of a program on this machine."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: Final = trio.socket.from_stdlib_socket(sock)
        self._splitter: Final = FrameSplitter(limits.BORDER_FRAME_BYTES_MAX)
        self._bodies: list[bytes] = []

    async def receive(self) -> bytes | None:
        """Return the next body; None at the end."""
        while not self._bodies:
            data = await self._sock.recv(limits.RECEIVE_BYTES)
            if not data:
                return None
            self._bodies += self._splitter.feed(data)
        return self._bodies.pop(0)

    async def send(self, frame: bytes) -> None:
        """Send a frame."""
        rest = memoryview(frame)
        while rest:
            rest = rest[await self._sock.send(rest) :]

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


class ForeignLine:
    """The connection of a trusted cluster's node."""

    def __init__(self, secured: Secured) -> None:
        self._secured: Final = secured
        self._bodies: list[bytes] = []

    async def receive(self) -> bytes | None:
        """Return the next body; None at the end."""
        if not self._bodies:
            self._bodies = await self._secured.receive()
        if not self._bodies:
            return None
        body = self._bodies.pop(0)
        if len(body) > limits.BORDER_FRAME_BYTES_MAX:
            raise ProtocolError("a frame at the border is over its limit")
        return body

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait until it has left this process."""
        if self._secured.closed:
            raise BrokenPipeError("the border is closed")
        self._secured.send_nowait(frame)
        await self._secured.flush()
