"""The program of a gateway: a pure task that makes the HTTP requests of a session to the granted origins.

It has the ends of the lanes, and a NETWORK object that is limited to the origins. The node enforces that
limit, so code that took over this task would reach nothing else. Each request has a connection of its own,
and a record in the audit log: it is made before the session has the whole answer, or when its lane breaks.
"""

from __future__ import annotations

import contextlib
import queue
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from dios.client.sync.network import TcpConnection
from dios.client.sync.node import Node, Reference, connect
from dios.errors import ClosedError, DiosError, EndOfStreamError, NotPermittedError, ProtocolError
from dios.lib.sandbox.network import records
from dios.lib.sandbox.network.checked import (
    RequestError,
    answered_headers,
    clean_reason,
    is_method,
    request_bytes,
)
from dios.lib.sandbox.network.connections import PlainWire, ServerAnswer, TlsWire, Wire, tls_context
from dios.lib.sandbox.network.records import AnswerHead, Header, Lane, RequestFailure, RequestHead
from dios.wire.origins import Origin, parse_origins
from dios.wire.types import RequestEnd

PROGRAM: Final = "from dios.lib.sandbox.network.gateway import serve\nserve()\n"
NETWORK: Final = ".network"
AUTHORITIES: Final = ".authorities"
ADDED: Final = ".headers"
"""The headers that the caller adds to the requests, by the place of the origin."""

_headers: Final = msgspec.msgpack.Decoder(dict[int, list[Header]])


def serve() -> None:
    """Serve all lanes until the session or its caller ends.

    Raise ``ProtocolError`` if the session breaks the protocol of a lane.
    """
    node = connect()
    origins = parse_origins(node.arguments)
    context = tls_context(node.input(AUTHORITIES).read_bytes().decode())
    added = _headers.decode(node.input(ADDED).read_bytes())
    ends = queue.SimpleQueue[BaseException | None]()
    servers: list[_LaneServer] = []
    for number in range(records.LANES):
        requests = node.input(records.request_label(number))
        responses = node.input(records.response_label(number))
        lane = Lane(requests.reader, responses.writer)  # type: ignore[attr-defined]
        server = _LaneServer(node, lane, origins, context, added)
        threading.Thread(target=server.run, args=(ends,), name=f"lane {number}", daemon=True).start()
        servers.append(server)
    failure = ends.get()
    # The end of one lane is that of the process, and of requests on other lanes.
    for server in servers:
        with contextlib.suppress(DiosError):
            server.record(RequestEnd.CANCELLED)
    if failure is not None:
        raise failure


class _LaneServer:
    """Serves one lane: its requests, one after the other."""

    def __init__(
        self,
        node: Node,
        lane: Lane,
        origins: tuple[Origin, ...],
        context: ssl.SSLContext,
        added: Mapping[int, list[Header]],
    ) -> None:
        self._node: Final = node
        self._network: Final[Reference] = node.input(NETWORK)
        self._lane: Final = lane
        self._origins: Final = origins
        self._context: Final = context
        self._added: Final = added
        self._uploading = False
        self._unrecorded: Final[list[tuple[RequestHead, _Exchange]]] = []

    def run(self, ends: queue.SimpleQueue[BaseException | None]) -> None:
        """Serve requests until the other side ends, or something fails: ``ends`` gets None or the failure."""
        try:
            self._serve_all()
        except (EndOfStreamError, ClosedError):
            ends.put(None)
        except BaseException as error:  # noqa: BLE001 - the first thread raises it
            ends.put(error)

    def _serve_all(self) -> NoReturn:
        """Serve requests, one after the other, until the lane raises an error."""
        while True:
            kind, body = self._lane.receive()
            if kind == records.REQUEST:
                self._serve(records.decode_request(body))
            elif kind != records.ABORT:  # an abort may come after the end of its request
                raise ProtocolError(f"a frame of kind {kind} was not due")

    def _serve(self, head: RequestHead) -> None:
        """Make one request, and record its end before the session can know it."""
        if head.origin >= len(self._origins):
            raise ProtocolError(f"it has {len(self._origins)} origins")
        self._uploading = True
        exchange = _Exchange(
            self._node, self._network, self._origins[head.origin], self._context, self._check
        )
        self._unrecorded.append((head, exchange))
        failure: RequestFailure | None = None
        held: tuple[int, bytes] | None = None
        try:
            held = self._answer(exchange, head)
        except RequestError as error:
            failure = RequestFailure(error.end, error.message)
        except DiosError:
            # The session ended, or broke the protocol.
            self.record(RequestEnd.CANCELLED)
            raise
        finally:
            exchange.close()
        self.record(RequestEnd.ANSWERED if failure is None else failure.end)
        self._drain()
        if held is not None:
            self._lane.send(*held)
        if failure is None:
            self._lane.send(records.DONE)
        else:
            self._lane.send(records.FAILED, records.encode(failure))

    def _answer(self, exchange: _Exchange, head: RequestHead) -> tuple[int, bytes] | None:
        """Make the request and send the answer to the session, except for a frame that is certainly the last.

        Without it the session does not have the whole answer, so it cannot end before the record is made.
        """
        data = request_bytes(head, exchange.origin, self._added.get(head.origin, ()))
        wire = exchange.open()
        wire.send(data)
        self._upload(wire, head.length)
        answer = ServerAnswer(wire, head.method)
        exchange.status = answer.status
        if answer.length is not None and answer.length > records.RESPONSE_BYTES_MAX and head.method != "HEAD":
            raise _too_large()
        response = AnswerHead(
            answer.status, clean_reason(answer.reason), answered_headers(answer.headers), answer.length
        )
        if answer.is_empty:
            return records.RESPONSE, records.encode(response)
        self._lane.send(records.RESPONSE, records.encode(response))
        size = 0
        for part in answer.parts():
            self._check()
            size += len(part)
            if size > records.RESPONSE_BYTES_MAX:
                raise _too_large()
            if size == answer.length:
                return records.DATA, part
            self._lane.send(records.DATA, part)
        return None  # an answer without a declared length ends with DONE

    def _upload(self, wire: Wire, length: int | None) -> None:
        size = 0
        while True:
            kind, part = self._lane.receive()
            if kind == records.ABORT:
                self._uploading = False
                raise RequestError(RequestEnd.CANCELLED, "the request was cancelled")
            if kind == records.END:
                self._uploading = False
                break
            if kind != records.BODY:
                raise ProtocolError(f"a frame of kind {kind} was not due")
            size += len(part)
            if size > (records.REQUEST_BYTES_MAX if length is None else length):
                raise RequestError(RequestEnd.TOO_LARGE, "the body of the request is longer than permitted")
            if length is None and part:
                part = b"%x\r\n%b\r\n" % (len(part), part)
            wire.send(part)
        if length is None:
            wire.send(b"0\r\n\r\n")
        elif size < length:
            raise RequestError(RequestEnd.REFUSED, "the sandbox refuses a body that is shorter than declared")

    def _check(self) -> None:
        """Raise RequestError if the session needs the answer no more."""
        if not self._uploading and (kind := self._lane.peek()):
            self._lane.receive()
            if kind != records.ABORT:
                raise ProtocolError(f"a frame of kind {kind} was not due")
            raise RequestError(RequestEnd.CANCELLED, "the request was cancelled")

    def _drain(self) -> None:
        """Drop the rest of a body that nobody wants."""
        while self._uploading:
            kind, _ = self._lane.receive()
            if kind not in {records.BODY, records.END, records.ABORT}:
                raise ProtocolError(f"a frame of kind {kind} was not due")
            self._uploading = kind == records.BODY

    def record(self, end: RequestEnd) -> None:
        """Record the end of the present request, if there is one without a record. Raise DiosError."""
        try:
            head, exchange = self._unrecorded.pop()
        except IndexError:
            return
        self._node.record_request(
            self._network,
            head.origin,
            head.method if is_method(head.method) else "OTHER",
            end,
            status=exchange.status if end is RequestEnd.ANSWERED else 0,
            sent=exchange.sent,
            received=exchange.received,
        )


class _Exchange:
    """The connection of one request."""

    def __init__(
        self,
        node: Node,
        network: Reference,
        origin: Origin,
        context: ssl.SSLContext,
        check: Callable[[], None],
    ) -> None:
        self.origin: Final = origin
        self.status = 0
        self._node: Final = node
        self._network: Final = network
        self._context: Final = context
        self._check: Final = check
        self._connection: TcpConnection | None = None
        self._plain: PlainWire | None = None

    @property
    def sent(self) -> int:
        """Return the number of bytes that went to the server, with those of TLS."""
        return 0 if self._plain is None else self._plain.sent

    @property
    def received(self) -> int:
        """Return the number of bytes that came from the server."""
        return 0 if self._plain is None else self._plain.received

    def open(self) -> Wire:
        """Connect to the origin. Raise RequestError if that fails."""
        try:
            self._connection = self._node.connect_tcp(
                self.origin.destination, network=self._network, ring_bytes=records.LANE_BYTES
            )
        except NotPermittedError as error:
            raise RequestError(
                RequestEnd.REFUSED, f"the sandbox refuses the connection: {error.message}"
            ) from None
        except DiosError as error:
            message = f"cannot connect to {self.origin}: {error.message}"
            raise RequestError(RequestEnd.UNREACHABLE, message) from None
        self._plain = PlainWire(self._connection, self._check)
        if self.origin.scheme == "http":
            return self._plain
        return TlsWire(self._plain, self._context, self.origin.host)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(DiosError):
                self._connection.close()


def _too_large() -> RequestError:
    return RequestError(
        RequestEnd.TOO_LARGE, f"the body of the answer has over {records.RESPONSE_BYTES_MAX:,} bytes"
    )
