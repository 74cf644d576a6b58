"""Sockets of a session with a granted network: ``urllib``, ``requests``, ``httpx`` and event loops use them.

A socket is one end of a pair within the process. A thread at the other end reads the requests, and sends them
through a lane. TLS is the gateway's: a request to wrap such a socket notes that the origin has TLS.

Nothing here confines the session: the sockets of the standard library would reach nothing.
"""

from __future__ import annotations

import _socket
import errno
import gc
import socket
import ssl
from typing import TYPE_CHECKING, Final, cast

from dios.lib.sandbox.errors import NotGrantedError
from dios.lib.sandbox.network import records
from dios.lib.sandbox.network.records import Lane
from dios.lib.sandbox.network.requests import TLS_MARK, Channel, Lanes
from dios.wire.origins import parse_origin

if TYPE_CHECKING:
    from dios.client.sync.node import Node

_INTERNET: Final = frozenset({socket.AF_INET, socket.AF_INET6})
_SERVICES: Final = {"http": 80, "https": 443}
_Socket = socket.socket


class _Granted:
    """The granted network of this process."""

    lanes: Lanes


def install(node: Node) -> None:
    """Let this process reach the granted origins, if there are any."""
    texts = node.arguments
    if not texts:
        return
    _Granted.lanes = Lanes([parse_origin(text) for text in texts], _lanes_of(node))
    socket.socket = GrantedSocket  # type: ignore[misc]
    socket.create_connection = _create_connection  # type: ignore[assignment]
    socket.getaddrinfo = _getaddrinfo  # type: ignore[assignment]
    ssl.SSLContext.wrap_socket = _wrap_socket  # type: ignore[assignment,method-assign]
    ssl.SSLContext.wrap_bio = _wrap_bio  # type: ignore[assignment,method-assign]


def renew(node: Node) -> None:
    """Use the lanes of another task, which is a fork of the one whose lanes were used up to now."""
    _Granted.lanes = Lanes(_Granted.lanes.origins, _lanes_of(node))


def open_connections() -> list[str]:
    """Return the origins of the open connections, after an end of those that nobody uses any more."""
    gc.collect()
    return _Granted.lanes.connected()


def _lanes_of(node: Node) -> list[Lane]:
    lanes = []
    for number in range(records.LANES):
        requests = node.input(records.request_label(number))
        responses = node.input(records.response_label(number))
        lanes.append(Lane(responses.reader, requests.writer))  # type: ignore[attr-defined]
    return lanes


class GrantedSocket(_Socket):
    """A socket that can be connected to a granted origin; other kinds of sockets are those of Python."""

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002 - its name there
        self._other: _Socket | None = None
        self._channel: Channel | None = None
        if fileno is None and family in {-1, *_INTERNET} and type in {-1, socket.SOCK_STREAM}:
            here, there = _socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._other = _Socket(fileno=there.detach())
            super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, 0, here.detach())
        else:
            super().__init__(family, type, proto, fileno)

    def connect(self, address: object, /) -> None:
        """Connect to (HOST, PORT). Raise NotGrantedError for a host that was not granted."""
        if self._other is None:
            super().connect(cast("tuple[str, int]", address))
            return
        if not isinstance(address, tuple) or len(address) < len(("host", "port")):
            raise TypeError("an address is a pair of a host and a port")
        host, port = _name_of(address[0]), int(address[1])
        _required(host, port)
        channel = self._channel = Channel(host, port)
        other, self._other = self._other, None
        _Granted.lanes.start(other, channel)

    def connect_ex(self, address: object, /) -> int:
        """Connect, and return 0."""
        self.connect(address)
        return 0

    def secure(self) -> GrantedSocket | None:
        """Note that TLS is requested. Return None for a socket that is not connected to an origin."""
        if self._channel is None:
            return None
        self._channel.secure = True
        return self

    def setsockopt(self, *args: object) -> None:
        """Do nothing for a socket of an origin: its options are those of a pair."""
        if self._channel is None and self._other is None:
            super().setsockopt(*args)  # type: ignore[call-overload]

    def close(self) -> None:
        """Close the socket."""
        if self._other is not None:
            self._other.close()
        super().close()

    # -- what a socket with TLS has in addition ---------------------------------------------------
    def version(self) -> str | None:
        """Return None: TLS is the gateway's."""
        return None

    def cipher(self) -> None:
        """Return None: TLS is the gateway's."""

    def selected_alpn_protocol(self) -> str | None:
        """Return None: the gateway speaks HTTP/1.1."""
        return None

    def getpeercert(self, binary_form: bool = False) -> dict[str, object] | bytes:  # noqa: FBT001, FBT002 - as there
        """Return nothing: the gateway has verified the certificate before it sends a request."""
        return b"" if binary_form else {}

    def do_handshake(self) -> None:
        """Do nothing: the gateway shakes hands."""

    def unwrap(self) -> GrantedSocket:
        """Return this socket."""
        return self


_wrapped = ssl.SSLContext.wrap_socket


def _wrap_socket(context: ssl.SSLContext, sock: _Socket, *args: object, **named: object) -> _Socket:
    secured = sock.secure() if isinstance(sock, GrantedSocket) else None
    return secured or _wrapped(context, sock, *args, **named)  # type: ignore[arg-type]


class GatewayTls:
    """The replacement for TLS in memory, for event loops and anyio. It passes bytes on: the gateway does TLS.

    The handshake is a mark in the bytes, by which the other end of the socket knows that TLS is wanted.
    """

    server_side = False
    session = None
    session_reused = False

    def __init__(
        self, context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, host: str
    ) -> None:
        self.context: Final = context
        self.server_hostname: Final = host
        self._incoming: Final = incoming
        self._outgoing: Final = outgoing
        self._begun = False

    def do_handshake(self) -> None:
        """Send the mark."""
        if not self._begun:
            self._begun = True
            self._outgoing.write(TLS_MARK)

    def read(self, size: int = 1024, buffer: bytearray | memoryview | None = None) -> bytes | int:
        """Return bytes, or their number in the buffer; SSLWantReadError if none are here."""
        data = self._incoming.read(size)
        if not data and not self._incoming.eof:
            raise ssl.SSLWantReadError
        if buffer is None:
            return data
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: bytes) -> int:
        """Pass bytes on."""
        return self._outgoing.write(data)

    def pending(self) -> int:
        """Return the number of bytes that are here."""
        return self._incoming.pending

    def unwrap(self) -> None:
        """Do nothing: the end of the socket is the end of the connection."""

    def getpeercert(self, binary_form: bool = False) -> dict[str, object] | bytes:  # noqa: FBT001, FBT002 - as there
        """Return nothing: the gateway has verified the certificate before it sends a request."""
        return b"" if binary_form else {}

    def version(self) -> None:
        """Return None, like the next ones: TLS is the gateway's."""

    def get_channel_binding(self, cb_type: str = "tls-unique") -> None:
        """Return None: there is no channel to bind to."""

    cipher = compression = shared_ciphers = selected_alpn_protocol = version


_wrapped_bio = ssl.SSLContext.wrap_bio


def _wrap_bio(
    context: ssl.SSLContext,
    incoming: ssl.MemoryBIO,
    outgoing: ssl.MemoryBIO,
    server_side: bool = False,  # noqa: FBT001, FBT002 - as there
    server_hostname: object = None,
    session: ssl.SSLSession | None = None,
) -> ssl.SSLObject | GatewayTls:
    host = _name_of(server_hostname)
    if not server_side and any(
        (origin.scheme, origin.host) == ("https", host) for origin in _Granted.lanes.origins
    ):
        return GatewayTls(context, incoming, outgoing, host)
    name = None if server_hostname is None else str(server_hostname)
    return _wrapped_bio(context, incoming, outgoing, server_side, name, session)


def _create_connection(
    address: tuple[str, int],
    timeout: object = None,
    source_address: object = None,
    *,
    all_errors: bool = False,
) -> _Socket:
    del source_address, all_errors  # there is one way
    sock = GrantedSocket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if isinstance(timeout, int | float):
            sock.settimeout(timeout)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _getaddrinfo(
    host: object,
    port: object,
    family: int = 0,
    type: int = 0,  # noqa: A002 - its name there
    proto: int = 0,
    flags: int = 0,
) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    del family, type, proto, flags
    name, number = _name_of(host), _port_of(port)
    _required(name, number)
    return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, number))]


def _name_of(host: object) -> str:
    text = host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)
    return text.lower().removeprefix("[").removesuffix("]")


def _port_of(port: object) -> int:
    text = port.decode("ascii", "replace") if isinstance(port, bytes) else str(port or 0)
    return _SERVICES.get(text) or int(text)


def _required(host: str, port: int) -> None:
    """Raise NotGrantedError if no origin of this host and port was granted."""
    if all((origin.host, origin.port) != (host, port) for origin in _Granted.lanes.origins):
        channel = Channel(host, port)
        channel.secure = port == _SERVICES["https"]
        raise NotGrantedError(errno.EPERM, _Granted.lanes.refusal_of(channel))
