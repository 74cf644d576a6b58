"""The event-driven web server of Figure 3.3: front-end workers that share one acceptor, and back-ends.

Run ``python examples/httpd.py 127.0.0.1:8080``, then use ``curl`` or a browser. Names of nodes after the
address select the nodes for its tasks, in turn. Every worker and every back-end is a pure task: a worker has
references to the acceptor, the page and its channels, and cannot open anything else. See docs/libraries.md.
HTTP is parsed by h11 (``pip install 'dios-space[examples]'``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from zlib import crc32

import h11

import dios
from dios.client.sync.node import Acceptor, Reference, TcpConnection
from dios.lib.channels import Receiver, Sender, channel, select
from dios.lib.keyvalue import KeyValueStore, create_store, open_store
from dios.lib.spawn import Future, Spawner, narrowed

PAGE = b"""<!doctype html><title>DIOS</title>
<h1>It works</h1><p>This page is a blob. <code>curl -T FILE SERVER/kv/NAME</code> keeps a value.</p>
"""
BODY_BYTES_MAX = 64 * 1024
CLIENTS_MAX = 200
IDLE_SECONDS = 30.0
SEND_SECONDS = 5.0


@dataclass
class Ask:
    """A request of a front-end to a back-end for a key; ``client`` is returned with the answer."""

    client: int
    method: str
    key: str
    value: bytes = b""


@dataclass
class Answer:
    """An HTTP status and a body."""

    client: int
    status: int
    body: bytes = b""


# -- back-ends ----------------------------------------------------------------------------------------
def back_end(store: bytes, asks: list[Receiver[Ask]], answers: list[Sender[Answer]]) -> None:
    """Serve the front-ends from the key-value store; end when all of them are gone."""
    node = dios.connect()
    values = open_store(node, node.groups[0], store)
    to = dict(zip(asks, answers, strict=True))
    while to:
        asked = select(node, list(to))
        if asked is None:
            continue
        try:
            ask = asked.receive()
            to[asked].send(serve(values, ask))
        except (dios.EndOfStreamError, dios.ClosedError):
            del to[asked]


def serve(values: KeyValueStore, ask: Ask) -> Answer:
    """Handle one request to the store."""
    try:
        if ask.method == "PUT":
            values.put(ask.key, ask.value)
            return Answer(ask.client, 204)
        value = values.get(ask.key)
        return Answer(ask.client, 404, b"no such key\n") if value is None else Answer(ask.client, 200, value)
    except dios.InvalidError as error:
        return Answer(ask.client, 400, f"{error.message}\n".encode())
    except dios.UnreachableError as error:
        return Answer(ask.client, 503, f"{error.message}\n".encode())


# -- front-ends ---------------------------------------------------------------------------------------
@dataclass
class Client:
    """A connection of a worker, and the state of its request."""

    connection: TcpConnection
    number: int
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))
    request: h11.Request | None = None
    body: bytearray = field(default_factory=bytearray)
    asked: bool = False
    heard: float = field(default_factory=time.monotonic)


class Worker:
    """The event loop of one front-end, for the acceptor, clients and back-ends."""

    def __init__(
        self,
        name: str,
        acceptor: Acceptor,
        page: Reference,
        asks: list[Sender[Ask]],
        answers: list[Receiver[Answer]],
    ) -> None:
        self.node = dios.connect()
        self.name, self.acceptor, self.asks = name, acceptor, asks
        self.page = page
        self.answers: dict[Reference, Receiver[Answer]] = {answer.stream: answer for answer in answers}
        self.clients: dict[Reference, Client] = {}
        self.numbers = count()

    def run(self) -> None:
        """Serve for ever."""
        while True:
            # A client that waits for a back-end is not read: its next request stays in its ring.
            readable = [stream for stream, client in self.clients.items() if not client.asked]
            door = [self.acceptor] if len(self.clients) < CLIENTS_MAX else []
            ready = self.node.select([*self.answers, *readable, *door], timeout=IDLE_SECONDS)
            if ready is self.acceptor:
                self.accept()
            elif ready in self.answers:
                self.answered(self.answers[ready].receive())
            elif ready is not None:
                self.read(self.clients[ready])
            self.close_idle()

    def accept(self) -> None:
        """Accept a connection, unless another worker was faster."""
        try:
            connection = self.acceptor.accept(timeout=0)
        except dios.TimeLimitError:
            return
        self.clients[connection] = Client(connection, next(self.numbers))

    def read(self, client: Client) -> None:
        """Pass received bytes to the parser, and handle its events."""
        client.heard = time.monotonic()
        try:
            data = client.connection.receive(timeout=0)
        except dios.EndOfStreamError:
            data = b""
        except dios.DiosError:
            self.close(client)
            return
        client.http.receive_data(data)
        self.go_on(client)

    def go_on(self, client: Client) -> None:
        """Handle the parser's events until it needs more bytes, or a request is being answered."""
        try:
            while not client.asked and client.connection in self.clients:
                event = client.http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Request):
                    client.request, client.body = event, bytearray()
                elif isinstance(event, h11.Data):
                    client.body += event.data
                    if len(client.body) > BODY_BYTES_MAX:
                        self.reply(client, 413, b"too large\n", close=True)
                elif isinstance(event, h11.EndOfMessage) and client.request is not None:
                    self.handle(client, client.request)
                elif isinstance(event, h11.ConnectionClosed):
                    self.close(client)
        except h11.RemoteProtocolError as error:
            self.reply(client, error.error_status_hint, b"this is no HTTP\n", close=True)

    def handle(self, client: Client, request: h11.Request) -> None:
        """Answer a complete request, or send it to the back-end of its key."""
        method, path = request.method.decode(), request.target.decode("ascii", "replace").partition("?")[0]
        if path.startswith("/kv/") and method in {"GET", "PUT"}:
            key = path.removeprefix("/kv/")
            client.asked = True
            back = self.asks[crc32(key.encode()) % len(self.asks)]
            back.send(Ask(client.number, method, key, bytes(client.body)))
        elif method == "GET" and path == "/":
            self.reply(client, 200, self.page.read_bytes(), kind="text/html")
        else:
            self.reply(client, 404, b"nothing here\n")

    def answered(self, answer: Answer) -> None:
        """Handle the answer of a back-end; its client may have left."""
        for client in self.clients.values():
            if client.number == answer.client:
                client.asked = False
                self.reply(client, answer.status, answer.body)
                # The client may have sent its next request already.
                self.go_on(client)
                return

    def reply(
        self, client: Client, status: int, body: bytes, *, kind: str = "text/plain", close: bool = False
    ) -> None:
        """Send a response, and prepare for the next request on the same connection."""
        headers = [("Content-Length", str(len(body))), ("Content-Type", kind), ("X-Worker", self.name)]
        if status == 204:
            headers = headers[2:]
        if close:
            headers.append(("Connection", "close"))
        head = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        try:
            events = [head, h11.Data(data=body), h11.EndOfMessage()]
            client.connection.send(b"".join(client.http.send(event) or b"" for event in events), SEND_SECONDS)
            if client.http.our_state is h11.DONE and client.http.their_state is h11.DONE and not close:
                client.http.start_next_cycle()
                return
        except (h11.LocalProtocolError, dios.DiosError):
            pass  # the client is gone or does not read
        self.close(client)

    def close_idle(self) -> None:
        """Close connections that have been idle for too long."""
        until = time.monotonic() - IDLE_SECONDS
        for client in [client for client in self.clients.values() if client.heard < until]:
            self.close(client)

    def close(self, client: Client) -> None:
        """Close the connection of a client."""
        self.clients.pop(client.connection, None)
        client.connection.close()


def front_end(
    name: str, acceptor: Acceptor, page: Reference, asks: list[Sender[Ask]], answers: list[Receiver[Answer]]
) -> None:
    """Be a worker."""
    Worker(name, acceptor, page, asks, answers).run()


# -- the server ---------------------------------------------------------------------------------------
@contextmanager
def serving(
    node: dios.Node, address: str, *, hosts: Sequence[str] = ("",), workers: int = 3, back_ends: int = 3
) -> Iterator[Running]:
    """Run a server of several tasks, on the nodes ``hosts`` in turn, in this context."""
    with ExitStack() as stack:
        acceptor = stack.enter_context(node.listen_tcp(address))
        page = stack.enter_context(node.create(dios.SHMEM_BLOB, data=PAGE, naming=dios.ANONYMOUS))
        group = node.create_group()
        store = create_store(node, group, hosts=("",) * 3, durable=False).name
        spawners = [stack.enter_context(Spawner(node, host=host)) for host in hosts]
        insides = [stack.enter_context(Spawner(node, groups=[group], host=host)) for host in hosts]
        asks = [[channel(node, Ask) for _ in range(back_ends)] for _ in range(workers)]
        answers = [[channel(node, Answer) for _ in range(back_ends)] for _ in range(workers)]
        futures: list[Future[None]] = []
        for place in range(back_ends):
            heard = [mine[place][1] for mine in asks]
            told = [mine[place][0] for mine in answers]
            inside = insides[place % len(hosts)]
            futures.append(stack.enter_context(inside.spawn(back_end, store, heard, told)))
        for number in range(workers):
            ask, answer = [pair[0] for pair in asks[number]], [pair[1] for pair in answers[number]]
            name, door, text = f"W{number}", narrowed(acceptor, "read"), narrowed(page, "read")
            spawner = spawners[number % len(hosts)]
            futures.append(stack.enter_context(spawner.spawn(front_end, name, door, text, ask, answer)))
        yield Running(spawners[0], acceptor.address, futures)


@dataclass
class Running:
    """A running server and its address."""

    spawner: Spawner
    address: str
    tasks: list[Future[None]]

    def wait(self) -> None:
        """Wait until a task ends, which should not happen, and report the reason."""
        ended = self.spawner.wait_any(self.tasks)
        if ended is not None:
            ended.result()


def main() -> None:
    """Serve until Ctrl-C."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8080"
    try:
        with dios.connect() as node, serving(node, address, hosts=sys.argv[2:] or [""]) as server:
            print(
                f"http://{server.address}/ with {len(server.tasks)} tasks; press Ctrl-C to stop", flush=True
            )
            server.wait()
    except KeyboardInterrupt:
        print("good bye")


if __name__ == "__main__":
    main()
