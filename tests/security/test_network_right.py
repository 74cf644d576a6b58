"""A pure task and the network: without the right there is none, and with it no more than that."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import dios
from tests.support.node.running_node import running_node, wait_until

PATIENCE_S = 30

ATTEMPTS = b"""
import dios
from dios.wire.types import ObjectType

node = dios.connect()
told = []
for attempt in (
    lambda: node.connect_tcp(node.arguments[0]),
    lambda: node.listen_tcp("127.0.0.1:0"),
    lambda: node.bind_udp("127.0.0.1:0"),
    lambda: node.network(),
    lambda: node.create(ObjectType.NETWORK),
    lambda: node.inputs[0].copy() and node.listen_tcp("127.0.0.1:0"),
):
    try:
        attempt()
        told.append("did")
    except dios.DiosError as error:
        told.append(type(error).__name__)
node.console.send(" ".join(told).encode())
"""

TAKER = b"""
import dios

node = dios.connect()
connection = node.inputs[0].accept(timeout=20)
connection.send(b"mine")
try:
    node.connect_tcp(node.arguments[0])
    node.console.send(b"did")
except dios.NotPermittedError:
    node.console.send(b"refused")
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dios.Node]:
    """A session on a running node."""
    with (
        running_node(tmp_path_factory.mktemp("right") / "node") as started,
        dios.connect(started.place, groups=()) as node,
    ):
        yield node


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that notices whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_a_task_without_the_right_gets_no_network(node: dios.Node, listener: socket.socket) -> None:
    """No call of a task without the right reaches the network, by no type, name or copy of a lesser right."""
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    right = node.network().restrict("read", "delegate")
    task = node.run(ATTEMPTS, inputs=[right], args=[address])
    assert task.wait(PATIENCE_S).ok
    told = b"".join(task.console()).decode().split()
    assert told == ["NotPermittedError"] * 4 + ["InvalidError", "NotPermittedError"]
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_connection_is_no_right_to_make_others(node: dios.Node, listener: socket.socket) -> None:
    """Who was handed an acceptor has the connections that come to it, and reaches out to nobody."""
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with node.listen_tcp("127.0.0.1:0") as acceptor:
        task = node.run(TAKER, inputs=[acceptor.restrict("read")], args=[address])
        host, _, port = acceptor.address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as peer:
            assert peer.recv(10) == b"mine"
            assert task.wait(PATIENCE_S).ok
    assert b"".join(task.console()) == b"refused"
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_what_is_made_is_audited(node: dios.Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The audit log holds each network stream that was made, and each connection that somebody took."""
    with node.listen_tcp("127.0.0.1:0") as acceptor, node.connect_tcp(acceptor.address):
        taken = acceptor.accept(PATIENCE_S)
        address = acceptor.address
        peer = taken.address
    wanted = (f"TCP_ACCEPT_STREAM {address}", f"TCP_STREAM {address}", f"{peer} on ")

    def written() -> bool:
        folder = tmp_path_factory.getbasetemp().glob("right*/node/audit/*")
        text = "".join(path.read_text(errors="replace") for path in folder if path.is_file())
        return all(words in text for words in wanted)

    wait_until(written, "the records are on the disk", PATIENCE_S)
