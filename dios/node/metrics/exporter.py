"""Serves a node's metrics over HTTP, for Prometheus. Runs as a process of its own, as a client of the node.

Without TLS it listens on loopback only, and serves the users that it was given. Elsewhere it wants a
certificate of every client.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from ssl import CERT_REQUIRED, PROTOCOL_TLS_SERVER, SSLContext, SSLSocket
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dios import limits
from dios.client.sync.node import connect
from dios.errors import DiosError, InvalidError
from dios.node.exporter_places import REPORTED, ExporterPlace, TlsFiles, place_of, require_protected
from dios.node.metrics.family import Reading
from dios.node.metrics.registry import read_all
from dios.node.metrics.text import ReadingsCollector
from dios.transport.tcp.local_peers import LocalUsers, own_users
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


class _Handler(WSGIRequestHandler):
    """The handler of one connection, which gives up a silent client and logs nothing."""

    timeout = limits.EXPORTER_REQUEST_MS_MAX / 1000

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the package
        """Log no request."""


class _Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection: on loopback for some users, else for certified clients.

    The oldest of too many connections ends for the next one. Clients without a certificate end first.
    """

    daemon_threads = True

    def __init__(self, place: ExporterPlace, users: Collection[int], context: SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        self._users: Final = LocalUsers(users)
        self._context: Final = context
        self._lock: Final = threading.Lock()
        self._strangers: Final[dict[socket.socket, None]] = {}
        self._clients: Final[dict[socket.socket, None]] = {}
        super().__init__((place.host, place.port), _Handler)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name, which can take long."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def verify_request(self, request: object, client_address: object) -> bool:
        """Return True if a connection is served."""
        del client_address
        assert isinstance(request, socket.socket), "of TCP"  # noqa: S101 - of the package
        return self._context is not None or self._users.admit(request)

    def finish_request(self, request: object, client_address: object) -> None:
        """Serve a connection in its own thread, after the handshake of TLS."""
        assert isinstance(request, socket.socket), "of TCP"  # noqa: S101 - of the package
        connection = request
        if self._context is not None:
            request.settimeout(limits.EXPORTER_REQUEST_MS_MAX / 1000)
            connection = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with connection:
            if isinstance(connection, SSLSocket):
                with self._place(connection, self._strangers):
                    connection.do_handshake()
            with self._place(connection, self._clients):
                super().finish_request(connection, client_address)

    @contextlib.contextmanager
    def _place(self, connection: socket.socket, places: dict[socket.socket, None]) -> Iterator[None]:
        """Give a connection a place, and take the oldest one's if there is none."""
        with self._lock:
            if len(places) >= limits.EXPORTER_CONNECTIONS_MAX:
                oldest = next(iter(places))
                del places[oldest]
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            places[connection] = None
        try:
            yield
        finally:
            with self._lock:
                places.pop(connection, None)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an error of one connection, which ends."""
        del request, client_address
        _log.info("a reader of metrics was not served", exc_info=True)


def _context_of(tls: TlsFiles) -> SSLContext:
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.verify_mode = CERT_REQUIRED
    context.load_verify_locations(tls.clients)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def _for_hosts(application: WSGIApplication, hosts: Collection[str]) -> WSGIApplication:
    """Return the application for requests to these hosts, so that no page in a browser reads it by a name."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_HOST") in hosts:
            return application(environ, start_response)
        start_response("421 Misdirected Request", [])
        return [b""]

    return checked


def start(
    node: str | Path | None,
    place: ExporterPlace,
    tls: TlsFiles | None = None,
    users: Collection[int] = (),
) -> Callable[[], None]:
    """Serve the metrics of a node in a thread. Return the function that ends that.

    Without ``tls``, this user, root and ``users`` are served.

    Raises:
        InvalidError: the address cannot be used or needs TLS, a TLS file cannot be read, or ``users`` are
            given with ``tls``.
    """
    require_protected(place, tls, users)

    def read() -> list[Reading]:
        with connect(node, groups=(), label="reads metrics", start=False) as connected:
            return read_all(connected)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(read))
    application: WSGIApplication = make_wsgi_app(registry)
    try:
        server = _Server(place, own_users() | frozenset(users), None if tls is None else _context_of(tls))
    except OSError as error:
        raise InvalidError(
            f"cannot serve metrics at {place}: {error.strerror or error}. {listen_advice(error)}"
        ) from None
    hosts = {str(place), f"localhost:{place.port}"}
    server.set_app(application if tls is not None else _for_hosts(application, hosts))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _report_to_node() -> None:
    """Write warnings to standard error, which the node reads."""
    handler = logging.StreamHandler()
    fields = {"uid": "-", "why": "-"}
    handler.setFormatter(logging.Formatter(f"{REPORTED}%(message)s uid=%(uid)s why=%(why)s", defaults=fields))
    logging.getLogger("dios").addHandler(handler)


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m dios.node.metrics.exporter SOCKET HOST:PORT [TLS FILES] [--uid UID]`` until stdin ends.

    The node that starts this process holds the other end of stdin, so that they end together.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("address")
    parser.add_argument("tls", nargs="*", type=Path)
    parser.add_argument("--uid", action="append", type=int, default=[])
    given = parser.parse_args(arguments)
    _report_to_node()
    try:
        tls = TlsFiles(*given.tls) if given.tls else None
        stop = start(given.socket, place_of(given.address), tls, given.uid)
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
