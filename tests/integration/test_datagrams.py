"""UDP_STREAM of a real node, with real sockets at the other end."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import dios
from tests.support.node.running_node import running_node, wait_until

PATIENCE_S = 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running node."""
    with running_node(tmp_path_factory.mktemp("datagrams") / "node") as node:
        yield node.place


@pytest.fixture
def node(place: str) -> Iterator[dios.Node]:
    """A session."""
    with dios.connect(place, groups=()) as node:
        yield node


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    """A plain UDP socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(PATIENCE_S)
        yield sock


def name_of(address: str) -> tuple[str, int]:
    """An address as the socket module takes it."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_datagrams_keep_their_bounds_and_addresses(node: dios.Node, peer: socket.socket) -> None:
    """Each datagram arrives as it was sent, with where it came from; an empty one is one, too."""
    with node.bind_udp("127.0.0.1:0") as stream:
        own = f"127.0.0.1:{peer.getsockname()[1]}"
        for data in (b"one", b"", bytes(60_000)):
            stream.send(data, own)
            assert peer.recvfrom(70_000) == (data, name_of(stream.address))
        stream.reader  # noqa: B018 - from here on somebody reads
        for data in (b"back", b"", bytes(60_000)):
            peer.sendto(data, name_of(stream.address))
            assert stream.receive(PATIENCE_S) == (data, own)


def test_what_finds_no_room_is_dropped_and_counted(node: dios.Node, peer: socket.socket) -> None:
    """A ring that nobody reads takes what it holds; the rest is counted, and what comes later arrives."""
    with node.bind_udp("127.0.0.1:0", ring_bytes=8192) as stream:
        stream.reader  # noqa: B018 - as above
        for _ in range(50):
            peer.sendto(bytes(1000), name_of(stream.address))
        wait_until(lambda: stream.dropped >= 40, "they are dropped", PATIENCE_S)
        kept = 0
        while node.select([stream], timeout=0) is stream:
            assert stream.receive(PATIENCE_S)[0] == bytes(1000)
            kept += 1
        assert kept + stream.dropped == 50
        peer.sendto(b"later", name_of(stream.address))
        assert stream.receive(PATIENCE_S)[0] == b"later"


def test_what_is_too_long_for_the_ring_is_dropped(node: dios.Node, peer: socket.socket) -> None:
    """A datagram over half the ring can never be stored at once: it is dropped and counted."""
    with node.bind_udp("127.0.0.1:0", ring_bytes=4096) as stream:
        stream.reader  # noqa: B018 - as above
        peer.sendto(bytes(5000), name_of(stream.address))
        wait_until(lambda: stream.dropped == 1, "it is dropped", PATIENCE_S)


def test_nonsense_to_send_costs_nobody_else(node: dios.Node, peer: socket.socket) -> None:
    """What a task writes into its ring may be anything: what is no datagram is dropped, the next is sent."""
    with node.bind_udp("127.0.0.1:0") as stream:
        for nonsense in (b"", b"\xff", b"\x03a:b", b"\x05\xff\xff\xff\xff\xff", b"\x04none"):
            stream.writer.send(nonsense)
        stream.send(b"good", f"127.0.0.1:{peer.getsockname()[1]}")
        assert peer.recv(100) == b"good"
        wait_until(lambda: stream.dropped == 5, "they are counted", PATIENCE_S)


def test_last_words_are_sent(place: str, peer: socket.socket) -> None:
    """What was sent before the sender went is on its way."""
    with dios.connect(place, groups=()) as node:
        node.bind_udp("127.0.0.1:0").send(b"good-bye", f"127.0.0.1:{peer.getsockname()[1]}")
    assert peer.recv(100) == b"good-bye"


@pytest.mark.parametrize(
    "address",
    [
        b"127.0.0.1:" + b"9" * 40,
        b"127.0.0.1:65536",
        b"127.0.0.1:-1",
        "127.0.0.1:٣".encode(),
        b"nowhere",
        b"a\0b:1",
        b"\xff\xfe:1",
        b"[::1]:1",
        b"",
    ],
)
def test_what_is_no_address_drops_its_datagram_alone(
    node: dios.Node, peer: socket.socket, address: bytes
) -> None:
    """A task writes any bytes as an address: that datagram is dropped and counted, and the next is sent."""
    with node.bind_udp("127.0.0.1:0") as stream:
        stream.writer.send(bytes((len(address),)) + address + b"lost")
        wait_until(lambda: stream.dropped == 1, "it is dropped", PATIENCE_S)
        stream.send(b"sent", f"127.0.0.1:{peer.getsockname()[1]}")
        assert peer.recvfrom(100)[0] == b"sent"
