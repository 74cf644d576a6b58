from __future__ import annotations

import dataclasses

import msgspec
import pytest

from dios.cli.nodes.members import described, last_authority, silent
from dios.client.ops.cluster import Member
from dios.wire.types import Fitness, NodeStatus


def member(status: NodeStatus, *, draining: bool = False) -> Member:
    """A node in some status."""
    return Member(0xA1, "n1", "r1", "h:1", status, draining, 3, 5, 1, 2, 1024, False)


@pytest.mark.parametrize(
    ("status", "draining", "shown"),
    [
        (NodeStatus.ALIVE, False, "alive"),
        (NodeStatus.ALIVE, True, "draining"),
        (NodeStatus.SUSPECT, True, "suspect, draining"),
        (NodeStatus.DEAD, False, "dead"),
        (NodeStatus.LEFT, False, "left"),
    ],
)
def test_a_status_is_one_word_where_it_can_be(status: NodeStatus, *, draining: bool, shown: str) -> None:
    """Draining is all there is to say of a node that is well, and comes beside anything else."""
    assert member(status, draining=draining).condition == shown


@pytest.mark.parametrize(
    ("fitness", "shown"), [(Fitness.UNKNOWN, "alive, fitness unknown"), (Fitness.UNFIT, "alive, unfit")]
)
def test_a_node_that_runs_no_pure_tasks_is_not_just_alive(fitness: Fitness, shown: str) -> None:
    """Of a node that answers, people see that it may refuse their tasks; of a dead one that is no matter."""
    assert dataclasses.replace(member(NodeStatus.ALIVE), fitness=fitness).condition == shown
    assert dataclasses.replace(member(NodeStatus.DEAD), fitness=fitness).condition == "dead"


def test_programs_get_every_field() -> None:
    """A node as JSON has what people see, and its id."""
    assert msgspec.to_builtins(described(member(NodeStatus.SUSPECT, draining=True))) == {
        "name": "n1",
        "rack": "r1",
        "address": "h:1",
        "status": "suspect",
        "roles": [],
        "secret": "current",
        "since": 5,
        "draining": True,
        "fitness": "fit",
        "here": False,
        "epoch": 3,
        "tasks": 1,
        "cpus": 2,
        "memory": 1024,
        "id": "00000000000000a1",
        "labels": {},
        "clock_offset_ns": None,
        "clock_error_ns": None,
    }


def test_who_did_not_answer_is_named() -> None:
    """An incomplete answer names the nodes that are not alive; when all are again, it was some node."""
    alive, dead, left = map(member, (NodeStatus.ALIVE, NodeStatus.DEAD, NodeStatus.LEFT))
    assert (
        silent([alive, dataclasses.replace(dead, name="n2"), dataclasses.replace(left, name="n3")])
        == "n2, n3"
    )
    assert silent([alive]) == "a node"


def test_the_only_authority_is_not_forgotten_unwarned() -> None:
    """The warning is for the node that is removed if no other is known to admit and renew."""
    n1, n2, n3 = (dataclasses.replace(member(NodeStatus.ALIVE), name=name) for name in ("n1", "n2", "n3"))
    n1 = dataclasses.replace(n1, roles=("authority",))
    warning = last_authority([n1, n2, n3], "n1")
    assert "n1 is the only known authority" in warning
    assert "dios-node authorize" in warning
    assert not last_authority([n1, n2, n3], "n2")
    assert not last_authority([n1, dataclasses.replace(n2, roles=("authority",)), n3], "n1")
    assert not last_authority([n2, n3], "n2")
