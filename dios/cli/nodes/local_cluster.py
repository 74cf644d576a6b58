"""``dios up`` and ``dios down``: a whole cluster on this machine, or on other machines.

``dios.node.local_cluster`` does the work on this machine, as processes; ``compose`` uses containers, and
``bringup`` other machines. ``dios-node init`` makes clusters by hand.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import missing_extra
from dios.cli.common.output import JsonOption, counted, facts, progress, reporting, say, table, write_json
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.nodes import compose
from dios.cli.nodes.fitness import KnownFitness, wait_known
from dios.cli.nodes.setting_options import SHOWN, own_options, settings_given
from dios.client.locate import local_cluster as usual_directory
from dios.errors import DiosError, InvalidError
from dios.wire.types import Fitness

if TYPE_CHECKING:
    from dios.node.local_cluster import LocalCluster

NODES_DEFAULT: Final = 3
_NOT_SHOWN: Final = frozenset(
    {"socket", "name", "rack", "listen", "advertise", "announce", "log-file", "record"}
)

_HERE: Final = "a cluster on this machine"
_COMPOSE: Final = "--compose"
_HOSTS: Final = "--hosts"
_SLURM: Final = "--on slurm"
_KUBERNETES: Final = "--on kubernetes"
_OPTIONS: Final = {
    _HERE: {"--nodes", "--racks", "--dir", "--delete", "settings"},
    _COMPOSE: {"--delete"},
    _HOSTS: {
        *("--racks", "--prefix", "--port", "--network", "--extras", "--wheelhouse", "--ssh", "--delete"),
        "settings",
    },
    _SLURM: {"--nodes", "--dir", "--port", "--sbatch", "--delete", "settings"},
    _KUBERNETES: {"--nodes", "--namespace", "--image", "--storage", "--delete", "settings"},
}
"""The options that have a meaning for each kind."""

app: Final = CommandApplication()

_SSH: Final = "With --hosts"
_SYSTEMS: Final = "With --on"

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Directory of its data; default: ~/.local/state/dios/cluster."),
]
HostsOption = Annotated[
    str,
    typer.Option(
        "--hosts", metavar="HOST,…", help="Use these machines over ssh, each as [NAME=]HOST[/RACK]."
    ),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        "--prefix",
        metavar="DIR",
        help="With --hosts: the directory there; default: ~/.local/share/dios, of root /opt/dios.",
        rich_help_panel=_SSH,
    ),
]
SshOption = Annotated[
    str,
    typer.Option(
        "--ssh",
        metavar="COMMAND",
        help="With --hosts: the ssh client, like 'ssh -F FILE'.",
        rich_help_panel=_SSH,
    ),
]
OnOption = Annotated[
    str, typer.Option("--on", metavar="SYSTEM", help="Use the machines of a system: slurm or kubernetes.")
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="With --on kubernetes: the namespace; default: dios.",
        rich_help_panel=_SYSTEMS,
    ),
]
DeleteOption = Annotated[
    bool,
    typer.Option(
        "--delete",
        help="Also delete all data; with --hosts and --on kubernetes, what was installed or applied, too.",
    ),
]
KeepOption = Annotated[
    bool, typer.Option("--keep", hidden=True, help="No effect: data are kept unless --delete is given.")
]
"""Accepted for one more release."""
ComposeOption = Annotated[
    bool, typer.Option("--compose", help="Use containers: cluster/compose.yaml and Docker Compose.")
]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\b\nExamples:\n  dios up --nodes 3\n  dios up --nodes 4 --racks 2 --pool-size 2\n"
    "  dios up --dir ./cluster\n"
    "  dios up --hosts n1,n2=admin@10.0.0.2,n3/r2 --racks 2\n"
    "  dios up --hosts n1,n2,n3 --wheelhouse ./wheels     (hosts without a network)\n"
    "  dios up --on slurm --nodes 4 --sbatch '--time=8:00:00 --exclusive'\n"
    "  dios up --on kubernetes --image registry.example/dios:0.2.0\n"
    "  dios node ls; dios put data/*.txt --group analytics; dios --help"
    "\f\n\n\b\nSettings of every node (docs/settings.md):\n"
    + "\n".join(f"  --{key:<22} {text}" for key, text in SHOWN.items() if key not in _NOT_SHOWN),
)
def up(
    context: typer.Context,
    *,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", metavar="N", min=1, help="Number of nodes; default: 3.")
    ] = None,
    racks: Annotated[
        int, typer.Option("--racks", metavar="N", min=0, help="Spread the nodes over N racks.")
    ] = 0,
    directory: DirOption = None,
    keep: KeepOption = False,
    as_compose: ComposeOption = False,
    hosts: HostsOption = "",
    prefix: PrefixOption = "",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=1,
            max=65_535,
            help="With --hosts and --on slurm: the port of each node; default: 7400.",
            rich_help_panel=_SSH,
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            "--network",
            metavar="NET",
            help="With --hosts: nodes use their addresses in this network, like 10.1.0.0/16; default: the "
            "addresses that ssh reaches.",
            rich_help_panel=_SSH,
        ),
    ] = "",
    extras: Annotated[
        str | None,
        typer.Option(
            "--extras",
            metavar="NAMES",
            help="With --hosts: install these extras; default: cluster; or none.",
            rich_help_panel=_SSH,
        ),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--wheelhouse",
            metavar="DIR",
            help="With --hosts: take dependencies from these wheels, not from the index.",
            rich_help_panel=_SSH,
        ),
    ] = None,
    ssh: SshOption = "",
    on: OnOption = "",
    sbatch: Annotated[
        str,
        typer.Option(
            "--sbatch",
            metavar="OPTIONS",
            help="With --on slurm: more options for sbatch, like '--time=8:00:00 --cpus-per-task=8'.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = "",
    namespace: NamespaceOption = "",
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="With --on kubernetes: the image of a node.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = "",
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="SIZE",
            help="With --on kubernetes: the volume of a node; default: 10Gi.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine, with --hosts on other machines, or with --on in Slurm or Kubernetes.

    Here the nodes n1, n2, … are processes of yours. The command returns when all nodes see each other. Other
    commands then use n1, or another with `--node n2`. If the cluster exists, `dios up` starts the nodes that
    do not run, with the data that `dios down` kept. Ctrl-C stops the nodes that it has started.

    With --hosts it installs this version on each host into a private environment, makes the hosts members of
    one cluster, and starts their nodes as services of systemd, or where that is missing under a supervisor.
    A second run continues where the first one ended, starts nodes that do not run, installs a newer version,
    and adds hosts. Ctrl-C ends the work on all hosts and says how far each has come.

    With --on slurm it submits a job, whose machines become the cluster until the job ends. This installation
    must be at the same path there. With --on kubernetes it applies the manifests with kubectl.
    """
    del keep
    with reporting("dios up", as_json=as_json), _ended_by_signals():
        settings = settings_given(context.args, "dios up", own_options(context))
        mode = _mode(hosts=hosts, on=on, compose=as_compose)
        _refuse_foreign(
            mode,
            {
                "--nodes": nodes,
                "--racks": racks,
                "--dir": directory,
                "--prefix": prefix,
                "--port": port,
                "--network": network,
                "--extras": extras,
                "--wheelhouse": wheelhouse,
                "--ssh": ssh,
                "--sbatch": sbatch,
                "--namespace": namespace,
                "--image": image,
                "--storage": storage,
                "settings": settings,
            },
        )
        if mode == _HERE:
            _up_here(directory, nodes, racks, settings, as_json=as_json)
            return
        if mode == _COMPOSE:
            compose.up(as_json=as_json)
            return
        # Imported late: these modules take a tenth of a second, which other commands save.
        from dios.cli.nodes import bringup  # noqa: PLC0415 - see above

        if mode == _HOSTS:
            wanted = bringup.wanted_hosts(
                hosts,
                racks=racks,
                prefix=prefix,
                port=port,
                network=network,
                extras=extras,
                wheelhouse=wheelhouse,
                settings=settings,
            )
            bringup.hosts_up(wanted, ssh, as_json=as_json)
        elif mode == _SLURM:
            place = _slurm_directory(directory)
            bringup.slurm_up(
                place, nodes=nodes or 0, sbatch=sbatch, settings=settings, port=port, as_json=as_json
            )
        else:
            bringup.kubernetes_up(
                nodes=nodes or NODES_DEFAULT,
                namespace=namespace,
                image=image,
                storage=storage,
                settings=settings,
                as_json=as_json,
            )


def _up_here(
    directory: Path | None,
    nodes: int | None,
    racks: int,
    settings: dict[str, str],
    *,
    as_json: bool,
) -> None:
    # Imported late: certificates take a tenth of a second, which other commands save.
    from dios.node import local_cluster  # noqa: PLC0415 - see above

    place = _directory(directory)
    with local_cluster.locked(place):
        existing = local_cluster.read(place)
        if existing is not None:
            _refuse_other(existing, nodes, racks, settings)
        with progress("bringing the cluster up") as report:
            cluster = existing or local_cluster.make(
                place, nodes=nodes or NODES_DEFAULT, racks=racks, settings=settings
            )
            try:
                started = local_cluster.start(cluster, report=report)
                running = {node.name: node.socket for node in cluster.nodes if node.name in cluster.running()}
                fitness = wait_known(running, report=report)
            except DiosError:
                if existing is None:
                    say(f"the cluster's logs were kept in {place}; `dios down --delete` deletes them")
                    _link(place)
                raise
            except BaseException:
                if existing is None:
                    local_cluster.remove(place)
                raise
    _link(place)
    _show(
        cluster,
        started,
        fitness,
        is_new=existing is None,
        default=local_cluster.is_default(cluster),
        as_json=as_json,
    )


def _mode(*, hosts: str, on: str, compose: bool) -> str:
    """Return the kind of machines. Raise InvalidError for two, or for an unknown one."""
    if on and f"--on {on}" not in _OPTIONS:
        raise InvalidError(f"--on must be slurm or kubernetes, not {on!r}")
    chosen = [_HOSTS] * bool(hosts) + [f"--on {on}"] * bool(on) + [_COMPOSE] * compose
    if len(chosen) > 1:
        raise InvalidError(f"{' and '.join(chosen)} exclude each other. Choose one.")
    return chosen[0] if chosen else _HERE


def _refuse_foreign(mode: str, options: Mapping[str, object]) -> None:
    """Raise InvalidError for an option without a meaning for this kind of machines."""
    foreign = [name for name, value in options.items() if value and name not in _OPTIONS[mode]]
    if foreign:
        why = ": the file has the nodes and their settings" if mode == _COMPOSE else ""
        raise InvalidError(f"{', '.join(foreign)}: without a meaning for {mode}{why}. Leave it out.")


def _slurm_directory(chosen: Path | None) -> Path:
    return (usual_directory().with_name("slurm") if chosen is None else chosen.expanduser()).absolute()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end this command like Ctrl-C."""
    try:
        with stopped_by_signals():
            yield
    except Stopped as stopped:
        raise typer.Exit(stopped.exit_status) from None


def _directory(chosen: Path | None) -> Path:
    """Return the cluster's directory: the given one, else the usual one or the target of its link."""
    return (usual_directory() if chosen is None else chosen.expanduser()).absolute().resolve()


def _refuse_other(cluster: LocalCluster, nodes: int | None, racks: int, settings: dict[str, str]) -> None:
    there = len(cluster.nodes)
    if nodes not in {None, there}:
        raise InvalidError(
            f"the cluster in {cluster.directory} has {counted(there, 'node')}. `dios down --delete` removes "
            "it; another --dir makes a second one; any machine or data directory can join it with "
            "`dios-node invite`"
        )
    if racks not in {0, len({node.rack for node in cluster.nodes if node.rack})}:
        raise InvalidError(
            f"the racks in {cluster.directory} were chosen when it was made; leave out --racks"
        )
    if settings:
        example = cluster.nodes[0].data / "node.toml"
        raise InvalidError(
            f"the settings of an existing cluster are in its files, like {example}; edit them there"
        )


def _link(place: Path) -> None:
    """Link the usual directory to a cluster elsewhere, so that `--node n2` and `dios down` find it."""
    usual = usual_directory()
    if usual.resolve() == place or (usual.exists() and not usual.is_symlink()):
        return
    usual.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = usual.with_name(f".{usual.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(place)
    fresh.replace(usual)


class LocalNodeRow(TypedDict):
    """A node of the local cluster; its pid is 0, and its fitness for pure tasks empty, if it does not run."""

    name: str
    rack: str
    address: str
    data: str
    socket: str
    pid: int
    started: bool
    forgotten: bool
    fitness: str


class LocalClusterRow(TypedDict):
    """The local cluster; ``new`` if it has no data of before, ``default`` if commands use it by default."""

    directory: str
    new: bool
    default: bool
    nodes: list[LocalNodeRow]


class LocalDownRow(TypedDict):
    """The nodes of the local cluster that were stopped, and True if its data were removed."""

    directory: str
    stopped: list[str]
    removed: bool


def _show(
    cluster: LocalCluster,
    started: list[str],
    fitness: dict[str, KnownFitness],
    *,
    is_new: bool,
    default: bool,
    as_json: bool,
) -> None:
    running = cluster.running()
    forgotten = cluster.forgotten()
    if as_json:
        rows: list[LocalNodeRow] = [
            {
                "name": node.name,
                "rack": node.rack,
                "address": node.address,
                "data": str(node.data),
                "socket": str(node.socket),
                "pid": running[node.name].pid if node.name in running else 0,
                "started": node.name in started,
                "forgotten": node.name in forgotten,
                "fitness": fitness[node.name].fitness.name.lower() if node.name in fitness else "",
            }
            for node in cluster.nodes
        ]
        row: LocalClusterRow = {
            "directory": str(cluster.directory),
            "new": is_new,
            "default": default,
            "nodes": rows,
        }
        write_json(row)
        return
    table(
        ("NODE", "RACK", "ADDRESS", "PROCESS", ""),
        [
            (
                node.name,
                node.rack or "-",
                node.address,
                str(running[node.name].pid) if node.name in running else "-",
                _state(node.name, started, forgotten),
            )
            for node in cluster.nodes
        ],
        right=("PROCESS",),
    )
    for name, known in fitness.items():
        if known.fitness is not Fitness.FIT:
            say(f"{name}: pure tasks are {known.text}")
    first = cluster.nodes[0]
    without = _scheduler_missing(cluster)
    if without:
        say(
            f"no scheduler: {without}. Until then runs go to the nodes with the fewest, and reservations, "
            "constraints, gangs and shares are refused"
        )
    if not default:
        say(f"another node is the default; for this cluster run: export DIOS_NODE={first.data}")
    kept = "" if is_new else ", with what was stored there before"
    say(f"data: {cluster.directory}{kept}; next: dios node ls, dios group create NAME; at the end: dios down")


def _scheduler_missing(cluster: LocalCluster) -> str:
    """Return why no node runs a scheduler, unless the user chose so; empty if one does."""
    from dios.node.coordinator_supervisor import absence  # noqa: PLC0415 - see up
    from dios.node.settings import CoordinatorMode, load  # noqa: PLC0415 - see up

    chosen = [load(node.data, flags=node.flags()) for node in cluster.nodes]
    reasons = [absence(settings) for settings in chosen if settings.coordinator is not CoordinatorMode.OFF]
    return (missing_extra("cluster") or reasons[0]) if reasons and all(reasons) else ""


def _state(name: str, started: list[str], forgotten: frozenset[str]) -> str:
    if name in forgotten:
        return "forgotten"
    return "started" if name in started else "was running"


@app.command(
    epilog="\b\nExamples:\n  dios down\n  dios down --delete\n  dios down --dir ./cluster\n"
    "  dios down --hosts n1,n2,n3 --delete\n  dios down --on slurm --delete"
)
def down(
    *,
    directory: DirOption = None,
    keep: KeepOption = False,
    as_compose: ComposeOption = False,
    hosts: HostsOption = "",
    prefix: PrefixOption = "",
    ssh: SshOption = "",
    on: OnOption = "",
    namespace: NamespaceOption = "",
    delete: DeleteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop all nodes of the cluster that `dios up` made on this machine, and keep its data.

    The next `dios up` continues with the data. With --delete they are deleted, of a stopped cluster too.
    Files that `dios up` did not create are never deleted.

    With --hosts it stops the nodes of these machines, with --compose the containers, and with --on kubernetes
    the pods. A job of Slurm has its data on the disks of its machines, which it loses when it ends:
    --on slurm ends it only with --delete.
    """
    del keep
    with reporting("dios down", as_json=as_json), _ended_by_signals():
        mode = _mode(hosts=hosts, on=on, compose=as_compose)
        _refuse_foreign(
            mode,
            {
                "--dir": directory,
                "--prefix": prefix,
                "--ssh": ssh,
                "--namespace": namespace,
                "--delete": delete,
            },
        )
        if mode == _HERE:
            _down_here(directory, delete=delete, as_json=as_json)
            return
        if mode == _COMPOSE:
            compose.down(delete=delete, as_json=as_json)
            return
        from dios.cli.nodes import bringup  # noqa: PLC0415 - see up

        if mode == _HOSTS:
            bringup.hosts_down(
                bringup.wanted_hosts(hosts, prefix=prefix), ssh, delete=delete, as_json=as_json
            )
        elif mode == _SLURM:
            bringup.slurm_down(_slurm_directory(directory), delete=delete, as_json=as_json)
        else:
            bringup.kubernetes_down(namespace, delete=delete, as_json=as_json)


def _down_here(directory: Path | None, *, delete: bool, as_json: bool) -> None:
    from dios.node import local_cluster  # noqa: PLC0415 - see up

    place = _directory(directory)
    cluster = local_cluster.read(place)
    if cluster is None:
        if as_json:
            nothing: LocalDownRow = {"directory": str(place), "stopped": [], "removed": False}
            write_json(nothing)
        else:
            facts([("cluster", "none"), ("directory", str(place))])
        return
    with local_cluster.locked(place), progress("stopping the cluster"):
        stopped = local_cluster.stop(cluster, say=say)
        if delete:
            local_cluster.remove(place)
    if delete:
        _unlink(place)
    if as_json:
        row: LocalDownRow = {"directory": str(place), "stopped": stopped, "removed": delete}
        write_json(row)
        return
    facts(
        [
            ("stopped", ", ".join(stopped) or "none was running"),
            ("data", f"deleted: {place}" if delete else f"kept: {place}"),
        ]
    )
    if not delete:
        at = "" if place == _directory(None) else f" --dir {shlex.quote(str(place))}"
        say(f"next: `dios up{at}` continues with these data; `dios down --delete{at}` deletes them")


def _unlink(place: Path) -> None:
    usual = usual_directory()
    if usual.is_symlink() and usual.resolve() == place:
        usual.unlink()
