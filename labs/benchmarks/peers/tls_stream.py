"""Bare TLS 1.3 with certificates like those of nodes: an echo on trio, and bulk data on blocking sockets.

It is the lower bound for DIOS' own connections. The servers are separate processes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import trio

from dios.limits import DATA_PIECE_BYTES
from dios.transport.identity import identity
from labs.benchmarks.measure import clock, forked, pin

_HOST: Final = "127.0.0.1"
_ASKED: Final = struct.Struct("<Q")
_PIECE: Final = bytes(DATA_PIECE_BYTES)


class Ends(NamedTuple):
    """The certificates of both ends, which trust only each other's cluster."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def ends(folder: Path) -> Ends:
    """Create identities of two nodes of a new cluster in ``folder``."""
    first = identity.create_cluster(folder / "first", name="first")
    second = identity.admit_here(first, folder / "second", name="second")
    return Ends(second.server_context, first.client_context)


def _listening() -> socket.socket:
    server = socket.create_server((_HOST, 0))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


# -- an echo ------------------------------------------------------------------------------------------
@contextlib.contextmanager
def tls_echo(shown: Ends, cpu: int | None) -> Iterator[int]:
    """Start an echo server on trio, bound to ``cpu``; return its port."""

    async def echo(stream: trio.SocketStream) -> None:
        secured = trio.SSLStream(stream, shown.server, server_side=True)
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await secured.receive_some(65536):
                await secured.send_all(data)

    async def serve() -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(server))
        await trio.serve_listeners(echo, [listener])

    def work() -> None:
        if cpu is not None:
            pin(cpu)
        trio.run(serve)

    with _listening() as server, forked(work):
        yield server.getsockname()[1]


def echo_round_trips(shown: Ends, port: int, size: int, count: int, warm: int = 50) -> list[float]:
    """Return the microseconds of ``count`` round trips on a new connection; the client uses trio, too."""
    data = bytes(size)
    taken: list[float] = []

    async def client() -> None:
        stream = await trio.open_tcp_stream(_HOST, port)
        async with trio.SSLStream(stream, shown.client) as secured:
            for turn in range(count + warm):
                before = clock()
                await secured.send_all(data)
                left = size
                while left:
                    left -= len(await secured.receive_some(65536))
                if turn >= warm:
                    taken.append((clock() - before) / 1e3)

    trio.run(client)
    return taken


# -- bulk ---------------------------------------------------------------------------------------------
def _serve_one(sock: socket.socket, context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as secured:
        while asked := secured.recv(_ASKED.size):
            (left,) = _ASKED.unpack(asked)
            piece = memoryview(_PIECE)
            while left:
                left -= secured.send(piece[:left])


@contextlib.contextmanager
def tls_bulk(shown: Ends) -> Iterator[int]:
    """Start a server with a thread for each connection, which sends the requested number of bytes."""

    def work() -> None:
        while True:
            sock, _ = server.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve_one, args=(sock, shown.server), daemon=True).start()

    with _listening() as server, forked(work):
        yield server.getsockname()[1]


class BulkClient:
    """One blocking connection to such a server."""

    def __init__(self, shown: Ends, port: int, most: int) -> None:
        self._sock: Final = shown.client.wrap_socket(socket.create_connection((_HOST, port)))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._target: Final = memoryview(bytearray(most))

    def fetch(self, size: int) -> int:
        """Request ``size`` bytes and receive them."""
        self._sock.sendall(_ASKED.pack(size))
        return self._take(size)

    def fetch_many(self, size: int, count: int) -> int:
        """Request ``size`` bytes ``count`` times, then receive everything."""
        for _ in range(count):
            self._sock.sendall(_ASKED.pack(size))
        return sum(self._take(size) for _ in range(count))

    def _take(self, size: int) -> int:
        done = 0
        most = len(self._target)
        while done < size:
            place = done % most
            got = self._sock.recv_into(self._target[place : place + min(most - place, size - done)])
            if not got:
                raise ConnectionResetError("the bare stream ended")
            done += got
        return done

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


def at_once(calls: list[Callable[[], object]]) -> float:
    """Run each call in a thread of its own; return the total seconds."""
    threads = [threading.Thread(target=call) for call in calls]
    before = clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (clock() - before) / 1e9
