"""What people see of the cluster's secret: which nodes have it, and how long a command waits."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from dios.cli.nodes import cluster_secret
from dios.cli.nodes.cluster_secret import outcome_of, secret_text, wait_for_secret, without_secret
from dios.client.ops.cluster import Member
from dios.client.sync.node import Node
from dios.node.doctor.cluster import judge_secret
from dios.wire.types import NodeStatus, SecretState


def member(name: str, secret: SecretState = SecretState.CURRENT, *, here: bool = False) -> Member:
    """A node that lives unless nothing is known of its secret."""
    status = NodeStatus.DEAD if secret is SecretState.UNKNOWN else NodeStatus.ALIVE
    row = Member(ord(name[-1]), name, "", "", status, False, 1, 0, 0, 1, 1, here)
    return replace(row, secret=secret)


HERE = member("n1", here=True)
DUE = member("n1", SecretState.WAITING, here=True)
WAITING = member("n2", SecretState.WAITING)
AWAY = member("n3", SecretState.UNKNOWN)
WELL = member("n4")


@pytest.mark.parametrize(
    ("members", "late", "outcome", "status", "detail", "advice"),
    [
        ([HERE, WELL], [], "is new on all nodes that answer", "all nodes have", "all nodes have", ""),
        (
            [HERE, AWAY, WELL],
            [],
            "on all nodes that answer; n3 will get it",
            "n3 do not have",
            "n3 do not answer, and get it when they come back",
            "",
        ),
        (
            [HERE, WAITING, AWAY],
            [WAITING],
            "do not have the new secret yet: n2. They",
            "n2, n3 do not have",
            "n2 lack the present one; n3 do not answer",
            "update nodes",
        ),
        (
            [DUE, WELL],
            [DUE],
            "has not changed yet at n1",
            "a removed node has",
            "n1 has one that a removed node has as well",
            "see the logs",
        ),
    ],
)
def test_each_state_is_said(
    members: list[Member], late: list[Member], outcome: str, status: str, detail: str, advice: str
) -> None:
    """By the commands that change the secret, the status of a node, and the doctor."""
    assert without_secret(members) == late
    assert outcome in outcome_of(members)
    assert status in secret_text(members)
    (finding,) = judge_secret(members)
    assert detail in finding.detail
    assert advice in finding.advice
    assert bool(advice) is bool(finding.advice)


def test_a_node_alone_has_no_finding() -> None:
    """It shares its secret with nobody."""
    assert not list(judge_secret([HERE]))


def test_a_node_that_waits_for_the_secret_is_not_just_alive() -> None:
    """Of a dead one that is no matter."""
    assert [node.condition for node in (WELL, WAITING, AWAY)] == ["alive", "alive, old secret", "dead"]


class _Nodes:
    """A node that shows one list after another."""

    def __init__(self, *listed: list[Member]) -> None:
        self.listed = list(listed)

    def nodes(self) -> list[Member]:
        """The next list, or the last one again."""
        return self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]


def test_a_command_waits_for_nodes_that_answer_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports how many are left, and returns what is known when the time is over."""
    monkeypatch.setattr(cluster_secret, "_LOOK_SECONDS", 0)
    reports: list[str] = []
    asked = _Nodes([DUE, WAITING], [HERE, WAITING, AWAY], [HERE, WELL, AWAY])
    assert wait_for_secret(cast("Node", asked), 60, reports.append) == [HERE, WELL, AWAY]
    assert reports == ["2 nodes left", "1 node left"]
    late = _Nodes([HERE, WAITING])
    assert wait_for_secret(cast("Node", late), 0, reports.append) == [HERE, WAITING]
