"""A bare trio echo server, the lower bound for a system call.

A frame is a 4-byte length and MessagePack. With ``raw`` the server returns the received bytes without
parsing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator

import msgspec
import trio

from labs.benchmarks.measure import forked, pin

_LENGTH = struct.Struct("<I")


async def _echo_bytes(stream: trio.SocketStream) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


async def _echo_messages(stream: trio.SocketStream) -> None:
    buffer = b""
    while data := await stream.receive_some(65536):
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := _LENGTH.unpack_from(buffer)[0]):
            message = msgspec.msgpack.decode(buffer[4 : 4 + size])
            buffer = buffer[4 + size :]
            body = msgspec.msgpack.encode(message)
            await stream.send_all(_LENGTH.pack(len(body)) + body)


@contextlib.contextmanager
def echo_server(cpu: int | None, *, raw: bool) -> Iterator[socket.socket]:
    """Start an echo server in a process of its own, bound to ``cpu``; return a blocking socket to it."""
    near, far = socket.socketpair()

    async def serve() -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(far))
        with contextlib.suppress(trio.BrokenResourceError):
            await (_echo_bytes(stream) if raw else _echo_messages(stream))

    def work() -> None:
        near.close()
        if cpu is not None:
            pin(cpu)
        trio.run(serve)

    with forked(work), near:
        far.close()
        yield near


def raw_call(sock: socket.socket, size: int) -> Callable[[], object]:
    """Return a function for one round trip of ``size`` unparsed bytes."""
    data = os.urandom(size)
    send, receive = sock.send, sock.recv

    def call() -> None:
        send(data)
        receive(65536)

    return call


def message_call(sock: socket.socket, size: int) -> Callable[[], object]:
    """Return a function for a round trip of a ``size`` bytes message, packed and unpacked on both sides."""
    payload = os.urandom(size)
    send, receive = sock.send, sock.recv
    pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
    pack_length = _LENGTH.pack

    def call() -> None:
        body = pack([1, payload])
        send(pack_length(len(body)) + body)
        unpack(receive(65536)[4:])

    return call
