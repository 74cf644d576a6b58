"""Starts the web server of the dashboard."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.web.dashboard.access import TOKEN_BYTES, Application, TokenGate
from dios.web.dashboard.layout import page
from dios.web.dashboard.pages import (
    capabilities,
    cluster,
    functions,
    jobs,
    objects,
    scheduling,
    shares,
    tasks,
)
from dios.web.observation.session import ClusterSession
from dios.wire.addresses import listen_advice

_BACKLOG: Final = 32


Show: TypeAlias = Callable[[ClusterSession, str], Awaitable[None] | None]
"""Makes the content of a page, for the word in its path or query."""

PAGES: Final[Sequence[tuple[str, str, Show]]] = (
    ("/", "Cluster", cluster.show),
    ("/tasks", "Tasks", tasks.show),
    ("/tasks/{mark}", "Tasks", tasks.show_one),
    ("/objects", "Objects", objects.show),
    ("/objects/{mark}", "Objects", objects.show_one),
    ("/capabilities", "Capabilities", capabilities.show),
    ("/scheduling", "Scheduling", scheduling.show),
    ("/shares", "Shares", shares.show),
    ("/jobs", "Jobs", jobs.show),
    ("/functions", "Network functions", functions.show),
)


class DashboardPlace(NamedTuple):
    """The address of a dashboard, and the files of its certificate elsewhere than on loopback."""

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None


def serve(connect: Callable[[], Node], place: DashboardPlace, started: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM. ``started`` gets its address with the token.

    Raises:
        InvalidError: the address cannot be used, or is not on loopback and there is no certificate.
    """
    secure = place.certificate is not None
    if not secure and not ipaddress.ip_address(place.host).is_loopback:
        raise InvalidError(
            f"cannot show a dashboard at {place.host}: everybody on the way could read it. "
            "Add --certificate and --key, or use an SSH tunnel to a loopback address."
        )
    listener = _listener(place)
    session = ClusterSession(connect)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    gate = TokenGate(cast("Application", _application(session)), token, secure=secure)
    config = uvicorn.Config(
        gate,
        log_level="critical",
        ssl_certfile=place.certificate,
        ssl_keyfile=None if place.key is None else str(place.key),
        timeout_graceful_shutdown=1,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    started(f"http{'s' if secure else ''}://{shown}:{port}/enter#token={token}")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()
        session.close()


def _listener(place: DashboardPlace) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place.host, place.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidError(
            f"cannot show a dashboard at {place.host}:{place.port}: {error.strerror}. {listen_advice(error)}"
        ) from None
    return listener


def _application(session: ClusterSession) -> FastAPI:
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for path, title, show in PAGES:
        _add_page(session, path, title, show)
    ui.run_with(application, title="DIOS", dark=None, show_welcome_message=False)
    return application


def _add_page(session: ClusterSession, path: str, title: str, show: Show) -> None:
    @ui.page(path)
    async def build(mark: str = "", q: str = "", of: str = "") -> None:
        with page(session, title):
            shown = show(session, mark or q or of)
            if shown is not None:
                await shown
