"""The command ``dios ui``: a dashboard of the cluster in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import webbrowser
from pathlib import Path
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import option
from dios.cli.common.output import say
from dios.cli.common.private_files import private_file
from dios.cli.common.results import NODE_OPTION
from dios.client.keyring import Keyring
from dios.client.sync.node import Node, connect
from dios.errors import InvalidError

# Other users can read the arguments of a browser, so it opens a private file that has the address.
_REDIRECTION: Final = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<title>DIOS</title><script>location.replace({link});</script>
"""

app: Final = CommandApplication()


@app.command(examples="dios ui\ndios ui --open\ndios ui --port 8080 --node n2")
def ui(
    node: str | None = NODE_OPTION,
    *,
    address: str = option("--address ADDRESS", "Address to listen on; default: one of 127/8."),
    port: int = option("--port N", "Port; 0: a free one.", default=0, min=0, max=65_535),
    certificate: Path | None = option("--certificate FILE", "Certificate for HTTPS; needed beyond loopback."),
    key: Path | None = option("--key FILE", "Private key of the certificate."),
    open_browser: bool = option("--open", "Open the page in your browser."),
) -> None:
    """Show the cluster in a browser, as you may see it, until Ctrl-C.

    The printed address has a secret, which one browser can use once. On this machine only your own browsers
    are served, and those of root. The page asks the node only while it is open.
    """
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
