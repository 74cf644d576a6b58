"""A node's exporter serves its metrics to clients with a certificate, and ends with the node."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dios import limits
from dios.client.sync.node import connect
from dios.node.metrics.registry import read_all
from tests.support.node.raw_client import NodeProcess

CERTIFICATES = Path(__file__).parents[2] / "cluster" / "metrics" / "certificates.py"
WAIT_S = 30


class Measured:
    """A node that serves metrics, with the files of its authority."""

    def __init__(self, folder: Path) -> None:
        files = folder / "certificates"
        subprocess.run([sys.executable, CERTIFICATES, files, "localhost"], check=True)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        tls = ",".join(str(files / name) for name in ("server.pem", "server.key", "authority.pem"))
        self.files = files
        self.node = NodeProcess(folder / "node", metrics=f"127.0.0.1:{self.port}", metrics_tls=tls)

    def get(self, *, certified: bool) -> str:
        """Return the text; wait until the exporter listens."""
        context = ssl.create_default_context(cafile=self.files / "authority.pem")
        if certified:
            context.load_cert_chain(self.files / "client.pem", self.files / "client.key")
        while True:
            line = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=WAIT_S)
            try:
                line.request("GET", "/metrics")
                return line.getresponse().read().decode()
            except ConnectionRefusedError:
                assert self.node.process.poll() is None
            finally:
                line.close()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Start the node, and kill it at the end."""
    measured_node = Measured(tmp_path_factory.mktemp("metrics"))
    yield measured_node
    measured_node.node.kill()


def test_calls_and_ends_of_tasks_are_counted(measured: Measured) -> None:
    """A run that ends by an exception is counted as a call, with its latency, and by its cause."""
    with connect(measured.node.socket, groups=()) as node:
        read_all(node)
        task = node.run(b"raise ValueError")
        task.wait()
        values_by_metric = {
            (sample.metric, *sorted(sample.labels.values())): sample.value for sample in read_all(node)
        }
    assert values_by_metric["dios_tasks_ended_total", "exception"] == 1
    assert values_by_metric["dios_calls_total", "Run", "ok"] == 1
    assert values_by_metric["dios_call_latency_seconds", "Run"] > 0
    assert values_by_metric["process_resident_memory_bytes",] > 2**20


def test_exporter_serves_certified_clients_only(measured: Measured) -> None:
    """Over TLS the text is the node's, and a client without a certificate gets none."""
    assert "dios_sessions 1.0" in measured.get(certified=True)
    with pytest.raises(OSError, match=r"(?i)certificate required|reset|EOF"):
        measured.get(certified=False)


def test_strangers_at_the_exporter_keep_no_client_out(measured: Measured) -> None:
    """More silent connections than there are places end, the oldest first; a certified client is served."""
    measured.get(certified=True)
    with ExitStack() as kept:
        silent = [
            kept.enter_context(socket.create_connection(("localhost", measured.port), timeout=WAIT_S))
            for _ in range(limits.EXPORTER_CONNECTIONS_MAX + 4)
        ]
        assert "dios_sessions" in measured.get(certified=True)
        assert silent[0].recv(1) == b""


def test_exporter_ends_with_a_killed_node(measured: Measured) -> None:
    """The exporter of a killed node listens no more."""
    assert measured.get(certified=True)
    measured.node.kill()
    while True:
        with socket.socket() as line:
            if line.connect_ex(("127.0.0.1", measured.port)):
                break
