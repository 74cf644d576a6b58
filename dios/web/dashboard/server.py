"""Starts the web server of the dashboard."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from dios import limits
from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.transport.tcp.local_peers import (
    LocalListener,
    is_address,
    is_loopback,
    own_users,
    random_loopback_address,
)
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
        InvalidError: the host is no IP address or cannot be used, or is not on loopback and there is no
            certificate.
    """
    secure = place.certificate is not None
    host = place.host or random_loopback_address()
    if not is_address(host):
        raise InvalidError(
            f"cannot show a dashboard at {host!r}: it is no IP address. Give one of this machine, such as "
            "127.0.0.1; `ip address` shows the others."
        )
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
