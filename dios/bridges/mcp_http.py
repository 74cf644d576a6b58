"""The tools of ``dios.bridges.mcp`` over HTTP, for agents of the same user on the same machine.

The server listens on the loopback address alone, accepts connections of its own user and of root, and answers
requests with its token. Requests that a browser sends for a page of another origin, or for another host, are
refused. A client has a session of the protocol, and with it its sandboxes, until it leaves or is silent for
too long.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import AnyHttpUrl
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dios.bridges.mcp import SESSIONS_MAX, SandboxTools, ToolContext
from dios.errors import InvalidError
from dios.limits import KIB, MIB
from dios.transport.tcp.local_peers import LocalListener, own_users
from dios.wire.addresses import listen_advice

ADDRESS: Final = "127.0.0.1"
PATH: Final = "/mcp"

BODY_BYTES_MAX: Final = 4 * MIB
"""The body of a request."""
HEADER_BYTES_MAX: Final = 16 * KIB
CLIENTS_MAX: Final = 2 * SESSIONS_MAX
"""The sessions of the protocol that are open at once."""
CONNECTIONS_MAX: Final = 8 * CLIENTS_MAX
"""The connections and requests at once; a client has a few."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]{32,512}")
_SESSION: Final = "mcp-session-id"
_OK: Final = 200
_END_WAIT_S: Final = 3
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(32)


def check_token(token: str) -> None:
    """Raise InvalidError for a token that could be guessed, or that no header can have."""
    if not _TOKEN.fullmatch(token):
        raise InvalidError(
            "a token has 32 to 512 letters, digits and signs without spaces; "
            'python3 -c "import secrets; print(secrets.token_urlsafe())" prints one'
        )


def listening(port: int) -> socket.socket:
    """Return a socket on the loopback address for this user and root; port 0 means any free one."""
    try:
        return LocalListener(ADDRESS, port, own_users())
    except OSError as error:
        raise InvalidError(
            f"cannot listen on port {port}: {error.strerror}. {listen_advice(error)}"
        ) from None


def client_of(context: ToolContext) -> str:
    """Return the client that calls a tool: its session of the protocol, which the server has checked.

    Versions of the protocol without sessions have no such identity, so this returns an empty text for them.
    """
    request = context.request_context.request
    if not isinstance(request, Request) or (
        context.request_context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS
    ):
        return ""
    return str(request.headers.get(_SESSION, ""))


def serve(tools: SandboxTools, listener: socket.socket, token: str, idle_s: float) -> int:
    """Serve until a signal ends this process, close all sandboxes, and return the number of the signal."""
    port = listener.getsockname()[1]
    here = (f"{ADDRESS}:{port}", f"localhost:{port}")
    # The package wants the address of an issuer of tokens; it is shown nowhere without a resource's address.
    auth = AuthSettings(issuer_url=AnyHttpUrl(f"http://{ADDRESS}:{port}"), resource_server_url=None)
    app = tools.server(auth, _OneToken(token)).streamable_http_app(
        streamable_http_path=PATH,
        host=ADDRESS,
        max_request_body_size=BODY_BYTES_MAX,
        max_sessions=CLIENTS_MAX,
        session_idle_timeout=idle_s,
        transport_security=TransportSecuritySettings(
            allowed_hosts=list(here), allowed_origins=[f"http://{place}" for place in here]
        ),
    )
    config = uvicorn.Config(
        _Leaving(app, tools),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        timeout_graceful_shutdown=_END_WAIT_S,
    )
    server = _Server(config, tools)
    try:
        asyncio.run(server.serve([listener]))
    finally:
        tools.close_all()
    return server.ended_by


class _OneToken:
    """The check of the only token; every client that has it is the same user."""

    def __init__(self, token: str) -> None:
        self._token: Final = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the rights of a token, None for a wrong one, in a time that does not depend on the token."""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            return None
        return AccessToken(token="", client_id="user", scopes=[])


class _Leaving:
    """Closes the sandboxes of a client that ends its session of the protocol."""

    def __init__(self, app: ASGIApp, tools: SandboxTools) -> None:
        self._app: Final = app
        self._tools: Final = tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        leaving = Headers(scope=scope).get(_SESSION, "") if scope.get("method") == "DELETE" else ""

        async def answer(message: Message) -> None:
            if leaving and message.get("status") == _OK:
                self._tools.close_client(leaving)
            await send(message)

        await self._app(scope, receive, answer)


class _Server(uvicorn.Server):
    """The package's server of HTTP, which closes the sandboxes before it waits for answers."""

    def __init__(self, config: uvicorn.Config, tools: SandboxTools) -> None:
        super().__init__(config)
        self._tools: Final = tools
        self.ended_by: int = signal.SIGTERM

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End the server at a signal, once; a hangup that is ignored stays so, for programs like nohup."""
        before = {signum: signal.getsignal(signum) for signum in _ENDING}
        for ending_signal, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(ending_signal, self.handle_exit)
        try:
            yield
        finally:
            for ending_signal, handler in before.items():
                signal.signal(ending_signal, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal that ends the server."""
        self.ended_by = sig
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sandboxes, so that the calls that run are answered, and then the connections."""
        self._tools.close_all()
        # It reports each answer that this end cuts off.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)
