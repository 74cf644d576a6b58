"""``dios-node``: start, inspect, stop and check the daemon of this machine.

Commands for objects and tasks are in ``dios.cli.main``.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Literal

import typer
from msgspec import UNSET, UnsetType

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import FAILED, NOT_RUNNING, counted, progress, say, waiting, write_json
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.common.streams import run
from dios.cli.nodes import check, config, inspection, joining, orphans, trust
from dios.cli.nodes.cluster_secret import secret_text
from dios.cli.nodes.fitness import wait_known
from dios.cli.nodes.setting_options import SHOWN, own_options, settings_given
from dios.cli.nodes.target import MAYBE_DATA, socket_of, time_limit
from dios.client.locate import PID_FILE_NAME, default_socket
from dios.client.node_socket import data_directory, start_command
from dios.client.ops.cluster import Member
from dios.client.sync.node import connect
from dios.errors import DiosError, InvalidError
from dios.host.confinement.mechanisms import PURE_TASKS
from dios.node import daemon, restart_status
from dios.node.limit_text import parse_time_ms
from dios.node.settings import load
from dios.wire.types import Fitness

app: Final = CommandApplication(
    name="dios-node",
    help="The DIOS node of this machine: start, inspect and stop it, and check its data.",
    epilog="\b\nExamples:\n  dios-node start --data ./node0 --detach\n  dios-node status\n  dios-node stop\n"
    "  dios-node check --data ./node0\n  dios-node init --data ./node0 --listen 10.0.0.1:7400",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class StartedDaemonRow(Row):
    """A node that was started with --detach.

    ``fitness`` is its ability to run pure tasks (fit, unknown or unfit), and ``pure_tasks`` says more.
    """

    pid: int
    data: str
    socket: str
    fitness: str
    pure_tasks: str


class RecoveryRow(Row):
    """A node that recovers its store: the objects that are in its index again, and all of them."""

    pid: int
    objects_done: int
    objects: int


class AbsentDaemonRow(Row):
    """A node that does not run, or does not answer because it recovers its store."""

    running: Literal[False]
    socket: str
    recovering: RecoveryRow | UnsetType = UNSET


class RunningDaemonRow(Row):
    """A running node: what it contains, what its machine enforces, and the states of its cluster's nodes.

    ``certificate`` says how long its certificate is valid; empty without a cluster.
    """

    running: Literal[True]
    pid: int
    socket: str
    version: str
    counts: dict[str, int]
    guarantees: dict[str, str]
    fitness: str
    nodes: dict[str, str]
    certificate: str


class StoppedDaemonRow(Row):
    """A node that was stopped, and ``how``."""

    stopped: Literal[True]
    how: str
    pid: int


class NotStoppedDaemonRow(Row):
    """A node that was not running."""

    stopped: Literal[False]
    socket: str


class RestartedDaemonRow(Row):
    """A node whose program was replaced, and the milliseconds for which calls waited."""

    restarted: Literal[True]
    pid: int
    version: str
    pause_ms: int
    tasks: int
    sessions: int


class NotRestartedDaemonRow(Row):
    """A node that was not running."""

    restarted: Literal[False]
    socket: str


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\b\nExamples:\n  dios-node start --data ./node0 --detach\n"
    "  dios-node start --data /var/lib/dios --log-format json  (for services)\n"
    "  DIOS_POOL_SIZE=16 dios-node start --data ./node0 --detach\n"
    "  dios-node start --data ./node1 --detach --join 10.0.0.1:7400 \\\n"
    "      --invitation-file invitation --rack r2"
    "\f\n\n\b\nSettings, each also in DIR/node.toml or the environment (docs/settings.md):\n"
    + "\n".join(f"  --{key:<22} {text}" for key, text in SHOWN.items()),
    json=StartedDaemonRow,
    note="With --detach.",
)
def start(
    context: typer.Context,
    *,
    data: Path = option("--data DIR", "The node's data directory; created if missing."),
    detach: bool = option("--detach", "Return once the node answers; its log is DIR/node.log."),
    config: Path | None = option("--config FILE", "Read FILE instead of DIR/node.toml."),
    join: str = option(
        "--join HOST:PORT", "Join the cluster of the node at this address. Later starts remember it."
    ),
    invitation: str = option(
        "--invitation TEXT",
        "The invitation to join with. All users of this machine can see it while the command runs; use "
        "--invitation-file or DIOS_TOKEN on shared machines.",
    ),
    invitation_file: Path | None = option(
        "--invitation-file FILE", "A file with the invitation to join with."
    ),
    accept_lost_audit: bool = option(
        "--accept-lost-audit", "Start though audit records are lost or changed; others record that."
    ),
    output: OutputOptions,
) -> None:
    """Start a node on the data directory DIR; with --join, as a new node of a cluster.

    A node joins once: its first start gets its certificate and writes name, rack and addresses to
    DIR/node.toml. On later starts --join has no effect and can be left out.
    """
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
        command = daemon.command(data, config=config, flags=flags, accept_lost_audit=accept_lost_audit)
        os.execv(command[0], command)  # noqa: S606 - our own interpreter; no shell is wanted
    with nullcontext(_quiet) if output.as_json else progress("starting the node") as show:
        running = daemon.start_detached(
            data,
            config=config,
            flags=flags,
            accept_lost_audit=accept_lost_audit,
            recovering=lambda done, every: show(f"index of {done:,} of {counted(every, 'stored object')}"),
        )
        known = wait_known({"": running.socket}, report=show)[""]
    default = default_socket().resolve() == running.socket.resolve()
    other = f"another node is the default: add --node {data} to commands, or set DIOS_NODE"
    output.print_row(
        StartedDaemonRow(
            running.pid, str(settings.data), str(running.socket), known.fitness.name.lower(), known.text
        ),
        *(() if default else (other,)),
        "next: dios group create NAME, then dios put FILE --group NAME; see dios --help",
        facts={
            "node": f"started, process {running.pid}",
            "data": str(settings.data),
            "socket": str(running.socket),
            PURE_TASKS: known.text,
        },
    )


def _quiet(word: str) -> None:
    """Show nothing: the output is for programs."""
    del word


@app.command(
    examples="dios-node status\ndios-node status --data ./node0 --json\n"
    "dios-node status --fit      (for health checks)",
    json=(RunningDaemonRow, AbsentDaemonRow),
)
def status(
    *,
    data: Path | None = MAYBE_DATA,
    fit: bool = option("--fit", "Exit status 1 if the node is not known to be fit for pure tasks."),
    common: CommonOptions,
) -> None:
    """Show if a node runs, what it contains, and what this machine enforces for it.

    The exit status is 0 if the node runs, else 3. A node that recovers its store does not run yet.
    """
    path = socket_of(data, common.node)
    running = daemon.find(path)
    if running is None:
        place = data or data_directory(path)
        recovery = None if place is None else daemon.find_recovery(place / PID_FILE_NAME)
        if recovery is not None:
            recovering = RecoveryRow(recovery.pid, recovery.done, recovery.every)
            done = f"index of {recovery.done:,} of {counted(recovery.every, 'stored object')}"
            common.print_row(
                AbsentDaemonRow(running=False, socket=str(path), recovering=recovering),
                "next: wait until it answers; its log is node.log in the data directory",
                facts={
                    "node": f"recovering, process {recovery.pid}",
                    "done": done,
                    "socket": str(path),
                },
            )
        else:
            common.print_row(
                AbsentDaemonRow(running=False, socket=str(path)),
                f"next: {start_command(path)}",
                facts={"node": "not running", "socket": str(path)},
            )
        raise typer.Exit(NOT_RUNNING)
    with time_limit(), connect(str(path), groups=()) as connected:
        info, cluster = connected.info(), connected.nodes()
    nodes = {member.name: member.status.name.lower() for member in cluster}
    certificate = _certificate_text(Path(info.node)) if nodes else ""
    common.print_row(
        RunningDaemonRow.of(
            info,
            running=True,
            pid=running.pid,
            socket=str(running.socket),
            nodes=nodes,
            certificate=certificate,
        ),
        facts={
            "node": f"running, process {running.pid}, version {info.version or 'unknown'}",
            "socket": str(running.socket),
            PURE_TASKS: info.guarantees.get(PURE_TASKS, info.fitness.name.lower()),
            "cluster": _cluster_text(cluster),
            "certificate": certificate or None,
            "secret": secret_text(cluster) if len(cluster) > 1 else None,
            **dict(sorted(info.counts.items())),
            **{f"{name}:": text for name, text in sorted(info.guarantees.items()) if name != PURE_TASKS},
        },
    )
    if fit and info.fitness is not Fitness.FIT:
        raise typer.Exit(FAILED)


def _certificate_text(data: Path) -> str:
    """Return how long the certificate of the node in ``data`` is valid; empty if it cannot be read."""
    from dios.node.certificate_keeper import own_certificate  # noqa: PLC0415 - certificates load slowly

    try:
        state = own_certificate(data)
    except (DiosError, OSError):
        return ""
    return "" if state is None else state.text


def _cluster_text(members: list[Member]) -> str | None:
    """Return a line about the cluster; None for a node without one."""
    if not members:
        return None
    usable = sum(member.usable for member in members)
    answering = f"{usable} of {counted(len(members), 'node')} answer{'s' if usable == 1 else ''}"
    return f"this is {members[0].name}; {answering}: dios node ls"


@app.command(
    examples="dios-node stop\ndios-node stop --data ./node0", json=(StoppedDaemonRow, NotStoppedDaemonRow)
)
def stop(*, data: Path | None = MAYBE_DATA, common: CommonOptions) -> None:
    """Stop a node: end its tasks and close its store.

    The node is asked first; if it does not end, it gets SIGTERM and at last SIGKILL. Acknowledged objects are
    kept in every case.
    """
    path = socket_of(data, common.node)
    running = daemon.find(path)
    if running is None:
        common.print_row(
            NotStoppedDaemonRow(stopped=False, socket=str(path)),
            facts={"node": "was not running", "socket": str(path)},
        )
        return

    def ask() -> None:
        with time_limit(), connect(str(path), groups=()) as connected:
            connected.shutdown()

    with waiting("stopping the node"):
        how = daemon.stop(running, ask=ask, say=say)
    common.print_row(
        StoppedDaemonRow(stopped=True, how=str(how), pid=running.pid),
        facts={"node": f"stopped ({how}), process {running.pid}"},
    )


def _span(text: str, option: str) -> int:
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise InvalidError(f"{option} {text} is not valid: give {error}") from None


@app.command(
    examples="dios-node restart\ndios-node restart --data /var/lib/dios --within 30s\n"
    "dios-node restart --data ./node0 --json",
    json=(RestartedDaemonRow, NotRestartedDaemonRow),
)
def restart(
    *,
    data: Path | None = MAYBE_DATA,
    within: str = option("--within TIME", "Give up waiting after TIME; the node goes on.", default="2min"),
    common: CommonOptions,
) -> None:
    """Replace the program of a running node by the installed one; tasks, sessions and objects go on.

    For a new release, or changed settings. The new program is tried first. If it cannot continue, the node
    goes on as before, and the exit status is 1. Calls wait for about half a second meanwhile.
    """
    path = socket_of(data, common.node)
    running = daemon.find(path)
    if running is None:
        if common.as_json:
            write_json(NotRestartedDaemonRow(restarted=False, socket=str(path)))
        say(f"no node runs at {path}; next: {start_command(path)}")
        raise typer.Exit(NOT_RUNNING)
    if data is None:
        with time_limit(), connect(str(path), groups=()) as connected:
            data = Path(connected.info().node)
    limit_ms = _span(within, "--within")
    with nullcontext(_quiet) if common.as_json else progress("restarting the node") as show:
        done = restart_status.request(running.pid, data, limit_ms=limit_ms, show=show)
    common.print_row(
        RestartedDaemonRow.of(done, restarted=True),
        facts={
            "node": f"goes on as process {done.pid}, version {done.version} {done.detail}".rstrip(),
            "kept": f"{counted(done.tasks, 'task')}, {counted(done.sessions, 'session')}",
            "pause": f"{done.pause_ms} ms",
        },
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
