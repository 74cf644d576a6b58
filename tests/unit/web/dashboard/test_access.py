"""Only a browser that has shown the token gets pages and connections; no other site can use its cookie."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeAlias

from dios.web.dashboard.access import Receive, Scope, Send, TokenGate

Message: TypeAlias = MutableMapping[str, object]
TOKEN = "the token"  # noqa: S105 - of a test


async def _inner(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request with 299."""
    del receive
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "http.response.start", "status": 299, "headers": []})


class Browser:
    """A browser that keeps cookies, at a gate."""

    def __init__(self) -> None:
        self.gate = TokenGate(_inner, TOKEN, secure=False)
        self.cookie = b""

    async def send(
        self, path: str, method: str = "GET", body: bytes = b"", origin: bytes = b"", kind: str = "http"
    ) -> Message:
        """Send one request, and return the first message of the answer."""
        headers = [(b"host", b"127.0.0.1:1"), (b"cookie", self.cookie)]
        headers += [(b"origin", origin)] if origin else []
        answers: list[Message] = []
        parts = [body[:200], body[200:]]

        async def receive() -> Message:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Message) -> None:
            answers.append(message)

        scope: Scope = {"type": kind, "path": path, "method": method, "headers": headers}
        await self.gate(scope, receive, send)
        sent_headers = answers[0].get("headers")
        for key, value in sent_headers if isinstance(sent_headers, list) else ():
            if key == b"set-cookie":
                assert b"HttpOnly" in value
                assert b"SameSite=Strict" in value
                self.cookie = value.partition(b";")[0]
        return answers[0]


async def test_the_token_opens_pages_and_connections() -> None:
    """The token is exchanged for a cookie, with which everything is served."""
    browser = Browser()
    assert (await browser.send("/tasks"))["status"] == 303
    assert (await browser.send("/enter"))["status"] == 200
    assert (await browser.send("/enter", "POST", TOKEN.encode()))["status"] == 204
    assert (await browser.send("/tasks"))["status"] == 299
    assert (await browser.send("/ws", kind="websocket"))["type"] == "websocket.accept"


async def test_without_the_token_nothing_is_served() -> None:
    """Wrong and endless tokens, other methods, and connections without a cookie are refused."""
    browser = Browser()
    for body in (b"", b"the tokem", TOKEN.encode() + b"x", bytes(10_000)):
        assert (await browser.send("/enter", "POST", body))["status"] == 403
    assert (await browser.send("/tasks", "POST"))["status"] == 403
    assert (await browser.send("/_nicegui/script.js"))["status"] == 303
    assert (await browser.send("/ws", kind="websocket"))["type"] == "websocket.close"
    browser.cookie = b"dios-ui-00000000=forged; \xff"
    assert (await browser.send("/tasks"))["status"] == 303


async def test_pages_of_other_sites_cannot_use_the_cookie() -> None:
    """A request with the cookie that a page of another origin makes is refused."""
    browser = Browser()
    await browser.send("/enter", "POST", TOKEN.encode())
    for kind, refused in (("http", 303), ("websocket", "websocket.close")):
        answer = await browser.send("/tasks", origin=b"http://evil.example", kind=kind)
        assert refused in {answer.get("status"), answer["type"]}
    assert (await browser.send("/tasks", origin=b"http://127.0.0.1:1"))["status"] == 299
