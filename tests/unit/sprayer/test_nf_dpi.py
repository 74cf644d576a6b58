"""Deep packet inspection between two machines, with the TCP of the kernel and packets on any core.

Skipped where this machine makes no namespaces, with its reason.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab.function_machines import RIGHT, FunctionLab
from tests.support.lab.namespaces import NotHereError, run

FUNCTION = "dios.sprayer.functions.dpi:DeepInspection([Pattern('x', 'EVIL', action='drop')])"
SERVER = """
import socket
with socket.create_server(("", 8000)) as server:
    print("Serving", flush=True)
    while True:
        client, _ = server.accept()
        with client:
            while data := client.recv(65536):
                client.sendall(data)
"""
CLIENT = """
import os, socket, sys, threading
data = os.urandom(1_000_000).replace(b"E", b"e")
with socket.create_connection((sys.argv[1], 8000), 60) as own:
    threading.Thread(target=own.sendall, args=(data,), daemon=True).start()
    got = b""
    while len(got) < len(data):
        got += own.recv(65536)
    print(got == data, flush=True)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own.sendall(b"EV")
    print(own.recv(10))
    own.sendall(b"IL")
    # Do not wait for a connection that nothing passes any more.
    os._exit(0)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FunctionLab]:
    """Left and right, and nothing between them yet."""
    try:
        bench = FunctionLab(tmp_path)
    except NotHereError as error:
        pytest.skip(str(error))
    with contextlib.closing(bench):
        yield bench


def test_bytes_pass_whole_until_a_pattern_is_complete(lab: FunctionLab) -> None:
    """A megabyte goes there and back while packets are sprayed, and the second half of a pattern does not."""
    with lab.running(steer="spray", function=FUNCTION) as told:
        server = [sys.executable, "-u", "-c", SERVER]
        with lab.serving(lab.right, server, "Serving"):
            got = run(lab.left.inside(sys.executable, "-c", CLIENT, RIGHT))
    assert got.split() == ["True", "b'EV'"]
    assert sum(core["dropped"].get("matched", 0) for core in told) > 0
    assert sum(core["counts"]["handed_over"] for core in told) > 100
    assert not sum(core["dropped"].get("bad_sum", 0) + core["dropped"].get("changed", 0) for core in told)
