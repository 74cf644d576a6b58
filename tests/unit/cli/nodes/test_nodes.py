from __future__ import annotations

import dataclasses

import pytest

from dios.cli.nodes.members import described, silent, status_text
from dios.client.ops.cluster import Member
from dios.wire.types import NodeStatus


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
    assert status_text(member(status, draining=draining)) == shown


def test_programs_get_every_field() -> None:
    """A node as JSON has what people see, and its id."""
    assert described(member(NodeStatus.SUSPECT, draining=True)) == {
        "name": "n1",
        "rack": "r1",
        "address": "h:1",
        "status": "suspect",
        "since": 5,
        "draining": True,
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
