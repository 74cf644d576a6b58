"""The command ``dios ui``: a dashboard of the cluster in a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.output import NodeOption, reporting, say
from dios.client.keyring import Keyring
from dios.client.sync.node import Node, connect
from dios.errors import InvalidError

app: Final = CommandApplication()


@app.callback()
def _group() -> None:
    """Hold the command by its name."""


@app.command(epilog="\b\nExamples:\n  dios ui\n  dios ui --open\n  dios ui --port 8080 --node n2")
def ui(
    node: NodeOption = None,
    *,
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="Port; 0: a free one.")] = 0,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for HTTPS; needed beyond loopback.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
) -> None:
    """Show the cluster in a browser, as you may see it, until Ctrl-C.

    The printed address has a secret. With it, anybody can do with your tasks what you can do, so keep it
    secret. The page asks the node only while it is open.
    """
    with reporting("dios ui"):
        if (certificate is None) != (key is None):
            raise InvalidError("cannot use HTTPS: give both --certificate and --key.")
        with opened(node):
            pass  # a node that does not answer is better reported now
        with needing_extra("web", "dashboards"):
            from dios.web.dashboard.server import DashboardPlace, serve  # noqa: PLC0415 - needs an extra

        def session() -> Node:
            return connect(node, groups=tuple(Keyring.load().presented())[:1], label="dashboard", start=False)

        def started(link: str) -> None:
            say(f"the dashboard is at {link}\nCtrl-C ends it")
            if open_browser:
                webbrowser.open(link)

        serve(session, DashboardPlace(address, port, certificate, key), started)
