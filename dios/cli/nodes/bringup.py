"""``dios up`` and ``dios down`` for machines of others: ``--hosts``, ``--on slurm`` and ``--on kubernetes``.

``dios.node.bringup`` does the work; ``local_cluster`` has the commands and their options.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from dios.cli.common.output import facts, progress, say, table, write_json
from dios.errors import InvalidError
from dios.node.bringup import hosts, ssh
from dios.node.bringup.answers import Stopped

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


def hosts_up(wanted: hosts.Wanted, command: str, *, as_json: bool) -> None:
    """Bring the cluster up and show it. Raise the errors of ``Fleet.bring_up``."""
    with progress("bringing the cluster up") as report:
        fleet = hosts.Fleet(wanted, ssh=_ssh(command), report=report)
        with _stating(fleet, "the same command continues; `dios down --hosts` with these hosts undoes it"):
            rows = fleet.bring_up()
    if as_json:
        write_json({"nodes": [asdict(row) for row in rows]})
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
        write_json(
            {
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
        )
        return
    facts([(host.target, _state(answer)) for host, answer in answers.items()])
    if any(answer.there and not answer.deleted for answer in stopped):
        say("next: `dios up --hosts` with these hosts starts them again; --delete deletes their data")


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
