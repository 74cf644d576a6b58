"""The command ``dios ui``: a dashboard of the cluster in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.output import NodeOption, reporting, say
from dios.cli.common.private_files import private_file
from dios.client.keyring import Keyring
from dios.client.sync.node import Node, connect
from dios.errors import InvalidError

# Other users can read the arguments of a browser, so it opens a private file that has the address.
_REDIRECTION: Final = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<title>DIOS</title><script>location.replace({link});</script>
"""

app: Final = CommandApplication()


@app.callback()
def _group() -> None:
    """Hold the command by its name."""


@app.command(epilog="\b\nExamples:\n  dios ui\n  dios ui --open\n  dios ui --port 8080 --node n2")
def ui(
    node: NodeOption = None,
    *,
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="Address to listen on; default: one of 127/8.")
    ] = "",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="Port; 0: a free one.")] = 0,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for HTTPS; needed beyond loopback.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
) -> None:
    """Show the cluster in a browser, as you may see it, until Ctrl-C.

    The printed address has a secret, which one browser can use once. On this machine only your own browsers
    are served, and those of root. The page asks the node only while it is open.
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

        with contextlib.ExitStack() as kept:

            def started(link: str) -> None:
                say(f"the dashboard is at {link}\nCtrl-C ends it")
                if open_browser:
                    page = _REDIRECTION.format(link=json.dumps(link))
                    webbrowser.open(kept.enter_context(private_file(f"ui-{os.getpid()}.html", page)).as_uri())

            def entered(link: str) -> None:
                kept.close()
                say(f"a browser has entered; another one can at {link}")

            serve(session, DashboardPlace(address, port, certificate, key), started, entered)
