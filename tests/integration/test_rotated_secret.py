"""Three real nodes whose secret changes, by a person's commands: with one away, and with one removed."""

from __future__ import annotations

import json
from pathlib import Path

from dios.transport.identity.identity import load
from tests.support.node.command_user import Person
from tests.support.security.hostile_member.honest_nodes import until
from tests.support.security.hostile_member.turncoat import free_address


def later_secrets(node: Path) -> tuple[bytes, ...]:
    """The later secrets that a node has stored."""
    own = load(node)
    assert own is not None
    return own.generations.secrets


def secrets_at(person: Person, name: str) -> dict[str, str]:
    """Which nodes have the present secret, as a node sees it."""
    rows = json.loads(person.types(f"dios node ls --json --node {name}").stdout)
    return {row["name"]: row["secret"] for row in rows}


def make(person: Person, group: str) -> None:
    """Make a group with a file at the second node."""
    (person.home / "file").write_text(group)
    person.types(f"dios group create {group} --node n2")
    person.types(f"dios put file --group {group} --node n2")


def require_readable(person: Person, name: str, *groups: str) -> None:
    """Read the files of groups at a node."""
    for group in groups:
        assert person.types(f"dios get {group}/file --node {name}").stdout == group


def test_users_lose_nothing_and_a_removed_node_gets_nothing(tmp_path: Path) -> None:
    """Groups, files, tokens and backups of before and after, on every node, also after a restart of all."""
    person = Person(tmp_path)
    nodes = {name: tmp_path / name for name in ("n1", "n2", "n3")}
    person.types("dios-node init --data n1 --name n1", "--listen", free_address())
    started: list[str] = []

    def start(name: str, *more: str) -> None:
        line = f"dios-node start --data {name} --detach --pool-size 0 --border {free_address()}"
        person.types(line, *more)
        started.append(name)

    def stop(name: str) -> None:
        person.types(f"dios-node stop --data {name}")
        started.remove(name)

    try:
        start("n1")
        for name in ("n2", "n3"):
            invited = json.loads(person.types("dios-node invite --data n1 --json").stdout)
            joining = ("--name", name, "--join", invited["address"], "--invitation", invited["token"])
            start(name, *joining, "--listen", free_address())
        make(person, "before")
        person.types("dios token issue before --out token --node n2")
        person.types("dios backup keygen backup.key")
        person.types("dios backup create backups --recipient backup.key.pub --node n2")

        # A node that is away gets the next secret when it comes back.
        stop("n3")
        rotated = person.types("dios node rotate-secret --node n1 --json")
        assert {row["name"]: row["secret"] for row in json.loads(rotated.stdout)} == {
            "n1": "current", "n2": "current", "n3": "unknown",
        }  # fmt: skip
        report = " ".join(person.types("dios doctor -v --data n1").stdout.split())
        assert "n3 do not answer, and get it when they come back" in report
        start("n3")
        until(lambda: set(secrets_at(person, "n1").values()) == {"current"}, "it has it")
        assert later_secrets(nodes["n3"]) == later_secrets(nodes["n1"])

        # A removed node does not.
        forgotten = person.types("dios node forget n3 --yes --node n1")
        assert "the secret of the cluster is new on all nodes that answer" in forgotten.stderr
        assert len(later_secrets(nodes["n1"])) == 2
        assert later_secrets(nodes["n2"]) == later_secrets(nodes["n1"])
        make(person, "after")

        # All works as before, also after a restart of all.
        for name in ("n1", "n2"):
            stop(name)
        for name in ("n1", "n2"):
            start(name)
        until(lambda: secrets_at(person, "n1") == {"n1": "current", "n2": "current"}, "both are connected")
        for name in ("n1", "n2"):
            require_readable(person, name, "before", "after")
            person.types(f"dios token get token file --out read-at-{name} --node {name}")
            assert (tmp_path / f"read-at-{name}").read_text() == "before"
        person.types("dios backup restore backups --key backup.key --group before --as restored --node n1")
        assert person.types("dios get restored/file --node n2").stdout == "before"
        assert later_secrets(nodes["n3"]) == later_secrets(nodes["n1"])[:1]
    finally:
        for name in reversed(started):
            person.types(f"dios-node stop --data {name}")
