"""``dios-node``: start, inspect, stop and check the daemon of this machine.

Commands for objects and tasks are in ``dios.cli.main``.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final, Literal, NotRequired, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import (
    FAILED,
    NOT_RUNNING,
    JsonOption,
    NodeOption,
    counted,
    facts,
    progress,
    reporting,
    say,
    waiting,
    write_json,
)
from dios.cli.common.streams import run
from dios.cli.nodes import check, config, inspection, joining, orphans, trust
from dios.cli.nodes.fitness import wait_known
from dios.cli.nodes.joining import InvitationFileOption, InvitationOption, JoinOption
from dios.cli.nodes.setting_options import SHOWN, own_options, settings_given
from dios.cli.nodes.target import MaybeData, socket_of, time_limit
from dios.client.locate import PID_FILE_NAME, default_socket
from dios.client.node_socket import data_directory, start_command
from dios.client.ops.cluster import Member
from dios.client.sync.node import connect
from dios.errors import InvalidError
from dios.host.confinement.mechanisms import PURE_TASKS
from dios.node import daemon, restart_status
from dios.node.limit_text import parse_time_ms
from dios.node.settings import load
from dios.wire.messages import Info
from dios.wire.types import Fitness

app: Final = CommandApplication(
    help="The DIOS node of this machine: start, inspect and stop it, and check its data.",
    epilog="\b\nExamples:\n  dios-node start --data ./node0 --detach\n  dios-node status\n  dios-node stop\n"
    "  dios-node check --data ./node0\n  dios-node init --data ./node0 --listen 10.0.0.1:7400",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class StartedDaemonRow(TypedDict):
    """A node that was started with --detach.

    ``fitness`` is its ability to run pure tasks (fit, unknown or unfit), and ``pure_tasks`` says more.
    """

    pid: int
    data: str
    socket: str
    fitness: str
    pure_tasks: str


class RecoveryRow(TypedDict):
    """A node that recovers its store: the objects that are in its index again, and all of them."""

    pid: int
    objects_done: int
    objects: int


class AbsentDaemonRow(TypedDict):
    """A node that does not run, or does not answer because it recovers its store."""

    running: Literal[False]
    socket: str
    recovering: NotRequired[RecoveryRow]


class RunningDaemonRow(TypedDict):
    """A running node: what it contains, what its machine enforces, and the states of its cluster's nodes."""

    running: Literal[True]
    pid: int
    socket: str
    version: str
    counts: dict[str, int]
    guarantees: dict[str, str]
    fitness: str
    nodes: dict[str, str]


class StoppedDaemonRow(TypedDict):
    """A node that was stopped, and ``how``."""

    stopped: Literal[True]
    how: str
    pid: int


class NotStoppedDaemonRow(TypedDict):
    """A node that was not running."""

    stopped: Literal[False]
    socket: str


class RestartedDaemonRow(TypedDict):
    """A node whose program was replaced, and the milliseconds for which calls waited."""

    restarted: Literal[True]
    pid: int
    version: str
    pause_ms: int
    tasks: int
    sessions: int


class NotRestartedDaemonRow(TypedDict):
    """A node that was not running."""

    restarted: Literal[False]
    socket: str


DataOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="The node's data directory; created if missing.")
]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\b\nExamples:\n  dios-node start --data ./node0 --detach\n"
    "  dios-node start --data /var/lib/dios --log-format json  (for services)\n"
    "  DIOS_POOL_SIZE=16 dios-node start --data ./node0 --detach\n"
    "  dios-node start --data ./node1 --detach --join 10.0.0.1:7400 \\\n"
    "      --invitation-file invitation --rack r2"
    "\f\n\n\b\nSettings, each also in DIR/node.toml or the environment (docs/settings.md):\n"
    + "\n".join(f"  --{key:<22} {text}" for key, text in SHOWN.items()),
)
def start(
    context: typer.Context,
    *,
    data: DataOption,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the node answers; its log is DIR/node.log.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Read FILE instead of DIR/node.toml.")
    ] = None,
    join: JoinOption = "",
    invitation: InvitationOption = "",
    invitation_file: InvitationFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a node on the data directory DIR; with --join, as a new node of a cluster.

    A node joins once: its first start gets its certificate and writes name, rack and addresses to
    DIR/node.toml. On later starts --join has no effect and can be left out.
    """
    with reporting("dios-node start", as_json=as_json):
        # Checked here too, so that errors appear in the command that was typed.
        flags = settings_given(context.args, "dios-node start", own_options(context))
        settings = load(data, config=config, flags=flags)
        if join:
            flags |= joining.join_first(
                data, config=config, flags=flags, address=join, token=invitation, token_file=invitation_file
            )
            # The node does not need the invitation, and others could read it in the node's environment.
            os.environ.pop("DIOS_TOKEN", None)
        elif invitation or invitation_file:
            raise InvalidError("an invitation is only for joining: give the address with --join HOST:PORT")
        elif settings.identity.exists():
            joining.check_member(settings)
        if not detach:
            command = daemon.command(data, config=config, flags=flags)
            os.execv(command[0], command)  # noqa: S606 - our own interpreter; no shell is wanted
        with nullcontext(_quiet) if as_json else progress("starting the node") as show:
            running = daemon.start_detached(
                data,
                config=config,
                flags=flags,
                recovering=lambda done, every: show(
                    f"index of {done:,} of {counted(every, 'stored object')}"
                ),
            )
            known = wait_known({"": running.socket}, report=show)[""]
        if as_json:
            begun: StartedDaemonRow = {
                "pid": running.pid,
                "data": str(settings.data),
                "socket": str(running.socket),
                "fitness": known.fitness.name.lower(),
                "pure_tasks": known.text,
            }
            write_json(begun)
            return
        facts(
            [
                ("node", f"started, process {running.pid}"),
                ("data", str(settings.data)),
                ("socket", str(running.socket)),
                (PURE_TASKS, known.text),
            ]
        )
        if default_socket().resolve() != running.socket.resolve():
            say(f"another node is the default: add --node {data} to commands, or set DIOS_NODE")
        say("next: dios group create NAME, then dios put FILE --group NAME; see dios --help")


def _quiet(word: str) -> None:
    """Show nothing: the output is for programs."""
    del word


@app.command(
    epilog="\b\nExamples:\n  dios-node status\n  dios-node status --data ./node0 --json\n"
    "  dios-node status --fit      (for health checks)"
)
def status(
    *,
    data: MaybeData = None,
    node: NodeOption = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Exit status 1 if the node is not known to be fit for pure tasks.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show if a node runs, what it contains, and what this machine enforces for it.

    The exit status is 0 if the node runs, else 3. A node that recovers its store does not run yet.
    """
    with reporting("dios-node status", as_json=as_json):
        path = socket_of(data, node)
        running = daemon.find(path)
        if running is None:
            place = data or data_directory(path)
            recovery = None if place is None else daemon.find_recovery(place / PID_FILE_NAME)
            if recovery is not None:
                _show_recovery(recovery, path, as_json=as_json)
            elif as_json:
                absent: AbsentDaemonRow = {"running": False, "socket": str(path)}
                write_json(absent)
            else:
                facts([("node", "not running"), ("socket", str(path))])
                say(f"next: {start_command(path)}")
            raise typer.Exit(NOT_RUNNING)
        with time_limit(), connect(str(path), groups=()) as connected:
            info, cluster = connected.info(), connected.nodes()
        if as_json:
            row: RunningDaemonRow = {
                "running": True,
                "pid": running.pid,
                "socket": str(running.socket),
                "version": info.version,
                "counts": info.counts,
                "guarantees": info.guarantees,
                "fitness": info.fitness.name.lower(),
                "nodes": {member.name: member.status.name.lower() for member in cluster},
            }
            write_json(row)
        else:
            _show_running(running, info, cluster)
        if fit and info.fitness is not Fitness.FIT:
            raise typer.Exit(FAILED)


def _show_running(running: daemon.DaemonProcess, info: Info, cluster: list[Member]) -> None:
    facts(
        [
            ("node", f"running, process {running.pid}, version {info.version or 'unknown'}"),
            ("socket", str(running.socket)),
            (PURE_TASKS, info.guarantees.get(PURE_TASKS, info.fitness.name.lower())),
            *_of_cluster(cluster),
            *((name, str(number)) for name, number in sorted(info.counts.items())),
            *((f"{name}:", text) for name, text in sorted(info.guarantees.items()) if name != PURE_TASKS),
        ]
    )


def _show_recovery(recovery: daemon.Recovery, path: Path, *, as_json: bool) -> None:
    if as_json:
        shown: AbsentDaemonRow = {
            "running": False,
            "socket": str(path),
            "recovering": {
                "pid": recovery.pid,
                "objects_done": recovery.done,
                "objects": recovery.every,
            },
        }
        write_json(shown)
        return
    done = f"index of {recovery.done:,} of {counted(recovery.every, 'stored object')}"
    facts([("node", f"recovering, process {recovery.pid}"), ("done", done), ("socket", str(path))])
    say("next: wait until it answers; its log is node.log in the data directory")


def _of_cluster(members: list[Member]) -> list[tuple[str, str]]:
    """Return a line about the cluster, or nothing for a node without one."""
    if not members:
        return []
    usable = sum(member.usable for member in members)
    answering = f"{usable} of {counted(len(members), 'node')} answer{'s' if usable == 1 else ''}"
    return [("cluster", f"this is {members[0].name}; {answering}: dios node ls")]


@app.command(epilog="\b\nExamples:\n  dios-node stop\n  dios-node stop --data ./node0")
def stop(*, data: MaybeData = None, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Stop a node: end its tasks and close its store.

    The node is asked first; if it does not end, it gets SIGTERM and at last SIGKILL. Acknowledged objects are
    kept in every case.
    """
    with reporting("dios-node stop", as_json=as_json):
        path = socket_of(data, node)
        running = daemon.find(path)
        if running is None:
            if as_json:
                absent: NotStoppedDaemonRow = {"stopped": False, "socket": str(path)}
                write_json(absent)
            else:
                facts([("node", "was not running"), ("socket", str(path))])
            return

        def ask() -> None:
            with time_limit(), connect(str(path), groups=()) as connected:
                connected.shutdown()

        with waiting("stopping the node"):
            how = daemon.stop(running, ask=ask, say=say)
        if as_json:
            stopped: StoppedDaemonRow = {"stopped": True, "how": str(how), "pid": running.pid}
            write_json(stopped)
        else:
            facts([("node", f"stopped ({how}), process {running.pid}")])


def _span(text: str, option: str) -> int:
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise InvalidError(f"{option} {text} is not valid: give {error}") from None


@app.command(
    epilog="\b\nExamples:\n  dios-node restart\n  dios-node restart --data /var/lib/dios --within 30s\n"
    "  dios-node restart --data ./node0 --json"
)
def restart(
    *,
    data: MaybeData = None,
    node: NodeOption = None,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="Give up waiting after TIME; the node goes on.")
    ] = "2min",
    as_json: JsonOption = False,
) -> None:
    """Replace the program of a running node by the installed one; tasks, sessions and objects go on.

    For a new release, or changed settings. The new program is tried first. If it cannot continue, the node
    goes on as before, and the exit status is 1. Calls wait for about half a second meanwhile.
    """
    with reporting("dios-node restart", as_json=as_json):
        path = socket_of(data, node)
        running = daemon.find(path)
        if running is None:
            if as_json:
                absent: NotRestartedDaemonRow = {"restarted": False, "socket": str(path)}
                write_json(absent)
            say(f"no node runs at {path}; next: {start_command(path)}")
            raise typer.Exit(NOT_RUNNING)
        if data is None:
            with time_limit(), connect(str(path), groups=()) as connected:
                data = Path(connected.info().node)
        limit_ms = _span(within, "--within")
        with nullcontext(_quiet) if as_json else progress("restarting the node") as show:
            done = restart_status.request(running.pid, data, limit_ms=limit_ms, show=show)
        if as_json:
            row: RestartedDaemonRow = {
                "restarted": True,
                "pid": done.pid,
                "version": done.version,
                "pause_ms": done.pause_ms,
                "tasks": done.tasks,
                "sessions": done.sessions,
            }
            write_json(row)
            return
        facts(
            [
                ("node", f"goes on as process {done.pid}, version {done.version} {done.detail}".rstrip()),
                ("kept", f"{counted(done.tasks, 'task')}, {counted(done.sessions, 'session')}"),
                ("pause", f"{done.pause_ms} ms"),
            ]
        )


app.add_typer(inspection.app)
app.add_typer(check.app)
app.add_typer(orphans.app)
app.add_typer(config.node_app)
app.add_typer(joining.app)
app.add_typer(trust.app, name="trust")


def main() -> None:
    """Run the command ``dios-node``."""
    run("dios-node", lambda: app)


if __name__ == "__main__":
    main()
