"""The server of sandboxes: its REST interface and its document, its keys, and the ends of sandboxes."""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.support.layouts import busybox_layout
from tests.support.node.command_user import Person
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.running_node import wait_until
from tests.support.node.sandbox_servers import Key, RunningSandboxServer, image_templates, server_of
from tests.support.node.task_folder import TEMPORARY
from tests.support.web_servers import Authority

Row = dict[str, object]


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.environment["DIOS_CONTAINER_RUNTIME"] = "any"
    someone.types("dios-node start --data ./node0 --detach")
    yield someone
    someone.types("dios-node stop")


@pytest.fixture(scope="module")
def server(person: Person) -> Iterator[RunningSandboxServer]:
    """A server for the tests that do not end it."""
    with server_of(person) as running:
        yield running


@pytest.fixture(scope="module")
def key(server: RunningSandboxServer) -> Key:
    """A key of it."""
    return Key(server, "rest")


def row_of(answer: tuple[int, object], status: int = 200) -> Row:
    """The row of an answer that has this status."""
    assert answer[0] == status, answer
    return cast("Row", answer[1])


def sessions(person: Person) -> int:
    """The number of sessions that run on the node."""
    return len(json.loads(person.types("dios sandbox ls --json").stdout))


def test_the_life_of_a_sandbox(key: Key) -> None:
    """It is created, listed, described, used, paused and ended."""
    name = key.opens(metadata={"a": "b"}, environment={"COLOUR": "blue"}, seconds=100)
    place = f"/v1/sandboxes/{name}"
    row = row_of(key.asks("GET", place))
    assert (row["template"], row["state"], row["metadata"]) == ("base", "running", {"a": "b"})
    assert row in cast("list[Row]", key.asks("GET", "/v1/sandboxes")[1])
    code = "import os\nprint(os.environ['COLOUR'], os.environ['MORE'])\n6 * 7"
    done = row_of(key.asks("POST", f"{place}/run", {"code": code, "environment": {"MORE": "1"}}))
    assert (done["ok"], done["stdout"], done["value"]) == (True, "blue 1\n", "42")
    failed = row_of(key.asks("POST", f"{place}/run", {"code": "open('/etc/shadow')"}))
    assert cast("Row", failed["error"])["refused"] == "files of the machine"
    assert row_of(key.asks("POST", f"{place}/pause"))["state"] == "paused"
    assert key.asks("POST", f"{place}/run", {"code": "1"})[0] == 409
    assert row_of(key.asks("POST", f"{place}/resume"))["state"] == "running"
    assert cast("float", row_of(key.asks("POST", f"{place}/life", {"seconds": 900}))["ends"]) > cast(
        "float", row["ends"]
    )
    assert key.asks("DELETE", place) == (204, None)
    assert key.asks("GET", place)[0] == 404


def test_files_by_the_rest_interface(key: Key) -> None:
    """A body is a file; a folder is listed; what is removed is not there any more."""
    place = f"/v1/sandboxes/{key.opens()}"
    headers = {"Authorization": f"Bearer {key.text}"}
    sends = key.server.sends
    assert sends("PUT", f"{place}/files?path={TEMPORARY}/a/b", b"\0data", headers) == (204, b"")
    assert sends("GET", f"{place}/files?path={TEMPORARY}/a/b", b"", headers) == (200, b"\0data")
    (row,) = cast("list[Row]", key.asks("GET", f"{place}/folder?path={TEMPORARY}/a")[1])
    assert (row["name"], row["size"], row["kind"]) == ("b", 5, "file")
    assert key.asks("DELETE", f"{place}/files?path={TEMPORARY}/a")[0] == 204
    assert key.asks("GET", f"{place}/files?path={TEMPORARY}/a/b")[0] == 404
    assert key.asks("GET", f"{place}/files")[0] == 400
    assert key.asks("POST", f"{place}/exec", {"arguments": ["ls"]})[0] == 501
    assert key.asks("POST", f"{place}/snapshot", {"name": "x"})[0] == 501
    key.asks("DELETE", place)


def test_programs_and_snapshots_by_the_rest_interface(person: Person, tmp_path: Path) -> None:
    """A program has its input and its end; a snapshot is a template of the key, and of no other."""
    runtimes_or_skip()
    person.types("dios group create tries")
    with server_of(person, templates=image_templates(busybox_layout(tmp_path / "tiny"))) as server:
        key, other = Key(server, "images"), Key(server, "others")
        place = f"/v1/sandboxes/{key.opens()}"
        data = "b\na\n" * 100_000
        program = {"arguments": ["sh", "-c", "cat; echo end >&2; exit 3"], "stdin": data}
        done = row_of(key.asks("POST", f"{place}/exec", program))
        assert done == {"exit_code": 3, "stdout": data, "stderr": "end\n"}
        assert key.asks("POST", f"{place}/exec", {"arguments": ["pwd"], "stdin": data})[0] == 200
        assert key.asks("POST", f"{place}/exec", {"arguments": ["missing"]})[0] == 404
        assert key.asks("POST", f"{place}/exec", {"arguments": ["yes"], "seconds": 0.2})[0] == 408
        assert key.asks("POST", f"{place}/exec", {"arguments": ["sleep", "99"], "seconds": 0.2})[0] == 408
        key.asks("POST", f"{place}/exec", {"arguments": ["sh", "-c", "echo kept >/tmp/state"]})
        template = row_of(key.asks("POST", f"{place}/snapshot", {"name": "one"}), 201)["template"]
        key.asks("DELETE", place)
        later = f"/v1/sandboxes/{key.opens(str(template))}"
        assert row_of(key.asks("POST", f"{later}/exec", {"arguments": ["cat", "/tmp/state"]}))["stdout"] == (
            "kept\n"
        )
        # It has the bounds of its sandbox's template, also after a second snapshot.
        memory = row_of(key.asks("GET", later.replace("/v1", "")))["memoryMB"]
        again = row_of(key.asks("POST", f"{later}/snapshot", {"name": "two"}), 201)["template"]
        assert (memory, again) == (256, "snapshot/base.two")
        key.asks("DELETE", later)
        assert other.asks("POST", "/v1/sandboxes", {"template": template})[0] == 400
        for form in ("base.../x", "Base.one.", "one", "base.X", "base." + "a" * 31, "base./../rest.base.one"):
            assert key.asks("POST", "/v1/sandboxes", {"template": f"snapshot/{form}"})[0] == 400
            assert key.asks("POST", "/v2/sandboxes", {"templateID": f"snapshot/{form}"})[0] == 400
        assert key.asks("POST", "/v1/sandboxes", {"template": "snapshot/gone.one"})[0] == 404
        assert other.asks("DELETE", "/v1/snapshots/base.one")[0] == 400
        assert key.asks("DELETE", "/v1/snapshots/base.one")[0] == 204


def test_requests_of_another_form_are_refused(key: Key) -> None:
    """Unknown fields, types and paths are errors with a reason."""
    for document in ({"template": 1}, {"templates": "base"}, ["base"], {"template": "base", "seconds": -1}):
        status, answer = key.asks("POST", "/v1/sandboxes", document)
        assert (status, cast("Row", answer)["code"]) == (400, 400)
    assert key.asks("POST", "/v1/sandboxes", {"template": "base", "seconds": 10**6})[0] == 400
    assert key.asks("POST", "/v1/sandboxes", {"template": "none"})[0] == 404
    assert key.asks("GET", "/v1/nothing")[0] == 404
    assert key.asks("PATCH", "/v1/sandboxes")[0] == 404


def test_a_repeated_request_starts_one_sandbox(key: Key) -> None:
    """A client of E2B that repeats a request after a lost answer gets the sandbox of the first one."""
    document = {"templateID": "base"}
    first, again = (
        row_of(key.asks("POST", "/v2/sandboxes", document, **{"Idempotency-Key": "same"}), 201) for _ in "12"
    )
    assert first == again
    key.asks("DELETE", f"/v1/sandboxes/{first['sandboxID']}")


def test_the_document_describes_every_operation(server: RunningSandboxServer) -> None:
    """It is public, and its references lead somewhere."""
    status, body = server.sends("GET", "/openapi.json", b"", {})
    document = json.loads(body)
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert {"post", "get"} == document["paths"]["/v1/sandboxes"].keys()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    used = set(body.decode().split('"$ref":"')[1:])
    assert used
    assert {text.partition('"')[0] for text in used} <= known


def test_keys_are_shown_once_and_listed_without_their_texts(
    person: Person, server: RunningSandboxServer
) -> None:
    """The file has a digest alone, and nobody else can read it."""
    key = Key(server, "shown", "--group", "lab", "--sandboxes", "2", "--memory", "1GiB", "--time", "60")
    listed = person.types("dios sandbox key ls --json").stdout
    (row,) = [row for row in json.loads(listed) if row["name"] == "shown"]
    assert (row["principal"], row["sandboxes"], row["memory_bytes"], row["seconds"]) == (
        "group:lab",
        2,
        1 << 30,
        60,
    )
    path = person.home / ".config" / "dios" / "sandbox-keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.text not in listed + path.read_text()
    person.types("dios sandbox key add shown", status=1)
    person.types("dios sandbox key add Shown", status=1)
    person.types("dios sandbox key add other --user root --group lab", status=1)
    person.types("dios sandbox key rm nobody", status=1)


def test_the_keys_of_a_group_share_its_bounds(server: RunningSandboxServer) -> None:
    """The number and the memory of sandboxes count for all keys of a principal."""
    first = Key(server, "one-of-two", "--group", "two", "--sandboxes", "2")
    other = Key(server, "other-of-two", "--group", "two", "--sandboxes", "2")
    tight = Key(server, "tight", "--memory", "300MiB")
    names = [first.opens(), other.opens()]
    for key in (first, other):
        assert key.asks("POST", "/v1/sandboxes", {})[0] == 429
    first.asks("DELETE", f"/v1/sandboxes/{names[0]}")
    again = other.opens()
    own = tight.opens()
    assert tight.asks("POST", "/v1/sandboxes", {})[0] == 429
    for key, name in ((other, names[1]), (other, again), (tight, own)):
        assert key.asks("DELETE", f"/v1/sandboxes/{name}")[0] == 204


def test_a_revoked_key_is_refused_at_once_and_its_sandboxes_end(
    person: Person, server: RunningSandboxServer
) -> None:
    """So is the access token of a sandbox; those of other keys go on."""
    key, other = Key(server, "revoked"), Key(server, "stays")
    kept = other.opens()
    before = sessions(person)
    created = row_of(key.asks("POST", "/v2/sandboxes", {"templateID": "base"}), 201)
    access = {"E2b-Sandbox-Id": str(created["sandboxID"]), "X-Access-Token": str(created["envdAccessToken"])}
    assert server.sends("GET", "/health", b"", access)[0] == 204
    person.types("dios sandbox key rm revoked")
    assert key.asks("GET", "/v1/sandboxes")[0] == 401
    assert server.sends("GET", "/health", b"", access)[0] in {401, 502}
    wait_until(lambda: sessions(person) == before, "the sandbox of the revoked key has ended")
    assert other.asks("DELETE", f"/v1/sandboxes/{kept}")[0] == 204


def test_a_sandbox_ends_when_its_time_is_over(person: Person, key: Key) -> None:
    """Its code ends with it, also code that runs."""
    before = sessions(person)
    name = key.opens(seconds=1)
    status, _ = key.asks("POST", f"/v1/sandboxes/{name}/run", {"code": "while True: pass"})
    assert status in {502, 200}
    wait_until(lambda: sessions(person) == before, "the session has ended")
    assert key.asks("GET", f"/v1/sandboxes/{name}")[0] == 404


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_sandboxes_end_with_the_server(person: Person, number: signal.Signals) -> None:
    """However it ends: by Ctrl-C, by a request to end, or killed."""
    before = sessions(person)
    running = RunningSandboxServer(person)
    key = Key(running, f"ends-{number}")
    key.opens()
    key.opens()
    assert sessions(person) == before + 2
    text = running.ends(number)
    assert "Traceback" not in text
    assert running.process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: sessions(person) == before, "all sessions have ended")


def test_other_addresses_need_tls(person: Person) -> None:
    """Plain HTTP is refused before anything is served, and half a pair of files as well."""
    refused = person.types("dios sandbox serve 0 --address 0.0.0.0", status=1)
    assert "with TLS alone" in refused.stderr
    person.types("dios sandbox serve 0 --certificate cert.pem", status=1)
    person.types("dios sandbox serve 0 --address example.org", status=1)


def test_tls_by_files(person: Person, tmp_path: Path) -> None:
    """The server has the certificate of its owner, and answers to the names that it was given."""
    authority = Authority()
    authority.server_context(tmp_path, "boxes.test")
    pair = tmp_path / "boxes.test-1.pem"
    options = ("--certificate", str(pair), "--private-key", str(pair), "--host", "boxes.test")
    assert "may read" in person.types("dios sandbox serve 0", *options, status=1).stderr
    pair.chmod(0o600)
    with server_of(person, *options) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cadata=authority.pem.decode())
        for host, status in ((f"boxes.test:{server.port}", b"200"), ("other.test", b"403")):
            answer = server.answers(
                f"GET /openapi.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(),
                context,
                "boxes.test",
            )
            assert answer.split()[1] == status
        plain = server.answers(b"GET /openapi.json HTTP/1.1\r\nHost: boxes.test\r\n\r\n")
        assert b"openapi" not in plain


def test_wrong_templates_are_reported_at_the_start(person: Person, tmp_path: Path) -> None:
    """Not when a client asks for them."""
    path = tmp_path / "wrong.toml"
    for text in (
        "templates = 1",
        "[templates.a]\nmemory = '1'",
        "[templates.a]\nimages = ''",
        "[templates.a",
    ):
        path.write_text(text)
        assert "wrong.toml" in person.types("dios sandbox serve 0 --templates", str(path), status=1).stderr
    path.write_text("[templates.a]\ntemplate = 'missing'")
    assert "missing" in person.types("dios sandbox serve 0 --templates", str(path), status=1).stderr
