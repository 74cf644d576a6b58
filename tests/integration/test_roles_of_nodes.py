"""Certificates that end, by a person's commands: their renewal, and the way back without an authority."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dios.transport.identity.identity import adopt, load, renew
from tests.support.node.command_user import Person
from tests.support.security.hostile_member.honest_nodes import until
from tests.support.security.hostile_member.turncoat import free_address

pytestmark = pytest.mark.long

DAY_S = 86_400


def age(signer: Path, node: Path, days: int) -> int:
    """Give a stopped node the certificate that it would have after so many days; return its end."""
    first, own = load(signer), load(node)
    assert first is not None
    assert own is not None
    chain = renew(first, own.chain, own.key().public_key(), days=10, now_s=time.time() - days * DAY_S)
    return end_of(adopt(own, chain).folder.parent)


def end_of(node: Path) -> int:
    """The end of the certificate of a node, seconds since 1970."""
    own = load(node)
    assert own is not None
    assert own.card.until_s is not None
    return own.card.until_s


def until_renewed(node: Path, before: int) -> None:
    """Wait until the certificate of a node ends later than before."""
    until(lambda: end_of(node) > before, "the certificate is renewed")


def test_certificates_are_renewed_and_a_cluster_comes_back_without_its_authority(tmp_path: Path) -> None:
    """Half of the life, its end, and the loss of the only authority: each is told, and each has a way on."""
    person = Person(tmp_path)
    n1, n2, n3 = (tmp_path / name for name in ("n1", "n2", "n3"))
    person.types("dios-node init --data n1 --name n1 --root-key root.key --json", "--listen", free_address())
    started: list[str] = []

    def start(name: str, *more: str) -> None:
        person.types(f"dios-node start --data {name} --detach --pool-size 0", *more)
        started.append(name)

    def stop(name: str) -> None:
        person.types(f"dios-node stop --data {name}")
        started.remove(name)

    def statuses(name: str) -> dict[str, str]:
        return {
            row["name"]: row["status"]
            for row in json.loads(person.types(f"dios node ls --json --node {name}").stdout)
        }

    try:
        start("n1")
        for name in ("n2", "n3"):
            invited = json.loads(person.types("dios-node invite --data n1 --json").stdout)
            start(
                name,
                *("--name", name, "--join", invited["address"], "--invitation", invited["token"]),
                *("--listen", free_address()),
            )
        assert "n2 has the role member" in person.types("dios-node invite --data n2", status=1).stderr
        rows = json.loads(person.types("dios node ls --json --node n2").stdout)
        assert {row["name"]: row["roles"] for row in rows} == {
            "n1": ["authority"],
            "n2": ["member"],
            "n3": ["member"],
        }
        status = json.loads(person.types("dios-node status --data n2 --json").stdout)
        assert "more days, until" in status["certificate"]
        metrics = json.loads(person.types("dios metrics --json --node n2").stdout)
        (days,) = [row["value"] for row in metrics if row["metric"] == "dios_certificate_days_left"]
        assert days in {13, 14}

        # After half of its life, and long after its end, a certificate is renewed by itself.
        for days in (6, 400):
            stop("n2")
            before = age(n1, n2, days)
            start("n2")
            until_renewed(n2, before)
            until(lambda: statuses("n2") == dict.fromkeys(("n1", "n2", "n3"), "alive"), "all are connected")

        # Without an authority the node says that it is not renewed, and lives until its certificate ends.
        for name in ("n1", "n2", "n3"):
            stop(name)
        for node in (n2, n3):
            age(n1, node, 6)
        for name in ("n2", "n3"):
            start(name)

        def report() -> str:
            return " ".join(person.types("dios doctor -v --data n2").stdout.split())

        until(lambda: "not renewed since" in report(), "the doctor says it")
        assert "dios-node authorize" in report()
        assert statuses("n2")["n3"] == "alive"

        # The key of the root makes one of them an authority, and everything goes on.
        assert "Stop it" in person.types("dios-node authorize --data n3 --root-key root.key", status=1).stderr
        stop("n3")
        person.types("dios-node authorize --data n3 --root-key root.key")
        before = end_of(n2)
        start("n3")
        until_renewed(n2, before)
        assert json.loads(person.types("dios-node invite --data n3 --json").stdout)["token"]
        until(lambda: statuses("n2") == dict.fromkeys(("n2", "n3"), "alive"), "both are connected")
    finally:
        for name in reversed(started):
            person.types(f"dios-node stop --data {name}")
