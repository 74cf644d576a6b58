"""Only a browser that has shown the token gets pages and connections; no other site can use its cookie."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeAlias

from dios import limits
from dios.web.dashboard.access import Receive, Scope, Send, TokenGate

Message: TypeAlias = MutableMapping[str, object]
HOST = "127.1.2.3:1"


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
        self.entered: list[str] = []
        self.gate = TokenGate(_inner, hosts=[HOST], secure=False, entered=self.entered.append)
        self.cookie = b""

    async def send(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        *,
        origin: bytes = b"",
        host: str = HOST,
        kind: str = "http",
    ) -> Message:
        """Send one request, and return the first message of the answer."""
        headers = [(b"host", host.encode()), (b"cookie", self.cookie)]
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

    async def enter(self) -> None:
        """Use the token of the present moment."""
        assert (await self.send("/enter", "POST", self.gate.token.encode()))["status"] == 204


async def test_the_token_opens_pages_and_connections() -> None:
    """The token is exchanged for a cookie, with which everything is served."""
    browser = Browser()
    assert (await browser.send("/tasks"))["status"] == 303
    assert (await browser.send("/enter"))["status"] == 200
    await browser.enter()
    assert (await browser.send("/tasks"))["status"] == 299
    assert (await browser.send("/ws", kind="websocket"))["type"] == "websocket.accept"


async def test_without_the_token_nothing_is_served() -> None:
    """Wrong and endless tokens, other methods, and connections without a cookie are refused."""
    browser = Browser()
    for body in (b"", browser.gate.token[:-1].encode(), browser.gate.token.encode() + b"x", bytes(10_000)):
        assert (await browser.send("/enter", "POST", body))["status"] == 403
    assert (await browser.send("/tasks", "POST"))["status"] == 403
    assert (await browser.send("/_nicegui/script.js"))["status"] == 303
    assert (await browser.send("/ws", kind="websocket"))["type"] == "websocket.close"
    browser.cookie = b"dios-ui-00000000=forged; \xff"
    assert (await browser.send("/tasks"))["status"] == 303


async def test_pages_of_other_sites_cannot_use_the_cookie() -> None:
    """A request with the cookie that a page of another origin makes is refused."""
    browser = Browser()
    await browser.enter()
    for kind, refused in (("http", 303), ("websocket", "websocket.close")):
        answer = await browser.send("/tasks", origin=b"http://evil.example", kind=kind)
        assert refused in {answer.get("status"), answer["type"]}
    assert (await browser.send("/tasks", origin=f"http://{HOST}".encode()))["status"] == 299


async def test_a_token_is_used_once() -> None:
    """The token of one browser opens nothing for the next, which has its own; each cookie works by itself."""
    browser = Browser()
    token = browser.gate.token
    await browser.enter()
    first = browser.cookie
    assert browser.entered == [browser.gate.token] != [token]
    assert (await browser.send("/enter", "POST", token.encode()))["status"] == 403
    await browser.enter()
    assert browser.cookie != first
    for _ in range(limits.DASHBOARD_BROWSERS_MAX - 1):
        assert (await browser.send("/tasks"))["status"] == 299
        await browser.enter()
    browser.cookie = first
    assert (await browser.send("/tasks"))["status"] == 303, "the first browser went for the last"


async def test_a_foreign_name_for_the_address_is_refused() -> None:
    """A request for another host or port gets nothing, with the cookie and with the token."""
    browser = Browser()
    await browser.enter()
    for host in ("evil.example:1", "127.1.2.3:2", "127.1.2.3", ""):
        assert (await browser.send("/tasks", host=host))["status"] == 421
        assert (await browser.send("/enter", "POST", browser.gate.token.encode(), host=host))["status"] == 421
        assert (await browser.send("/ws", host=host, kind="websocket"))["type"] == "websocket.close"
