"""Connections of a soak's clients that end in the middle of an operation.

Attacks on the codec are the task of the fuzzer.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

import dios
from dios.transport.unix.client import connect
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, encode_request
from dios.wire.types import ObjectType
from labs.benchmarks.soak.data import Data

_TIMEOUT_S: Final = 20.0


def drop_mid_frame(place: Path, source: random.Random) -> None:
    """Send Hello or not, begin a frame, and disconnect."""
    with connect(_socket(place)) as sock:
        sock.settimeout(_TIMEOUT_S)
        if source.random() < 0.7:
            sock.sendall(encode_request(1, messages.Hello(PROTOCOL_VERSION)))
            if source.random() < 0.7:
                sock.recv(65_536)
        frame = encode_request(2, messages.Create(ObjectType.SHMEM_BLOB, data=bytes(20_000)))
        sock.sendall(frame[: source.randrange(len(frame))])


def drop_with_requests(place: Path, data: Data) -> None:
    """Disconnect with open buffers and a waiting call."""
    node = dios.connect(place, groups=())
    try:
        blob = node.create(dios.SHMEM_BLOB, data=data.of(200_000))
        blob.read()
        blob.write(200_000, dios.ANY)
        stream = node.create_stream()
        stream.send(b"never read", timeout=_TIMEOUT_S)
        with connect(_socket(place)) as waiting:
            waiting.sendall(encode_request(1, messages.Hello(PROTOCOL_VERSION)))
            waiting.sendall(encode_request(2, messages.NodeInfo()) * 3)
    finally:
        node.close()


def never_read(place: Path) -> None:
    """Send more requests than the socket has room for, and read no reply; the node may disconnect."""
    with connect(_socket(place)) as sock:
        sock.settimeout(1.0)
        sock.sendall(encode_request(1, messages.Hello(PROTOCOL_VERSION)))
        with contextlib.suppress(OSError, socket.timeout):
            for number in range(2, 3_000):
                sock.sendall(encode_request(number, messages.NodeInfo()))


def _socket(place: Path) -> Path:
    return place / "node.sock" if place.is_dir() else place
