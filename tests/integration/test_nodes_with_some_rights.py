"""Nodes that have some rights, by a person's commands: they are not chosen, and refused with their role."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.security.hostile_member.honest_nodes import until
from tests.support.security.hostile_member.turncoat import free_address


def test_a_promise_chooses_nodes_that_may_keep(tmp_path: Path) -> None:
    """Of a keeper and a runner the keeper gets the replica; the runner refuses one, and opens no border."""
    person = Person(tmp_path)
    (tmp_path / "one.txt").write_text("one")
    person.types("dios-node init --data n1 --name n1 --json", "--listen", free_address())
    started: list[str] = []
    try:
        person.types("dios-node start --data n1 --detach --pool-size 0")
        started.append("n1")
        for name, role, more in (("n2", "runner", ("--border", free_address())), ("n3", "keeper", ())):
            invited = json.loads(person.types(f"dios-node invite --data n1 --role {role} --json").stdout)
            join = ("--join", invited["address"], "--invitation", invited["token"])
            person.types(
                f"dios-node start --data {name} --detach --name {name} --pool-size 0",
                *(*join, "--listen", free_address(), *more),
            )
            started.append(name)

        def roles() -> dict[str, list[str]]:
            rows = json.loads(person.types("dios node ls --json --node n1").stdout)
            return {row["name"]: row["roles"] for row in rows}

        until(lambda: roles() == {"n1": ["authority"], "n2": ["runner"], "n3": ["keeper"]}, "all are met")
        person.types("dios group create papers --node n1")
        person.types("dios group set papers --replicas 2 --node n1")
        person.types("dios put one.txt --group papers --node n1")

        def nodes_of_replicas() -> set[str]:
            told = json.loads(person.types("dios stat one.txt --json --node n1").stdout)
            return {replica["node"] for replica in told["replicas"]}

        assert nodes_of_replicas() == {"n1", "n3"}
        refused = person.types("dios replicate one.txt --on n2 --durable --node n1", status=1).stderr
        assert "n2 has the role runner and holds no durable copies for other nodes" in refused
        assert (
            "n2 has the role runner and opens no border" in person.types("dios node logs n2 --node n1").stdout
        )
        report = " ".join(person.types("dios doctor -v --data n2").stdout.split())
        assert "a runner, which runs tasks and nothing else" in report
        assert "replicas are promised, and" not in report
        person.types("dios group set papers --replicas 3 --node n1")
        report = " ".join(person.types("dios doctor -v --data n1").stdout.split())
        assert "3 replicas are promised, and 2 nodes may keep some" in report
    finally:
        for name in reversed(started):
            person.types(f"dios-node stop --data {name}")


def _attends(person: Person, name: str) -> bool:
    """Return True if a scheduler knows a node."""
    try:
        return f'"{name}"' in person.types(f"dios sched status --json --node {name}").stdout
    except AssertionError:
        return False


def test_a_scheduler_schedules_for_the_others_and_a_runner_does_not(tmp_path: Path) -> None:
    """A run with a reservation needs a scheduler: that of a scheduler places it, a runner has none."""
    pytest.importorskip("numba", reason="a coordinator needs the extra cluster")
    person = Person(tmp_path)
    (tmp_path / "job.py").write_text("print('done')\n")
    person.types("dios-node init --data n1 --name n1 --json", "--listen", free_address())
    started: list[str] = []

    def start(name: str, *more: str) -> None:
        person.types(f"dios-node start --data {name} --detach --name {name} --pool-size 0", *more)
        started.append(name)

    def join(name: str, role: str) -> None:
        invited = json.loads(person.types(f"dios-node invite --data n1 --role {role} --json").stdout)
        where = ("--join", invited["address"], "--invitation", invited["token"], "--listen", free_address())
        start(name, "--coordinator", "on", *where)

    run = "dios run job.py --reserve-memory 10MiB --node n1"
    try:
        start("n1", "--coordinator", "off")
        join("n2", "runner")
        assert "runs a scheduler" in person.types(run, status=125).stderr
        assert "schedules for no other node" in person.types("dios node logs n2 --node n1").stdout
        join("n3", "scheduler")

        wait_until(lambda: _attends(person, "n1"), "the scheduler of n3 attends n1", 120)
        assert person.types(run).stdout == "done\n"
    finally:
        for name in reversed(started):
            person.types(f"dios-node stop --data {name}")
