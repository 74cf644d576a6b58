"""Forwarded ports of sandboxes: other users of the machine, and the sandbox itself, get nothing by them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

import dios
from tests.support.layouts import busybox_layout
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.other_users import as_user
from tests.support.node.running_node import RunningNode, running_node

STRANGER = 65_531
PATIENCE_S = 30.0
SERVER = """
import socket, threading
server = socket.create_server(("127.0.0.1", 8080))
arrived = []
def accept():
    while True:
        link, _ = server.accept()
        arrived.append(link.recv(100))
        link.sendall(b"secret")
        link.close()
threading.Thread(target=accept, daemon=True).start()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    runtimes_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime="any") as running:
        yield running


@pytest.fixture
def box(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dios.Sandbox]:
    """A sandbox with a server."""
    image = f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}:tiny"
    with dios.Sandbox(node=node.place, image=image, memory="256 MiB") as sandbox:
        assert sandbox.run(SERVER).ok
        yield sandbox


def answer_at(port: int) -> bytes:
    """The answer of a server; empty if the connection ended before."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as link:
        try:
            link.sendall(b"question")
            return link.recv(100)
        except ConnectionError:
            return b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_another_user_of_the_machine_gets_no_byte(box: dios.Sandbox) -> None:
    """The connection ends, and nothing of it reaches the sandbox; the owner's does."""
    with box.forward(8080) as forward:

        def steal() -> None:
            assert answer_at(forward.port) == b""

        assert os.waitpid(as_user(STRANGER, steal), 0)[1] == 0
        assert box.run("arrived").value_repr == "[]"
        assert answer_at(forward.port) == b"secret"
        assert box.run("arrived").value_repr == "[b'question']"


def test_the_port_is_at_loopback_alone(box: dios.Sandbox) -> None:
    """No other address of the machine has it."""
    with box.forward(8080) as forward:
        assert forward.host == "127.0.0.1"
        for address in ("127.0.0.2", "::1"):
            with pytest.raises(OSError, match=r"refused|assign"):
                socket.create_connection((address, forward.port), PATIENCE_S)


def test_the_sandbox_reaches_nothing_by_it(box: dios.Sandbox) -> None:
    """A forwarded port leads in one direction: the number is that of no server inside."""
    with box.forward(8080) as forward:
        code = f"""
import socket
def reached():
    try:
        socket.create_connection(("127.0.0.1", {forward.port}), 5)
    except OSError:
        return False
    return True
reached()
"""
        assert box.run(code).value_repr == "False"
