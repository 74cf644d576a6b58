"""The program of a sending process: messages through a pipe, a socket, or a pipe of multiprocessing.

``python -m labs.papers.dios.senders WAY DESCRIPTOR BYTES MESSAGES PAUSE_US``. Each message begins with the
clock of its sending. ``answer`` in place of a way answers requests on a socket, for remote reads.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

LENGTH: Final = struct.Struct("<I")
CLOCK: Final = struct.Struct("<q")
BUFFER_BYTES: Final = 1 << 20
"""The size of pipes and socket buffers; that of a stream's ring in DIOS."""


def main() -> None:
    """Send the messages of the command line."""
    way, (descriptor, size, count, pause_us) = sys.argv[1], map(int, sys.argv[2:])
    if way == "answer":
        answer_requests(descriptor)
        return
    send = _sender(way, descriptor)
    rest = os.urandom(size - CLOCK.size)
    for _ in range(count):
        if pause_us:
            time.sleep(pause_us / 1e6)
        send(CLOCK.pack(time.perf_counter_ns()) + rest)


def _sender(way: str, descriptor: int) -> Callable[[bytes], None]:
    if way == "connection":
        return Connection(descriptor, readable=False).send_bytes
    if way == "socket":
        end = socket.socket(fileno=descriptor)
        return lambda data: end.sendall(LENGTH.pack(len(data)) + data)
    return lambda data: _write_all(descriptor, LENGTH.pack(len(data)) + data)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def answer_requests(descriptor: int) -> None:
    """Answer each request for a number of bytes with that number of bytes, until the other end closes."""
    end = socket.socket(fileno=descriptor)
    with end, end.makefile("rb") as requests:
        while len(asked := requests.read(LENGTH.size)) == LENGTH.size:
            end.sendall(bytes(LENGTH.unpack(asked)[0]))


if __name__ == "__main__":
    main()
