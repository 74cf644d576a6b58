"""``dios-node``: start, look at, stop and check the daemon of this machine.

Not for: what happens inside it, or objects and tasks (``dios.cli.main``).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from dios import limits
from dios.cli import check
from dios.cli.output import (
    NOT_RUNNING,
    JsonOption,
    NodeOption,
    facts,
    reporting,
    say,
    waiting,
    write_json,
)
from dios.client.blocking import connect
from dios.client.locate import default_socket, resolve_node
from dios.errors import TimeLimitError
from dios.node import daemon
from dios.node.settings import KEYS, SettingsError, load

app: Final = typer.Typer(
    help="The DIOS node of this machine: start it, look at it, stop it, check what it keeps.",
    epilog="\b\nExamples:\n  dios-node start --data ./node0 --detach\n  dios-node status\n  dios-node stop\n"
    "  dios-node check --data ./node0",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Where the node keeps everything; made if missing.")
]
MaybeData = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The node with this data directory.")
]

_SETTINGS: Final = {
    "socket": "PATH     where programs connect",
    "pool-size": "N        sandboxed processes kept ready",
    "tasks-max": "N        tasks at the same time",
    "volatile-bytes-max": "SIZE     what objects and buffers may take of the memory",
    "task-memory-bytes": "SIZE     memory limit of a task, like '512 MiB'",
    "task-limits": "LIMITS   of a task and all it starts: 'tasks=10 cpu=10h'",
    "group-limits": "LIMITS   of a group: 'objects=1000 bytes=1GiB'",
    "principal-limits": "LIMITS   of a user: 'memory=8GiB requests=1000'",
    "preload": "MODULES  import these before tasks start: a,b,c",
    "accept-weaker-sandbox": "         run pure tasks even where they cannot be confined fully",
    "mode": "MODE     liberal or restricted",
    "allowed-uids": "UIDS     other users who may connect: 1000,1001",
    "map-bytes": "SIZE     the most the store's index may grow to",
    "log-level": "LEVEL    debug, info, warning or error",
    "log-format": "FORMAT   text or json",
    "log-file": "PATH     where the log goes",
    "record": "PATH     write every event there, for replay",
    "name": "NAME     what people call this node; default: the machine's name",
    "rack": "NAME     the fault domain it stands in",
    "listen": "ADDRESS  HOST:PORT where other nodes of its cluster reach it",
    "advertise": "ADDRESS  HOST:PORT that it tells them instead",
    "announce": "         find other nodes of the cluster by UDP on this network",
}
"""The settings as the help shows them; what reads them is ``dios.node.settings``."""


def _settings_given(arguments: list[str]) -> dict[str, str]:
    """``--key value`` and ``--key=value`` as settings; keys are checked where all settings are."""
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise SettingsError(f"{word!r} is no option; `dios-node start --help` lists them")
        key, equals, value = word[2:].partition("=")
        name = key.replace("-", "_")
        if not equals:
            if rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            elif name in {"accept_weaker_sandbox", "announce"}:
                value = "true"
            elif name in KEYS:
                raise SettingsError(f"--{key} needs a value")
        found[name] = value
    return found


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\b\nSettings, each also in DIR/node.toml or the environment (docs/settings.md):\n"
    + "\n".join(f"  --{key:<22} {text}" for key, text in _SETTINGS.items())
    + "\n\n\b\nExamples:\n  dios-node start --data ./node0 --detach\n"
    "  dios-node start --data /var/lib/dios --log-format json   (for a service manager)\n"
    "  DIOS_POOL_SIZE=16 dios-node start --data ./node0 --detach",
)
def start(
    context: typer.Context,
    *,
    data: DataOption,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the node answers; its log is DIR/node.log.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Read this instead of DIR/node.toml.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a node on the data directory DIR."""
    with reporting("dios-node start", as_json=as_json):
        # Checked here too, so that a mistake is told by the command that was typed.
        flags = _settings_given(context.args)
        settings = load(data, config=config, flags=flags)
        if not detach:
            command = daemon.command(data, config=config, flags=flags)
            os.execv(command[0], command)  # noqa: S606 - our own interpreter; no shell is wanted
        with waiting("starting the node"):
            running = daemon.start_detached(data, config=config, flags=flags)
        if as_json:
            write_json({"pid": running.pid, "data": str(settings.data), "socket": str(running.socket)})
            return
        facts(
            [
                ("node", f"started, process {running.pid}"),
                ("data", str(settings.data)),
                ("socket", str(running.socket)),
            ]
        )
        if default_socket().resolve() != running.socket.resolve():
            say(f"another node is the default; for this one add --node {data}, or set DIOS_NODE")
        say("next: dios group create NAME, then dios put FILE --group NAME; dios --help shows the rest")


@contextlib.contextmanager
def _within(limit_ms: int) -> Iterator[None]:
    """Raise TimeLimitError after ``limit_ms``: also a node that hangs takes connections."""

    def give_up(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise TimeLimitError(f"the node does not answer within {limit_ms // 1000} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_ms / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _target(data: Path | None, node: str | None) -> Path:
    """The socket that a command is about."""
    if data is not None:
        return load(data).socket
    return resolve_node(node)


@app.command(epilog="\b\nExamples:\n  dios-node status\n  dios-node status --data ./node0 --json")
def status(*, data: MaybeData = None, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Say whether a node runs, what it holds, and what this machine lets it enforce.

    Exit status 0 when it runs, 3 when it does not.
    """
    with reporting("dios-node status", as_json=as_json):
        path = _target(data, node)
        running = daemon.find(path)
        if running is None:
            if as_json:
                write_json({"running": False, "socket": str(path)})
            else:
                facts([("node", "not running"), ("socket", str(path))])
                say("next: dios-node start --data ./node0 --detach")
            raise typer.Exit(NOT_RUNNING)
        with _within(limits.NODE_ANSWER_MS_MAX), connect(str(path), groups=()) as connected:
            info = connected.info()
        if as_json:
            write_json(
                {
                    "running": True,
                    "pid": running.pid,
                    "socket": str(running.socket),
                    "version": info.version,
                    "counts": info.counts,
                    "guarantees": info.guarantees,
                }
            )
            return
        facts(
            [
                ("node", f"running, process {running.pid}, version {info.version or 'unknown'}"),
                ("socket", str(running.socket)),
                *((name, str(count)) for name, count in sorted(info.counts.items())),
                *((f"{name}:", text) for name, text in sorted(info.guarantees.items())),
            ]
        )


@app.command(epilog="\b\nExamples:\n  dios-node stop\n  dios-node stop --data ./node0")
def stop(*, data: MaybeData = None, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Stop a node: its tasks are ended, its store is closed, and nothing of it is left running.

    It is asked first; when it does not end it gets SIGTERM, at last SIGKILL. Objects stay as they were
    last acknowledged in every case.
    """
    with reporting("dios-node stop", as_json=as_json):
        path = _target(data, node)
        running = daemon.find(path)
        if running is None:
            if as_json:
                write_json({"stopped": False, "socket": str(path)})
            else:
                facts([("node", "was not running"), ("socket", str(path))])
            return

        def ask() -> None:
            with _within(limits.NODE_ANSWER_MS_MAX), connect(str(path), groups=()) as connected:
                connected.shutdown()

        with waiting("stopping the node"):
            how = daemon.stop(running, ask=ask, say=say)
        if as_json:
            write_json({"stopped": True, "how": how, "pid": running.pid})
        else:
            facts([("node", f"stopped ({how}), process {running.pid}")])


app.add_typer(check.app)


def main() -> None:
    """The command ``dios-node``."""
    app(prog_name="dios-node")


if __name__ == "__main__":
    main()
