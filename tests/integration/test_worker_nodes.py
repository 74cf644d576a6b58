"""A machine that joins as a worker, by the commands of a person: it runs tasks, and administers nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.security.hostile_member.turncoat import free_address

pytestmark = pytest.mark.long


def test_a_worker_runs_tasks_and_administers_nobody(tmp_path: Path) -> None:
    """What its owner types there for other nodes is refused by them, and by itself where it can know."""
    person = Person(tmp_path)
    (tmp_path / "job.py").write_text("print('done')\n")
    person.types("dios-node init --data n1 --name n1 --json", "--listen", free_address())
    started = []
    try:
        person.types("dios-node start --data n1 --detach --pool-size 0")
        started.append("n1")
        invited = json.loads(person.types("dios-node invite --data n1 --role worker --json").stdout)
        join = ("--join", invited["address"], "--invitation", invited["token"], "--listen", free_address())
        person.types(
            "dios-node start --data w1 --detach --name w1 --pool-size 0 --limbo-from-nodes yes", *join
        )
        started.append("w1")
        rows = json.loads(person.types("dios node ls --json --node n1").stdout)
        assert {row["name"]: row["roles"] for row in rows} == {"n1": ["authority"], "w1": ["worker"]}
        assert person.types("dios run job.py --on w1 --node n1").stdout == "done\n"
        assert person.types("dios run job.py --on n1 --node w1").stdout == "done\n"

        assert "w1 of cluster" in (report := person.types("dios doctor -v --data w1").stdout)
        assert "a worker, which administers no other node" in " ".join(report.split())
        assert "worker" in person.types("dios-node invite --data w1", status=1).stderr
        assert "worker" in person.types("dios node forget n1 --yes --node w1", status=1).stderr
        for act in ("drain n1", "label n1 gpu=yes"):
            assert (
                "w1 has the role worker and administers no other node"
                in person.types(f"dios node {act} --node w1", status=1).stderr
            )
        rows = json.loads(person.types("dios node ls --json --node n1").stdout)
        assert [(row["name"], row["draining"]) for row in rows] == [("n1", False), ("w1", False)]

        assert (
            "limbo_from_nodes" in person.types("dios run job.py --limbo --on n1 --node w1", status=125).stderr
        )
        assert person.types("dios run job.py --limbo --on w1 --node n1").stdout == "done\n"
    finally:
        for data in reversed(started):
            person.types(f"dios-node stop --data {data}")
