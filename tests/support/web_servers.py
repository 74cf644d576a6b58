"""Servers of HTTP and HTTPS on this machine, with certificates of an authority of their own."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "api.example.org"
DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of tests")])
        self.pem = self._certificate(self._name, self._key.public_key(), None, DAY).public_bytes(
            serialization.Encoding.PEM
        )

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        host: str | None,
        lifetime: dt.timedelta,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def server_context(self, folder: Path, host: str, lifetime: dt.timedelta = DAY) -> ssl.SSLContext:
        """What a server needs that proves to be ``host``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        path = folder / f"{host}-{lifetime.days}.pem"
        path.write_bytes(
            self._certificate(subject, key.public_key(), host, lifetime).public_bytes(
                serialization.Encoding.PEM
            )
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked, and notes it in ``server.seen``."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Answer any method."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = f"{self.command} {self.path}\n{self.headers}\n{body.decode('latin-1')}".encode(
            "latin-1", "replace"
        )
        self.server.seen.append(seen.decode("latin-1"))  # type: ignore[attr-defined]
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            seen = b""
        elif self.path == "/missing":
            self.send_response(404)
        else:
            self.send_response(200)
        if self.path == "/parts":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"one ", b"two ", b"three"):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.path.startswith("/bytes/"):
            seen = bytes(int(self.path.removeprefix("/bytes/")))
        self.send_header("Content-Length", str(len(seen)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(seen)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


for _method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
    setattr(Echo, f"do_{_method}", Echo.answer)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.seen: list[str] = []
        self.context = context

    def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        # In the thread of the connection, so that a client that shakes no hands stops no other one.
        try:
            if self.context is not None:
                request = self.context.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)
        except OSError:
            return  # the client went away
        finally:
            request.close()


@contextlib.contextmanager
def web_server(context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """A server that runs; its port, and the requests that it has seen."""
    with _Server(context) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server.server_address[1], server.seen
        finally:
            server.shutdown()


@contextlib.contextmanager
def raw_server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server whose connections a function serves, after it has read the head of a request; its port."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                threading.Thread(target=serve_connection, args=(connection,), daemon=True).start()

    def serve_connection(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                more = connection.recv(65536)
                if not more:
                    return
                data += more
            behave(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
