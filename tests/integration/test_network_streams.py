"""TCP_STREAM and TCP_ACCEPT_STREAM of a real node, with real sockets at the other end."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios import limits
from tests.support.node.running_node import RunningNode, running_node, wait_until

PATIENCE_S = 20
MANY = 3_000_000
RESET = struct.pack("ii", 1, 0)

WORKER = b"""
import dios
node = dios.connect()
connection = node.inputs[0].accept(timeout=20)
connection.send(node.arguments[0].encode() + connection.receive(timeout=20))
connection.send_eof()
"""

FRONT = b"""
import dios
node = dios.connect()
acceptor = node.listen_tcp("127.0.0.1:0")
node.outputs[0].send(acceptor.address.encode())
for connection in acceptor:
    connection.send(b"hello")
    break
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A running node."""
    with running_node(tmp_path_factory.mktemp("network") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session; what it opens is gone with it."""
    with dios.connect(started.place, groups=()) as node:
        yield node
    # What a test opened, its end closes; some of it takes a moment.
    wait_until(lambda: not held(started.running.pid), "every socket and ring is closed", PATIENCE_S)


def held(pid: int) -> list[str]:
    """The TCP sockets and rings of a process."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            sockets.add(f"socket:[{line.split()[9]}]")
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            link = str(entry.readlink())
            if link in sockets or ("memfd:" in link and "stream" in link):
                links.append(link)
    return links


def place_of(address: str) -> tuple[str, int]:
    """An address as the socket module takes it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def peer_of(address: str) -> Iterator[socket.socket]:
    """A plain socket that is connected there."""
    with socket.create_connection(place_of(address), PATIENCE_S) as sock:
        yield sock


@contextlib.contextmanager
def listener() -> Iterator[tuple[socket.socket, str]]:
    """A plain listening socket, and where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


def rest_of(sock: socket.socket) -> bytes:
    """Everything until the peer has sent its last."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_connection_out(node: dios.Node) -> None:
    """A task's connection carries bytes both ways, and tells the peer's address."""
    with listener() as (server, address), node.connect_tcp(address) as connection:
        sock, _ = server.accept()
        with sock:
            assert connection.address == address
            connection.send(b"there")
            assert sock.recv(100) == b"there"
            sock.sendall(b"and back")
            assert connection.receive(timeout=PATIENCE_S) == b"and back"


def test_connection_in(node: dios.Node) -> None:
    """An acceptor gives connections, and the reader learns each peer's address."""
    with node.listen_tcp("127.0.0.1:0") as acceptor, peer_of(acceptor.address) as peer:
        connection = acceptor.accept(PATIENCE_S)
        assert place_of(connection.address) == peer.getsockname()
        peer.sendall(b"hello")
        assert connection.receive(timeout=PATIENCE_S) == b"hello"


def test_address_of_the_other_version(node: dios.Node) -> None:
    """IPv6 is written in brackets, and names are looked up."""
    try:
        acceptor = node.listen_tcp("[::1]:0")
    except dios.DiosError as error:
        pytest.skip(f"no IPv6 here: {error.message}")
    assert acceptor.address.startswith("[::1]:")
    with node.connect_tcp(acceptor.address) as connection:
        connection.send(b"six")
        assert acceptor.accept(PATIENCE_S).receive(timeout=PATIENCE_S) == b"six"


def test_each_end_is_told_alone(node: dios.Node) -> None:
    """Who has sent its last still receives: the end of each direction is carried over by itself."""
    with listener() as (server, address), node.connect_tcp(address) as connection:
        sock, _ = server.accept()
        with sock:
            connection.send(b"question")
            connection.send_eof()
            assert rest_of(sock) == b"question"
            sock.sendall(b"answer")
            sock.shutdown(socket.SHUT_WR)
            assert b"".join(connection) == b"answer"
            with pytest.raises(dios.EndOfStreamError):
                connection.receive()
            with pytest.raises(dios.ClosedError):
                connection.send(b"more")


def test_much_goes_through_whole(node: dios.Node) -> None:
    """Many times the rings' size arrives as it was sent, both ways at once."""
    data = hashlib.shake_128(b"much").digest(MANY)
    with node.listen_tcp("127.0.0.1:0", ring_bytes=16_384) as acceptor, peer_of(acceptor.address) as peer:
        connection = acceptor.accept(PATIENCE_S)

        def echo() -> None:
            for part in connection:
                connection.send(part)
            connection.send_eof()

        def send() -> None:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)

        threads = [threading.Thread(target=echo), threading.Thread(target=send)]
        for thread in threads:
            thread.start()
        assert rest_of(peer) == data
        for thread in threads:
            thread.join(PATIENCE_S)


def test_a_peer_that_does_not_read_stops_its_writer(node: dios.Node) -> None:
    """What nobody reads is not collected anywhere: the writer waits, and its time limit is told."""
    with listener() as (server, address), node.connect_tcp(address, ring_bytes=16_384) as connection:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock, _ = server.accept()
        with sock:
            error: dios.DiosError | None = None
            while error is None:
                try:
                    connection.send(bytes(16_000), timeout=0.2)
                except dios.TimeLimitError as told:
                    error = told


def test_what_was_written_arrives_after_its_writer_has_gone(started: RunningNode) -> None:
    """A task that sends and ends at once has sent: the node goes on for it."""
    data = bytes(range(256)) * 1024
    with listener() as (server, address):
        with dios.connect(started.place, groups=()) as node:
            node.connect_tcp(address).send(data)
        sock, _ = server.accept()
        with sock:
            sock.settimeout(PATIENCE_S)
            assert rest_of(sock) == data


def test_a_reset_is_no_good_end(node: dios.Node) -> None:
    """Whose connection breaks is told so, and does not take what came for all there was."""
    with node.listen_tcp("127.0.0.1:0") as acceptor, peer_of(acceptor.address) as peer:
        connection = acceptor.accept(PATIENCE_S)
        peer.sendall(b"half of")
        assert connection.receive(timeout=PATIENCE_S) == b"half of"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.close()
        with pytest.raises(dios.ClosedError, match="broke"):
            connection.receive(timeout=PATIENCE_S)


def test_nobody_there(node: dios.Node) -> None:
    """A connection that cannot be made says why: nobody listens, no such host, or the port is taken."""
    with listener() as (_, address):
        taken = address
        with pytest.raises(dios.Busy, match="another"):
            node.listen_tcp(taken)
    with pytest.raises(dios.UnreachableError, match="refused"):
        node.connect_tcp(taken)
    with pytest.raises(dios.UnreachableError, match="no address"):
        node.connect_tcp("no.such.host.invalid:80")


def test_workers_share_an_acceptor(node: dios.Node) -> None:
    """Tasks that wait at one acceptor get each its own connection (Figure 3.3), no right besides."""
    with node.listen_tcp("127.0.0.1:0") as acceptor:
        tasks = [
            node.run(WORKER, inputs=[acceptor.restrict("read")], args=[name]) for name in ("one ", "two ")
        ]
        told = set()
        for _ in tasks:
            with peer_of(acceptor.address) as peer:
                peer.sendall(b"got it")
                told.add(rest_of(peer))
        assert told == {b"one got it", b"two got it"}
        assert all(task.wait(PATIENCE_S).ok for task in tasks)


def test_a_task_that_is_handed_the_network_listens(node: dios.Node) -> None:
    """The right to the network is an input like any other."""
    stream = node.create_stream()
    right = node.network().restrict("write")
    task = node.run(FRONT, inputs=[right], outputs=[stream.restrict("write")])
    with peer_of(stream.receive(PATIENCE_S).decode()) as peer:
        assert rest_of(peer) == b"hello"
    assert task.wait(PATIENCE_S).ok


def test_select_finds_a_connection(node: dios.Node) -> None:
    """Select waits for acceptors and connections beside other objects."""
    with node.listen_tcp("127.0.0.1:0") as acceptor:
        assert node.select([acceptor], timeout=0) is None
        with peer_of(acceptor.address) as peer:
            assert node.select([acceptor, node.self], timeout=PATIENCE_S) is acceptor
            connection = acceptor.accept()
            assert node.select([connection, acceptor], timeout=0) is None
            peer.sendall(b"x")
            assert node.select([connection, acceptor], timeout=PATIENCE_S) is connection


def test_connections_that_nobody_takes_are_closed(node: dios.Node) -> None:
    """With its last reference an acceptor closes its port, and what waited there."""
    acceptor = node.listen_tcp("127.0.0.1:0")
    address = acceptor.address
    with peer_of(address) as peer:
        assert node.select([acceptor], timeout=PATIENCE_S) is acceptor
        acceptor.close()
        with contextlib.suppress(ConnectionResetError):
            assert rest_of(peer) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place_of(address), PATIENCE_S)


def test_a_flood_leaves_the_node_alone(node: dios.Node, started: RunningNode) -> None:
    """Hundreds of peers that connect and say nothing cost few descriptors, and nobody else notices."""
    with node.listen_tcp("127.0.0.1:0") as acceptor, contextlib.ExitStack() as peers:
        for _ in range(200):
            peers.enter_context(peer_of(acceptor.address))
        assert len(held(started.running.pid)) <= limits.ACCEPT_WAITING_MAX + 1
        blob = node.create(dios.SHMEM_BLOB, data=b"as ever")
        assert blob.read_bytes() == b"as ever"
        assert acceptor.accept(PATIENCE_S).address
