"""Serves a node's metrics over HTTP, for Prometheus. Runs as a process of its own, as a client of the node.

Without TLS it listens on loopback only. Elsewhere it wants a certificate of every client.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dios.client.sync.node import connect
from dios.errors import DiosError, InvalidError
from dios.node.exporter_places import ExporterPlace, TlsFiles, place_of, require_protected
from dios.node.metrics.family import Reading
from dios.node.metrics.registry import read_all
from dios.node.metrics.text import ReadingsCollector
from dios.wire.addresses import listen_advice

_log: Final = logging.getLogger(__name__)


class _NodeCollector(Collector):
    """A collector that reads the node's metrics for each request; requests take turns."""

    def __init__(self, read: Callable[[], list[Reading]]) -> None:
        self._read: Final = read
        self._turn: Final = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        with self._turn:
            try:
                readings = self._read()
            except DiosError as error:
                _log.warning("the node's metrics cannot be read", extra={"why": error.message})
                raise
        yield from ReadingsCollector(readings).collect()


def start(node: str | Path | None, place: ExporterPlace, tls: TlsFiles | None = None) -> Callable[[], None]:
    """Serve the metrics of a node in a thread. Return the function that ends that.

    Raises:
        InvalidError: the address cannot be used or needs TLS, or a TLS file cannot be read.
    """
    require_protected(place, tls)

    def read() -> list[Reading]:
        with connect(node, groups=(), label="reads metrics", start=False) as connected:
            return read_all(connected)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(read))
    try:
        server, thread = start_http_server(
            place.port,
            place.host,
            registry,
            None if tls is None else str(tls.certificate),
            None if tls is None else str(tls.key),
            None if tls is None else str(tls.clients),
            client_auth_required=tls is not None,
        )
    except OSError as error:
        raise InvalidError(
            f"cannot serve metrics at {place}: {error.strerror or error}. {listen_advice(error)}"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m dios.node.metrics.exporter SOCKET HOST:PORT [TLS FILES]`` until stdin ends.

    The node that starts this process holds the other end of stdin, so that they end together.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("address")
    parser.add_argument("tls", nargs="*", type=Path)
    given = parser.parse_args(arguments)
    try:
        stop = start(given.socket, place_of(given.address), TlsFiles(*given.tls) if given.tls else None)
    except InvalidError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    try:
        while os.read(0, 4_096):
            pass
    except KeyboardInterrupt:
        pass
    stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
