"""``dios up`` and ``dios down`` for machines of others: ``--hosts``, ``--on slurm`` and ``--on kubernetes``.

``dios.node.bringup`` does the work; ``local_cluster`` has the commands and their options.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypedDict

from dios.cli.common.output import counted, facts, progress, say, table, write_json
from dios.errors import DiosError, InvalidError
from dios.node.bringup import hosts, kubernetes, slurm, ssh
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


def wanted_hosts(
    text: str,
    *,
    racks: int = 0,
    prefix: str = "",
    port: int | None = None,
    network: str = "",
    extras: str | None = None,
    wheelhouse: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> hosts.Wanted:
    """Return the checked wishes for hosts. Raise InvalidError."""
    return hosts.Wanted(
        hosts=hosts.parse(text, racks=racks),
        prefix=prefix,
        port=port or hosts.PORT_DEFAULT,
        network=hosts.network_address(network) if network else "",
        extras=hosts.check_extras(hosts.EXTRAS_DEFAULT if extras is None else extras),
        wheelhouse=wheelhouse,
        settings=settings or {},
    )


class HostsUpRow(TypedDict):
    """The nodes of a cluster on other machines."""

    nodes: list[hosts.Row]


class HostDownRow(TypedDict):
    """A machine: False for ``there`` if it has nothing of ``dios up``."""

    host: str
    stopped: bool
    deleted: bool
    there: bool


class HostsDownRow(TypedDict):
    """The machines whose nodes were stopped."""

    hosts: list[HostDownRow]


class SlurmUpRow(TypedDict):
    """The job of a cluster, its directory, and its nodes."""

    job: int
    directory: str
    nodes: list[slurm.Row]


class SlurmDownRow(TypedDict):
    """The job that was ended; null if there was none."""

    directory: str
    job: int | None


class KubernetesUpRow(TypedDict):
    """The namespace of a cluster, and its nodes."""

    namespace: str
    nodes: list[kubernetes.Member]


class KubernetesDownRow(TypedDict):
    """The namespace of a cluster, and True if everything in it was deleted."""

    namespace: str
    deleted: bool


def hosts_up(wanted: hosts.Wanted, command: str, *, as_json: bool) -> None:
    """Bring the cluster up and show it. Raise the errors of ``Fleet.bring_up``."""
    with progress("bringing the cluster up") as report:
        fleet = hosts.Fleet(wanted, ssh=_ssh(command), report=report)
        with _stating(fleet, "the same command continues; `dios down --hosts` with these hosts undoes it"):
            rows = fleet.bring_up()
    if as_json:
        row: HostsUpRow = {"nodes": rows}
        write_json(row)
        return
    table(
        ("NODE", "HOST", "RACK", "ADDRESS", "VERSION", "KEPT BY", ""),
        [(row.name, row.host, row.rack or "-", row.address, row.version, row.by, row.state) for row in rows],
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


def hosts_down(wanted: hosts.Wanted, command: str, *, delete: bool, as_json: bool) -> None:
    """Stop the nodes and show the result. Raise the errors of ``Fleet.take_down``."""
    with progress("stopping the cluster") as report:
        fleet = hosts.Fleet(wanted, ssh=_ssh(command), report=report)
        with _stating(fleet, "the same command continues"):
            stopped = fleet.take_down(delete=delete)
    answers = dict(zip(wanted.hosts, stopped, strict=True))
    if as_json:
        row: HostsDownRow = {
            "hosts": [
                {
                    "host": host.target,
                    "stopped": answer.stopped,
                    "deleted": answer.deleted,
                    "there": answer.there,
                }
                for host, answer in answers.items()
            ]
        }
        write_json(row)
        return
    facts([(host.target, _state(answer)) for host, answer in answers.items()])
    if any(answer.there and not answer.deleted for answer in stopped):
        say("next: `dios up --hosts` with these hosts continues with these data; --delete deletes them")


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
def slurm_up(
    directory: Path,
    *,
    nodes: int,
    sbatch: str,
    settings: Mapping[str, str],
    port: int | None,
    as_json: bool,
) -> None:
    """Submit the job, or find it again, and show its nodes. Raise the errors of ``slurm``."""
    existing = slurm.read(directory)
    if existing is not None and (nodes not in {0, existing.nodes} or sbatch or settings):
        raise InvalidError(
            f"the cluster in {directory} is job {existing.job} with {counted(existing.nodes, 'node')}. "
            "`dios down "
            "--on slurm --delete` ends it; another --dir makes a second one"
        )
    with progress("waiting for the allocation") as report:
        job = existing or slurm.submit(
            directory,
            nodes=nodes or NODES_DEFAULT,
            sbatch=sbatch,
            settings=settings,
            port=port or slurm.PORT_DEFAULT,
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
    if as_json:
        up: SlurmUpRow = {"job": job.job, "directory": str(directory), "nodes": rows}
        write_json(up)
        return
    table(("NODE", "ADDRESS", "DATA"), [(row.name, row.address, row.data) for row in rows])
    first = rows[0]
    program = Path(sys.executable).with_name("dios")
    say(f"job {job.job}; its data are lost when it ends. Next, as in all commands:")
    say(
        f"  srun --jobid={job.job} --overlap --nodes=1 --ntasks=1 --nodelist={first.host} "
        f"{program} node ls --node {first.data}"
    )


def slurm_down(directory: Path, *, delete: bool, as_json: bool) -> None:
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
    if as_json:
        down: SlurmDownRow = {"directory": str(directory), "job": job.job if job else None}
        write_json(down)
    else:
        ended = f"{job.job} ended, its files deleted" if job else "none"
        facts([("job", ended), ("directory", str(directory))])


# -- kubernetes -------------------------------------------------------------------------------------
def kubernetes_up(
    *, nodes: int, namespace: str, image: str, storage: str, settings: Mapping[str, str], as_json: bool
) -> None:
    """Apply the manifests and show the nodes. Raise the errors of ``kubernetes``."""
    wanted = kubernetes.Wanted(nodes, namespace or kubernetes.NAME, image, storage, settings)
    wanted.check()
    with progress("bringing the cluster up") as report:
        try:
            members = kubernetes.bring_up(wanted, report=report)
        except BaseException:
            say("applied objects are kept: the same command continues, `dios down --on kubernetes` undoes it")
            raise
    if as_json:
        up: KubernetesUpRow = {"namespace": wanted.namespace, "nodes": members}
        write_json(up)
        return
    table(
        ("NODE", "RACK", "ADDRESS", ""),
        [(member.name, member.rack or "-", member.address, member.status) for member in members],
    )
    say(f"next: kubectl --namespace {wanted.namespace} exec {members[0].name} -- dios node ls")


def kubernetes_down(namespace: str, *, delete: bool, as_json: bool) -> None:
    """End the pods, or delete everything. Raise the errors of ``kubernetes``."""
    namespace = namespace or kubernetes.NAME
    with progress("taking the cluster down") as report:
        kubernetes.take_down(namespace, delete=delete, report=report)
    if as_json:
        down: KubernetesDownRow = {"namespace": namespace, "deleted": delete}
        write_json(down)
        return
    facts([("cluster", "deleted" if delete else "ended; volumes and data kept"), ("namespace", namespace)])
    if not delete:
        say("next: `dios up --on kubernetes` continues with these data; --delete deletes them")
