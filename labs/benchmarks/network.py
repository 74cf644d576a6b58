"""TCP_STREAM compared with a bare trio socket: bytes per second, and connections per second.

Both ends are on this machine and share its processors.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import trio

import dios
from labs.benchmarks.measure import clock
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import Row, Section, judge, number, times

TOTAL_BYTES = 256 * 2**20
PIECE = bytes(128 * 1024)
CONNECTIONS = 500
ROUNDS = 3


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    with running_node(None) as bench, dios.connect(bench.data, groups=[]) as node, _sink() as port:
        address = f"127.0.0.1:{port}"
        bare, ours = 0.0, 0.0
        for _ in range(ROUNDS):
            bare = max(bare, trio.run(_bare_send, port))
            ours = max(ours, _send(node, address))
        accepted = _accepts(node)
        plain = trio.run(_bare_accepts)
    section.figure("bare trio socket, 128 KiB sends", bare, "MB/s")
    section.figure("TCP_STREAM, 128 KiB sends", ours, "MB/s")
    section.figure("bare trio: accept, send a byte, close", plain, "/s")
    section.figure("TCP_ACCEPT_STREAM: accept, send a byte, close", accepted, "/s")
    section.rows.append(
        Row(
            "TCP_STREAM, bytes out",
            f"{number(ours)} MB/s",
            f"bare trio socket {number(bare)} MB/s",
            times(ours / bare),
            judge("0.5 x a bare trio socket", ours / bare, 0.5, below=False),
        )
    )


@contextlib.contextmanager
def _sink() -> Iterator[int]:
    """Open a port at which a thread reads everything, and answers one byte at the end."""

    def serve(server: socket.socket) -> None:
        buffer = bytearray(len(PIECE))
        with contextlib.suppress(OSError):
            while True:
                sock, _ = server.accept()
                with sock:
                    while sock.recv_into(buffer):
                        pass
                    sock.sendall(b"d")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


async def _bare_send(port: int) -> float:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        began = clock()
        for _ in range(TOTAL_BYTES // len(PIECE)):
            await stream.send_all(PIECE)
        await stream.send_eof()
        await stream.receive_some(1)
        return TOTAL_BYTES / (clock() - began) * 1e3


def _send(node: dios.Node, address: str) -> float:
    with node.connect_tcp(address) as connection:
        began = clock()
        for _ in range(TOTAL_BYTES // len(PIECE)):
            connection.send(PIECE)
        connection.send_eof()
        connection.receive()
        return TOTAL_BYTES / (clock() - began) * 1e3


def _visit(port: int) -> None:
    for _ in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.recv(1)


def _accepts(node: dios.Node) -> float:
    with node.listen_tcp("127.0.0.1:0") as acceptor:
        visitor = threading.Thread(target=_visit, args=(int(acceptor.address.rpartition(":")[2]),))
        began = clock()
        visitor.start()
        for _ in range(CONNECTIONS):
            with acceptor.accept() as connection:
                connection.send(b"x")
        visitor.join()
        return CONNECTIONS / (clock() - began) * 1e9


async def _bare_accepts() -> float:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:
        began = clock()
        nursery.start_soon(trio.to_thread.run_sync, _visit, listener.socket.getsockname()[1])
        for _ in range(CONNECTIONS):
            async with await listener.accept() as stream:
                await stream.send_all(b"x")
        return CONNECTIONS / (clock() - began) * 1e9
