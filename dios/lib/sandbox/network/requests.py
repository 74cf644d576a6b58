"""Reads the HTTP requests that a library writes to a socket in the session, and sends them through a lane.

Python's own server of HTTP reads the requests: a library that writes something else hurts only its session.
"""

from __future__ import annotations

import contextlib
import http.server
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Final

from dios.errors import DiosError
from dios.lib.sandbox.failures import REFUSED
from dios.lib.sandbox.network import records
from dios.lib.sandbox.network.checked import NO_BODY
from dios.lib.sandbox.network.records import Lane, RequestFailure, RequestHead
from dios.wire.origins import Origin
from dios.wire.types import RequestEnd

_STATUS: Final = {
    RequestEnd.REFUSED: HTTPStatus.FORBIDDEN,
    RequestEnd.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    RequestEnd.TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
}
_LINE_MAX: Final = 65_536
_HANGUP_S_MAX: Final = 5.0
"""The time in which the request of a closed socket is cancelled."""
TLS_MARK: Final = b"\x16 TLS of the gateway\n"
"""The first bytes of a client that does TLS in memory."""
_FRAMING: Final = frozenset(
    {"connection", "content-length", "expect", "keep-alive", "te", "transfer-encoding"}
)


class Channel:
    """The host and the port of a socket, and whether TLS was requested on it."""

    def __init__(self, host: str, port: int) -> None:
        self.host: Final = host
        self.port: Final = port
        self.secure = False


class Lanes:
    """The lanes of a session, and the origins that can be reached through them."""

    def __init__(self, origins: Sequence[Origin], lanes: Sequence[Lane]) -> None:
        self.origins: Final = tuple(origins)
        self._served: Final[dict[threading.Thread, tuple[socket.socket, Channel]]] = {}
        self._free: Final[queue.SimpleQueue[Lane]] = queue.SimpleQueue()
        for lane in lanes:
            self._free.put(lane)

    def place_of(self, channel: Channel) -> int | None:
        """Return the place of the origin that a socket is for, or None if it was not granted."""
        scheme = "https" if channel.secure else "http"
        wanted = (scheme, channel.host, channel.port)
        for place, origin in enumerate(self.origins):
            if origin[:3] == wanted:
                return place
        return None

    def refusal_of(self, channel: Channel) -> str:
        """Return the message for a socket that is for no granted origin."""
        scheme = "https" if channel.secure else "http"
        wanted = str(Origin(scheme, channel.host, channel.port))
        granted = ", ".join(map(str, self.origins))
        return (
            f"the sandbox refuses {wanted}: the session may reach {granted} alone. Grant it with"
            f' network=["{wanted}"] (--network {wanted})'
        )

    def start(self, connection: socket.socket, channel: Channel) -> None:
        """Answer the requests on a socket, in a thread of its own, until its other end is closed."""
        arguments = connection, channel
        thread = threading.Thread(target=self._serve, args=arguments, name=channel.host, daemon=True)
        self._served[thread] = arguments
        thread.start()

    def connected(self) -> list[str]:
        """Return the origins of the sockets whose other end is open; wait for the threads of the others."""
        origins = []
        for thread, (connection, channel) in list(self._served.items()):
            if thread.is_alive() and not _is_hung_up(connection):
                origins.append(f"{channel.host}:{channel.port}")
                continue
            thread.join(_HANGUP_S_MAX)
            if thread.is_alive():
                origins.append(f"{channel.host}:{channel.port}")
        return origins

    def _serve(self, connection: socket.socket, channel: Channel) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                _Handler(self, connection, channel)
        finally:
            self._served.pop(threading.current_thread(), None)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Lane]:
        """Wait for a free lane, and use it."""
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)


def _is_hung_up(connection: socket.socket) -> bool:
    """Return True if either end of a socket is closed."""
    if connection.fileno() < 0:
        return True
    hangup = select.poll()
    hangup.register(connection, 0)  # an end of the other side is always reported
    return bool(hangup.poll(0))


class _Gone(Exception):  # noqa: N818 - the library closed its end: no error
    """The other end of the socket was closed."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "DIOS"
    sys_version = ""

    def __init__(self, lanes: Lanes, connection: socket.socket, channel: Channel) -> None:
        self._lanes: Final = lanes
        self._channel: Final = channel
        self._open = self._begun = False
        self._hangup: Final = select.poll()
        self._hangup.register(connection, 0)  # an end of the other side is always reported
        super().__init__(connection, (channel.host, channel.port), None)  # type: ignore[arg-type]  # no server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing: the audit log has the requests."""

    def handle_one_request(self) -> None:
        """Read one request, and answer it."""
        self.raw_requestline = self.rfile.readline(_LINE_MAX + 1)
        if self.raw_requestline == TLS_MARK:
            self._channel.secure = True
            self.raw_requestline = self.rfile.readline(_LINE_MAX + 1)
        if not self.raw_requestline or len(self.raw_requestline) > _LINE_MAX:
            self.close_connection = True
        elif self.parse_request():
            place = self._lanes.place_of(self._channel)
            if place is None:
                self._refuse(RequestFailure(RequestEnd.REFUSED, self._lanes.refusal_of(self._channel)))
                return
            try:
                with self._lanes.borrow() as lane:
                    self._forward(lane, place)
            except _Gone:
                self.close_connection = True
            except DiosError as error:
                self._refuse(RequestFailure(RequestEnd.BROKEN, f"the gateway of the session ended: {error}"))

    # -- the request ------------------------------------------------------------------------------
    def _forward(self, lane: Lane, place: int) -> None:
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        declared = self.headers.get("Content-Length", "0")
        length = None if chunked else int(declared) if declared.isdecimal() else 0
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _FRAMING]
        head = RequestHead(place, self.command, self.path, headers, length)
        self._open, self._begun = True, False
        lane.send(records.REQUEST, records.encode(head))
        try:
            for part in self._chunks() if chunked else self._body(length or 0):
                if lane.peek():
                    # There is a failure already, which the rest of the body cannot change.
                    self.close_connection = True
                    lane.send(records.ABORT)
                    break
                lane.send(records.BODY, part)
            else:
                lane.send(records.END)
            self._answer(lane)
        except (OSError, ValueError, _Gone):
            lane.send(records.ABORT)
            while self._open:
                self._next(lane)
            raise _Gone from None

    def _next(self, lane: Lane, check: Callable[[], None] | None = None) -> tuple[int, bytes]:
        """Return the next frame of the answer, and note its end."""
        kind, body = lane.receive(check)
        self._open = kind not in {records.DONE, records.FAILED}
        return kind, body

    def _body(self, left: int) -> Iterator[bytes]:
        while left:
            data = self.rfile.read1(min(left, records.PART_BYTES))
            if not data:
                raise _Gone
            left -= len(data)
            yield data

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(_LINE_MAX).partition(b";")[0], 16):
            yield from self._body(size)
            self.rfile.readline(_LINE_MAX)
        while self.rfile.readline(_LINE_MAX).strip():
            continue  # trailers

    # -- the answer -------------------------------------------------------------------------------
    def _answer(self, lane: Lane) -> None:
        kind, body = self._next(lane, self._require_peer)
        if kind == records.FAILED:
            self._refuse(records.decode_failure(body))
            return
        head = records.decode_response(body)
        self._begun = True
        self.send_response_only(head.status, head.reason)
        for name, value in head.headers:
            self.send_header(name, value)
        has_body = self.command != "HEAD" and head.status not in NO_BODY
        in_chunks = has_body and head.length is None and self.request_version != "HTTP/1.0"
        if in_chunks:
            self.send_header("Transfer-Encoding", "chunked")
        elif head.length is not None:
            self.send_header("Content-Length", str(head.length))
        elif has_body:
            self.close_connection = True
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        while True:
            kind, body = self._next(lane, self._require_peer)
            if kind == records.DATA:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body) if in_chunks else body)
            elif kind == records.DONE:
                if in_chunks:
                    self.wfile.write(b"0\r\n\r\n")
                return
            else:
                self._refuse(records.decode_failure(body))
                return

    def _require_peer(self) -> None:
        if self._hangup.poll(0):
            raise _Gone

    def _refuse(self, failure: RequestFailure) -> None:
        self.close_connection = True
        if self._begun:
            return  # the end of the connection before that of the answer shows that something is missing
        status = _STATUS.get(failure.end, HTTPStatus.BAD_GATEWAY)
        text = failure.message.encode("latin-1", "replace")
        reason = " ".join(failure.message.split())[:500].encode("ascii", "replace").decode()
        self.send_response_only(status, reason)
        self.send_header(REFUSED, str(failure.end))
        self.send_header("Content-Type", "text/plain; charset=latin-1")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
