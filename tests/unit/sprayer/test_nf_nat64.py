"""``dios nf run nat64`` between a machine that has only IPv6 and one that has only IPv4."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab.function_machines import PYTHON, RIGHT, FunctionLab
from tests.support.lab.namespaces import NotHereError, run

POOL = "10.214.0.9"
SERVER = """
import socket, threading, time
said = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
said.bind(("", 7))
def hello():
    while True:
        said.sendto(b"hello", ("POOL", 9))
        time.sleep(0.1)
def echo():
    while True:
        data, sender = said.recvfrom(65536)
        said.sendto(data[::-1], sender)
for each in (hello, echo):
    threading.Thread(target=each, daemon=True).start()
with socket.create_server(("", 8000)) as server:
    print("Serving", flush=True)
    while True:
        client, sender = server.accept()
        with client:
            data = b"".join(iter(lambda: client.recv(65536), b""))
            client.sendall(sender[0].encode() + b" " + data[::-1])
"""
CLIENT = """
import os, socket, struct, sys, time
server, data = sys.argv[1], os.urandom(300_000)
def answered(kind, protocol, to, message, fits):
    with socket.socket(socket.AF_INET6, kind, protocol) as own:
        own.settimeout(0.5)
        for _ in range(120):
            try:
                own.sendto(message, (server, to))
                while not fits(own.recv(65536)):
                    pass
                return True
            except OSError:
                time.sleep(0.05)
    return False
udp = answered(socket.SOCK_DGRAM, 0, 7, b"over", lambda got: got == b"revo")
ping = struct.pack(">BBHHH", 128, 0, 0, 77, 1) + b"ping"
echo = answered(socket.SOCK_RAW, 58, 0, ping, lambda got: got[0] == 129 and got[8:] == b"ping")
with socket.create_connection((server, 8000), 60) as own:
    own.sendall(data)
    own.shutdown(socket.SHUT_WR)
    sender, got = b"".join(iter(lambda: own.recv(65536), b"")).split(b" ", 1)
print(udp, echo, sender.decode(), got == data[::-1])
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FunctionLab]:
    """Left has IPv6 alone and sends all of the prefix to its cable; right has IPv4 alone."""
    try:
        bench = FunctionLab(tmp_path)
    except NotHereError as error:
        pytest.skip(str(error))
    with contextlib.closing(bench):
        bench.left.batch(["address delete 10.214.0.1/24 dev e0", "route add 64:ff9b::/96 dev e0"])
        run(bench.right.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/e0/disable_ipv6"))
        yield bench


@pytest.mark.extended
def test_ipv6_reaches_ipv4_by_tcp_udp_and_echoes(lab: FunctionLab) -> None:
    """Without any neighbour entries, all three come there and back, from the function's address."""
    command = [*PYTHON, "-m", "dios.cli.main", "nf", "run", "nat64", "--in", "in0", "--out", "out0", "--json"]
    command += ["--set", f"addresses={POOL}", "--name", f"nat64-{lab.folder.name}", "--cores", "2"]
    with subprocess.Popen(
        lab.middle.inside(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "Ctrl-C ends it" in process.stderr.readline()
            server = [sys.executable, "-u", "-c", SERVER.replace("POOL", POOL)]
            with lab.serving(lab.right, server, "Serving"):
                got = run(lab.left.inside(sys.executable, "-c", CLIENT, f"64:ff9b::{RIGHT}"))
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert got.split() == ["True", "True", POOL, "True"]
    assert process.returncode == 0, errors
    told = json.loads(output)
    assert told["counters"]["opened"] == 3
    assert told["packets"] > 300
