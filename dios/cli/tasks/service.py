"""``dios service``: programs of which the cluster keeps a number of replicas running."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    Cells,
    Number,
    bytes_output,
    counted,
    say,
    span_text,
)
from dios.cli.common.results import NODE_OPTION, CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.members import warn_of_silent
from dios.cli.nodes.setting_options import size_of
from dios.cli.tasks.control import pour
from dios.cli.tasks.work_options import NeedsOptions, ReservationOptions, devices_of
from dios.client.program import file_label
from dios.errors import EndOfStreamError, InvalidError, TimeLimitError
from dios.lib.supervised import service_files
from dios.lib.supervised.autoscaling import ServiceAutoscaler
from dios.lib.supervised.service_files import ServiceFile
from dios.lib.supervised.services import ReplicaStatus, ServiceProgram, Services, ServiceStatus
from dios.node.limit_text import limits_of_run

if TYPE_CHECKING:
    from collections.abc import Sequence

from dios.wire.messages import Work
from dios.wire.schema_words import fault_in_words

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Services: programs of which the cluster keeps a number of replicas running.",
)

_SUFFIX: Final = ".toml"
_HEALTH: Final = "Checks of its health"
_LOAD_COMMAND_S: Final = 30.0
"""The time limit of the command that prints the load."""

NAME_ARGUMENT: Final[str] = argument("SERVICE", "The name of the service.")
FILE_ARGUMENT: Final[Path] = argument("FILE", "A program, or a description of the service (.toml).")


class ServiceNameRow(Row):
    """A service that was made or changed."""

    service: str


class ServiceReplicaRow(Row):
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


class ServiceOptions(ReservationOptions):
    """The options of a service that no file describes: the fields of ``ServiceFile``."""

    name: str = option("--name SERVICE", "Its name; default: FILE without its ending.")
    replicas: int | None = option(
        "--replicas N", "Its number; default: 1.", min=0, max=limits.SERVICE_REPLICAS_MAX
    )
    memory: str = option("--memory SIZE", "The memory limit of a replica: 512MiB.")
    groups: list[str] | None = option("-g --group ALIAS", "A group the replicas are members of.")
    inputs: list[str] | None = option("-i --input FILE=NAME", "An object to copy, as /inputs/FILE.")
    network: bool = option("--network", "Let the replicas listen and connect on their nodes.")
    template: str = option("--template NAME", "Start from this template of the nodes.", section="Its program")
    check: str = option("--check FILE", "A program that ends with 0 for a healthy replica.", section=_HEALTH)
    check_every: float = option(
        "--check-every SECONDS",
        "Between two checks.",
        default=limits.SERVICE_CHECK_EVERY_MS / 1000,
        section=_HEALTH,
        min=0.1,
        max=limits.SERVICE_SPAN_MS_MAX / 1000,
    )
    healthy_after: float = option(
        "--healthy-after SECONDS",
        "The least time before a replica is healthy.",
        default=limits.SERVICE_HEALTHY_MS / 1000,
        section=_HEALTH,
        min=0,
        max=limits.SERVICE_SPAN_MS_MAX / 1000,
    )

    def described(self, file: Path, arguments: list[str] | None) -> ServiceFile:
        """Return the service with this program. Raise InvalidError."""
        given = {
            **{name: getattr(self, name, None) for name in ServiceFile.__struct_fields__},
            "name": self.name or file.stem.lower().replace("_", "-"),
            "program": str(file.absolute()),
            "replicas": 1 if self.replicas is None else self.replicas,
            "args": arguments or (),
            "inputs": dict(map(_input, self.inputs or ())),
            "groups": self.groups or (),
            "mem": self.reserve_memory,
            "devices": devices_of(self.device or ()),
            "check": str(Path(self.check).absolute()) if self.check else "",
        }
        try:
            return msgspec.convert(given, ServiceFile)
        except msgspec.ValidationError as error:
            raise InvalidError(f"the service is invalid: {fault_in_words(error)}") from None


@app.command(
    examples="dios service create web.py --replicas 3 --cpus 0.5\ndios service create web.toml",
    json=ServiceNameRow,
)
def create(
    file: Path = FILE_ARGUMENT,
    arguments: list[str] | None = argument("[-- ARGS...]", "Arguments of the program."),
    *,
    options: ServiceOptions,
    common: CommonOptions,
) -> None:
    """Create a service: from now on the cluster keeps its replicas running.

    A replica that ends is started again, after a pause that doubles while it keeps ending. One that is lost
    with its node is started on another. The service goes on without this command, without its node, and after
    a restart of all nodes, until `dios service rm`. Its inputs are copied when it is created.
    """
    if file.suffix == _SUFFIX:
        if arguments or options.given():
            raise InvalidError("the file describes the whole service: leave out the other options")
        description = service_files.read(file)
    else:
        description = options.described(file, arguments)
    with opened(common.node, description.groups) as place:
        program = _program(place, file, description)
        Services(place.node).create(description.name, program, replicas=description.replicas)
        _confirm(
            description.name,
            f"created with {counted(description.replicas, 'replica')}",
            common,
            f"next: dios service describe {description.name}",
        )


@app.command(examples="dios service ls\ndios service ls --json", json=[ServiceRow])
def ls(common: CommonOptions) -> None:
    """List your services, with the numbers of replicas that run and that are wanted."""
    with opened(common.node) as place:
        statuses = Services(place.node).statuses()
        common.print_rows(
            statuses,
            lambda status: {
                "SERVICE": status.name,
                "RUNNING": Number(f"{status.running}/{status.wanted}"),
                "VERSION": status.generation,
                "PROGRAM": status.label,
                "STATE": _state(status),
            },
            described=_described,
            empty="you have no service; `dios service create` makes one",
        )
        _warn_of_silent(place, statuses)


@app.command(examples="dios service describe web", json=ServiceRow)
def describe(service: str = NAME_ARGUMENT, *, common: CommonOptions) -> None:
    """Show the replicas of a service: their nodes, and why one does not run."""
    with opened(common.node) as place:
        status = Services(place.node).describe(service)
        common.print_row(
            _described(status),
            facts={
                "service": status.name,
                "program": status.label,
                "version": status.generation,
                "state": _state(status),
                "leader": status.leader or "-",
            },
            table=map(_replica_cells, status.replicas),
        )
        _warn_of_silent(place, [status])


@app.command(examples="dios service scale web 5", json=ServiceNameRow)
def scale(
    service: str = NAME_ARGUMENT,
    replicas: int = argument("N", "The number to keep.", min=0, max=limits.SERVICE_REPLICAS_MAX),
    *,
    common: CommonOptions,
) -> None:
    """Change the number of replicas. Those with the highest numbers are stopped first."""
    with opened(common.node) as place:
        Services(place.node).scale(service, replicas)
        _confirm(service, f"has {counted(replicas, 'replica')} from now on", common)


@app.command(examples="dios service autoscale web --capacity 1000 --load-command ./requests-per-second")
def autoscale(
    service: str = NAME_ARGUMENT,
    load_command: str = option(
        "--load-command COMMAND",
        "A command of this machine that prints the present load as one number.",
        required=True,
    ),
    capacity: float = option("--capacity LOAD", "The load that one replica can serve."),
    *,
    least: int = option("--least", "The fewest replicas.", default=1, min=0, max=limits.SERVICE_REPLICAS_MAX),
    most: int = option("--most", "The most replicas.", default=4, min=0, max=limits.SERVICE_REPLICAS_MAX),
    grow_above: float = option(
        "--grow-above SHARE", "Add a replica above this share of capacity.", default=0.55
    ),
    shrink_below: float = option("--shrink-below SHARE", "Remove a replica below this share.", default=0.15),
    every: float = option("--every SECONDS", "Time between checks.", default=5.0, min=0.1, max=3600.0),
    steps: int | None = option("--steps N", "End after N checks; default: never.", min=1),
    node: str | None = NODE_OPTION,
) -> None:
    """Change the number of replicas with the load, until Ctrl-C (thesis §8.2.2).

    Each check adds or removes at most one replica. A command that fails leaves the number as it is.
    """
    with opened(node) as place:
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


@app.command(examples="dios service update web web.py\ndios service update web web.toml", json=ServiceNameRow)
def update(service: str = NAME_ARGUMENT, file: Path = FILE_ARGUMENT, *, common: CommonOptions) -> None:
    """Replace the program of a service, one replica after another.

    A new replica is started next to each present one, which is stopped when the new one is healthy. So a bad
    program costs no replica; `dios service rollback` returns from it. With a program the service keeps its
    arguments, inputs and needs; a file (.toml) replaces them, too, but not the number of replicas.
    """
    description = service_files.read(file) if file.suffix == _SUFFIX else None
    if description is not None and description.name != service:
        raise InvalidError(f"the file describes the service {description.name!r}, not {service!r}")
    with opened(common.node, () if description is None else description.groups) as place:
        services = Services(place.node)
        if description is None:
            services.update_program(service, file, label=file.name)
        else:
            services.update(service, _program(place, file, description))
        _confirm(service, "is updated, one replica after another", common)


@app.command(examples="dios service rollback web", json=ServiceNameRow)
def rollback(service: str = NAME_ARGUMENT, *, common: CommonOptions) -> None:
    """Return to the program, inputs and needs before the last update."""
    with opened(common.node) as place:
        Services(place.node).rollback(service)
        _confirm(service, "returns to the version before", common)


@app.command(examples="dios service logs web\ndios service logs web --replica 0 --follow")
def logs(
    service: str = NAME_ARGUMENT,
    *,
    replica: int | None = option("--replica N", "Only this replica.", min=0),
    follow: bool = option("-f --follow", "Continue until the replica ends; needs --replica."),
    node: str | None = NODE_OPTION,
) -> None:
    """Print the output of the replicas that run, each after a line with its number and node.

    `dios ps --all` lists replicas that have ended, and `dios logs` prints their output.
    """
    with opened(node) as place:
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


@app.command(examples="dios service rm web", json=ServiceNameRow)
def rm(service: str = NAME_ARGUMENT, *, common: CommonOptions) -> None:
    """End a service: stop its replicas, and delete its programs and the copies of its inputs."""
    with opened(common.node) as place:
        Services(place.node).remove(service)
        _confirm(service, "is removed; its replicas are stopped", common)


def _program(place: CommandContext, file: Path, description: ServiceFile) -> ServiceProgram:
    path = file.parent / description.program
    labels = [file_label(label) for label in description.inputs]
    return ServiceProgram(
        path,
        args=description.args,
        inputs={label: place.object(name) for label, name in description.inputs.items()},
        files=labels,
        groups=tuple(place.group(alias) for alias in description.groups),
        work=_work(description),
        bounds=limits_of_run((), memory_bytes=size_of(description.memory, "the memory limit"), cpu_ms=0),
        network=description.network,
        template=description.template,
        label=path.name,
        check=file.parent / description.check if description.check else None,
        check_every=description.check_every,
        healthy_after=description.healthy_after,
    )


def _work(asked: ServiceFile) -> Work:
    devices = [f"{kind}={count}" for kind, count in asked.devices.items()]
    return NeedsOptions(
        cpus=asked.cpus, reserve_memory=asked.mem, disk_io=asked.disk_io, net=asked.net, device=devices
    ).work()


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


def _replica_cells(replica: ReplicaStatus) -> Cells:
    task = replica.task
    return {
        "REPLICA": str(replica.slot),
        "VERSION": replica.generation,
        "TASK": ("pauses" if replica.waits else None) if task is None else task.fingerprint,
        "NODE": None if task is None else task.node,
        "FOR": Number("-") if task is None else span_text(time.time_ns() - task.started_ns),
        "RESTARTS": replica.restarts,
        "LAST END": replica.reason or None,
    }


def _described(status: ServiceStatus) -> ServiceRow:
    version = {"service": status.name, "program": status.label, "version": status.generation}
    return ServiceRow.of(status, **version, replicas=[_replica_row(replica) for replica in status.replicas])


def _replica_row(replica: ReplicaStatus) -> ServiceReplicaRow:
    task = replica.task
    return ServiceReplicaRow(
        replica.slot,
        replica.generation,
        None if task is None else task.fingerprint,
        None if task is None else task.node,
        replica.restarts,
        replica.reason,
    )


def _confirm(service: str, outcome: str, common: CommonOptions, *notices: str) -> None:
    common.print_row(ServiceNameRow(service), f"service {service} {outcome}", *notices)


def _warn_of_silent(place: CommandContext, statuses: Sequence[ServiceStatus]) -> None:
    warn_of_silent(place.node, "replicas", incomplete=any(status.incomplete for status in statuses))
