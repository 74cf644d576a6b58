"""Streams of messages without DIOS: a framed pipe, and ZeroMQ.

Every contender has two functions, for the writing and for the reading process; both move ``count`` messages
of one size.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from dios.limits import STREAM_RING_BYTES_DEFAULT
from labs.benchmarks.measure import clock
from labs.benchmarks.peers.redis_server import MissingPeerError

_LENGTH = struct.Struct("<I")
_F_SETPIPE_SZ = 1031


class Contender(Protocol):
    """A way to move messages between two processes."""

    def write(self, data: bytes, count: int) -> None:
        """Send ``data`` ``count`` times; runs in the writing process."""

    def read(self, count: int) -> float:
        """Receive ``count`` messages; return the seconds from the first arrival to the last."""


class FramedPipe(NamedTuple):
    """A pipe with length prefixes: one write for each message, so that it is sent at once; buffered reads.

    Among eight variants that were tried, this was the fastest, within measurement noise, at every size:
    joined or gathered writes, buffered, plain and in-place reads, the default pipe size and one of a MiB.
    """

    near: int
    far: int

    @staticmethod
    def opened() -> FramedPipe:
        """Open a pipe of the default size of a stream's ring."""
        near, far = os.pipe()
        fcntl.fcntl(far, _F_SETPIPE_SZ, STREAM_RING_BYTES_DEFAULT)
        return FramedPipe(near, far)

    def write(self, data: bytes, count: int) -> None:
        """Send messages."""
        write, pack, fd = os.write, _LENGTH.pack, self.far
        size = len(data)
        for _ in range(count):
            frame = pack(size) + data
            sent = write(fd, frame)
            if sent != size + 4:
                _write_rest(fd, memoryview(frame)[sent:])

    def read(self, count: int) -> float:
        """Receive messages."""
        unpack = _LENGTH.unpack
        with open(self.near, "rb", buffering=1 << 17, closefd=False) as stream:
            read = stream.read
            read(unpack(read(4))[0])
            began = clock()
            for _ in range(count - 1):
                (size,) = unpack(read(4))
                read(size)
            return (clock() - began) / 1e9

    def close(self) -> None:
        """Close both ends."""
        os.close(self.near)
        os.close(self.far)


def _write_rest(fd: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(fd, rest) :]


class _Socket(Protocol):
    def send(self, data: bytes, *, copy: bool) -> object: ...
    def recv(self, *, copy: bool) -> bytes: ...
    def bind(self, address: str) -> object: ...
    def connect(self, address: str) -> object: ...
    def close(self, linger: int) -> None: ...


class _Context(Protocol):
    def socket(self, kind: int) -> _Socket: ...
    def term(self) -> None: ...


class ZeroMq(NamedTuple):
    """A push and a pull socket over a Unix socket; each process creates its own end."""

    path: Path

    def _context(self) -> tuple[_Context, int, int]:
        try:
            import zmq
        except ImportError:
            raise MissingPeerError("pyzmq is not installed (pip install pyzmq)") from None
        return cast("_Context", zmq.Context()), int(zmq.PUSH), int(zmq.PULL)

    def check(self) -> None:
        """Raise MissingPeerError if it is not installed."""
        self._context()[0].term()

    def write(self, data: bytes, count: int) -> None:
        """Send messages."""
        context, push, _ = self._context()
        socket = context.socket(push)
        socket.connect(f"ipc://{self.path}")
        for _ in range(count):
            socket.send(data, copy=True)
        socket.close(-1)
        context.term()

    def read(self, count: int) -> float:
        """Receive messages."""
        context, _, pull = self._context()
        socket = context.socket(pull)
        socket.bind(f"ipc://{self.path}")
        socket.recv(copy=True)
        began = clock()
        for _ in range(count - 1):
            socket.recv(copy=True)
        seconds = (clock() - began) / 1e9
        socket.close(0)
        context.term()
        return seconds
