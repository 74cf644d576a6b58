"""Lets only browsers through that showed a token of this server, each with a token of its own.

The address that ``dios ui`` prints has the token in its fragment, which browsers send to no server. A page
without data moves it into a cookie, which scripts cannot read and other sites cannot use. A cookie goes to
every port of a host, so the server has a host of its own, and ``dios.transport.tcp.local_peers`` keeps other
users away who learn it all the same.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, TypeAlias
from urllib.parse import quote, urlsplit

from dios import limits

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_BYTES: Final = 32
ENTRANCE: Final = "/enter"
_BODY_BYTES_MAX: Final = 256
_SAFE: Final = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
_PAGE: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>DIOS</title>
<p id="text">This page needs the address that <code>dios ui</code> printed, with its token.</p>
<script>
const token = location.hash.replace("#token=", "");
const back = new URLSearchParams(location.search).get("to") || "/";
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  fetch("/enter", {method: "POST", body: token}).then(answer => {
    if (answer.ok) location.replace(back.startsWith("/") && !back.startsWith("//") ? back : "/");
    else document.getElementById("text").textContent = "This token is used. Take the address printed last.";
  });
}
</script>"""


class TokenGate:
    """An ASGI application that passes on requests with a cookie of this server, and answers the others.

    A token is used once: ``entered`` then gets the next one. Requests to other hosts than ``hosts`` are
    refused; without any, all are answered.
    """

    def __init__(
        self,
        inner: Application,
        *,
        hosts: Collection[str],
        secure: bool,
        entered: Callable[[str], None],
    ) -> None:
        self._inner: Final = inner
        self._hosts: Final = frozenset(hosts)
        # Other servers on this host must not replace the cookie.
        self._cookie: Final = f"dios-ui-{secrets.token_hex(4)}"
        self._keys: Final[deque[str]] = deque(maxlen=limits.DASHBOARD_BROWSERS_MAX)
        self._secure: Final = secure
        self._entered: Final = entered
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        """The token of the next browser."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or connection."""
        kind = scope["type"]
        at_entrance = kind == "http" and scope["path"] == ENTRANCE
        if kind == "lifespan" or (not at_entrance and self._is_admitted(scope)):
            await self._inner(scope, receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif not self._is_for_this_host(scope):
            await _answer(send, 421, b"")
        elif at_entrance and scope["method"] == "POST":
            await self._enter(receive, send)
        elif at_entrance or scope["method"] != "GET":
            await _answer(send, 200 if scope["method"] == "GET" else 403, _PAGE)
        else:
            query = scope.get("query_string", b"")
            place = str(scope["path"]) + (
                f"?{query.decode('latin-1')}" if isinstance(query, bytes) and query else ""
            )
            target = ENTRANCE if place == "/" else f"{ENTRANCE}?to={quote(place)}"
            await _answer(send, 303, b"", (b"location", target.encode("ascii", "ignore")))

    async def _enter(self, receive: Receive, send: Send) -> None:
        body = b""
        while len(body) <= _BODY_BYTES_MAX:
            message = await receive()
            part = message.get("body", b"")
            body += part if isinstance(part, bytes) else b""
            if not message.get("more_body"):
                break
        if not hmac.compare_digest(body, self.token.encode()):
            await _answer(send, 403, b"")
            return
        key = secrets.token_hex(TOKEN_BYTES)
        self._keys.append(key)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._entered(self.token)
        flags = "HttpOnly; SameSite=Strict; Path=/" + ("; Secure" if self._secure else "")
        await _answer(send, 204, b"", (b"set-cookie", f"{self._cookie}={key}; {flags}".encode()))

    def _is_admitted(self, scope: Scope) -> bool:
        return self._is_for_this_host(scope) and self._is_own_origin(scope) and self._has_cookie(scope)

    def _has_cookie(self, scope: Scope) -> bool:
        try:
            cookie = SimpleCookie(_header(scope, b"cookie")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and any(
            hmac.compare_digest(cookie.value.encode(), key.encode()) for key in self._keys
        )

    def _is_for_this_host(self, scope: Scope) -> bool:
        """Return False for a request that a browser sends here because a foreign name has this address."""
        return not self._hosts or _header(scope, b"host") in self._hosts

    @staticmethod
    def _is_own_origin(scope: Scope) -> bool:
        """Return False for a request that a page of another site makes."""
        origin = _header(scope, b"origin")
        return not origin or urlsplit(origin).netloc == _header(scope, b"host")


def _header(scope: Scope, name: bytes) -> str:
    headers = scope.get("headers")
    for key, value in headers if isinstance(headers, list | tuple) else ():
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    kind = (b"content-type", b"text/html; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *_SAFE, *headers]})
    await send({"type": "http.response.body", "body": body})
