"""A sandbox with a granted network: libraries of the session use it as they are."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from tests.support.node.running_node import RunningNode
from tests.support.web_servers import NAME, Authority, web_server

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("granted") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def authority() -> Authority:
    """The authority of the server."""
    return Authority()


@pytest.fixture(scope="module")
def ports(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a server of HTTP and of one with TLS."""
    context = authority.server_context(tmp_path_factory.mktemp("certificates"), NAME)
    with web_server() as (plain, _), web_server(context) as (secured, _):
        yield plain, secured


@pytest.fixture(scope="module", params=["http", "https"])
def box(
    node: RunningNode, authority: Authority, ports: tuple[int, int], request: pytest.FixtureRequest
) -> Iterator[dios.Sandbox]:
    """A sandbox with one origin, whose URL is BASE there."""
    plain, secured = ports
    named = request.param == "http"
    origin = f"http://127.0.0.1:{plain}" if named else f"https://{NAME}:{secured}=127.0.0.1"
    ca = None if named else authority.pem
    with dios.Sandbox(node=node.place, timeout=PATIENCE_S, network=[origin], network_ca=ca) as box:
        base = origin.removesuffix("=127.0.0.1")
        assert box.run(f"import http.client, urllib.error, urllib.parse, urllib.request\nBASE = {base!r}").ok
        yield box


def shown(box: dios.Sandbox, source: str) -> str:
    """The value of a run that succeeded."""
    result = box.run(source)
    assert result.ok, result.error
    assert result.value_repr is not None
    return result.value_repr


def test_a_page_is_fetched(box: dios.Sandbox) -> None:
    """The server sees the path, the query and the headers of the session, and the session the answer."""
    seen = shown(box, "print(urllib.request.urlopen(BASE + '/x?q=1').read().decode())\n0")
    assert seen == "0"
    result = box.run("print(urllib.request.urlopen(BASE + '/x?q=1').read().decode())")
    assert result.stdout.startswith("GET /x?q=1\n")
    assert "User-Agent: Python-urllib" in result.stdout


def test_a_body_is_sent(box: dios.Sandbox) -> None:
    """With a length, or in chunks where it is not known."""
    data = "urllib.request.urlopen(BASE + '/x', data={}).read()[-9:]"
    assert shown(box, data.format("b'abc' * 100_000")) == "b'abcabcabc'"
    assert shown(box, data.format("iter([b'one', b'two'] * 9)")) == "b'twoonetwo'"


def test_answers_of_all_kinds_arrive(box: dios.Sandbox) -> None:
    """In chunks, large, without a body, with an error, and after a redirect within the origin."""
    assert shown(box, "urllib.request.urlopen(BASE + '/parts').read()") == "b'one two three'"
    assert shown(box, "len(urllib.request.urlopen(BASE + '/bytes/5000000').read())") == "5000000"
    assert shown(box, "urllib.request.urlopen(BASE + '/to?/bytes/3').read()") == r"b'\x00\x00\x00'"
    head = "urllib.request.urlopen(urllib.request.Request(BASE + '/bytes/77', method='HEAD'))"
    assert shown(box, f"answer = {head}\n[answer.read(), answer.headers['Content-Length']]") == "[b'', '77']"
    missing = box.run("urllib.request.urlopen(BASE + '/missing')")
    assert missing.error is not None
    assert "404" in missing.error.message
    assert missing.error.refused is None


def test_a_connection_is_used_again(box: dios.Sandbox) -> None:
    """A library that keeps its connection sends several requests on one socket."""
    code = (
        "where = urllib.parse.urlsplit(BASE)\n"
        "kind = http.client.HTTPSConnection if where.scheme == 'https' else http.client.HTTPConnection\n"
        "one = kind(where.hostname, where.port)\n"
        "got = []\n"
        "for path in '/a', '/b', '/parts':\n"
        "    one.request('GET', path)\n"
        "    got.append(one.getresponse().read()[:6])\n"
        "one.close()\n"
        "got"
    )
    assert shown(box, code) == "[b'GET /a', b'GET /b', b'one tw']"


def test_event_loops_connect(box: dios.Sandbox) -> None:
    """Asyncio makes its own TLS in memory, which is the gateway's here."""
    code = (
        "import asyncio, ssl\n"
        "async def main():\n"
        "    where = urllib.parse.urlsplit(BASE)\n"
        "    context = ssl.create_default_context() if where.scheme == 'https' else None\n"
        "    reader, writer = await asyncio.open_connection(where.hostname, where.port, ssl=context)\n"
        "    writer.write(f'GET /parts HTTP/1.1\\r\\nHost: {where.netloc}\\r\\n\\r\\n'.encode())\n"
        "    answer = await reader.readuntil(b'three')\n"
        "    writer.close()\n"
        "    return answer[:15]\n"
        "asyncio.run(main())"
    )
    assert shown(box, code) == "b'HTTP/1.1 200 OK'"


def test_many_requests_at_once_wait_for_each_other(box: dios.Sandbox) -> None:
    """More threads than lanes, and answers that nobody reads to their end."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def get(number):\n"
        "    answer = urllib.request.urlopen(f'{BASE}/bytes/{number * 50_000}')\n"
        "    if number % 3 == 0:\n"
        "        answer.close()\n"
        "        return 0\n"
        "    return len(answer.read()) - number * 50_000\n"
        "with ThreadPoolExecutor(12) as pool:\n"
        "    got = sum(pool.map(get, range(36)))\n"
        "got"
    )
    assert shown(box, code) == "0"


def test_a_refusal_names_the_origin_and_the_remedy(box: dios.Sandbox) -> None:
    """Whoever reads the failure knows what was refused, and how to grant it."""
    result = box.run("urllib.request.urlopen('https://other.example.org/x')")
    assert result.error is not None
    assert result.error.refused == "a host that was not granted"
    assert "--network https://other.example.org" in result.error.message
    assert result.error.remedy is not None
    assert "network=" in result.error.remedy


def test_a_server_that_is_gone_is_an_error_of_a_gateway(node: RunningNode) -> None:
    """The answer is 502, with the reason of the node."""
    with web_server() as (port, _):
        pass
    with dios.Sandbox(node=node.place, network=[f"http://127.0.0.1:{port}"]) as box:
        result = box.run(f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')")
        assert result.error is not None
        assert "502: cannot connect" in result.error.message
        assert result.error.refused is None


def test_async_programs_and_the_session_itself(node: RunningNode, ports: tuple[int, int]) -> None:
    """``dios.aio.Sandbox`` has the same argument; async code in a session uses threads."""

    async def main() -> list[str | None]:
        async with dios.aio.Sandbox(node=str(node.place), network=[f"http://127.0.0.1:{ports[0]}"]) as box:
            code = (
                "import asyncio, urllib.request\n"
                f"def get(): return urllib.request.urlopen('http://127.0.0.1:{ports[0]}/bytes/3').read()\n"
                "async def main(): return await asyncio.gather(*[asyncio.to_thread(get) for _ in range(3)])\n"
                "asyncio.run(main())"
            )
            first = await box.run(code)
            await box.reset()
            return [first.value_repr, (await box.run(code)).value_repr]

    wanted = repr([b"\0\0\0"] * 3)
    assert asyncio.run(main()) == [wanted, wanted]


def test_without_origins_there_is_no_network(node: RunningNode, ports: tuple[int, int]) -> None:
    """The failure says how to grant one."""
    with dios.Sandbox(node=node.place) as box:
        result = box.run(f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{ports[0]}')")
        assert result.error is not None
        assert result.error.refused == "network"
        assert result.error.remedy is not None
        assert "--network" in result.error.remedy


def test_the_command_grants_origins(
    node: RunningNode, ports: tuple[int, int], authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``dios sandbox run --network``, with the authority in a file."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "ca.pem").write_bytes(authority.pem)
    base = f"https://{NAME}:{ports[1]}"
    (folder / "code.py").write_text(
        f"import urllib.request\nlen(urllib.request.urlopen('{base}/bytes/12').read())\n"
    )
    command = [sys.executable, "-m", "dios.cli.main", "sandbox", "run", str(folder / "code.py"), "--json"]
    command += [
        "--network",
        f"{base}=127.0.0.1",
        "--network-ca",
        str(folder / "ca.pem"),
        "--node",
        node.place,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 5)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["value"] == "12", done.stdout


def test_the_command_adds_headers(node: RunningNode, ports: tuple[int, int], tmp_path: Path) -> None:
    """The value is that of a variable, with words before it; mistakes are told, and show no value."""
    base = f"http://127.0.0.1:{ports[0]}"
    code = tmp_path / "code.py"
    code.write_text(f"import urllib.request\nprint(urllib.request.urlopen('{base}/x').read().decode())\n")

    def run(*headers: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dios.cli.main", "sandbox", "run", str(code), "--node", node.place]
        command += ["--network", base, *(word for header in headers for word in ("--network-header", header))]
        environment = {**os.environ, "API_KEY": "key-of-a-variable", "BROKEN": "key\nwith a line"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 5, env=environment
        )

    done = run(f"{base}=Authorization:Bearer API_KEY", f"{base}=X-Key:API_KEY")
    assert done.returncode == 0, done.stderr
    assert "Authorization: Bearer key-of-a-variable\n" in done.stdout
    assert "X-Key: key-of-a-variable\n" in done.stdout
    wrong = {
        f"{base}=X-Key:MISSING": "MISSING",
        f"{base}=X-Key": "ORIGIN=NAME:VARIABLE",
        f"{base}=Host:API_KEY": "belongs to the connection",
        f"{base}=X-Key:BROKEN": "line breaks",
        "http://127.0.0.1:1=X-Key:API_KEY": "not granted",
        "https://api.example.org/path=X-Key:API_KEY": "not an origin",
    }
    for text, told in wrong.items():
        done = run(text)
        assert done.returncode == 1, text
        assert told in done.stderr, (text, done.stderr)
        assert "key-of" not in done.stderr
        assert "key\n" not in done.stderr
