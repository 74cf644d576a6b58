"""``dios up`` and ``dios down`` for machines of others: ``--hosts``, ``--on slurm`` and ``--on kubernetes``.

``dios.node.bringup`` does the work; ``local_cluster`` has the commands and their options.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dios.cli.common.output import counted, progress, say, table_of, write_json
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.machines import UpOptions
from dios.errors import DiosError, InvalidError
from dios.node.bringup import hosts, kubernetes, release, slurm, ssh
from dios.node.bringup.answers import Stopped

NODES_DEFAULT: Final = 3
_QUICK_STAGES: Final = frozenset({"not reached"})


@contextlib.contextmanager
def _stating(fleet: hosts.Fleet, next_step: str) -> Iterator[None]:
    """If the body fails or is interrupted, say how far each host has come."""
    try:
        yield
    except BaseException:
        if set(fleet.stages.values()) - _QUICK_STAGES:
            say("the state of the hosts:")
            for name, stage in fleet.stages.items():
                say(f"  {name}: {stage}")
            say(next_step)
        raise


def wanted_hosts(options: UpOptions, settings: Mapping[str, str]) -> hosts.Wanted:
    """Return the checked wishes for hosts. Raise InvalidError."""
    extras = hosts.EXTRAS_DEFAULT if options.extras is None else options.extras
    return hosts.Wanted(
        hosts=hosts.parse(options.hosts, racks=options.racks),
        prefix=options.prefix,
        port=options.port or hosts.PORT_DEFAULT,
        network=hosts.network_address(options.network) if options.network else "",
        extras=hosts.check_extras(extras),
        wheelhouse=options.wheelhouse,
        lock=hosts.lock_of(options.lock, options.wheelhouse),
        release=_release(options),
        settings=settings,
    )


def _release(options: UpOptions) -> release.Place | None:
    if options.release is None and options.signers is None:
        return None
    if options.release is None or options.signers is None:
        raise InvalidError("--release and --signers belong together: give both, or neither")
    return release.Place(options.release, options.signers)


class HostsUpRow(Row):
    """The nodes of a cluster on other machines."""

    nodes: list[hosts.Row]


class HostDownRow(Row):
    """A machine: False for ``there`` if it has nothing of ``dios up``."""

    host: str
    stopped: bool
    deleted: bool
    there: bool


class HostsDownRow(Row):
    """The machines whose nodes were stopped."""

    hosts: list[HostDownRow]


class SlurmUpRow(Row):
    """The job of a cluster, its directory, and its nodes."""

    job: int
    directory: str
    nodes: list[slurm.Row]


class SlurmDownRow(Row):
    """The job that was ended; null if there was none."""

    directory: str
    job: int | None


class KubernetesUpRow(Row):
    """The namespace of a cluster, and its nodes."""

    namespace: str
    nodes: list[kubernetes.Member]


class KubernetesDownRow(Row):
    """The namespace of a cluster, and True if everything in it was deleted."""

    namespace: str
    deleted: bool


def hosts_up(wanted: hosts.Wanted, command: str, output: OutputOptions) -> None:
    """Bring the cluster up and show it. Raise the errors of ``Fleet.bring_up``."""
    with progress("bringing the cluster up") as report:
        fleet = hosts.Fleet(wanted, ssh=_ssh(command), report=report)
        with _stating(fleet, "the same command continues; `dios down --hosts` with these hosts undoes it"):
            rows = fleet.bring_up()
    if output.as_json:
        write_json(HostsUpRow(rows))
        return
    table_of(
        {
            "NODE": row.name,
            "HOST": row.host,
            "RACK": row.rack or None,
            "ADDRESS": row.address,
            "VERSION": row.version,
            "KEPT BY": row.by,
            "": row.state,
        }
        for row in rows
    )
    old = [row for row in rows if row.restart]
    if old:
        say(f"a new version is installed, and {', '.join(row.name for row in old)} still run the one before;")
        program, data = _program(old[0].prefix, "dios-node"), f"{old[0].prefix}/data"
        say(f"on each of these hosts: {program} restart --data {data}")
    if any(row.by == "supervisor" for row in rows):
        say("hosts without systemd do not start their node after a reboot: the same command does")
    first = rows[0]
    say(f"next: ssh {first.host} {_program(first.prefix, 'dios')} node ls; at the end: dios down --hosts …")


def _program(prefix: str, name: str) -> str:
    return shlex.quote(f"{prefix}/env/bin/{name}")


def hosts_down(wanted: hosts.Wanted, command: str, output: OutputOptions, *, delete: bool) -> None:
    """Stop the nodes and show the result. Raise the errors of ``Fleet.take_down``."""
    with progress("stopping the cluster") as report:
        fleet = hosts.Fleet(wanted, ssh=_ssh(command), report=report)
        with _stating(fleet, "the same command continues"):
            stopped = fleet.take_down(delete=delete)
    answers = dict(zip(wanted.hosts, stopped, strict=True))
    more = any(answer.there and not answer.deleted for answer in stopped)
    kept = "next: `dios up --hosts` with these hosts continues with these data; --delete deletes them"
    output.print_row(
        HostsDownRow([HostDownRow.of(answer, host=host.target) for host, answer in answers.items()]),
        *((kept,) if more else ()),
        facts={host.target: _state(answer) for host, answer in answers.items()},
    )


def _state(answer: Stopped) -> str:
    if not answer.there:
        return "nothing of `dios up` is there"
    return ("stopped" if answer.stopped else "did not run") + (
        "; data and environment deleted" if answer.deleted else "; data and environment kept"
    )


def _ssh(command: str) -> ssh.Ssh:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidError(f"--ssh must be a command line: {error}") from None
    return ssh.Ssh(words or ssh.COMMAND)


# -- slurm ------------------------------------------------------------------------------------------
def slurm_up(directory: Path, options: UpOptions, settings: Mapping[str, str], output: OutputOptions) -> None:
    """Submit the job, or find it again, and show its nodes. Raise the errors of ``slurm``."""
    existing = slurm.read(directory)
    if existing is not None and (options.nodes not in {None, existing.nodes} or options.sbatch or settings):
        raise InvalidError(
            f"the cluster in {directory} is job {existing.job} with {counted(existing.nodes, 'node')}. "
            "`dios down --on slurm --delete` ends it; another --dir makes a second one"
        )
    with progress("waiting for the allocation") as report:
        job = existing or slurm.submit(
            directory,
            nodes=options.nodes or NODES_DEFAULT,
            sbatch=options.sbatch,
            settings=settings,
            port=options.port or slurm.PORT_DEFAULT,
        )
        try:
            rows = slurm.wait_ready(directory, job, report=report)
        except DiosError:
            raise
        except BaseException:
            if existing is None:
                slurm.cancel(job)
                slurm.remove(directory)
                say(f"job {job.job} was cancelled, and its files were deleted")
            raise
    first, program = rows[0], Path(sys.executable).with_name("dios")
    output.print_row(
        SlurmUpRow(job.job, str(directory), rows),
        f"job {job.job}; its data are lost when it ends. Next, as in all commands:",
        f"  srun --jobid={job.job} --overlap --nodes=1 --ntasks=1 --nodelist={first.host} "
        f"{program} node ls --node {first.data}",
        table=({"NODE": row.name, "ADDRESS": row.address, "DATA": row.data} for row in rows),
    )


def slurm_down(directory: Path, output: OutputOptions, *, delete: bool) -> None:
    """End the job, whose data end with it, and delete its files.

    Raise InvalidError for a job that still has data unless ``delete``, and the errors of ``slurm``.
    """
    job = slurm.read(directory)
    if job is not None:
        if not delete and slurm.running(job):
            raise InvalidError(
                f"the data of job {job.job} are on the local disks of its machines, and are lost when it "
                "ends. Make a backup of what you need (`dios backup`), then end it with --delete."
            )
        with progress("ending the job"):
            slurm.cancel(job)
            slurm.remove(directory)
    ended = f"{job.job} ended, its files deleted" if job else "none"
    output.print_row(
        SlurmDownRow(str(directory), job.job if job else None),
        facts={"job": ended, "directory": str(directory)},
    )


# -- kubernetes -------------------------------------------------------------------------------------
def kubernetes_up(options: UpOptions, settings: Mapping[str, str], output: OutputOptions) -> None:
    """Apply the manifests and show the nodes. Raise the errors of ``kubernetes``."""
    nodes, namespace = options.nodes or NODES_DEFAULT, options.namespace or kubernetes.NAME
    wanted = kubernetes.Wanted(nodes, namespace, options.image, options.storage, settings)
    wanted.check()
    with progress("bringing the cluster up") as report:
        try:
            members = kubernetes.bring_up(wanted, report=report)
        except BaseException:
            say("applied objects are kept: the same command continues, `dios down --on kubernetes` undoes it")
            raise
    output.print_row(
        KubernetesUpRow(wanted.namespace, members),
        f"next: kubectl --namespace {wanted.namespace} exec {members[0].name} -- dios node ls",
        table=(
            {"NODE": row.name, "RACK": row.rack or None, "ADDRESS": row.address, "": row.status}
            for row in members
        ),
    )


def kubernetes_down(namespace: str, output: OutputOptions, *, delete: bool) -> None:
    """End the pods, or delete everything. Raise the errors of ``kubernetes``."""
    namespace = namespace or kubernetes.NAME
    with progress("taking the cluster down") as report:
        kubernetes.take_down(namespace, delete=delete, report=report)
    kept = "next: `dios up --on kubernetes` continues with these data; --delete deletes them"
    output.print_row(
        KubernetesDownRow(namespace, delete),
        *(() if delete else (kept,)),
        facts={
            "cluster": "deleted" if delete else "ended; volumes and data kept",
            "namespace": namespace,
        },
    )
