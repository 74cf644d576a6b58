"""Starts the web server of the dashboard."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, cast

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

    @ui.page("/")
    def _cluster() -> None:
        with page(session, "Cluster"):
            cluster.show(session)

    @ui.page("/tasks")
    def _tasks(q: str = "") -> None:
        with page(session, "Tasks"):
            tasks.show(session, q)

    @ui.page("/tasks/{mark}")
    def _task(mark: str) -> None:
        with page(session, "Tasks"):
            tasks.show_one(session, mark)

    @ui.page("/objects")
    async def _objects() -> None:
        with page(session, "Objects"):
            await objects.show(session)

    @ui.page("/objects/{mark}")
    async def _object(mark: str) -> None:
        with page(session, "Objects"):
            await objects.show_one(session, mark)

    @ui.page("/capabilities")
    async def _references(of: str = "") -> None:
        with page(session, "Capabilities"):
            await capabilities.show(session, of)

    @ui.page("/scheduling")
    def _scheduler() -> None:
        with page(session, "Scheduling"):
            scheduling.show(session)

    @ui.page("/shares")
    def _shares() -> None:
        with page(session, "Shares"):
            shares.show(session)

    @ui.page("/jobs")
    def _jobs() -> None:
        with page(session, "Jobs"):
            jobs.show(session)

    @ui.page("/functions")
    def _functions() -> None:
        with page(session, "Network functions"):
            functions.show()

    ui.run_with(application, title="DIOS", dark=None, show_welcome_message=False)
    return application
