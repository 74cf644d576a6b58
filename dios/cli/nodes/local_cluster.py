"""``dios up`` and ``dios down``: a whole cluster on this machine, or on other machines.

``dios.node.local_cluster`` does the work on this machine, as processes; ``compose`` uses containers, and
``bringup`` other machines. ``dios-node init`` makes clusters by hand.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import missing_extra
from dios.cli.common.options import option
from dios.cli.common.output import Number, counted, progress, say, table_of, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes import compose
from dios.cli.nodes.fitness import KnownFitness, wait_known
from dios.cli.nodes.machines import COMPOSE, HERE, HOSTS, SLURM, ClusterOptions, MachineOptions, UpOptions
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

app: Final = CommandApplication()


class LocalNodeRow(Row):
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


class LocalClusterRow(Row):
    """The local cluster; ``new`` if it has no data of before, ``default`` if commands use it by default."""

    directory: str
    new: bool
    default: bool
    nodes: list[LocalNodeRow]


class LocalDownRow(Row):
    """The nodes of the local cluster that were stopped, and True if its data were removed."""

    directory: str
    stopped: list[str]
    removed: bool


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
    json=(
        LocalClusterRow,
        compose.ComposeUpRow,
        "dios.cli.nodes.bringup:HostsUpRow",
        "dios.cli.nodes.bringup:SlurmUpRow",
        "dios.cli.nodes.bringup:KubernetesUpRow",
    ),
)
def up(context: typer.Context, *, options: UpOptions, output: OutputOptions) -> None:
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
    settings = settings_given(context.args, "dios up", own_options(context))
    mode = options.mode(settings=settings)
    if mode == HERE:
        _up_here(options, settings, output)
        return
    if mode == COMPOSE:
        compose.up(output)
        return
    # Imported late: these modules take a tenth of a second, which other commands save.
    from dios.cli.nodes import bringup  # noqa: PLC0415 - see above

    if mode == HOSTS:
        bringup.hosts_up(bringup.wanted_hosts(options, settings), options.ssh, output)
    elif mode == SLURM:
        bringup.slurm_up(_slurm_directory(options), options, settings, output)
    else:
        bringup.kubernetes_up(options, settings, output)


def _up_here(options: UpOptions, settings: dict[str, str], output: OutputOptions) -> None:
    # Imported late: certificates take a tenth of a second, which other commands save.
    from dios.node import local_cluster  # noqa: PLC0415 - see above

    place = _directory(options)
    with local_cluster.locked(place):
        existing = local_cluster.read(place)
        if existing is not None:
            _refuse_other(existing, options, settings)
        with progress("bringing the cluster up") as report:
            cluster = existing or local_cluster.make(
                place, nodes=options.nodes or NODES_DEFAULT, racks=options.racks, settings=settings
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
    _show(cluster, started, fitness, output, is_new=existing is None)


def _slurm_directory(options: MachineOptions) -> Path:
    chosen = options.directory
    return (usual_directory().with_name("slurm") if chosen is None else chosen.expanduser()).absolute()


def _directory(options: MachineOptions) -> Path:
    """Return the cluster's directory: the given one, else the usual one or the target of its link."""
    chosen = options.directory
    return (usual_directory() if chosen is None else chosen.expanduser()).absolute().resolve()


def _refuse_other(cluster: LocalCluster, options: UpOptions, settings: dict[str, str]) -> None:
    there = len(cluster.nodes)
    if options.nodes not in {None, there}:
        raise InvalidError(
            f"the cluster in {cluster.directory} has {counted(there, 'node')}. `dios down --delete` removes "
            "it; another --dir makes a second one; any machine or data directory can join it with "
            "`dios-node invite`"
        )
    if options.racks not in {0, len({node.rack for node in cluster.nodes if node.rack})}:
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


def _show(
    cluster: LocalCluster,
    started: list[str],
    fitness: dict[str, KnownFitness],
    output: OutputOptions,
    *,
    is_new: bool,
) -> None:
    from dios.node import local_cluster  # noqa: PLC0415 - see up

    running, forgotten = cluster.running(), cluster.forgotten()
    default = local_cluster.is_default(cluster)
    rows = [
        LocalNodeRow.of(
            node,
            pid=running[node.name].pid if node.name in running else 0,
            started=node.name in started,
            forgotten=node.name in forgotten,
            fitness=fitness[node.name].fitness if node.name in fitness else "",
        )
        for node in cluster.nodes
    ]
    if output.as_json:
        write_json(LocalClusterRow(str(cluster.directory), is_new, default, rows))
        return
    table_of(
        {
            "NODE": row.name,
            "RACK": row.rack or None,
            "ADDRESS": row.address,
            "PROCESS": Number(row.pid or "-"),
            "": "forgotten" if row.forgotten else "started" if row.started else "was running",
        }
        for row in rows
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


@app.command(
    examples="dios down\ndios down --delete\ndios down --dir ./cluster\n"
    "dios down --hosts n1,n2,n3 --delete\ndios down --on slurm --delete",
    json=(
        LocalDownRow,
        compose.ComposeDownRow,
        "dios.cli.nodes.bringup:HostsDownRow",
        "dios.cli.nodes.bringup:SlurmDownRow",
        "dios.cli.nodes.bringup:KubernetesDownRow",
    ),
)
def down(
    *,
    options: ClusterOptions,
    delete: bool = option(
        "--delete",
        "Also delete all data; with --hosts and --on kubernetes, what was installed or applied, too.",
    ),
    output: OutputOptions,
) -> None:
    """Stop all nodes of the cluster that `dios up` made on this machine, and keep its data.

    The next `dios up` continues with the data. With --delete they are deleted, of a stopped cluster too.
    Files that `dios up` did not create are never deleted.

    With --hosts it stops the nodes of these machines, with --compose the containers, and with --on kubernetes
    the pods. A job of Slurm has its data on the disks of its machines, which it loses when it ends:
    --on slurm ends it only with --delete.
    """
    mode = options.mode(**{"--delete": delete})
    if mode == HERE:
        _down_here(options, output, delete=delete)
        return
    if mode == COMPOSE:
        compose.down(output, delete=delete)
        return
    from dios.cli.nodes import bringup  # noqa: PLC0415 - see up

    if mode == HOSTS:
        chosen = UpOptions(hosts=options.hosts, prefix=options.prefix)
        bringup.hosts_down(bringup.wanted_hosts(chosen, {}), options.ssh, output, delete=delete)
    elif mode == SLURM:
        bringup.slurm_down(_slurm_directory(options), output, delete=delete)
    else:
        bringup.kubernetes_down(options.namespace, output, delete=delete)


def _down_here(options: MachineOptions, output: OutputOptions, *, delete: bool) -> None:
    from dios.node import local_cluster  # noqa: PLC0415 - see up

    place = _directory(options)
    cluster = local_cluster.read(place)
    if cluster is None:
        absent = {"cluster": "none", "directory": str(place)}
        output.print_row(LocalDownRow(str(place), [], removed=False), facts=absent)
        return
    with local_cluster.locked(place), progress("stopping the cluster"):
        stopped = local_cluster.stop(cluster, say=say)
        if delete:
            local_cluster.remove(place)
    if delete:
        _unlink(place)
    at = "" if place == _directory(MachineOptions()) else f" --dir {shlex.quote(str(place))}"
    kept = f"next: `dios up{at}` continues with these data; `dios down --delete{at}` deletes them"
    output.print_row(
        LocalDownRow(str(place), stopped, delete),
        *(() if delete else (kept,)),
        facts={
            "stopped": ", ".join(stopped) or "none was running",
            "data": f"deleted: {place}" if delete else f"kept: {place}",
        },
    )


def _unlink(place: Path) -> None:
    usual = usual_directory()
    if usual.is_symlink() and usual.resolve() == place:
        usual.unlink()
