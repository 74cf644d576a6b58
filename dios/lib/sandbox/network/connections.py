"""Connections of the gateway to servers: a stream of the node, TLS in memory, and answers of HTTP."""

from __future__ import annotations

import http.client
import io
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from dios.client.sync.network import TcpConnection
from dios.errors import ClosedError, DiosError, EndOfStreamError, TimeLimitError
from dios.lib.sandbox.network.checked import NO_BODY, RequestError
from dios.lib.sandbox.network.records import HEAD_BYTES_MAX, IDLE_S, PART_BYTES, POLL_S, REQUEST_S
from dios.wire.types import RequestEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_INTERIM_MAX: Final = 10
_STATUS_INTERIM: Final = range(100, 200)
_SWITCHING: Final = 101
_DIGITS_MAX: Final = 18


class Wire(Protocol):
    """Bytes to and from a server."""

    def send(self, data: bytes) -> None:
        """Send all bytes."""

    def receive(self) -> bytes:
        """Return the next bytes; empty at their end."""


class PlainWire(Wire):
    """A connection of the node. ``check`` is called while it waits, and raises if the request has an end."""

    def __init__(self, connection: TcpConnection, check: Callable[[], None]) -> None:
        self._connection: Final = connection
        self._check: Final = check
        self._deadline: Final = time.monotonic() + REQUEST_S
        self.sent = 0
        self.received = 0

    def send(self, data: bytes) -> None:
        self._require_time()
        try:
            self._connection.send(data, IDLE_S)
        except TimeLimitError:
            raise _late(f"the server took no byte for {IDLE_S:.0f} s") from None
        except DiosError as error:
            raise _broken(f"the server ended the connection: {error.message}") from None
        self.sent += len(data)

    def receive(self) -> bytes:
        begun = time.monotonic()
        while True:
            self._check()
            self._require_time()
            try:
                data = self._connection.receive(PART_BYTES, POLL_S)
            except EndOfStreamError:
                return b""
            except TimeLimitError:
                if time.monotonic() > begun + IDLE_S:
                    raise _late(f"the server sent no byte for {IDLE_S:.0f} s") from None
            except ClosedError as error:
                raise _broken(error.message) from None
            else:
                self.received += len(data)
                return data

    def _require_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _late(f"the request took longer than {REQUEST_S:.0f} s")


class TlsWire(Wire):
    """TLS on another wire. The constructor shakes hands, and raises RequestError for a wrong certificate."""

    def __init__(self, wire: Wire, context: ssl.SSLContext, host: str) -> None:
        self._wire: Final = wire
        self._from: Final = ssl.MemoryBIO()
        self._to: Final = ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(self._from, self._to, server_hostname=host)
        self._done(self._tls.do_handshake)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            part = view
            view = view[self._done(lambda part=part: self._tls.write(part)) :]  # type: ignore[misc]  # bound now

    def receive(self) -> bytes:
        try:
            return self._done(lambda: self._tls.read(PART_BYTES))
        except ssl.SSLZeroReturnError:
            return b""

    def _done(self, operation: Callable[[], T]) -> T:
        while True:
            try:
                result = operation()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._wire.receive()
                if data:
                    self._from.write(data)
                else:
                    self._from.write_eof()
            except ssl.SSLZeroReturnError:
                raise
            except ssl.SSLCertVerificationError as error:
                self._flush()
                raise RequestError(
                    RequestEnd.UNTRUSTED,
                    f"the certificate of the server is not trusted: {error.verify_message}. Another authority"
                    " is trusted by network_ca= (--network-ca)",
                ) from None
            except ssl.SSLError as error:
                self._flush()
                raise _broken(f"TLS with the server failed: {error.reason or error.strerror}") from None
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        data = self._to.read()
        if data:
            self._wire.send(data)


class _WireFile(io.RawIOBase):
    """A file of the bytes that a server sends; those of the head are counted."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Final = wire
        self._left = b""
        self.head_left: int | None = HEAD_BYTES_MAX

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]  # no other types come
        """Receive bytes, and return their number; 0 at the end."""
        data = self._left or self._wire.receive()
        size = min(len(data), len(buffer))
        buffer[:size] = data[:size]
        self._left = data[size:]
        if self.head_left is not None:
            if not size:
                raise _broken("the answer of the server ended before its headers did")
            self.head_left -= size
            if self.head_left < 0:
                raise RequestError(
                    RequestEnd.TOO_LARGE, f"the headers of the answer have over {HEAD_BYTES_MAX:,} bytes"
                )
        return size


_File: TypeAlias = "io.BufferedReader[_WireFile]"


class _Source:
    """The only part of a socket that an HTTPResponse needs."""

    def __init__(self, file: _File) -> None:
        self._file: Final = file

    def makefile(self, mode: str) -> _File:
        """Return the bytes that the server sends."""
        del mode
        return self._file


class ServerAnswer:
    """The answer to a request: its head, and the parts of its body."""

    def __init__(self, wire: Wire, method: str) -> None:
        raw = _WireFile(wire)
        self._file: Final = io.BufferedReader(raw)
        source = _Source(self._file)
        try:
            response = _response(source, method)
            for _ in range(_INTERIM_MAX):
                if response.status not in _STATUS_INTERIM or response.status == _SWITCHING:
                    break
                response = _response(source, method)
        except (http.client.HTTPException, ValueError, UnicodeError) as error:
            said = str(error) or type(error).__name__
            raise _broken(f"the answer of the server is not HTTP: {said[:200]}") from None
        raw.head_left = None
        if response.status in _STATUS_INTERIM:
            raise _broken("the server answers with another protocol, or with no final status")
        self._response: Final = response
        self.status: Final = response.status
        self.reason: Final = response.reason
        self.headers: Final = [(str(name), str(value)) for name, value in response.getheaders()]
        self.length: Final = None if response.chunked else _declared(response, method)
        self.is_empty: Final = method == "HEAD" or response.status in NO_BODY or self.length == 0

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes of the body as they come. Raise RequestError if it ends too early."""
        if self.is_empty:
            return
        left = self.length
        while left != 0:
            try:
                if self._response.chunked:
                    data = self._response.read1(PART_BYTES)
                else:
                    data = self._file.read1(PART_BYTES if left is None else min(left, PART_BYTES))
            except (http.client.HTTPException, ValueError) as error:
                raise _broken(f"the body of the answer is broken: {type(error).__name__}") from None
            if not data:
                if left:
                    raise _broken(f"the body of the answer ended {left:,} bytes too early")
                return
            left = None if left is None else left - len(data)
            yield data


def _response(source: _Source, method: str) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]  # see _Source
    response.begin()
    return response


def _declared(response: http.client.HTTPResponse, method: str) -> int | None:
    """Return the length that the server declared; HTTPResponse reports 0 for an answer to HEAD."""
    if method != "HEAD":
        return response.length
    text = response.getheader("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else None


def tls_context(authorities: str) -> ssl.SSLContext:
    """Return a context that trusts these certificates (PEM), and nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if authorities:
        context.load_verify_locations(cadata=authorities)
    return context


def _broken(message: str) -> RequestError:
    return RequestError(RequestEnd.BROKEN, message)


def _late(message: str) -> RequestError:
    return RequestError(RequestEnd.TIMED_OUT, message)
