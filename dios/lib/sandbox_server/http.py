"""A small HTTP/1.1 server on trio and h11, which bounds everything before it knows who asks.

A request is admitted by its head alone: its Host, its Origin and its secrets. Then its body is read, and then
it is answered; a client that goes away meanwhile ends that. An ``Application`` decides what is served.
"""

from __future__ import annotations

import contextlib
import logging
import math
import ssl
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import h11
import trio

from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.limits import KIB, MIB

CONNECTIONS_MAX: Final = 512
STRANGERS_MAX: Final = 64
"""The connections that have shown no secret yet."""
HEAD_BYTES_MAX: Final = 16 * KIB
HEAD_S: Final = 10.0
"""The time for a head. A stranger's connection has no more in all, with the handshake and its answer."""
IDLE_S: Final = 75.0
"""The time between two requests of a client that has shown a secret."""
STALL_S: Final = 30.0
"""The time in which a client sends or takes something."""
BODY_S: Final = 600.0
"""The time for a whole body."""
BODY_BYTES_MAX: Final = 64 * MIB
CONNECTIONS_OF_A_CLIENT_MAX: Final = 128
LARGE_BODIES_OF_A_CLIENT_MAX: Final = 2
"""The large bodies of a client that are in memory at once."""
_LARGE: Final = 4 * MIB
_CHUNK: Final = 64 * KIB

_SINGLE: Final = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"x-api-key",
        b"x-access-token",
        b"e2b-traffic-access-token",
        b"e2b-sandbox-id",
        b"e2b-sandbox-port",
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"transfer-encoding",
        b"connect-timeout-ms",
        b"idempotency-key",
    }
)
"""Headers that decide something: a second one of a name could be read by another reader in its place."""
_LISTS: Final = frozenset({"state"})
"""Parameters that are lists."""
_SAFE: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
JSON: Final = "application/json"

_log: Final = logging.getLogger(__name__)


class Head(NamedTuple):
    """The head of a request; names of headers are in small letters, and the path is still encoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class AnswerWriter:
    """The way of an answer to a client, in parts."""

    def __init__(self, connection: _Connection) -> None:
        self._connection: Final = connection
        self.has_begun = False

    async def begin(self, content_type: str) -> None:
        """Begin an answer of parts with the status 200."""
        self.has_begun = True
        await self._connection.send(_response(200, (("Content-Type", content_type),)))

    async def send(self, data: bytes) -> None:
        """Send a part. Raise trio.BrokenResourceError if the client takes none for a while."""
        await self._connection.send(h11.Data(data=data))


Answer = Callable[[bytes, AnswerWriter], Awaitable[Reply | None]]


class Plan(NamedTuple):
    """An admitted request: the client's name, the most bytes of its body, and its answer.

    An answer of None was sent in parts. A request of nobody has no body, and is the last of its connection.
    ``large_answers_max`` is the most requests of this kind that the client has at once, up to the last byte
    of the answer; None for a request whose answer is small.
    """

    client: str
    body_bytes_max: int
    answer: Answer
    large_answers_max: int | None = None


class Application:
    """The decisions of a server: which requests are admitted, and how failures are shown."""

    def admit(self, head: Head) -> Plan:
        """Return the plan for a request. Raise RequestError."""
        raise NotImplementedError

    def refusal(self, head: Head | None, error: RequestError) -> Reply:
        """Return the answer for a failure."""
        raise NotImplementedError


class Server:
    """Serves an application to a bounded number of connections."""

    def __init__(
        self, application: Application, hosts: frozenset[str], context: ssl.SSLContext | None
    ) -> None:
        self._application: Final = application
        self._hosts: Final = hosts
        self._context: Final = context
        self._connections = 0
        self._strangers = 0
        self._connections_of: Final[Counter[str]] = Counter()
        self._bodies_of: Final[Counter[str]] = Counter()
        self._answers_of: Final[Counter[str]] = Counter()

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve until this is cancelled."""
        async with trio.open_nursery() as nursery:
            await trio.serve_listeners(self._serve_one, [listener], handler_nursery=nursery)

    async def _serve_one(self, transport: trio.SocketStream) -> None:
        if self._connections >= CONNECTIONS_MAX or self._strangers >= STRANGERS_MAX:
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                await transport.aclose()
            return
        self._connections += 1
        self._strangers += 1
        known = contextlib.ExitStack()
        scope = trio.CancelScope(deadline=trio.current_time() + HEAD_S)
        stranger = contextlib.ExitStack()
        stranger.callback(self._forget_stranger, scope)
        try:
            stream: trio.abc.Stream = transport
            if self._context is not None:
                stream = trio.SSLStream(transport, self._context, server_side=True, https_compatible=True)
            connection = _Connection(stream)
            broken = trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError
            with scope, contextlib.suppress(*broken):
                await self._converse(connection, stranger, known)
            # A client that takes nothing has no more than a second.
            with trio.move_on_after(1), contextlib.suppress(trio.BrokenResourceError, trio.BusyResourceError):
                await stream.aclose()
        except Exception:  # noqa: BLE001 - one connection ends, not the server
            _log.exception("a connection failed")
        finally:
            stranger.close()
            known.close()
            self._connections -= 1
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(transport)

    def _forget_stranger(self, scope: trio.CancelScope) -> None:
        self._strangers -= 1
        scope.deadline = math.inf

    async def _converse(
        self, connection: _Connection, stranger: contextlib.ExitStack, known: contextlib.ExitStack
    ) -> None:
        client = ""
        wait_s = HEAD_S
        while True:
            head: Head | None = None
            try:
                with trio.move_on_after(wait_s) as waiting:
                    head = await connection.head(HEAD_S)
                if waiting.cancelled_caught or head is None:
                    return
                plan = self._admitted(head)
                if plan.client and not client:
                    client = plan.client
                    known.enter_context(
                        _place(self._connections_of, client, CONNECTIONS_OF_A_CLIENT_MAX, "connections")
                    )
            except trio.TooSlowError:
                return
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint
                kind = Kind.TOO_LARGE if status == 431 else Kind.INVALID
                await self._refuse(connection, head, RequestError(kind, f"this is no request: {error}"))
                return
            except RequestError as error:
                # The body is not read, so that the connection ends.
                await self._refuse(connection, head, error)
                return
            if client:
                stranger.close()
                wait_s = IDLE_S
            if not await self._answer(connection, head, plan):
                return

    def _admitted(self, head: Head) -> Plan:
        """Return the plan for a request.

        Raises RequestError for one that is for another host, that a browser sends for a page, or that is a
        stranger's and has a body.
        """
        host = head.headers.get("host", "").lower()
        if host not in self._hosts:
            raise RequestError(Kind.NOT_PERMITTED, "this server does not serve that host")
        if "origin" in head.headers or head.headers.get("sec-fetch-site", "none") != "none":
            raise RequestError(Kind.NOT_PERMITTED, "pages in browsers are not served")
        plan = self._application.admit(head)
        if not plan.client and _has_body(head):
            raise RequestError(Kind.INVALID, "this request has no body")
        return plan

    async def _refuse(self, connection: _Connection, head: Head | None, error: RequestError) -> None:
        reply = self._application.refusal(head, error)
        with contextlib.suppress(h11.LocalProtocolError):
            await connection.reply(reply, closes=True)

    async def _answer(self, connection: _Connection, head: Head, plan: Plan) -> bool:
        """Answer a request; return True if the connection can go on."""
        writer = AnswerWriter(connection)
        reply: Reply | None = None
        with contextlib.ExitStack() as stack:
            try:
                if plan.body_bytes_max > _LARGE:
                    most = LARGE_BODIES_OF_A_CLIENT_MAX
                    stack.enter_context(_place(self._bodies_of, plan.client, most, "large requests"))
                if plan.large_answers_max is not None:
                    most = plan.large_answers_max
                    stack.enter_context(_place(self._answers_of, plan.client, most, "runs"))
                body = await connection.body(head, plan.body_bytes_max)
            except RequestError as error:
                await self._refuse(connection, head, error)
                return False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.watch, nursery.cancel_scope)
                try:
                    reply = await plan.answer(body, writer)
                except RequestError as error:
                    reply = self._application.refusal(head, error)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    connection.is_gone = True
                nursery.cancel_scope.cancel()
            if connection.is_gone or (reply is not None and writer.has_begun):
                return False
            if reply is not None:
                await connection.reply(reply, closes=not plan.client)
            elif writer.has_begun:
                await connection.send(h11.EndOfMessage())
            else:
                return False
        return connection.next_request()


class _Connection:
    """One connection with a client."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream: Final = stream
        self._http: Final = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.is_gone = False

    async def head(self, head_s: float) -> Head | None:
        """Return the head of the next request, None at the end. Raise h11.RemoteProtocolError."""
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            await self._receive()
            with trio.fail_after(head_s):
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    await self._receive()
        if not isinstance(event, h11.Request):
            return None
        return _head_of(event)

    async def body(self, head: Head, bytes_max: int) -> bytes:
        """Return the body of the request, unpacked. Raise RequestError for one that is too large or slow."""
        too_large = RequestError(Kind.TOO_LARGE, f"the body has more than {bytes_max:,} bytes")
        if int(head.headers.get("content-length", "0")) > bytes_max:
            raise too_large
        if self._http.they_are_waiting_for_100_continue:
            await self.send(h11.InformationalResponse(status_code=100, headers=[]))
        encoding = head.headers.get("content-encoding", "identity")
        if encoding not in {"identity", "gzip"}:
            raise RequestError(Kind.UNSUPPORTED, "bodies are plain, or packed by gzip")
        unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
        data = bytearray()
        raw_size = 0
        deadline = trio.current_time() + BODY_S
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    with trio.fail_at(min(deadline, trio.current_time() + STALL_S)):
                        await self._receive()
                    continue
                if isinstance(event, h11.Data):
                    raw_size += len(event.data)
                    left = bytes_max + 1 - len(data)
                    data += unpack.decompress(event.data, left) if unpack else event.data
            except (h11.RemoteProtocolError, zlib.error) as error:
                raise RequestError(Kind.INVALID, f"the body is damaged: {error}") from None
            except trio.TooSlowError:
                raise RequestError(
                    Kind.TIMEOUT, f"nothing came for {STALL_S:g} s, or not all of it in {BODY_S:g} s"
                ) from None
            if max(len(data), raw_size) > bytes_max:
                raise too_large
            if unpack and unpack.unused_data:
                raise RequestError(Kind.INVALID, "bytes follow the packed body")
            if isinstance(event, h11.EndOfMessage):
                if unpack and not unpack.eof:
                    raise RequestError(Kind.INVALID, "the packed body is incomplete")
                return bytes(data)
            if isinstance(event, h11.ConnectionClosed):
                raise RequestError(Kind.INVALID, "the body is incomplete")

    async def watch(self, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` when the client goes away, or sends much before its answer.

        A further request that comes early waits.
        """
        size = 0
        while size <= HEAD_BYTES_MAX:
            try:
                data = await self._stream.receive_some(_CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                break
            size += len(data)
            self._http.receive_data(bytes(data))
        self.is_gone = True
        scope.cancel()

    async def reply(self, reply: Reply, *, closes: bool = False) -> None:
        """Send a whole answer."""
        more = (("Connection", "close"),) if closes else ()
        kind = (("Content-Type", reply.content_type),) if reply.body else ()
        size = (("Content-Length", str(len(reply.body))),) if reply.status != 204 else ()
        events: list[h11.Event] = [_response(reply.status, (*kind, *size, *reply.headers, *more))]
        events += [h11.Data(data=reply.body)] if reply.body else []
        await self.send(*events, h11.EndOfMessage())

    async def send(self, *events: h11.Event) -> None:
        """Send events. Raise trio.BrokenResourceError if the client takes nothing for a while."""
        data = memoryview(b"".join(self._http.send(event) or b"" for event in events))
        for start in range(0, len(data), _CHUNK):
            with trio.move_on_after(STALL_S) as waiting:
                await self._stream.send_all(data[start : start + _CHUNK])
            if waiting.cancelled_caught:
                raise trio.BrokenResourceError

    def next_request(self) -> bool:
        """Prepare for a further request; return False if the connection ends."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _receive(self) -> None:
        self._http.receive_data(bytes(await self._stream.receive_some(_CHUNK)))


@contextlib.contextmanager
def _place(counts: Counter[str], client: str, most: int, noun: str) -> Iterator[None]:
    """Count one more for a client during the body. Raise RequestError if it has the most."""
    if counts[client] >= most:
        raise RequestError(Kind.LIMIT, f"this client has {most} {noun} at once, the most")
    counts[client] += 1
    try:
        yield
    finally:
        counts[client] -= 1
        if not counts[client]:
            del counts[client]


def _has_body(head: Head) -> bool:
    """Return True for a request with a body, also one that is empty in the end."""
    return "transfer-encoding" in head.headers or head.headers.get("content-length", "0") != "0"


def _head_of(event: h11.Request) -> Head:
    """Return the head of a request.

    Raises h11.RemoteProtocolError for one that two readers could read in two ways.
    """
    if event.http_version != b"1.1":
        raise h11.RemoteProtocolError("HTTP/1.1 is needed")
    headers: dict[str, str] = {}
    for name, value in event.headers:
        text = name.decode("ascii")
        if text in headers and name in _SINGLE:
            raise h11.RemoteProtocolError(f"the header {text} comes twice")
        joined = f"{headers[text]}, " if text in headers else ""
        headers[text] = joined + value.decode("latin-1")
    if "content-length" in headers and "transfer-encoding" in headers:
        raise h11.RemoteProtocolError("a body has a length or parts, not both")
    target = event.target.decode("ascii")
    if not target.startswith("/") or target.startswith("//"):
        raise h11.RemoteProtocolError("the target is a path")
    parts = urlsplit(target)
    try:
        query = parse_qs(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=50
        )
    except ValueError as error:
        raise h11.RemoteProtocolError(f"the query cannot be read: {error}") from None
    if any(len(values) > 1 for name, values in query.items() if name not in _LISTS):
        raise h11.RemoteProtocolError("a parameter of the query comes twice")
    # Clients may repeat a parameter for a list: the texts are joined, as they are elsewhere.
    return Head(
        event.method.decode("ascii"),
        parts.path,
        {name: ",".join(values) for name, values in query.items()},
        headers,
    )


def _response(status: int, headers: tuple[tuple[str, str], ...]) -> h11.Response:
    return h11.Response(status_code=status, headers=[*_SAFE, *headers])
