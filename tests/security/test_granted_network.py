"""A session with a granted network: hostile code there, hostile servers, and what neither of them gets."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dios
from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from tests.support.node.running_node import RunningNode, wait_until
from tests.support.web_servers import DAY, NAME, Authority, raw_server, web_server

PATIENCE_S = 60.0

REACH = """
import gc, json, os, socket, struct, urllib.error, urllib.request
from dios.lib.executor import frames
from dios.lib.sandbox.network import records
from dios.lib.sandbox.network.records import *
from dios.lib.sandbox.network.sockets import _Granted
lane = _Granted.lanes._free.get()
def ask(method="GET", target="/", headers=(), length=0, body=(), origin=0):
    lane.send(REQUEST, encode(RequestHead(origin, method, target, list(headers), length)))
    for part in body:
        lane.send(BODY, part)
    lane.send(END)
    answer = b""
    while True:
        kind, data = lane.receive()
        if kind == RESPONSE:
            status = decode_response(data).status
        elif kind == DATA:
            answer += data
        elif kind == DONE:
            return f"ANSWERED {status} {len(answer)}"
        else:
            failure = decode_failure(data)
            return f"{failure.end.name} {failure.message}"
def fetch(url, **named):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, **named)).read()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
"""
"""Code of a session that takes hold of a lane to its gateway, past the sockets."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("granted") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def authority() -> Authority:
    """The authority of all servers."""
    return Authority()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, list[str]]]:
    """The server that is granted."""
    with web_server() as running:
        yield running


@pytest.fixture(scope="module")
def shared(node: RunningNode, server: tuple[int, list[str]]) -> Iterator[dios.Sandbox]:
    """A sandbox whose origin is the server, and a second one at which nobody listens."""
    with closed_port() as port:
        origins = [f"http://127.0.0.1:{server[0]}", f"http://127.0.0.1:{port}"]
        with dios.Sandbox(node=node.place, timeout=PATIENCE_S, network=origins) as box:
            yield box


@pytest.fixture
def box(shared: dios.Sandbox) -> dios.Sandbox:
    """A session that holds a lane."""
    if shared.ended or shared.run("lane").error:
        shared.reset()
        assert shared.run(REACH).ok
    return shared


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and that nobody else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def asked(box: dios.Sandbox, arguments: str) -> str:
    """The outcome of one request, past the sockets."""
    result = box.run(f"ask({arguments})")
    assert result.value_repr is not None, result.error
    return result.value_repr.strip("'\"")


REFUSED = {
    "a tunnel": "'CONNECT', 'evil.example.org:443'",
    "a trace": "'TRACE'",
    "a method with a line": "'GET / HTTP/1.1\\r\\nHost: evil\\r\\n\\r\\nGET'",
    "an empty method": "''",
    "a method in small letters": "'get'",
    "a URL as the target": "target='http://evil.example.org/'",
    "a user at the target": "target='@evil.example.org/'",
    "a target with a line": "target='/ HTTP/1.1\\r\\nX: y'",
    "a target with a blank": "target='/a b'",
    "a target with a zero byte": "target='/\\0'",
    "a target in another alphabet": "target='/\\xe4'",
    "an empty target": "target=''",
    "an asterisk": "'OPTIONS', '*'",
    "another host": "headers=[('Host', 'evil.example.org')]",
    "two hosts": "headers=[('Host', HOST), ('host', HOST)]",
    "a host with an underscore": "headers=[('_Host', 'evil.example.org')]",
    "a host with a point": "headers=[('Host.', 'evil.example.org')]",
    "a length with a point": "'POST', headers=[('Content.Length', '3')], length=1, body=[b'a']",
    "a value with a line": "headers=[('X', 'a\\r\\nHost: evil')]",
    "a value with half a line": "headers=[('X', 'a\\nHost: evil')]",
    "a value with a zero byte": "headers=[('X', 'a\\0')]",
    "a value out of the alphabet": "headers=[('X', '\\u010a')]",
    "a name with a line": "headers=[('X: y\\r\\nZ', 'a')]",
    "a name with a blank": "headers=[('Content-Length ', '3')]",
    "an empty name": "headers=[('', 'a')]",
    "a second length": "'POST', headers=[('Content-Length', '3')], length=1, body=[b'a']",
    "a length with an underscore": "'POST', headers=[('Content_Length', '3')], length=1, body=[b'a']",
    "an encoding of its own": "'POST', headers=[('Transfer-Encoding', 'chunked')], length=1, body=[b'a']",
    "an upgrade": "headers=[('Connection', 'Upgrade'), ('Upgrade', 'websocket')]",
    "an upgrade to HTTP/2": "headers=[('HTTP2-Settings', 'AAMAAABkAARAAAAAAAIAAAAA')]",
    "the password of a proxy": "headers=[('Proxy-Authorization', 'Basic eA==')]",
}


@pytest.mark.parametrize("attack", REFUSED)
def test_a_forged_request_is_refused(box: dios.Sandbox, server: tuple[int, list[str]], attack: str) -> None:
    """The gateway refuses it with a reason, and the server sees no request of it."""
    del server[1][:]
    arguments = REFUSED[attack].replace("HOST", f"'127.0.0.1:{server[0]}'")
    said = asked(box, arguments)
    assert said.startswith("REFUSED the sandbox refuses"), said
    assert server[1] == []
    assert asked(box, "target='/after'").startswith("ANSWERED 200")


def test_a_request_is_not_completed_by_the_next_one(box: dios.Sandbox, server: tuple[int, list[str]]) -> None:
    """A body that is shorter than declared is refused, and what follows is no part of it."""
    del server[1][:]
    assert asked(box, "'POST', length=50, body=[b'abc']").startswith("REFUSED the sandbox refuses a body")
    assert asked(box, "target='/after'").startswith("ANSWERED 200")
    assert any(seen.startswith("GET /after") for seen in server[1])
    assert not any("abc" in seen and "after" in seen for seen in server[1])


TOO_LARGE = {
    "many headers": "headers=[('X', 'y')] * 101",
    "long headers": "headers=[('X', 'y' * 1000)] * 90",
    "an endless body by its length": "'POST', length=1 << 40",
    "a body longer than its length": "'POST', length=3, body=[b'abc', b'GET /evil HTTP/1.1']",
}


@pytest.mark.parametrize("attack", TOO_LARGE)
def test_a_large_request_is_refused(box: dios.Sandbox, server: tuple[int, list[str]], attack: str) -> None:
    """It is over a bound, and no part of it becomes a request of its own."""
    del server[1][:]
    assert asked(box, TOO_LARGE[attack]).startswith("TOO_LARGE")
    assert asked(box, "target='/after'").startswith("ANSWERED 200")
    assert not any("evil" in seen.partition("\n")[0] for seen in server[1])


FORGERIES = {
    "an origin that was not granted": "lane.send(REQUEST, encode(RequestHead(7, 'GET', '/', [], 0)))",
    "a negative origin": "lane.send(REQUEST, encode([-1, 'GET', '/', [], 0]))",
    "rubbish": "lane.send(REQUEST, os.urandom(1000))",
    "a body without a request": "lane.send(BODY, b'x')",
    "an answer": "lane.send(RESPONSE, b'x')",
    "an endless frame": "lane._writer.write(struct.pack('<IB', 0xFFFFFFFF, REQUEST))",
    "a request within a request": (
        "for _ in 1, 2: lane.send(REQUEST, encode(RequestHead(0, 'GET', '/', [], 5)))"
    ),
    "deep nesting": "lane.send(REQUEST, b'\\x91' * 100_000)",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_frame_ends_the_gateway(box: dios.Sandbox, forgery: str) -> None:
    """What is no request ends the gateway of this session, and the session goes on without a network."""
    # The gateway may end before the whole frame is sent.
    tried = f"try:\n    {FORGERIES[forgery]}\n    lane.receive()\n"
    result = box.run(f"{tried}except Exception as error:\n    print(type(error))")
    assert "EndOfStream" in result.stdout or "Closed" in result.stdout, result
    assert box.run("1 + 1").value_repr == "2"
    box.reset()


def test_the_objects_of_the_network_are_not_the_sessions(box: dios.Sandbox) -> None:
    """The session has its streams, and neither the NETWORK object nor a call that makes one."""
    code = """
node = _Granted.lanes.origins and __import__("dios").connect()
labels = sorted(each.label for each in node.inputs)
said = []
for attempt in (
    lambda: node.network(["http://127.0.0.1:1"]),
    lambda: node.connect_tcp("127.0.0.1:%d" % _Granted.lanes.origins[0].port),
    lambda: node.record_request(node.inputs[0], 0, "GET", 0),
):
    try:
        attempt()
    except Exception as error:
        said.append(type(error).__name__)
[labels, said]
"""
    result = box.run(code)
    assert result.value_repr is not None, result.error
    assert ".network" not in result.value_repr
    assert result.value_repr.endswith("['NotPermittedError', 'NotPermittedError', 'NotPermittedError']]")


NOT_GRANTED = (
    "http://127.0.0.2:{port}/",
    "http://localhost:{port}/",
    "https://127.0.0.1:{port}/",
    "http://127.0.0.1:{other}/",
    "http://[::1]:{port}/",
    "http://0x7f.1:{port}/",
    "http://user@evil.example.org/",
    "http://127.0.0.1:{port}@evil.example.org/",
    "http://127.0.0.1:{port}.evil.example.org/",
)


@pytest.mark.parametrize("url", NOT_GRANTED)
def test_no_other_host_is_reached(box: dios.Sandbox, server: tuple[int, list[str]], url: str) -> None:
    """Scheme, host and port have to be those of an origin; the failure says how to grant another one."""
    del server[1][:]
    target = url.format(port=server[0], other=1)
    result = box.run(f"urllib.request.urlopen({target!r})")
    assert result.error is not None
    if result.error.type != "InvalidURL":
        assert result.error.refused == "a host that was not granted", result.error
        assert "network=[" in result.error.message
    assert server[1] == []


def test_a_redirect_to_another_host_is_refused(box: dios.Sandbox, server: tuple[int, list[str]]) -> None:
    """The server sends the session elsewhere; it gets there only where it was granted."""
    other = box.run(
        f"urllib.request.urlopen('http://127.0.0.1:{server[0]}/to?http://127.0.0.3:{server[0]}/x')"
    )
    assert other.error is not None
    assert other.error.refused == "a host that was not granted"
    same = box.run(f"urllib.request.urlopen('http://127.0.0.1:{server[0]}/to?/parts').read()")
    assert same.value_repr == "b'one two three'"


# -- names and addresses ------------------------------------------------------------------------------
def test_a_name_with_a_private_address_is_not_reached(
    node: RunningNode, server: tuple[int, list[str]]
) -> None:
    """Whoever owns a name can give it any address; one of this machine needs the caller's word."""
    name = socket.gethostname().lower()
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(name, 1, type=socket.SOCK_STREAM)}
    except OSError:
        pytest.skip("the name of this machine has no address")
    if not any(
        str(address).startswith(("127.", "10.", "172.", "192.168.", "::1", "fe80", "fd"))
        for address in addresses
    ):
        pytest.skip("the name of this machine has a public address")
    del server[1][:]
    with dios.Sandbox(node=node.place, network=[f"http://{name}:{server[0]}"]) as box:
        assert box.run(REACH).ok
        said = asked(box, "")
        assert said.startswith("REFUSED the sandbox refuses the connection"), said
        assert "not public" in said
        assert f"http://{name}=" in said.replace("https", "http")
    assert server[1] == []


def test_the_node_enforces_the_origins(node: RunningNode, server: tuple[int, list[str]]) -> None:
    """A gateway that was taken over reaches the origins alone: the node refuses it everything else."""
    code = b"""
import dios
from dios.wire.types import ObjectType, RequestEnd
node = dios.connect()
network = node.inputs[0]
port = node.arguments[0]
said = []
for attempt in (
    lambda: node.connect_tcp(f"127.0.0.1:{port}", network=network).close(),
    lambda: node.connect_tcp(f"127.0.0.2:{port}", network=network),
    lambda: node.connect_tcp(f"localhost:{port}", network=network),
    lambda: node.connect_tcp(f"127.0.0.1:{port}"),
    lambda: node.listen_tcp("127.0.0.1:0"),
    lambda: node.bind_udp("127.0.0.1:0"),
    lambda: node.network([f"http://127.0.0.1:{port}"]),
    lambda: node.record_request(network, 3, "GET", RequestEnd.ANSWERED),
    lambda: node.record_request(network, 0, "GET x", RequestEnd.ANSWERED),
):
    try:
        attempt()
        said.append("did")
    except dios.DiosError as error:
        said.append(type(error).__name__)
node.console.send(" ".join(said).encode())
"""
    port = server[0]
    with dios.connect(node.place) as own:
        right = own.network([f"http://127.0.0.1:{port}"])
        task = own.run(code, inputs=[right.restrict("write")], args=[str(port)])
        assert task.wait(PATIENCE_S).ok
        refused = "NotPermittedError"
        assert b"".join(task.console()).decode().split() == [
            "did", *[refused] * 6, "InvalidError", "InvalidError"
        ]  # fmt: skip
        reader = own.run(code, inputs=[right.restrict("read")], args=[str(port)])
        assert reader.wait(PATIENCE_S).ok
        assert "did" not in b"".join(reader.console()).decode()


def test_without_the_right_nothing_is_granted(node: RunningNode) -> None:
    """A program without the right to the network cannot grant it to its sandboxes."""
    code = b"""
import dios
node = dios.connect()
try:
    dios.Sandbox(node=node, network=["http://127.0.0.1:1"])
except dios.NotPermittedError as error:
    node.console.send(error.message.encode())
"""
    with dios.connect(node.place) as own:
        task = own.run(code)
        assert task.wait(PATIENCE_S).ok
        assert b"NETWORK" in b"".join(task.console())


# -- servers ------------------------------------------------------------------------------------------
Behaviour = Callable[[socket.socket], None]


def endless_head(connection: socket.socket) -> None:
    """Send headers without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X: y\r\n" * 100)


def endless_line(connection: socket.socket) -> None:
    """Send one header without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"y" * 10_000)


def endless_interim(connection: socket.socket) -> None:
    """Answer that an answer follows, and never send it."""
    while True:
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")


def endless_continue(connection: socket.socket) -> None:
    """The same with the status that Python's library skips."""
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def sends(data: bytes) -> Behaviour:
    """A server that sends this."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(data)

    return behave


SERVERS: dict[str, tuple[Behaviour, str | tuple[str, ...]]] = {
    "no HTTP": (sends(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "BROKEN"),
    "nothing": (sends(b""), "BROKEN"),
    "half a head": (sends(b"HTTP/1.1 200 OK\r\nX:"), "BROKEN"),
    "a body that is cut": (sends(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), "BROKEN"),
    "chunks that are cut": (sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "BROKEN"),
    "chunks of no size": (sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), "BROKEN"),
    "another protocol": (sends(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), "BROKEN"),
    "a body that is too large": (
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
        "TOO_LARGE",
    ),
    "endless headers": (endless_head, "BROKEN"),
    "an endless header": (endless_line, "BROKEN"),
    "endless interim answers": (endless_interim, "BROKEN"),
    # Newer versions of Python's library count them and give up first.
    "endless continuation": (endless_continue, ("TOO_LARGE", "BROKEN")),
    "many headers": (sends(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"), "BROKEN"),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_hostile_server_costs_only_its_request(node: RunningNode, kind: str) -> None:
    """What it sends ends the request with a reason; the next request of the session is served."""
    behave, end = SERVERS[kind]
    with raw_server(behave) as port, web_server() as (good, _):
        origins = [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{good}"]
        with dios.Sandbox(node=node.place, timeout=PATIENCE_S, network=origins) as box:
            assert box.run(REACH).ok
            assert asked(box, "").startswith(end)
            assert asked(box, "origin=1").startswith("ANSWERED 200")


def test_headers_of_the_answer_cannot_forge_others(node: RunningNode) -> None:
    """Line breaks in a header, and headers of the connection, do not reach the session."""
    head = (
        b"HTTP/1.1 200 O\rK\r\nX: a\r\n b\r\nConnection: upgrade\r\nAlt-Svc: h3=':9'\r\n"
        b"Content-Length: 2\r\n\r\nhi"
    )
    with raw_server(sends(head)) as port:
        origins = [f"http://127.0.0.1:{port}"]
        with dios.Sandbox(node=node.place, timeout=PATIENCE_S, network=origins) as box:
            result = box.run(
                f"import urllib.request\nr = urllib.request.urlopen('http://127.0.0.1:{port}')\n"
                "[r.read(), r.headers.items()]"
            )
            assert result.value_repr is not None, result.error
            assert "b'hi'" in result.value_repr
            assert "Alt-Svc" not in result.value_repr
            assert "upgrade" not in result.value_repr


def test_a_silent_server_can_be_interrupted(node: RunningNode) -> None:
    """The run ends at its time limit, and the lanes of the session are free for other requests soon."""
    release = threading.Event()

    def silent(connection: socket.socket) -> None:
        release.wait(PATIENCE_S)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with raw_server(silent) as port, web_server() as (good, _):
        origins = [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{good}"]
        with dios.Sandbox(node=node.place, timeout=5.0, network=origins) as box:
            assert box.run("import urllib.request as u").ok
            for _ in range(2):
                late = box.run(f"u.urlopen('http://127.0.0.1:{port}', timeout=600)")
                assert late.error is not None
                assert late.error.type == "TimeoutError"
            many = (
                "from concurrent.futures import ThreadPoolExecutor\n"
                f"def get(n): return u.urlopen('http://127.0.0.1:{good}/bytes/5').read()\n"
                "with ThreadPoolExecutor(8) as pool:\n"
                "    got = list(pool.map(get, range(16)))\n"
                "len(got)"
            )
            assert box.run(many).value_repr == "16"
        release.set()


@pytest.mark.parametrize(
    ("name", "trusted", "lifetime"),
    [(NAME, True, -DAY), ("evil.example.org", True, DAY), (NAME, False, DAY)],
    ids=["expired", "of another host", "of another authority"],
)
def test_a_server_that_cannot_prove_its_name_gets_nothing(
    node: RunningNode,
    tmp_path: Path,
    authority: Authority,
    name: str,
    *,
    trusted: bool,
    lifetime: dt.timedelta,
) -> None:
    """No byte of the request is sent to it; the failure says why."""
    signer = authority if trusted else Authority()
    context = signer.server_context(tmp_path, name, lifetime)
    with web_server(context) as (port, seen):
        origins = [f"https://{NAME}:{port}=127.0.0.1"]
        with dios.Sandbox(node=node.place, network=origins, network_ca=authority.pem) as box:
            assert box.run(REACH).ok
            said = asked(box, "headers=[('Authorization', 'secret')]")
            assert said.startswith("UNTRUSTED the certificate of the server is not trusted"), said
        assert seen == []


def test_a_session_cannot_turn_verification_off(
    node: RunningNode, tmp_path: Path, authority: Authority
) -> None:
    """An SSL context of the session that trusts everything changes nothing: TLS is the gateway's."""
    context = Authority().server_context(tmp_path, NAME)
    with web_server(context) as (port, seen):
        origins = [f"https://{NAME}:{port}=127.0.0.1"]
        with dios.Sandbox(node=node.place, network=origins, network_ca=authority.pem) as box:
            code = (
                "import ssl, urllib.request\n"
                f"urllib.request.urlopen('https://{NAME}:{port}/', context=ssl._create_unverified_context())"
            )
            result = box.run(code)
            assert result.error is not None
            assert "502" in result.error.message
            assert "not trusted" in result.error.message
        assert seen == []


# -- the audit log, and the end -----------------------------------------------------------------------
def test_each_request_is_in_the_audit_log(node: RunningNode, server: tuple[int, list[str]]) -> None:
    """Origin, method, status and bytes are; paths, queries, headers and bodies are not."""
    port = server[0]
    with dios.Sandbox(node=node.place, network=[f"http://127.0.0.1:{port}"]) as box:
        assert box.run(REACH).ok
        assert asked(box, "'PUT', '/private?token=secret', [('X', 'hidden')], 6, [b'burden']").startswith(
            "ANSWERED"
        )
        assert asked(box, "'CONNECT'").startswith("REFUSED")

    wait_until(lambda: f"PUT http://127.0.0.1:{port} 200, " in audited(node), "it is recorded", PATIENCE_S)
    wait_until(
        lambda: f"OTHER http://127.0.0.1:{port}" in audited(node), "the refusal is recorded", PATIENCE_S
    )
    assert f"NETWORK http://127.0.0.1:{port}" in audited(node)
    for private in ("private", "token", "secret", "hidden", "burden"):
        assert private not in audited(node)


def test_a_request_under_way_at_the_end_leaves_a_record(node: RunningNode) -> None:
    """A server that never answers, and a session that ends meanwhile: the connection has its origin."""
    arrived = threading.Event()

    def keep(connection: socket.socket) -> None:
        arrived.set()
        while connection.recv(4096):
            continue

    with raw_server(keep) as port:
        origin = f"http://127.0.0.1:{port}"
        with dios.Sandbox(node=node.place, timeout=PATIENCE_S, network=[origin]) as box:
            assert box.run(REACH).ok
            assert box.run("lane.send(REQUEST, encode(RequestHead(0, 'PUT', '/theft', [], 5)))").ok
            assert arrived.wait(PATIENCE_S)

    wait_until(lambda: f"127.0.0.1:{port} for {origin}" in audited(node), "it is recorded", PATIENCE_S)


def test_no_request_is_hidden_by_the_end_of_its_gateway(node: RunningNode) -> None:
    """A session ends its gateway by rubbish on another lane, while a server has a request."""
    arrived = threading.Event()

    def keep(connection: socket.socket) -> None:
        arrived.set()
        while connection.recv(4096):
            continue

    with raw_server(keep) as port:
        origin = f"http://127.0.0.1:{port}"
        with dios.Sandbox(node=node.place, timeout=PATIENCE_S, network=[origin]) as box:
            assert box.run(REACH).ok
            assert box.run("lane.send(REQUEST, encode(RequestHead(0, 'PUT', '/theft', [], 5)))").ok
            assert arrived.wait(PATIENCE_S)
            assert box.run("_Granted.lanes._free.get().send(REQUEST, b'rubbish')").ok
            wait_until(lambda: f"PUT {origin} cancelled" in audited(node), "it is recorded", PATIENCE_S)


def audited(node: RunningNode) -> str:
    """The text of the audit log."""
    files = [path for path in (node.data / "audit").glob("*") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in files)


def test_nothing_is_left_after_the_session(node: RunningNode, server: tuple[int, list[str]]) -> None:
    """The gateway ends with its session, also one that is killed or leaves its process."""
    with dios.connect(node.place) as own:

        def gateways() -> int:
            return sum(task.label == "sandbox network" and not task.ended for task in own.tasks())

        before = gateways()
        with dios.Sandbox(node=node.place, network=[f"http://127.0.0.1:{server[0]}"]) as box:
            assert gateways() == before + 1
            box.run("import os; os._exit(0)")
            box.reset()
            wait_until(lambda: gateways() == before + 1, "that of the first session has ended", PATIENCE_S)
        wait_until(lambda: gateways() == before, "all have ended", PATIENCE_S)


# -- headers that the caller adds ---------------------------------------------------------------------
KEY = "key-4711-of-the-caller"

LOOK = """
import sys, ctypes
def found(wanted):
    texts = [repr(node.arguments), repr(os.environ), repr(sys.argv)]
    for each in node.inputs:
        texts.append(repr(each))
        try:
            texts.append(repr(each.read_bytes()))
        except Exception as error:
            texts.append(repr(error))
    for each in gc.get_objects():
        if type(each) in {list, dict, tuple}:
            try:
                texts.append(repr([x for x in each if type(x) in {str, bytes}]))
                texts.append(repr([x for x in getattr(each, "values", list)() if type(x) in {str, bytes}]))
            except Exception:
                pass
    return [text[:200] for text in texts if wanted in text]
node = __import__("dios").connect()
found("-".join(["key", "4711", "of", "the", "caller"]))
"""


@pytest.fixture(scope="module")
def keyed(node: RunningNode, server: tuple[int, list[str]]) -> Iterator[tuple[dios.Sandbox, int]]:
    """A sandbox with two origins, of which the first has a key; and the port of the second."""
    with web_server() as (other, _):
        origins = [f"http://127.0.0.1:{server[0]}", f"http://127.0.0.1:{other}"]
        headers = {origins[0]: {"Authorization": f"Bearer {KEY}", "X-Key": KEY}}
        with dios.Sandbox(
            node=node.place, timeout=PATIENCE_S, network=origins, network_headers=headers
        ) as box:
            assert box.run(REACH).ok
            yield box, other


SPELLINGS = ("Authorization", "authorization", "AUTHORIZATION", "X-Key", "x_key", "X_KEY", "X.Key", "x!kEY")


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_session_cannot_override_an_added_header(
    keyed: tuple[dios.Sandbox, int], server: tuple[int, list[str]], name: str
) -> None:
    """The server gets the caller's value alone, however the session spells the name."""
    del server[1][:]
    assert asked(keyed[0], f"headers=[({name!r}, 'forged')] * 2").startswith("ANSWERED 200")
    (seen,) = server[1]
    assert seen.count(KEY) == 2
    assert "forged" not in seen


def test_another_origin_does_not_get_the_header(
    keyed: tuple[dios.Sandbox, int], server: tuple[int, list[str]]
) -> None:
    """Neither in a request of its own, nor after a redirect from the origin that has it."""
    box, other = keyed
    for url in (
        f"http://127.0.0.1:{other}/x",
        f"http://127.0.0.1:{server[0]}/to?http://127.0.0.1:{other}/x",
    ):
        result = box.run(f"urllib.request.urlopen({url!r}).read().decode()")
        assert result.value_repr is not None, result.error
        assert "GET /x" in result.value_repr
        assert KEY not in result.value_repr
        assert "uthorization" not in result.value_repr


def test_the_session_does_not_learn_the_header(
    keyed: tuple[dios.Sandbox, int], server: tuple[int, list[str]]
) -> None:
    """It is in no object, input, variable or error of the session, and TRACE, which echoes, is refused."""
    box, _ = keyed
    assert asked(box, "target='/bytes/1'").startswith("ANSWERED 200 1")
    assert asked(box, "'TRACE'").startswith("REFUSED")
    said = [
        asked(box, f"headers=[('X', 'y' * {size})] * {count}") for size, count in ((1000, 80), (163, 100))
    ]
    assert said[0].startswith("TOO_LARGE")
    assert all(KEY not in reply for reply in said)
    result = box.run(LOOK)
    assert result.value_repr == "[]", result
    # What is there is found.
    assert box.run("kept = {1: ['-'.join(('p', 'lanted'))]}").ok
    assert "p-lanted" in (box.run("found('-'.join(('p', 'lanted')))").value_repr or "")
    assert box.run("del kept").ok


def test_the_size_of_the_header_is_not_told(node: RunningNode) -> None:
    """The bound of a request counts what the session sent: the error has the same number with any key."""
    with closed_port() as port:
        origin = f"http://127.0.0.1:{port}"
        said = set()
        for key in ("k", "k" * 5000):
            with dios.Sandbox(
                node=node.place, network=[origin], network_headers={origin: {"X-Key": key}}
            ) as box:
                assert box.run(REACH).ok
                said.add(asked(box, "headers=[('X', 'y' * 1000)] * 90"))
                # It fits, with any key.
                assert asked(box, "headers=[('X', 'y' * 1000)] * 60").startswith("UNREACHABLE")
        assert len(said) == 1


def test_the_header_is_in_no_log_and_no_list(node: RunningNode, server: tuple[int, list[str]]) -> None:
    """Not in the audit log, the lists of tasks and processes, an environment, or the text of the sandbox."""
    origin = f"http://127.0.0.1:{server[0]}"
    key = "key-1234-in-no-log"
    with dios.Sandbox(
        node=node.place, network=[origin], network_headers={origin: {"X-Key": key}}, timeout=PATIENCE_S
    ) as box:
        assert box.run(REACH).ok
        assert asked(box, "target='/bytes/7'").startswith("ANSWERED 200 7")
        with dios.connect(node.place) as own:
            texts = [repr(box), repr(own.tasks())]
        for pid in node.descendants():
            with contextlib.suppress(OSError):
                texts += [Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ")]
        assert key not in "".join(texts)

    def logged() -> str:
        return "".join(
            path.read_text(errors="replace")
            for path in node.data.rglob("*")
            if path.is_file() and path.suffix != ".mdb"
        )

    wait_until(lambda: f"GET {origin} 200, " in logged(), "it is recorded", PATIENCE_S)
    assert key not in logged()


def test_a_key_is_not_sent_to_a_server_that_cannot_prove_its_name(
    node: RunningNode, tmp_path: Path, authority: Authority
) -> None:
    """TLS comes before the request; and a name without TLS gets no key at all."""
    context = Authority().server_context(tmp_path, NAME)
    with web_server(context) as (port, seen):
        origin = f"https://{NAME}:{port}"
        with dios.Sandbox(
            node=node.place,
            network=[f"{origin}=127.0.0.1"],
            network_ca=authority.pem,
            network_headers={origin: {"X-Key": KEY}},
        ) as box:
            assert box.run(REACH).ok
            assert asked(box, "").startswith("UNTRUSTED")
        assert seen == []
    with pytest.raises(dios.InvalidError, match="without encryption"):
        dios.Sandbox(
            node=node.place,
            network=[f"http://{NAME}"],
            network_headers={f"http://{NAME}": {"X-Key": KEY}},
        )


# -- forks --------------------------------------------------------------------------------------------
FORKED = """
import http.client, urllib.request
def fetch(url):
    return urllib.request.urlopen(url).read().decode()
"""


@pytest.fixture(scope="module")
def forkable(node: RunningNode, server: tuple[int, list[str]]) -> Iterator[dios.Sandbox]:
    """A session that can be forked, with an origin that has a key."""
    listeners = probe()[FORKS]
    if not listeners.available:
        pytest.skip(f"sessions cannot be forked here: {listeners.detail}")
    origin = f"http://127.0.0.1:{server[0]}"
    headers = {origin: {"X-Key": KEY}}
    with dios.Sandbox(
        node=node.place, timeout=PATIENCE_S, network=[origin], network_headers=headers, forkable=True
    ) as box:
        assert box.run(FORKED).ok
        yield box


def test_a_fork_has_the_network_of_its_origin(forkable: dios.Sandbox, server: tuple[int, list[str]]) -> None:
    """The same origins and added headers, and no others; in a fork of a fork, and after the end of both."""
    url = f"http://127.0.0.1:{server[0]}/of-a-fork"
    assert "GET /of-a-fork" in (forkable.run(f"fetch({url!r})").value_repr or "")
    fork = forkable.fork()
    last = fork.fork()
    fork.close()
    with last:
        del server[1][:]
        assert "GET /of-a-fork" in (last.run(f"fetch({url!r})").value_repr or "")
        assert KEY in server[1][0]
        other = last.run(f"fetch('http://127.0.0.2:{server[0]}/')")
        assert other.error is not None
        assert other.error.refused == "a host that was not granted"
    assert "GET /of-a-fork" in (forkable.run(f"fetch({url!r})").value_repr or "")


def parent_of(task: dios.Task | None) -> int:
    """Return the process from which a task was forked."""
    assert task is not None
    stat = Path(f"/proc/{task.status().pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_a_gateway_comes_from_no_zygote_of_tasks(node: RunningNode, server: tuple[int, list[str]]) -> None:
    """A session learns nothing of the layout, the guard and the hash secret of the process with its keys."""
    origin = [f"http://127.0.0.1:{server[0]}"]
    with dios.Sandbox(node=node.place, network=origin) as first, dios.Sandbox(node=node.place) as second:
        links = [box._link for box in (first, second) if box._link is not None]
        gateway = parent_of(links[0]._gateway)
        sessions = [parent_of(link.task) for link in links]
        assert len(set(sessions)) == 1
        assert gateway not in sessions


def test_a_fork_has_a_gateway_of_its_own(
    node: RunningNode, forkable: dios.Sandbox, server: tuple[int, list[str]]
) -> None:
    """The records in the audit log are of the gateway of the fork, which ends with the fork."""
    origin = f"http://127.0.0.1:{server[0]}"
    with dios.connect(node.place) as own:

        def gateways() -> set[str]:
            return {
                task.fingerprint for task in own.tasks() if task.label == "sandbox network" and not task.ended
            }

        before = gateways()
        fork = forkable.fork()
        (new,) = gateways() - before
        assert fork.run(f"len(fetch('{origin}/bytes/9'))").ok
        fork.close()
        wait_until(lambda: new not in gateways(), "the gateway of the fork ends", PATIENCE_S)

    def recorded() -> bool:
        return any(new in line and f"GET {origin} 200" in line for line in audited(node).splitlines())

    wait_until(recorded, "the request is recorded for the gateway of the fork", PATIENCE_S)


def test_an_open_connection_refuses_a_fork(forkable: dios.Sandbox, server: tuple[int, list[str]]) -> None:
    """It would be shared; the reason names it, the session goes on, and without it a fork is possible."""
    code = (
        f"kept = http.client.HTTPConnection('127.0.0.1', {server[0]})\n"
        "kept.request('GET', '/x')\nanswer = kept.getresponse()\nlen(answer.read()) > 0"
    )
    assert forkable.run(code).value_repr == "True"
    with pytest.raises(dios.DiosError, match=f"open connections.*127.0.0.1:{server[0]}"):
        forkable.fork()
    assert forkable.run("kept.request('GET', '/y'); len(kept.getresponse().read()) > 0").value_repr == "True"
    assert forkable.run("kept.close()").ok
    forkable.fork().close()


def test_a_fork_keeps_nothing_of_the_lanes_of_its_origin(forkable: dios.Sandbox) -> None:
    """Its lanes are streams of its own; those of the origin are of no use to it."""
    code = "from dios.lib.sandbox.network.sockets import _Granted\nlanes = _Granted.lanes"
    assert forkable.run(code).ok
    with forkable.fork() as fork:
        used = fork.run("lane = lanes._free.get()\nlane.send(1, b'x')\n'sent'")
        assert used.value_repr is None
        assert used.error is not None
    assert forkable.run("del lanes").ok
