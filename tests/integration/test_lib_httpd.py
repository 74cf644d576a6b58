from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import dios
from tests.support.client.web_server import SECONDS_MAX, web_server
from tests.support.node.running_node import RunningNode, running_node, wait_until

pytestmark = pytest.mark.skipif(find_spec("h11") is None, reason="h11 is not installed: make setup")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("httpd") / "node") as started:
        yield started


@pytest.fixture(scope="module")
def server(node: RunningNode) -> Iterator[tuple[str, int]]:
    """The example's address."""
    with web_server(node.place, node.data.parent) as address:
        yield address


def ask(
    server: tuple[str, int], method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes, str | None]:
    """One request on a connection of its own: status, body, and which worker answered."""
    connection = http.client.HTTPConnection(*server, timeout=SECONDS_MAX)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read(), response.getheader("X-Worker")
    finally:
        connection.close()


def raw(server: tuple[str, int], data: bytes) -> bytes:
    """What a connection answers until it is closed."""
    with socket.create_connection(server, timeout=SECONDS_MAX) as sock, sock.makefile("rb") as file:
        sock.sendall(data)
        return file.read()


def test_curl_gets_the_page_and_keeps_a_value(server: tuple[str, int], tmp_path: Path) -> None:
    """An ordinary client reads the page, uploads a file and reads it again."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    base = f"http://{server[0]}:{server[1]}"
    upload = tmp_path / "upload"
    upload.write_bytes(b"kept by " * 1000)
    for arguments, told in (
        ([f"{base}/"], b"It works"),
        (["-T", str(upload), f"{base}/kv/file"], b""),
        ([f"{base}/kv/file"], upload.read_bytes()),
    ):
        done = subprocess.run(
            [curl, "-sSf", "--noproxy", "*", *arguments], capture_output=True, timeout=SECONDS_MAX, check=True
        )
        assert told in done.stdout


def test_every_worker_serves_every_value(server: tuple[str, int]) -> None:
    """Workers share the acceptor, and what one of them was given another one serves."""
    assert ask(server, "PUT", "/kv/shared", b"one for all")[0] == 204
    workers = set()

    def all_seen() -> bool:
        # Held open together, so that no worker has them all for itself.
        held = [http.client.HTTPConnection(*server, timeout=SECONDS_MAX) for _ in range(6)]
        try:
            for connection in held:
                connection.request("GET", "/kv/shared")
            for connection in held:
                response = connection.getresponse()
                assert response.read() == b"one for all"
                workers.add(response.getheader("X-Worker"))
        finally:
            for connection in held:
                connection.close()
        return workers == {"W0", "W1", "W2"}

    wait_until(all_seen, "each worker has answered")


def test_answers_say_what_is_wrong(server: tuple[str, int]) -> None:
    """A key that has no value, a page that is not, a body that is too large, a key that is none."""
    assert ask(server, "GET", "/kv/nobody")[0] == 404
    assert ask(server, "GET", "/nothing")[0] == 404
    assert ask(server, "DELETE", "/kv/file")[0] == 404
    assert ask(server, "PUT", "/kv/", b"x")[0] == 400
    assert ask(server, "PUT", "/kv/large", bytes(65_537))[0] == 413
    assert ask(server, "GET", "/kv/large")[0] == 404


def test_requests_of_one_connection_are_answered_in_order(server: tuple[str, int]) -> None:
    """Requests that are sent without waiting get their answers one after the other."""
    put = b"PUT /kv/order HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nnow"
    get = b"GET /kv/order HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    told = raw(server, put + get + last)
    assert told.count(b"HTTP/1.1 ") == 3
    assert told.index(b"204") < told.index(b"\r\n\r\nnow") < told.index(b"It works")


def test_what_is_no_http_costs_that_connection_alone(server: tuple[str, int]) -> None:
    """Rubbish is answered with 400 and an end; those who say half of something keep nobody waiting."""
    with socket.create_connection(server) as slow, socket.create_connection(server) as silent:
        slow.sendall(b"GET /kv/or")
        assert raw(server, b"\x16\x03\x01 this is no HTTP\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert ask(server, "GET", "/")[0] == 200
        silent.shutdown(socket.SHUT_WR)
        assert silent.recv(1) == b""
        slow.settimeout(SECONDS_MAX)
        slow.sendall(b"der HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(12) in {b"HTTP/1.1 200", b"HTTP/1.1 404"}


def test_ctrl_c_ends_every_task(node: RunningNode, server: tuple[str, int]) -> None:
    """The tasks of a server are pure, and end with it."""
    with dios.connect(node.place, groups=()) as session:
        before = {task.fingerprint for task in session.tasks() if not task.ended}
        with web_server(node.place, node.data.parent):
            mine = [task for task in session.tasks() if not task.ended and task.fingerprint not in before]
            assert len(mine) == 6
            assert all(task.brand is dios.Brand.PURE for task in mine)
        wait_until(
            lambda: {task.fingerprint for task in session.tasks() if not task.ended} == before,
            "its tasks have ended",
        )
