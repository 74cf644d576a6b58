"""The server of the server, over streams in memory, with a clock that jumps."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.http import (
    BODY_BYTES_MAX,
    BODY_S,
    CONNECTIONS_OF_A_CLIENT_MAX,
    HEAD_BYTES_MAX,
    HEAD_S,
    IDLE_S,
    LARGE_BODIES_OF_A_CLIENT_MAX,
    STALL_S,
    AnswerWriter,
    Application,
    Head,
    Plan,
    Reply,
    Server,
)

PUBLIC = b"GET /public HTTP/1.1\r\nHost: here:1\r\n"
HEAD = b"POST /echo HTTP/1.1\r\nHost: here:1\r\nX-Key: right\r\n"


class Echo(Application):
    """Answers with the body; /wait waits until the client goes away, and /public needs no key."""

    def __init__(self) -> None:
        self.gone = trio.Event()

    def admit(self, head: Head) -> Plan:
        """Admit requests with the right key."""
        is_public = head.path == "/public"
        if not is_public and head.headers.get("x-key") != "right":
            raise RequestError(Kind.UNAUTHENTICATED, "no key")

        async def answer(body: bytes, writer: AnswerWriter) -> Reply | None:
            if head.path == "/wait":
                try:
                    await trio.sleep_forever()
                finally:
                    self.gone.set()
            if head.path == "/parts":
                await writer.begin("text/plain")
                await writer.send(body)
                return None
            return Reply(200, body, "text/plain")

        most = BODY_BYTES_MAX if head.path == "/large" else 1000
        return Plan("" if is_public else "client", most, answer, 2 if head.path == "/run" else None)

    def refusal(self, head: Head | None, error: RequestError) -> Reply:
        """Return the text of a failure."""
        return Reply(error.kind.status, error.message.encode(), "text/plain")


@asynccontextmanager
async def connected(application: Echo) -> AsyncIterator[trio.StapledStream]:  # type: ignore[type-arg]  # of memory
    """A connection with a server."""
    client, far = memory_stream_pair()
    server = Server(application, frozenset({"here:1"}), None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server._serve_one, far)  # type: ignore[arg-type]  # of memory
        yield client
        nursery.cancel_scope.cancel()


async def received(client: trio.StapledStream, end: bytes) -> bytes:  # type: ignore[type-arg]  # the same
    """What comes until it ends like this, or the connection does."""
    data = b""
    while not data.endswith(end) or not end:
        part = await client.receive_some()
        if not part:
            break
        data += bytes(part)
    return data


async def test_requests_follow_each_other_on_a_connection() -> None:
    """Also those that came early, and bodies in parts."""
    async with connected(Echo()) as client:
        await client.send_all(HEAD + b"Content-Length: 3\r\n\r\none" + HEAD + b"Content-Length: 3\r\n\r\ntwo")
        assert b"one" in await received(client, b"one")
        assert b"two" in await received(client, b"two")
        await client.send_all(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nthr\r\n2\r\nee\r\n0\r\n\r\n")
        assert b"three" in await received(client, b"three")
        packed = gzip.compress(b"four", mtime=0)
        size = f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
        await client.send_all(HEAD + size + packed)
        assert b"four" in await received(client, b"four")
        parts = HEAD.replace(b"/echo", b"/parts")
        await client.send_all(parts + b"Content-Length: 4\r\n\r\nfive")
        assert b"chunked" in await received(client, b"0\r\n\r\n")


async def test_a_client_that_waits_for_a_permission_gets_it_after_the_check_of_its_key() -> None:
    """A body is asked for (100) with a key, and not without one."""
    async with connected(Echo()) as client:
        await client.send_all(HEAD + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await received(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await client.send_all(b"one")
        assert b"one" in await received(client, b"one")
        wrong = HEAD.replace(b"right", b"wrong")
        await client.send_all(wrong + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await received(client, b"")).startswith(b"HTTP/1.1 401 ")


async def test_the_work_of_a_client_that_goes_away_ends() -> None:
    """Its answer is cancelled."""
    application = Echo()
    async with connected(application) as client:
        await client.send_all(HEAD.replace(b"/echo", b"/wait") + b"\r\n")
        await client.aclose()
        await application.gone.wait()


@pytest.mark.parametrize("size", [HEAD_BYTES_MAX + 1, 1])
async def test_the_work_of_a_client_that_goes_away_after_early_bytes_ends(size: int) -> None:
    """Bytes before the answer do not hide the end of a connection, and many of them are its end."""
    application = Echo()
    async with connected(application) as client:
        await client.send_all(HEAD.replace(b"/echo", b"/wait") + b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await client.send_all(b"P" * size)
        await trio.testing.wait_all_tasks_blocked()
        if size == 1:
            assert not application.gone.is_set()
            await client.aclose()
        await application.gone.wait()


@pytest.mark.parametrize(
    ("data", "limit_s"),
    [
        (b"", HEAD_S),
        (b"POST /echo HTTP/1.1\r\nHost", HEAD_S),
        (HEAD + b"Content-Length: 9\r\n\r\nabc", STALL_S),
        (HEAD + b"Content-Length: 0\r\n\r\n", IDLE_S),
    ],
)
async def test_silence_ends_a_connection(autojump_clock: MockClock, data: bytes, limit_s: float) -> None:
    """Before the head, within it, within the body and between requests, each after its time."""
    async with connected(Echo()) as client:
        await client.send_all(data)
        began = trio.current_time()
        await received(client, b"")
        assert trio.current_time() - began == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("head", "part", "limit_s", "tail"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x", BODY_S, b"HTTP/1.1 408 "),
        (PUBLIC, b"x", HEAD_S, b""),
    ],
)
async def test_slow_bytes_end_a_connection(
    autojump_clock: MockClock, head: bytes, part: bytes, limit_s: float, tail: bytes
) -> None:
    """A byte now and then buys no more time than a body, or a stranger, has in all."""
    async with connected(Echo()) as client, trio.open_nursery() as nursery:

        async def trickle() -> None:
            while True:
                await client.send_all(part)
                await trio.sleep(HEAD_S / 4)

        await client.send_all(head)
        began = trio.current_time()
        nursery.start_soon(trickle)
        assert (await received(client, b"")).startswith(tail)
        assert trio.current_time() - began == pytest.approx(limit_s)
        nursery.cancel_scope.cancel()


async def test_a_stranger_has_one_answer_for_each_connection() -> None:
    """The place of a connection is free again after a public document, whatever else was sent with it."""
    async with connected(Echo()) as client:
        await client.send_all((PUBLIC + b"\r\n") * 2)
        answer = await received(client, b"")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 ") == answer.lower().count(b"connection: close") == 1


@pytest.mark.parametrize(
    "lines", [b"Content-Length: 1\r\n\r\n", b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"]
)
async def test_the_body_of_a_stranger_is_not_read(lines: bytes) -> None:
    """Its head says that there is one: that is refused before a byte of it has come."""
    async with connected(Echo()) as client:
        await client.send_all(PUBLIC + lines)
        assert (await received(client, b"")).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("packed", "status"),
    [
        (gzip.compress(b"", mtime=0), 400),  # what follows a packed body would be kept, and counted by nobody
        (b"\x1f\x8b\x08\x08" + bytes(6), 413),  # the name of a file, which has no end
    ],
)
async def test_a_packed_body_that_unpacks_to_nothing_is_bounded(packed: bytes, status: int) -> None:
    """Its bytes count as they come."""
    async with connected(Echo()) as client:
        await client.send_all(HEAD + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(trio.BrokenResourceError):
            for part in (packed, *[b"n" * 600] * 3):
                await client.send_all(b"%x\r\n%s\r\n" % (len(part), part))
        assert (await received(client, b"")).startswith(b"HTTP/1.1 %d " % status)


async def test_large_answers_count_until_they_are_taken() -> None:
    """An answer that waits for its client keeps its place, so that a client has no more in memory."""
    server = Server(Echo(), frozenset({"here:1"}), None)
    request = HEAD.replace(b"/echo", b"/run") + b"Content-Length: 3\r\n\r\none"
    async with trio.open_nursery() as nursery:
        clients = []
        for _ in range(3):
            client, far = lockstep_stream_pair()
            nursery.start_soon(server._serve_one, far)  # type: ignore[arg-type]  # of memory
            await client.send_all(request)
            await trio.testing.wait_all_tasks_blocked()
            clients.append(client)
        assert (await received(clients[2], b"")).startswith(b"HTTP/1.1 429 ")
        assert b"one" in await received(clients[0], b"one")
        await clients[0].send_all(request)
        assert b"one" in await received(clients[0], b"one")
        nursery.cancel_scope.cancel()
    assert not server._answers_of


async def test_a_stranger_that_takes_nothing_has_no_more_time_for_that(autojump_clock: MockClock) -> None:
    """Its place is free after the time of a head, and the second in which a connection is closed."""
    client, far = lockstep_stream_pair()
    server = Server(Echo(), frozenset({"here:1"}), None)
    with trio.fail_after(HEAD_S + 2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._serve_one, far)  # type: ignore[arg-type]  # of memory
            await trio.testing.wait_all_tasks_blocked()
            autojump_clock.jump(HEAD_S / 2)
            await client.send_all(PUBLIC + b"\r\n")
    assert not server._strangers


async def test_a_client_that_takes_nothing_ends_its_connection(autojump_clock: MockClock) -> None:
    """What it would get has no room; after a while the server lets it go."""
    client, far = lockstep_stream_pair()
    server = Server(Echo(), frozenset({"here:1"}), None)
    with trio.fail_after(STALL_S + 5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._serve_one, far)  # type: ignore[arg-type]  # of memory
            await client.send_all(HEAD + b"Content-Length: 3\r\n\r\none")


async def test_a_client_has_a_bounded_number_of_connections_and_large_bodies() -> None:
    """Those over it are refused, so that others find places; what has ended does not count."""
    server = Server(Echo(), frozenset({"here:1"}), None)
    large = HEAD.replace(b"/echo", b"/large") + b"Content-Length: 1\r\n\r\n"
    async with trio.open_nursery() as nursery:
        clients = []
        for _ in range(CONNECTIONS_OF_A_CLIENT_MAX):
            client, far = memory_stream_pair()
            nursery.start_soon(server._serve_one, far)  # type: ignore[arg-type]  # of memory
            await client.send_all(HEAD + b"Content-Length: 3\r\n\r\none")
            assert b"one" in await received(client, b"one")
            clients.append(client)
        late, far = memory_stream_pair()
        nursery.start_soon(server._serve_one, far)  # type: ignore[arg-type]  # of memory
        await late.send_all(HEAD + b"\r\n")
        assert (await received(late, b"")).startswith(b"HTTP/1.1 429 ")
        uploading = clients[:LARGE_BODIES_OF_A_CLIENT_MAX]
        for client in uploading:
            await client.send_all(large)
        await trio.testing.wait_all_tasks_blocked()
        await clients[-1].send_all(large)
        assert (await received(clients[-1], b"")).startswith(b"HTTP/1.1 429 ")
        await uploading[0].send_all(b"x")
        assert b"x" in await received(uploading[0], b"x")
        await clients[-2].send_all(large + b"y")
        assert b"y" in await received(clients[-2], b"y")
        nursery.cancel_scope.cancel()
    assert not server._connections_of
    assert not server._bodies_of


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Content-Length: 1001\r\n\r\n", 413),
        (b"Transfer-Encoding: chunked\r\n\r\n3E9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n", 413),
        (b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx", 501),
        (b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 400),
        (
            b"Content-Encoding: gzip\r\nContent-Length: 20\r\n\r\n" + gzip.compress(b"x" * 100, mtime=0)[:20],
            400,
        ),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"Origin: http://here:1\r\n\r\n", 403),
        (b"Host: here:1\r\n\r\n", 400),
        (b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n\r\n", 400),
        (b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ],
)
async def test_requests_out_of_bounds_end_the_connection(lines: bytes, status: int) -> None:
    """With one answer, which says so."""
    async with connected(Echo()) as client:
        await client.send_all(HEAD + lines)
        answer = await received(client, b"")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.lower().count(b"connection: close") == 1


def test_bounds_fit_each_other() -> None:
    """A client with a key may be silent for longer than a stranger, and a body is finite."""
    assert HEAD_S < IDLE_S
    assert BODY_BYTES_MAX < 1 << 30


async def test_a_parameter_comes_once() -> None:
    """Two readers could take different ones; a list of states is one that may come in parts."""
    for query, status in ((b"path=a&path=b", b"400"), (b"state=a&state=b", b"200")):
        async with connected(Echo()) as client:
            head = HEAD.replace(b"/echo", b"/echo?" + query)
            await client.send_all(head + b"Content-Length: 3\r\n\r\none")
            assert (await client.receive_some())[9:12] == status
