"""Starts the web server of the dashboard."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, cast

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from dios import limits
from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.transport.tcp.local_peers import LocalListener, is_loopback, own_users, random_loopback_address
from dios.web.dashboard.access import ENTRANCE, Application, TokenGate
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
from dios.wire.addresses import join_address, listen_advice

_BACKLOG: Final = 32


class DashboardPlace(NamedTuple):
    """The address of a dashboard, and the files of its certificate elsewhere than on loopback.

    Without a host it gets a loopback address of its own, where no other server gets its cookies.
    """

    host: str = ""
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None


def serve(
    connect: Callable[[], Node],
    place: DashboardPlace,
    started: Callable[[str], None],
    entered: Callable[[str], None],
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    ``started`` gets its address with the token for a browser. ``entered`` gets the address for the next
    browser when one has used the token.

    Raises:
        InvalidError: the address cannot be used, or is not on loopback and there is no certificate.
    """
    secure = place.certificate is not None
    host = place.host or random_loopback_address()
    if not secure and not is_loopback(host):
        raise InvalidError(
            f"cannot show a dashboard at {host}: everybody on the way could read it. "
            "Add --certificate and --key, or use an SSH tunnel to a loopback address."
        )
    listener = _listener(host, place.port)
    here = join_address(*listener.getsockname()[:2])
    root = f"http{'s' if secure else ''}://{here}"
    session = ClusterSession(connect)
    gate = TokenGate(
        cast("Application", _application(session)),
        hosts=() if secure else (here, *_other_names(host, here)),
        secure=secure,
        entered=lambda token: entered(_entrance(root, token)),
    )
    config = uvicorn.Config(
        gate,
        loop="asyncio",  # it accepts connections by the listener's own method
        log_level="critical",
        ssl_certfile=place.certificate,
        ssl_keyfile=None if place.key is None else str(place.key),
        timeout_graceful_shutdown=1,
        limit_concurrency=limits.DASHBOARD_CONNECTIONS_MAX,
    )
    started(_entrance(root, gate.token))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()
        session.close()


def _entrance(root: str, token: str) -> str:
    return f"{root}{ENTRANCE}#token={token}"


def _other_names(host: str, here: str) -> tuple[str, ...]:
    """Return the names by which people reach the usual loopback addresses, also through a tunnel."""
    return (here.replace(host, "localhost", 1),) if host == "127.0.0.1" else ()


def _listener(host: str, port: int) -> socket.socket:
    """Listen at an address; on loopback for this user and root only. Raise InvalidError."""
    try:
        if is_loopback(host):
            return LocalListener(host, port, own_users(), backlog=_BACKLOG)
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_BACKLOG
        )
    except OSError as error:
        raise InvalidError(
            f"cannot show a dashboard at {host}:{port}: {error.strerror}. {listen_advice(error)}"
        ) from None


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
