"""`dios mcp --http` with the protocol's own client, and with clients that mean harm."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.other_users import as_user
from tests.support.node.running_node import wait_until
from tests.support.node.sandboxes import has_printed, sandboxes

mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
httpx2 = pytest.importorskip("httpx2", reason="the package httpx2 is not installed")

VERSION = "2025-11-25"
ENDLESS = "import os\nos.write(1, b'it runs')\nwhile True: pass"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": VERSION,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
OWN = "0123456789-0123456789-0123456789-0123456789"


def token_file(person: Person, token: str) -> Path:
    """A file of a person with a token, which nobody else can read."""
    path = person.home / "bearer"
    path.write_text(token)
    path.chmod(0o600)
    return path


class Server:
    """A server that a person started."""

    def __init__(self, person: Person, *options: str, token: str = "") -> None:
        if token:
            options = ("--bearer-token-file", str(token_file(person, token)), *options)
        self.process = person.starts("dios mcp --http 0", *options)
        assert self.process.stderr is not None
        first, second = self.process.stderr.readline(), self.process.stderr.readline()
        assert "http://127.0.0.1:" in first, first + second + self.process.stderr.read()
        self.url = first.split()[-1]
        self.port = urlsplit(self.url).port or 0
        self.file = Path(second.partition("is in ")[2].partition(";")[0]) if not token else None
        self.token = token if self.file is None else self.file.read_text().strip()

    def posts(
        self, document: object, *, path: str = "/mcp", verb: str = "POST", **given: str
    ) -> tuple[int, str]:
        """Send one request, and return the status and the session of the answer; "-" leaves a header out."""
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self.token}",
            **{name.replace("_", "-"): value for name, value in given.items()},
        }
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            link.request(verb, path, body, {name: value for name, value in headers.items() if value != "-"})
            answer = link.getresponse()
            return answer.status, answer.getheader("mcp-session-id", "")
        finally:
            link.close()

    def ends(self, number: signal.Signals) -> str:
        """Send a signal, and return what the server writes until it has ended."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=DEADLINE_SECONDS)[1]


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    yield someone
    someone.types("dios-node stop")


@pytest.fixture(scope="module")
def server(person: Person) -> Iterator[Server]:
    """A server for the tests that do not end it."""
    running = Server(person, "--timeout", "1000")
    yield running
    running.ends(signal.SIGKILL)


@asynccontextmanager
async def client_of(server: Server, mode: str = "legacy") -> AsyncIterator[object]:
    """Connect as an agent does; "legacy" means a version of the protocol that has sessions."""
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {server.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=DEADLINE_SECONDS) as sender,
        mcp.Client(streamable_http_client(server.url, http_client=sender), mode=mode) as client,
    ):
        yield client


async def call(client: object, tool: str, *, fails: bool = False, **arguments: str) -> str:
    """Call a tool, and return its text."""
    result = await client.call_tool(tool, arguments)  # type: ignore[attr-defined]  # the package may be missing
    text: str = result.content[0].text
    assert result.is_error == fails, text
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_another_user_is_not_served_even_with_the_token(server: Server) -> None:
    """A user who has stolen the token gets no answer, because the kernel names the owner of a connection."""

    def steal() -> None:
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            server.posts(INITIALIZE)

    status, session = server.posts(INITIALIZE)
    assert status == 200
    assert server.posts(b"", verb="DELETE", mcp_session_id=session)[0] == 200
    assert os.waitstatus_to_exitcode(os.waitpid(as_user(65_531, steal), 0)[1]) == 0


def test_each_client_has_its_own_sessions(person: Person, server: Server) -> None:
    """Neither a guess nor the exact name reaches the session of another client; leaving closes one's own."""

    async def agents() -> None:
        async with client_of(server) as stranger:
            async with client_of(server) as client:
                name = await call(client, "open")
                assert await call(client, "run", session=name, code="x = 1\nx + 1") == "[value]\n2"
                assert await call(client, "list") == f"{name}: open"
                assert await call(stranger, "list") == "no session is open"
                for tool, given in (
                    ("run", {"code": "x"}),
                    ("get", {"name": "x"}),
                    ("close", {}),
                    ("reset", {}),
                ):
                    for guess in (name, "session-1"):
                        told = await call(stranger, tool, fails=True, session=guess, **given)
                        assert told.partition("you have no session")[1]
                assert await call(client, "get", session=name, name="x") == "1"
                assert sandboxes(person) == 1
            await asyncio.to_thread(wait_until, lambda: not sandboxes(person), "the client's sandbox ends")

    asyncio.run(agents())


def test_clients_without_sessions_hold_sandboxes_by_secret_names(server: Server) -> None:
    """In versions of the protocol without sessions the name is the key, which nobody else can learn."""

    async def agents() -> None:
        async with client_of(server, "auto") as client, client_of(server, "legacy") as stranger:
            name = await call(client, "open")
            assert len(name) > len("session-") + 20
            assert await call(client, "run", session=name, code="1") == "[value]\n1"
            assert name not in await call(client, "list")
            assert await call(stranger, "list") == "no session is open"
            assert name not in await call(stranger, "run", fails=True, session="session-1", code="1")
            await call(stranger, "run", fails=True, session=name, code="1")
            await call(client, "close", session=name)

    asyncio.run(agents())


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"authorization": "-"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer \xe9\xff"}, 401),
        ({"authorization": "Basic dXNlcjo="}, 401),
        ({"authorization": "-", "path": "/mcp?token={token}"}, 401),
        ({"authorization": "-", "verb": "GET"}, 401),
        ({"authorization": "-", "verb": "DELETE"}, 401),
        ({"authorization": "-", "mcp_protocol_version": "2026-07-28"}, 401),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:{port}"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"host": "evil.example", "mcp_protocol_version": "2026-07-28"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"origin": "http://127.0.0.1:{port}.evil.example"}, 403),
        ({"origin": "http://evil.example", "mcp_protocol_version": "2026-07-28"}, 403),
        ({"content_type": "text/plain"}, 400),
        ({"mcp_session_id": "0" * 32}, 404),
        ({"mcp_session_id": "0" * 32, "verb": "DELETE"}, 404),
    ],
    ids=str,
)
def test_a_request_that_is_not_of_an_agent_is_refused(
    server: Server, given: dict[str, str], status: int
) -> None:
    """Without the token, for another host, or of a page of another origin nothing is opened."""
    filled = {
        name: value.replace("{token}", server.token).replace("{port}", str(server.port))
        for name, value in given.items()
    }
    assert server.posts(INITIALIZE, **filled) == (status, "")


def test_a_part_of_the_token_is_no_token(server: Server) -> None:
    """Neither the beginning of the token nor a longer text is accepted."""
    for wrong in (server.token[:-1], server.token + "x", server.token.swapcase()):
        assert server.posts(INITIALIZE, authorization=f"Bearer {wrong}") == (401, "")


@pytest.mark.parametrize("version", [VERSION, "2026-07-28"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_refused(server: Server, version: str, *, declared: bool) -> None:
    """The bound holds for a length that is declared, of which nothing is read, and for one that is not."""
    from dios.bridges.mcp_http import BODY_BYTES_MAX

    size = BODY_BYTES_MAX + 1
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {server.token}\r\nMCP-Protocol-Version: {version}\r\n"
        + (
            f"Content-Length: {size}\r\n\r\n"
            if declared
            else f"Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n"
        )
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS) as link:
        link.sendall(head.encode() + (b"" if declared else b" " * size))
        assert link.recv(100).startswith(b"HTTP/1.1 413 ")


def test_endless_headers_are_cut_off(server: Server) -> None:
    """A client that never ends its headers loses its connection, with or without the token."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS) as link:
        link.sendall(b"POST /mcp HTTP/1.1\r\nX-Long: ")
        parts = iter(lambda: link.sendall(b"x" * 65536), 0)
        with pytest.raises(ConnectionError):
            list(parts)


def test_the_number_of_clients_is_bounded(server: Server) -> None:
    """A client too many is refused; the others go on, and one that leaves makes room."""
    from dios.bridges.mcp_http import CLIENTS_MAX

    sessions = []
    for _ in range(CLIENTS_MAX):
        status, session = server.posts(INITIALIZE)
        assert status == 200
        sessions.append(session)
    assert len(set(sessions)) == CLIENTS_MAX
    assert server.posts(INITIALIZE) == (503, "")
    for session in sessions:
        assert server.posts({}, verb="DELETE", mcp_session_id=session)[0] == 200
    status, session = server.posts(INITIALIZE)
    assert status == 200
    server.posts({}, verb="DELETE", mcp_session_id=session)


def test_code_of_a_client_that_hangs_up_is_stopped(person: Person, server: Server) -> None:
    """A session whose client closed the connection during a call is free for its next call."""

    async def agent() -> None:
        async with client_of(server, "auto") as client:
            name = await call(client, "open")
            running = asyncio.create_task(call(client, "run", session=name, code=ENDLESS))
            await asyncio.to_thread(wait_until, lambda: has_printed(person, b"it runs"), "the code runs")
            running.cancel()
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert await call(client, "run", session=name, code="1") == "[value]\n1"
            await call(client, "close", session=name)

    asyncio.run(agent())


def test_the_token_is_in_a_file_of_the_user(server: Server) -> None:
    """The file and its folder are the user's alone, and the token is long."""
    assert server.file is not None
    assert server.file.stat().st_mode & 0o777 == 0o600
    assert server.file.parent.stat().st_mode & 0o077 == 0
    assert len(server.token) >= 40


def test_only_this_machine_is_served(server: Server) -> None:
    """The server listens on the loopback address, and on no other."""
    lines = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{server.port:04X}")] == [
        f"0100007F:{server.port:04X}"
    ]


def test_an_end_leaves_nothing(person: Person) -> None:
    """A silent client loses its sandbox; Ctrl-C answers the call that runs, and deletes the token."""
    server = Server(person, "--idle", "1", "--timeout", "1000")

    async def agent() -> str:
        async with client_of(server, "auto") as client:
            name = await call(client, "open")
            await asyncio.to_thread(wait_until, lambda: not sandboxes(person), "the sandbox is closed")
            assert "not used for 1 s" in await call(client, "run", fails=True, session=name, code="1")
            name = await call(client, "open")
            running = asyncio.create_task(call(client, "run", session=name, code=ENDLESS))
            await asyncio.to_thread(wait_until, lambda: has_printed(person, b"it runs"), "the code runs")
            written.append(await asyncio.to_thread(server.ends, signal.SIGINT))
            return await running

    written: list[str] = []
    assert "it was closed" in asyncio.run(agent())
    assert server.process.returncode == 130
    assert written == [""]
    assert sandboxes(person) == 0
    assert server.file is not None
    assert not server.file.exists()
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_sandboxes_end_with_a_server_that_is_killed(person: Person) -> None:
    """The node ends the sandboxes of a server that is gone; it leaves the user's own file alone."""
    server = Server(person, token=OWN)

    async def agent() -> None:
        async with client_of(server, "auto") as client:
            await call(client, "open")

    asyncio.run(agent())
    assert sandboxes(person) == 1
    assert not list((person.home / "run").rglob(f"mcp-{server.port}.token"))
    server.ends(signal.SIGKILL)
    wait_until(lambda: not sandboxes(person), "the sandbox ends")


@pytest.mark.extended
@pytest.mark.long
def test_a_server_that_cannot_begin_says_why(person: Person) -> None:
    """A port in use and a token that could be guessed are errors, and leave no file."""
    before = sorted((person.home / "run").rglob("mcp-*.token"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "choose another port" in person.types(f"dios mcp --http {port}", status=1).stderr
    path = token_file(person, OWN[:20])
    told = person.types(f"dios mcp --http 0 --bearer-token-file {path}", status=1).stderr
    assert "32 to 512" in told
    path.chmod(0o644)
    assert "other users" in person.types(f"dios mcp --http 0 --bearer-token-file {path}", status=1).stderr
    person.environment["DIOS_MCP_TOKEN"] = OWN
    try:
        assert "--bearer-token-file" in person.types("dios mcp --http 0", status=1).stderr
    finally:
        del person.environment["DIOS_MCP_TOKEN"]
    assert OWN[:20] not in told
    assert sorted((person.home / "run").rglob("mcp-*.token")) == before
