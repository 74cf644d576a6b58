"""A server of sandboxes that a person started, its keys, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from tests.support.node.command_user import DEADLINE_SECONDS, Person

PLAIN = """
[templates.base]
memory = "256 MiB"
[templates.code-interpreter-v1]
memory = "512 MiB"
"""


class Key:
    """A key of a server, and requests with it."""

    def __init__(self, server: RunningSandboxServer, name: str, *options: str) -> None:
        self.server = server
        self.name = name
        row = json.loads(server.person.types("dios sandbox key add --json", name, *options).stdout)
        self.text: str = row["key"]

    def asks(self, verb: str, path: str, document: object = None, **headers: str) -> tuple[int, object]:
        """Send a request of the REST interface, and return the status and the answer."""
        status, body = self.server.sends(
            verb,
            path,
            b"" if document is None else json.dumps(document).encode(),
            {"Authorization": f"Bearer {self.text}", **headers},
        )
        return status, json.loads(body) if body else None

    def opens(self, template: str = "base", **fields: object) -> str:
        """Create a sandbox, and return its name."""
        status, row = self.asks("POST", "/v1/sandboxes", {"template": template, **fields})
        assert status == 201, row
        return str(cast("dict[str, object]", row)["id"])

    def e2b(self) -> dict[str, str]:
        """The arguments with which a client of E2B uses the server."""
        return {"api_key": self.text, "api_url": self.server.url, "sandbox_url": self.server.url}

    def environment(self) -> dict[str, str]:
        """The variables with which programs for E2B use the server."""
        url = self.server.url
        return {"E2B_API_KEY": self.text, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}


class RunningSandboxServer:
    """A server that runs, at any free port."""

    def __init__(self, person: Person, *options: str, templates: str = PLAIN) -> None:
        self.person = person
        path = person.home / "server.toml"
        path.write_text(templates, encoding="utf-8")
        self.process = person.starts("dios sandbox serve 0 --templates server.toml", *options)
        assert self.process.stderr is not None
        line = ""
        while "serving sandboxes at " not in line:
            line = self.process.stderr.readline()
            assert line, "it ended"
        self.url = line.partition("serving sandboxes at ")[2].partition(";")[0]
        self.port = urlsplit(self.url).port or 0

    def sends(self, verb: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Send one request, and return the status and the body of the answer."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(link):
            link.request(verb, path, body, dict(headers))
            answer = link.getresponse()
            return answer.status, answer.read()

    def answers(self, data: bytes, context: ssl.SSLContext | None = None, name: str = "") -> bytes:
        """Send bytes, and return what comes back until the server closes the connection."""
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(
                socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS)
            )
            if context is not None:
                link = stack.enter_context(context.wrap_socket(link, server_hostname=name))
            answer = b""
            with contextlib.suppress(ConnectionError):
                link.sendall(data)
                while part := link.recv(65_536):
                    answer += part
            return answer

    def ends(self, number: signal.Signals) -> str:
        """Send a signal, and return what the server writes until it has ended."""
        self.process.send_signal(number)
        return str(self.process.communicate(timeout=DEADLINE_SECONDS)[1])


@contextlib.contextmanager
def server_of(person: Person, *options: str, templates: str = PLAIN) -> Iterator[RunningSandboxServer]:
    """Start a server for a ``with`` body."""
    running = RunningSandboxServer(person, *options, templates=templates)
    try:
        yield running
    finally:
        running.ends(signal.SIGINT)


def image_templates(layout: Path) -> str:
    """Templates of an image of busybox, and a plain one for code."""
    return (
        f'snapshots = "dios://tries"\n[templates.base]\nimage = "oci-layout:{layout}:tiny"\n'
        'memory = "256 MiB"\n'
        '[templates.code-interpreter-v1]\nmemory = "512 MiB"\n'
    )
