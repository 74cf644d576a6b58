"""Attacks on the server of sandboxes: by strangers, pages in browsers, clients with a key, and from within.

Each test is a sentence of the row of the server in docs/threat-model.md.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from dios.lib.sandbox_server import http as web
from dios.lib.sandbox_server.failures import RequestError
from dios.lib.sandbox_server.holder import SandboxHolder
from dios.lib.sandbox_server.keys import KeyBounds, KeyFile
from dios.lib.sandbox_server.templates import SandboxTemplate, ServerSettings
from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.sandbox_servers import Key, RunningSandboxServer, server_of
from tests.support.node.task_folder import TEMPORARY

REPLACED = """
def answer(operation, *arguments):
    return {answer}
globals()["_dios_server"] = answer
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandboxServer]:
    """A server of a person with a node."""
    person = Person(tmp_path_factory.mktemp("home"))
    person.types("dios-node start --data ./node0 --detach")
    with server_of(person) as running:
        yield running
    person.types("dios-node stop")


@pytest.fixture(scope="module")
def victim(server: RunningSandboxServer) -> Key:
    """A key with a sandbox that others want."""
    return Key(server, "victim")


@pytest.fixture(scope="module")
def stranger(server: RunningSandboxServer) -> Key:
    """A key of another client."""
    return Key(server, "stranger")


@pytest.fixture(scope="module")
def box(victim: Key) -> dict[str, str]:
    """The sandbox of the victim, with its access token."""
    status, row = victim.asks("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3000})
    assert status == 201
    return cast("dict[str, str]", row)


def head(key: Key, *lines: str, first: str = "GET /v1/sandboxes HTTP/1.1", host: str = "") -> bytes:
    """The head of a request with a key."""
    host = host or f"127.0.0.1:{key.server.port}"
    texts = (first, f"Host: {host}", f"Authorization: Bearer {key.text}", *lines)
    return "".join(f"{text}\r\n" for text in texts).encode() + b"\r\n"


def status_of(answer: bytes) -> int:
    """The status of an answer; 0 for none."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def test_a_key_reaches_no_sandbox_of_another(victim: Key, stranger: Key, box: dict[str, str]) -> None:
    """Its sandboxes are as if they were not there, by every route, also with the exact name."""
    name = box["sandboxID"]
    assert stranger.asks("GET", "/v1/sandboxes") == (200, [])
    assert stranger.asks("GET", "/v2/sandboxes") == (200, [])
    routes = [
        ("GET", f"/v1/sandboxes/{name}", None),
        ("DELETE", f"/v1/sandboxes/{name}", None),
        ("POST", f"/v1/sandboxes/{name}/run", {"code": "1"}),
        ("POST", f"/v1/sandboxes/{name}/exec", {"arguments": ["ls"]}),
        ("POST", f"/v1/sandboxes/{name}/life", {"seconds": 1}),
        ("POST", f"/v1/sandboxes/{name}/pause", None),
        ("POST", f"/v1/sandboxes/{name}/resume", None),
        ("POST", f"/v1/sandboxes/{name}/snapshot", {"name": "x"}),
        ("GET", f"/v1/sandboxes/{name}/files?path=/tmp", None),
        ("PUT", f"/v1/sandboxes/{name}/files?path=/tmp/x", {}),
        ("DELETE", f"/v1/sandboxes/{name}/files?path=/tmp/x", None),
        ("GET", f"/v1/sandboxes/{name}/folder?path=/tmp", None),
        ("GET", f"/sandboxes/{name}", None),
        ("DELETE", f"/sandboxes/{name}", None),
        ("POST", f"/sandboxes/{name}/timeout", {"timeout": 1}),
        ("POST", f"/sandboxes/{name}/pause", {}),
        ("POST", f"/sandboxes/{name}/resume", {}),
        ("POST", f"/v2/sandboxes/{name}/connect", {"timeout": 1}),
        ("POST", f"/sandboxes/{name}/snapshots", {}),
    ]
    for verb, path, document in routes:
        unknown = stranger.asks(verb, path.replace(name, "f" * 20), document)
        known = stranger.asks(verb, path, document)
        assert known[0] == unknown[0] == 404, path
        assert json.dumps(known).replace(name, "f" * 20) == json.dumps(unknown)
    assert victim.asks("GET", f"/v1/sandboxes/{name}")[0] == 200


def test_the_access_token_of_a_sandbox_opens_it_alone(
    victim: Key, stranger: Key, box: dict[str, str]
) -> None:
    """Neither the token of another sandbox, nor an API key, nor a part of the token is one."""
    own = cast("dict[str, str]", stranger.asks("POST", "/v2/sandboxes", {"templateID": "base"})[1])
    asks = victim.server.sends
    for token in ("", own["envdAccessToken"], victim.text, box["envdAccessToken"][:-1], "ä"):
        headers = {"E2b-Sandbox-Id": box["sandboxID"], "X-Access-Token": token}
        assert asks("GET", "/health", b"", headers)[0] == 401
        assert asks("GET", "/contexts", b"", headers)[0] == 401
        assert asks("POST", "/execute", b'{"code": "1"}', headers)[0] == 401
        assert asks("GET", "/files?path=/tmp/x", b"", headers)[0] == 401
        assert asks("POST", "/process.Process/List", b"{}", headers)[0] == 401
    headers = {"X-API-Key": box["envdAccessToken"]}
    assert asks("GET", "/v2/sandboxes", b"", headers)[0] == 401
    stranger.asks("DELETE", f"/v1/sandboxes/{own['sandboxID']}")


def test_a_context_of_another_sandbox_is_not_reached(victim: Key, stranger: Key, box: dict[str, str]) -> None:
    """The names of contexts are looked up in the sandbox of the token."""
    own = cast("dict[str, str]", stranger.asks("POST", "/v2/sandboxes", {"templateID": "base"})[1])
    headers = {"E2b-Sandbox-Id": own["sandboxID"], "X-Access-Token": own["envdAccessToken"]}
    cell = json.dumps({"code": "1", "context_id": box["sandboxID"]}).encode()
    assert victim.server.sends("POST", "/execute", cell, headers)[0] == 404
    assert victim.server.sends("DELETE", f"/contexts/{box['sandboxID']}", b"", headers)[0] == 404
    stranger.asks("DELETE", f"/v1/sandboxes/{own['sandboxID']}")


@pytest.mark.parametrize(
    "form", ["{}", "../../../../../..{}", "/tmp/..{}", "/tmp/../../../..{}", "/proc/1/root{}"]
)
def test_paths_lead_to_no_file_of_the_machine(stranger: Key, form: str) -> None:
    """A path is one of the sandbox, whatever its parts: the server itself opens no file for a client."""
    keys = stranger.server.person.home / ".config" / "dios" / "sandbox-keys.json"
    before = keys.read_bytes()
    place = f"/v1/sandboxes/{stranger.opens()}"
    text = form.format(keys)
    for route, path in (("files", text), ("folder", text.rpartition("/")[0])):
        status, answer = stranger.asks("GET", f"{place}/{route}?path={path}")
        assert 400 <= status < 500, answer
    for verb in ("DELETE", "PUT", "DELETE"):
        # Below its own /tmp the sandbox may write such a path.
        stranger.asks(verb, f"{place}/files?path={text}")
        assert keys.read_bytes() == before
    assert stranger.asks("GET", f"{place}/files?path=%00")[0] == 400
    stranger.asks("DELETE", place)


@pytest.mark.parametrize(
    "path",
    ["/v1/sandboxes/../../etc", "/v1/sandboxes/..%2F..%2Fx", "/v1/sandboxes/%2e%2e", "/templates/..%2Fx"],
)
def test_paths_of_routes_are_not_walked(stranger: Key, path: str) -> None:
    """An encoded slash or two dots are parts of a name, which there is not."""
    status, _ = stranger.asks("GET" if "v1" in path else "DELETE", path)
    assert status in {404, 501}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("../victim.base.x", 400),
        ("victim.base.x", 400),
        ("base.X", 400),
        ("", 400),
        ("base.", 400),
        ("base.a/b", 400),
        ("base." + "a" * 31, 400),
        ("victim.x", 404),
    ],
)
def test_names_of_snapshots_stay_below_the_key(tmp_path: Path, name: str, status: int) -> None:
    """No name reaches a snapshot of another key, or anything else of the group, or is a place at all."""
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.owner(keys.add("stranger", "", KeyBounds(sandboxes=1, memory_bytes=1 << 30, seconds=60)))
    assert key is not None
    settings = ServerSettings(templates={"base": SandboxTemplate(image="any")}, snapshots="dios://tries")
    holder = SandboxHolder(settings, keys, None)
    assert holder.template(key, "snapshot/base.x").snapshot == "dios://tries/stranger.base.x"
    with pytest.raises(RequestError) as refused:
        holder.template(key, f"snapshot/{name}")
    assert refused.value.kind.status == status


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1:7490.evil.example", "[::1]"]
)
def test_a_name_that_was_bound_to_this_address_is_refused(stranger: Key, host: str) -> None:
    """A page whose name leads to this address (DNS rebinding) is refused by its Host, even with a key."""
    assert status_of(stranger.server.answers(head(stranger, host=host))) == 403


@pytest.mark.parametrize(
    "line",
    ["Origin: http://evil.example", "Origin: null", "Origin: http://127.0.0.1", "Sec-Fetch-Site: cross-site"],
)
def test_pages_in_browsers_are_refused(stranger: Key, line: str) -> None:
    """A browser names the page that asks; no answer permits it to read one."""
    answer = stranger.server.answers(head(stranger, line))
    assert status_of(answer) == 403
    assert b"access-control" not in answer.lower()
    preflight = head(stranger, line, first="OPTIONS /v1/sandboxes HTTP/1.1")
    assert status_of(stranger.server.answers(preflight)) == 403


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5, 6",),
        ("Content-Length: +5",),
        ("Content-Length: -1",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
        ("Host: 127.0.0.1",),
        ("X-API-Key: a", "X-API-Key: b"),
        ("Authorization: Bearer b",),
        ("E2b-Sandbox-Id: a", "E2b-Sandbox-Id: b"),
        ("X-Access-Token: a", "X-Access-Token: b"),
        ("X\0: a",),
        ("X: a\0b",),
    ],
)
def test_heads_that_could_be_read_in_two_ways_are_refused(stranger: Key, lines: tuple[str, ...]) -> None:
    """A request that another program on the way could end elsewhere ends the connection (smuggling)."""
    data = head(stranger, *lines, first="POST /v1/sandboxes HTTP/1.1") + b"0\r\n\r\n" + head(stranger)
    answer = stranger.server.answers(data)
    assert status_of(answer) in {400, 501}
    assert answer.count(b"HTTP/1.1 ") == 1


def test_other_versions_and_targets_are_refused(stranger: Key) -> None:
    """Requests of HTTP/1.0 and those for a proxy are none of ours; other bytes get one short answer."""
    port = stranger.server.port
    for first in (
        "GET /v1/sandboxes HTTP/1.0",
        f"GET http://127.0.0.1:{port}/v1/sandboxes HTTP/1.1",
        "GET //v1/sandboxes HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
    ):
        assert status_of(stranger.server.answers(head(stranger, first=first))) == 400
    assert status_of(stranger.server.answers(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n\n")) == 400


def test_strangers_are_refused_before_their_body_is_read(server: RunningSandboxServer) -> None:
    """Without a key the head alone is read, and that up to a bound."""
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    begun = f"POST /v1/sandboxes HTTP/1.1\r\n{host}Content-Length: 1000000000\r\n\r\n".encode()
    assert status_of(server.answers(begun)) == 401
    large = f"GET / HTTP/1.1\r\n{host}X: ".encode() + b"x" * 2 * web.HEAD_BYTES_MAX
    assert status_of(server.answers(large)) in {413, 0}


def test_bodies_are_bounded(stranger: Key) -> None:
    """By their length, by their parts, and after they are unpacked."""
    answers = stranger.server.answers
    post = "POST /v1/sandboxes HTTP/1.1"
    assert status_of(answers(head(stranger, "Content-Length: 1000000000", first=post))) == 413
    parts = head(stranger, "Transfer-Encoding: chunked", first=post) + b"500000\r\n" + b"x" * 0x500000
    assert status_of(answers(parts)) in {413, 0}
    bomb = gzip.compress(b"\0" * (2 * web.BODY_BYTES_MAX))
    headers = {"Authorization": f"Bearer {stranger.text}", "Content-Encoding": "gzip"}
    place = f"/v1/sandboxes/{stranger.opens()}"
    assert stranger.server.sends("PUT", f"{place}/files?path=/tmp/x", bomb, headers)[0] == 413
    assert stranger.server.sends("PUT", f"{place}/files?path=/tmp/x", bomb[:-9], headers)[0] in {400, 413}
    assert stranger.server.sends("PUT", f"{place}/files?path=/tmp/x", b"no gzip", headers)[0] == 400
    deep = b"[" * 100_000
    assert (
        stranger.server.sends("POST", "/v1/sandboxes", deep, {**headers, "Content-Encoding": "identity"})[0]
        == 400
    )
    stranger.asks("DELETE", place)


def test_slow_strangers_keep_no_client_out_that_has_a_key(victim: Key, box: dict[str, str]) -> None:
    """They have few connections and little time; clients that are connected are answered meanwhile."""
    port = victim.server.port
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as client:
        client.sendall(head(victim))
        assert client.recv(65_536)
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * web.STRANGERS_MAX)]
        try:
            for link in slow:
                link.sendall(b"G")
            client.sendall(head(victim))
            assert box["sandboxID"].encode() in client.recv(65_536)
            # Each of them is let go, although it sends nothing more.
            for link in slow:
                link.settimeout(DEADLINE_SECONDS)
                with contextlib.suppress(ConnectionError):
                    assert link.recv(1) == b""
        finally:
            for link in slow:
                link.close()
    assert victim.asks("GET", "/v1/sandboxes")[0] == 200


def test_a_client_that_takes_no_answer_keeps_nobody_waiting(victim: Key, stranger: Key) -> None:
    """Code of the same sandbox, and other clients, go on while an answer waits that fits nowhere."""
    name = victim.opens("code-interpreter-v1")
    place = f"/v1/sandboxes/{name}"
    code = f"open('{TEMPORARY}/large', 'wb').truncate(32 * 1024 * 1024)"
    assert victim.asks("POST", f"{place}/run", {"code": code})[0] == 200
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(DEADLINE_SECONDS)
        link.connect(("127.0.0.1", victim.server.port))
        link.sendall(head(victim, first=f"GET {place}/files?path={TEMPORARY}/large HTTP/1.1"))
        assert status_of(link.recv(64)) == 200
        assert victim.asks("POST", f"{place}/run", {"code": "2"})[0] == 200
        assert stranger.asks("GET", "/v1/sandboxes")[0] == 200
        # The answer is still on its way: most of it is not in any buffer.
        rest = b""
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            part = link.recv(1 << 20)
            assert part
            rest = (rest + part)[-64:]
    victim.asks("DELETE", place)


@pytest.mark.parametrize(
    "answer",
    [
        "None",
        "'x' * 100",
        "[{'path': 1}]",
        "{'name': '/etc/passwd'}",
        "[[]] * 20000",
        "[0] * 40_000_000",
        "[[]] * 1_650_000",
        "b'[' * 8_000_000",
        "1/0",
    ],
)
def test_answers_that_hostile_code_replaces_are_checked(stranger: Key, answer: str) -> None:
    """Code can change what its session answers: that costs the client its request, and nobody else."""
    place = f"/v1/sandboxes/{stranger.opens()}"
    stranger.asks("POST", f"{place}/run", {"code": REPLACED.format(answer=answer)})
    assert stranger.asks("GET", f"{place}/folder?path=/tmp")[0] in {400, 500}
    assert stranger.asks("POST", f"{place}/run", {"code": "1 + 1", "environment": {"A": "b"}})[0] in {
        400,
        500,
        200,
    }
    assert stranger.asks("DELETE", place)[0] == 204


def test_the_bounds_of_a_key_hold_for_requests_at_once(server: RunningSandboxServer) -> None:
    """Sandboxes that are about to start count already."""
    key = Key(server, "greedy", "--sandboxes", "2")
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(key.asks("POST", "/v1/sandboxes", {})[0])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201, 201, 429, 429, 429, 429]
    for row in cast("list[dict[str, str]]", key.asks("GET", "/v1/sandboxes")[1]):
        key.asks("DELETE", f"/v1/sandboxes/{row['id']}")


def test_secrets_are_in_no_log_and_no_list_of_processes(server: RunningSandboxServer, tmp_path: Path) -> None:
    """Neither keys nor tokens: a server that fails writes reasons without them, and no argument has one."""
    person = server.person
    with contextlib.ExitStack() as stack:
        failing = RunningSandboxServer(person)
        stack.callback(failing.process.kill)
        key = Key(failing, "logged")
        row = cast("dict[str, str]", key.asks("POST", "/v2/sandboxes", {"templateID": "base"})[1])
        place = f"/v1/sandboxes/{row['sandboxID']}"
        assert key.asks("GET", f"{place}/files?path=/tmp/missing")[0] == 404
        access = {"E2b-Sandbox-Id": row["sandboxID"], "X-Access-Token": row["envdAccessToken"]}
        assert failing.sends("POST", "/execute", b"[", access)[0] == 400
        shown = ""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                shown += line.read_text(errors="replace")
        assert "sandbox" in shown
        path = person.home / ".config" / "dios" / "sandbox-keys.json"
        whole = path.read_bytes()
        try:
            path.write_bytes(b"damaged")
            assert key.asks("GET", place)[0] == 500
            assert failing.sends("GET", "/health", b"", access)[0] == 500
        finally:
            path.write_bytes(whole)
        shown += person.types("dios sandbox ls").stdout
        shown += person.types("dios sandbox key ls --json").stdout
        written = failing.ends(signal.SIGINT)
    assert "the keys cannot be read" in written
    for secret in (key.text, row["envdAccessToken"]):
        assert secret not in shown + written
