"""``dios service``: programs of which the cluster keeps a number of replicas running."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    bytes_output,
    counted,
    facts,
    reporting,
    say,
    span_text,
    table,
    write_json,
)
from dios.cli.nodes.members import silent
from dios.cli.tasks.control import pour
from dios.cli.tasks.work_options import (
    CpusOption,
    DeviceOption,
    DiskOption,
    NetOption,
    ReserveMemoryOption,
    devices_of,
    needs_of,
)
from dios.client.program import file_label
from dios.errors import EndOfStreamError, InvalidError, TimeLimitError
from dios.lib.supervised import service_files
from dios.lib.supervised.autoscaling import ServiceAutoscaler
from dios.lib.supervised.service_files import ServiceFile
from dios.lib.supervised.services import ReplicaStatus, ServiceProgram, Services, ServiceStatus
from dios.node.limit_text import limits_of_run, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dios.wire.messages import Work

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Services: programs of which the cluster keeps a number of replicas running.",
)

_SUFFIX: Final = ".toml"
_HEALTH: Final = "Checks of its health"
_PROGRAM: Final = "Its program"
_LOAD_COMMAND_S: Final = 30.0
"""The time limit of the command that prints the load."""

NameArgument = Annotated[str, typer.Argument(metavar="SERVICE", help="The name of the service.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A program, or a description of the service (.toml).")
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        "--replicas", metavar="N", min=0, max=limits.SERVICE_REPLICAS_MAX, help="Its number; default: 1."
    ),
]


@app.command(
    epilog="\b\nExamples:\n  dios service create web.py --replicas 3 --cpus 0.5\n"
    "  dios service create web.toml"
)
def create(
    file: FileArgument,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="Arguments of the program.")
    ] = None,
    *,
    name: Annotated[
        str, typer.Option("--name", metavar="SERVICE", help="Its name; default: FILE without its ending.")
    ] = "",
    replicas: ReplicasOption = None,
    cpus: CpusOption = 0.0,
    reserve_memory: ReserveMemoryOption = "",
    disk_io: DiskOption = "",
    net: NetOption = "",
    device: DeviceOption = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="The memory limit of a replica: 512MiB.")
    ] = "",
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="ALIAS", help="A group the replicas are members of."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="FILE=NAME", help="An object to copy, as /inputs/FILE."),
    ] = None,
    network: Annotated[
        bool, typer.Option("--network", help="Let the replicas listen and connect on their nodes.")
    ] = False,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            metavar="NAME",
            help="Start from this template of the nodes.",
            rich_help_panel=_PROGRAM,
        ),
    ] = "",
    check: Annotated[
        str,
        typer.Option(
            "--check",
            metavar="FILE",
            help="A program that ends with 0 for a healthy replica.",
            rich_help_panel=_HEALTH,
        ),
    ] = "",
    check_every: Annotated[
        float,
        typer.Option(
            "--check-every", metavar="SECONDS", min=0.1, help="Between two checks.", rich_help_panel=_HEALTH
        ),
    ] = limits.SERVICE_CHECK_EVERY_MS / 1000,
    healthy_after: Annotated[
        float,
        typer.Option(
            "--healthy-after",
            metavar="SECONDS",
            min=0,
            help="The least time before a replica is healthy.",
            rich_help_panel=_HEALTH,
        ),
    ] = limits.SERVICE_HEALTHY_MS / 1000,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a service: from now on the cluster keeps its replicas running.

    A replica that ends is started again, after a pause that doubles while it keeps ending. One that is lost
    with its node is started on another. The service goes on without this command, without its node, and after
    a restart of all nodes, until `dios service rm`. Its inputs are copied when it is created.
    """
    with reporting("dios service create", as_json=as_json):
        if file.suffix == _SUFFIX:
            needs = (cpus, reserve_memory, disk_io, net, device, memory, network, template, check)
            if any((arguments, name, group, inputs, *needs)) or replicas is not None:
                raise InvalidError("the file describes the whole service: leave out the other options")
            description = service_files.read(file)
        else:
            description = ServiceFile(
                name or file.stem.lower().replace("_", "-"),
                str(file.absolute()),
                1 if replicas is None else replicas,
                tuple(arguments or ()),
                dict(map(_input, inputs or ())),
                tuple(group or ()),
                cpus,
                reserve_memory,
                disk_io,
                net,
                devices_of(device or ()),
                memory,
                network,
                template,
                str(Path(check).absolute()) if check else "",
                check_every,
                healthy_after,
            )
        with opened(node, description.groups) as place:
            program = _program(place, file, description)
            Services(place.node).create(description.name, program, replicas=description.replicas)
            _confirm(
                description.name, f"created with {counted(description.replicas, 'replica')}", as_json=as_json
            )
            if not as_json:
                say(f"next: dios service describe {description.name}")


@app.command(epilog="\b\nExamples:\n  dios service ls\n  dios service ls --json")
def ls(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List your services, with the numbers of replicas that run and that are wanted."""
    with reporting("dios service ls", as_json=as_json), opened(node) as place:
        statuses = Services(place.node).statuses()
        if as_json:
            write_json([_described(status) for status in statuses])
        elif statuses:
            rows = [
                (
                    status.name,
                    f"{status.running}/{status.wanted}",
                    str(status.generation),
                    status.label,
                    _state(status),
                )
                for status in statuses
            ]
            table(("SERVICE", "RUNNING", "VERSION", "PROGRAM", "STATE"), rows, right=("RUNNING", "VERSION"))
        else:
            say("you have no service; `dios service create` makes one")
        _warn_of_silent(place, statuses)


@app.command(epilog="\b\nExamples:\n  dios service describe web")
def describe(service: NameArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show the replicas of a service: their nodes, and why one does not run."""
    with reporting("dios service describe", as_json=as_json), opened(node) as place:
        status = Services(place.node).describe(service)
        if as_json:
            write_json(_described(status))
        else:
            facts(
                [
                    ("service", status.name),
                    ("program", status.label),
                    ("version", str(status.generation)),
                    ("state", _state(status)),
                    ("leader", status.leader or "-"),
                ]
            )
            head = ("REPLICA", "VERSION", "TASK", "NODE", "FOR", "RESTARTS", "LAST END")
            table(head, [_row(replica) for replica in status.replicas], right=("VERSION", "FOR", "RESTARTS"))
        _warn_of_silent(place, [status])


@app.command(epilog="\b\nExamples:\n  dios service scale web 5")
def scale(
    service: NameArgument,
    replicas: Annotated[
        int, typer.Argument(metavar="N", min=0, max=limits.SERVICE_REPLICAS_MAX, help="The number to keep.")
    ],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the number of replicas. Those with the highest numbers are stopped first."""
    with reporting("dios service scale", as_json=as_json), opened(node) as place:
        Services(place.node).scale(service, replicas)
        _confirm(service, f"has {counted(replicas, 'replica')} from now on", as_json=as_json)


@app.command(
    epilog="\b\nExamples:\n  dios service autoscale web --capacity 1000 --load-command ./requests-per-second"
)
def autoscale(
    service: NameArgument,
    load_command: Annotated[
        str,
        typer.Option(
            "--load-command",
            metavar="COMMAND",
            help="A command of this machine that prints the present load as one number.",
        ),
    ],
    capacity: Annotated[
        float, typer.Option("--capacity", metavar="LOAD", help="The load that one replica can serve.")
    ],
    *,
    least: Annotated[
        int, typer.Option("--least", min=0, max=limits.SERVICE_REPLICAS_MAX, help="The fewest replicas.")
    ] = 1,
    most: Annotated[
        int, typer.Option("--most", min=0, max=limits.SERVICE_REPLICAS_MAX, help="The most replicas.")
    ] = 4,
    grow_above: Annotated[
        float,
        typer.Option("--grow-above", metavar="SHARE", help="Add a replica above this share of capacity."),
    ] = 0.55,
    shrink_below: Annotated[
        float, typer.Option("--shrink-below", metavar="SHARE", help="Remove a replica below this share.")
    ] = 0.15,
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=3600.0, metavar="SECONDS", help="Time between checks.")
    ] = 5.0,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="End after N checks; default: never.")
    ] = None,
    node: NodeOption = None,
) -> None:
    """Change the number of replicas with the load, until Ctrl-C (thesis §8.2.2).

    Each check adds or removes at most one replica. A command that fails leaves the number as it is.
    """
    with reporting("dios service autoscale"), opened(node) as place:
        with needing_extra("cluster", "the rule of the Green cost model"):
            from dios.firmament.models.green import ServiceScaler  # noqa: PLC0415 - needs an extra
        rule = ServiceScaler(least, most, grow_above, shrink_below)
        scaler = ServiceAutoscaler(Services(place.node), service, rule, capacity)
        wanted = Services(place.node).describe(service).wanted
        step = 0
        while steps is None or step < steps:
            if step:
                time.sleep(every)
            step += 1
            load = _load_of(load_command)
            if load is not None and (now := scaler.step(load)) != wanted:
                say(f"{service}: {counted(now, 'replica')} for a load of {load:g}")
                wanted = now


def _load_of(command: str) -> float | None:
    """Return the number that a command prints, or None after a message if it prints none."""
    try:
        done = subprocess.run(
            shlex.split(command), stdout=subprocess.PIPE, timeout=_LOAD_COMMAND_S, check=True
        )
        return float(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say(f"the load is not known: {command}: {error}")
        return None


@app.command(epilog="\b\nExamples:\n  dios service update web web.py\n  dios service update web web.toml")
def update(
    service: NameArgument, file: FileArgument, *, node: NodeOption = None, as_json: JsonOption = False
) -> None:
    """Replace the program of a service, one replica after another.

    A new replica is started next to each present one, which is stopped when the new one is healthy. So a bad
    program costs no replica; `dios service rollback` returns from it. With a program the service keeps its
    arguments, inputs and needs; a file (.toml) replaces them, too, but not the number of replicas.
    """
    with reporting("dios service update", as_json=as_json):
        description = service_files.read(file) if file.suffix == _SUFFIX else None
        if description is not None and description.name != service:
            raise InvalidError(f"the file describes the service {description.name!r}, not {service!r}")
        with opened(node, () if description is None else description.groups) as place:
            services = Services(place.node)
            if description is None:
                services.update_program(service, file, label=file.name)
            else:
                services.update(service, _program(place, file, description))
            _confirm(service, "is updated, one replica after another", as_json=as_json)


@app.command(epilog="\b\nExamples:\n  dios service rollback web")
def rollback(service: NameArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Return to the program, inputs and needs before the last update."""
    with reporting("dios service rollback", as_json=as_json), opened(node) as place:
        Services(place.node).rollback(service)
        _confirm(service, "returns to the version before", as_json=as_json)


@app.command(epilog="\b\nExamples:\n  dios service logs web\n  dios service logs web --replica 0 --follow")
def logs(
    service: NameArgument,
    *,
    replica: Annotated[
        int | None, typer.Option("--replica", metavar="N", min=0, help="Only this replica.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the replica ends; needs --replica.")
    ] = False,
    node: NodeOption = None,
) -> None:
    """Print the output of the replicas that run, each after a line with its number and node.

    `dios ps --all` lists replicas that have ended, and `dios logs` prints their output.
    """
    with reporting("dios service logs"), opened(node) as place:
        if follow and replica is None:
            raise InvalidError("choose the replica to follow with --replica")
        services = Services(place.node)
        status = services.describe(service)
        shown = [
            candidate
            for candidate in status.replicas
            if candidate.task is not None and replica in {None, candidate.slot}
        ]
        if not shown:
            say("no such replica runs" if replica is not None else "no replica runs")
        output = bytes_output(sys.stdout)
        for shown_replica in shown:
            task = services.task(shown_replica)
            if task is None:
                continue
            if replica is None:
                host = "" if shown_replica.task is None else shown_replica.task.node
                heading = f"==> {service}.{shown_replica.slot} version {shown_replica.generation} on {host}\n"
                output.write(heading.encode())
            console = task.console()
            if follow:
                pour(console, output)
                continue
            with contextlib.suppress(EndOfStreamError, TimeLimitError):
                while True:
                    output.write(console.receive(timeout=0))
            output.flush()


@app.command(epilog="\b\nExamples:\n  dios service rm web")
def rm(service: NameArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """End a service: stop its replicas, and delete its programs and the copies of its inputs."""
    with reporting("dios service rm", as_json=as_json), opened(node) as place:
        Services(place.node).remove(service)
        _confirm(service, "is removed; its replicas are stopped", as_json=as_json)


def _program(place: CommandContext, file: Path, description: ServiceFile) -> ServiceProgram:
    path = file.parent / description.program
    labels = [file_label(label) for label in description.inputs]
    return ServiceProgram(
        path,
        description.args,
        {label: place.object(name) for label, name in description.inputs.items()},
        labels,
        tuple(place.group(alias) for alias in description.groups),
        _work(description),
        limits_of_run((), memory_bytes=_size(description.memory), cpu_ms=0),
        description.network,
        description.template,
        path.name,
        file.parent / description.check if description.check else None,
        description.check_every,
        description.healthy_after,
    )


def _work(asked: ServiceFile) -> Work:
    devices = [f"{kind}={count}" for kind, count in asked.devices.items()]
    return needs_of(
        cpus=asked.cpus, reserve_memory=asked.mem, disk_io=asked.disk_io, net=asked.net, device=devices
    ).work


def _size(text: str) -> int:
    try:
        return parse_size(text) if text else 0
    except ValueError as error:
        raise InvalidError(f"the memory limit must be {error}, not {text!r}") from None


def _input(text: str) -> tuple[str, str]:
    label, named, name = text.partition("=")
    if not named or not name:
        raise InvalidError(f"--input {text!r} needs the name of a file and a NAME, like config=config.json")
    return label, name


def _state(status: ServiceStatus) -> str:
    if status.updating:
        return f"updating from version {status.previous_generation}"
    if status.running < status.wanted:
        return "starting"
    return "complete"


def _row(replica: ReplicaStatus) -> tuple[str, ...]:
    task = replica.task
    return (
        str(replica.slot),
        str(replica.generation),
        ("pauses" if replica.waits else "-") if task is None else task.fingerprint,
        "-" if task is None else task.node,
        "-" if task is None else span_text(time.time_ns() - task.started_ns),
        str(replica.restarts),
        replica.reason or "-",
    )


class ServiceNameRow(TypedDict):
    """A service that was made or changed."""

    service: str


class ServiceReplicaRow(TypedDict):
    """A replica of a service: its task and node while it runs, and the reason of its last end."""

    replica: int
    version: int
    task: str | None
    node: str | None
    restarts: int
    reason: str


class ServiceRow(ServiceNameRow):
    """A service; ``incomplete`` if a node that may have more of its replicas did not answer."""

    program: str
    wanted: int
    running: int
    version: int
    updating: bool
    leader: str
    incomplete: bool
    replicas: list[ServiceReplicaRow]


def _described(status: ServiceStatus) -> ServiceRow:
    return {
        "service": status.name,
        "program": status.label,
        "wanted": status.wanted,
        "running": status.running,
        "version": status.generation,
        "updating": status.updating,
        "leader": status.leader,
        "incomplete": status.incomplete,
        "replicas": [
            {
                "replica": replica.slot,
                "version": replica.generation,
                "task": None if replica.task is None else replica.task.fingerprint,
                "node": None if replica.task is None else replica.task.node,
                "restarts": replica.restarts,
                "reason": replica.reason,
            }
            for replica in status.replicas
        ],
    }


def _confirm(service: str, outcome: str, *, as_json: bool) -> None:
    if as_json:
        row: ServiceNameRow = {"service": service}
        write_json(row)
    else:
        say(f"service {service} {outcome}")


def _warn_of_silent(place: CommandContext, statuses: Sequence[ServiceStatus]) -> None:
    if any(status.incomplete for status in statuses):
        who = silent(place.node.nodes())
        say(f"{who} did not answer, so replicas there are not shown; see `dios node ls`")
