from __future__ import annotations

from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.node.bringup import hosts
from dios.node.bringup.dependencies import OWN_LOCK
from dios.node.bringup.hosts import Host
from dios.node.bringup.ssh import HostError, Ssh
from dios.wire.node_roles import NodeRole


def test_hosts_have_names_and_racks() -> None:
    """A node's name is the host's first label without the user, or the given one; racks go round."""
    assert hosts.parse("a.example, root@b.example/r9,n3=10.0.0.3,10.0.0.4", racks=2) == (
        Host("a", "a.example", "r1"),
        Host("b", "root@b.example", "r9"),
        Host("n3", "10.0.0.3", "r1"),
        Host("10.0.0.4", "10.0.0.4", "r2"),
    )


@pytest.mark.parametrize(
    "text", ["", "-oProxyCommand=x", "n1=-v", "a,a", "x=a,x=b", "a b", "a/../b", "fe80::1"]
)
def test_lists_that_are_none_are_refused(text: str) -> None:
    """A host is never an option of ssh; names are given once, and fit into tables."""
    with pytest.raises(InvalidError):
        hosts.parse(text)


@pytest.mark.parametrize(
    ("text", "wheelhouse", "lock"),
    [
        (None, None, OWN_LOCK),
        (None, Path("wheels"), None),
        ("none", None, None),
        ("lock", None, Path("lock")),
        ("lock", Path("wheels"), Path("lock")),
    ],
)
def test_wheels_of_an_index_have_a_lock(text: str | None, wheelhouse: Path | None, lock: Path | None) -> None:
    """Only wheels that the user gathered need none, unless the user says so."""
    assert hosts.lock_of(text, wheelhouse) == lock


def answering(folder: Path, script: str) -> Ssh:
    """A client that prints what a hostile host sends."""
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Ssh([str(program)])


GREETING = "echo dios-bringup-1\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("yes", "login scripts print too much"),
        (GREETING + "tr '\\0' x </dev/zero", "not valid"),
        (GREETING + 'echo \'{"look": {"python": 3}}\'', "not valid"),
        (GREETING + 'echo \'{"more": {"python": 3}}\'', "not valid"),
        (GREETING + 'echo \'{"failed": "no\\u001b[2J"}\'', "no"),
        (GREETING, "the connection ended with status 0"),
        ("echo denied >&2; exit 255", "cannot reach host by ssh: denied"),
        ("exit 78", "no Python 3.11"),
    ],
)
def test_answers_of_hosts_are_bounded(tmp_path: Path, script: str, reason: str) -> None:
    """A host that sends something else, too much or nothing ends the step with a reason."""
    with pytest.raises(HostError, match=reason):
        answering(tmp_path, script).ask("host", {})


FIRST_IS_NONE = GREETING + (
    'case "$*" in\n'
    '  *second*) echo \'{"token": {"token": "dios-join-1.x", "address": "10.0.0.2:7400"}}\' ;;\n'
    '  *) echo \'{"failed": "made no invitation"}\' ;;\n'
    "esac"
)


def test_an_authority_among_the_hosts_invites_the_others(tmp_path: Path) -> None:
    """A member makes no invitation, so the next host is asked; the reason is told if all are members."""
    first, second = Host("first", "first", ""), Host("second", "second", "")
    fleet = hosts.Fleet(hosts.Wanted((first, second)), ssh=answering(tmp_path, FIRST_IS_NONE))
    assert fleet._token([first, second], 1, role=NodeRole.AUTHORITY).address == "10.0.0.2:7400"
    with pytest.raises(HostError, match="made no invitation"):
        fleet._token([first], 1, role=NodeRole.MEMBER)
