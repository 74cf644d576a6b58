"""``dios mcp``: a code interpreter for agents, over the Model Context Protocol."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.output import say
from dios.cli.common.private_files import private_file
from dios.cli.common.results import NODE_OPTION
from dios.cli.tasks.sandbox_options import SandboxOptions, given_inputs
from dios.errors import InvalidError
from dios.lib.sandbox.sandbox import Sandbox
from dios.trusted_files import require_trusted
from dios.wire.origins import parse_origins

if TYPE_CHECKING:
    from dios.bridges.mcp import SandboxTools

app = CommandApplication()

PORT_DEFAULT: Final = 7480
IDLE_S_DEFAULT: Final = 3600.0
FORMER_VARIABLE: Final = "DIOS_MCP_TOKEN"
_BY_SIGNAL: Final = 128

Make: TypeAlias = Callable[[], Sandbox]


@app.command(
    epilog="\b\nExamples:\n  dios mcp --memory '512 MiB' --timeout 30\n"
    "  dios mcp --input sales=sales.parquet\n  dios mcp --http\n  dios mcp --http 8000 --idle 600\n\n\f"
    "\b\nIn the settings of an agent that starts the server itself:\n"
    '  {"mcpServers": {"python": {"command": "dios", "args": ["mcp", "--memory", "512 MiB"]}}}\n\n'
    "\b\nIn the settings of an agent that connects to it:\n"
    f'  {{"mcpServers": {{"python": {{"type": "http", "url": "http://127.0.0.1:{PORT_DEFAULT}/mcp",\n'
    f'    "headers": {{"Authorization": "Bearer ${{MCP_TOKEN}}"}}}}}}}}'
)
def mcp(
    port: int | None = argument(
        "[PORT]",
        f"The port, with --http: {PORT_DEFAULT} if none is given, any free one for 0.",
        min=0,
        max=65535,
    ),
    *,
    http: bool = option("--http", "Serve agents of this machine over HTTP, with a bearer token."),
    idle: float | None = option(
        "--idle SECONDS", "With --http: close a sandbox that no agent uses for this time; default: an hour."
    ),
    token_file: Path | None = option(
        "--bearer-token-file FILE",
        "With --http: a file that only you can read, with the token; default: a new token.",
    ),
    options: SandboxOptions,
    forkable: bool = option(
        "--forkable", "Let agents fork sessions, to try several continuations of a state."
    ),
    node: str | None = NODE_OPTION,
) -> None:
    """Serve sandboxes to agents: a server of the Model Context Protocol, on standard input and output.

    Its tools open sessions, run Python in them, set and return variables and files, fork, list and close
    them. With --image or --snapshot they also run programs and list files. The options are those of every
    session; an agent cannot change them, and names no file of this machine.

    With --http the server listens on 127.0.0.1, for programs of your own and of root. It answers only
    requests with its bearer token: that in the file of --bearer-token-file, or a new one in a file that only
    you can read, which is deleted at the end.
    """
    if not http and (port is not None or idle is not None or token_file is not None):
        raise InvalidError("a port, --idle and --bearer-token-file are for the server over HTTP: add --http")
    idle_s = IDLE_S_DEFAULT if idle is None else idle
    if not 0 < idle_s < math.inf:
        raise InvalidError(f"--idle must be a positive number of seconds, not {idle_s:g}")
    given = given_inputs(options.inputs)
    origins = tuple(str(origin) for origin in parse_origins(options.network or ()))
    with needing_extra("mcp", "sandboxes for agents"):
        from dios.bridges.mcp import BOUNDS, SandboxTools  # noqa: PLC0415 - an optional dependency
    make = partial(options.sandbox, Sandbox, bounds=BOUNDS, node=node, forkable=forkable)
    if http:
        chosen_port = PORT_DEFAULT if port is None else port
        with needing_extra("mcp", "sandboxes for agents"):
            from dios.bridges import mcp_http  # noqa: PLC0415 - an optional dependency
        tools = SandboxTools(
            make,
            tuple(given),
            origins,
            client_of=mcp_http.client_of,
            idle_s=idle_s,
            has_programs=options.has_programs,
        )
        number = _serve_http(tools, make, chosen_port, token_file, idle_s)
        raise typer.Exit(_BY_SIGNAL + number)
    # Wrong options are reported now, and not to the agent.
    make().close()
    tools = SandboxTools(make, tuple(given), origins, has_programs=options.has_programs)
    tools.server().run("stdio")


def _serve_http(
    tools: SandboxTools,
    make: Make,
    port: int,
    token_file: Path | None,
    idle_s: float,
) -> int:
    """Serve over HTTP, and return the number of the signal that ended the server."""
    from dios.bridges import mcp_http  # noqa: PLC0415 - an optional dependency

    with contextlib.closing(mcp_http.listening(port)) as listener:
        bound = listener.getsockname()[1]
        with _token(bound, token_file) as (token, path):
            mcp_http.check_token(token)
            make().close()  # wrong options are reported now
            say(f"serving agents at http://{mcp_http.ADDRESS}:{bound}{mcp_http.PATH}")
            say(f"the bearer token is in {path}; Ctrl-C ends the server and all its sandboxes")
            return mcp_http.serve(tools, listener, token, idle_s)


@contextlib.contextmanager
def _token(port: int, given: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the token and its file: the user's own, or a new one until the end. Raise InvalidError."""
    from dios.bridges.mcp_http import new_token  # noqa: PLC0415 - an optional dependency

    if FORMER_VARIABLE in os.environ:
        raise InvalidError(
            f"the token is not read from {FORMER_VARIABLE} any more, because programs show their "
            "environment. Write it to a file that only you can read, and name that with --bearer-token-file."
        )
    if given is None:
        token = new_token()
        with private_file(f"mcp-{port}.token", f"{token}\n") as path:
            yield token, path
        return
    require_trusted(given, "the file of the token")
    try:
        text = given.read_text(encoding="ascii", errors="replace").strip()
        is_private = not stat.S_IMODE(given.stat().st_mode) & 0o077
    except OSError as error:
        raise InvalidError(f"cannot read the token in {given}: {error.strerror}") from None
    if not is_private:
        raise InvalidError(
            f"other users may read the token in {given}. Make a new one after `chmod 600 {given}`."
        )
    yield text, given
