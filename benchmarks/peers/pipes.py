"""Streams of messages that a user has without DIOS: a framed pipe, and ZeroMQ.

Not for: DIOS' own streams. Every contender is a pair of functions: what the writing process does, and what
the reading one does; both move ``count`` messages of one size.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from benchmarks.measure import clock
from benchmarks.peers.redis_server import MissingPeerError

_LENGTH = struct.Struct("<I")
_F_SETPIPE_SZ = 1031


class Contender(Protocol):
    """A way to move messages between two processes."""

    def write(self, data: bytes, count: int) -> None:
        """Send ``data`` so many times; runs in the writing process."""
        ...

    def read(self, count: int) -> float:
        """Receive so many messages; gives the seconds from the first one's arrival to the last one's."""
        ...


class FramedPipe(NamedTuple):
    """A pipe with lengths: unbuffered writes, so that a message is on its way at once; buffered reads.

    It is what a careful user writes: one write a message, and a reader that asks the system seldom.
    """

    near: int
    far: int

    @staticmethod
    def opened(pipe_bytes: int | None) -> FramedPipe:
        """A pipe of the default size, or another one."""
        near, far = os.pipe()
        if pipe_bytes is not None:
            fcntl.fcntl(far, _F_SETPIPE_SZ, pipe_bytes)
        return FramedPipe(near, far)

    def write(self, data: bytes, count: int) -> None:
        """Send messages."""
        write, pack, fd = os.write, _LENGTH.pack, self.far
        size = len(data)
        whole = size + 4
        for _ in range(count):
            if size <= 65536:
                sent = write(fd, pack(size) + data)
                if sent != whole:
                    _write_rest(fd, memoryview(pack(size) + data)[sent:])
            else:
                sent = os.writev(fd, (pack(size), data))
                if sent != whole:
                    _write_rest(fd, memoryview(data)[sent - 4 :])

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
    """A push and a pull socket over a Unix socket; each process makes its own end."""

    path: Path

    def _context(self) -> tuple[_Context, int, int]:
        try:
            import zmq
        except ImportError:
            raise MissingPeerError("pyzmq is not installed (pip install pyzmq)") from None
        return cast("_Context", zmq.Context()), int(zmq.PUSH), int(zmq.PULL)

    def check(self) -> None:
        """Raise MissingPeerError when it is not installed."""
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
