"""Waits until the nodes that live have the present generation of the cluster's secret."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dios.cli.common.output import counted
from dios.client.ops.cluster import Member
from dios.client.sync.node import Node
from dios.wire.types import NodeStatus, SecretState

ROTATION_SECONDS: Final = 30
_LOOK_SECONDS: Final = 0.2


def wait_for_secret(connected: Node, seconds: float, report: Callable[[str], None]) -> list[Member]:
    """Wait until all nodes that may answer have the secret, or the time is over; return all nodes."""
    end = time.monotonic() + seconds
    while True:
        members = connected.nodes()
        late = without_secret(members)
        if not late or time.monotonic() >= end:
            return members
        report(f"{counted(len(late), 'node')} left")
        time.sleep(_LOOK_SECONDS)


def without_secret(members: list[Member]) -> list[Member]:
    """Return the nodes that may answer and are not known to have the present secret."""
    return [
        member
        for member in members
        if member.secret is not SecretState.CURRENT
        and (member.here or member.status in {NodeStatus.ALIVE, NodeStatus.SUSPECT})
    ]


def secret_text(members: list[Member]) -> str:
    """Return a text about the nodes without the present secret, which the status of a node shows."""
    late = [member for member in members if member.secret is not SecretState.CURRENT]
    if not late:
        return "all nodes have the present one"
    if late[0].here:
        return "a removed node has the present one; the next one is due"
    return f"{', '.join(member.name for member in late)} do not have the present one yet"


def outcome_of(members: list[Member]) -> str:
    """Return a sentence about the nodes that have the secret, and those that do not have it yet."""
    late = without_secret(members)
    if late and late[0].here:
        return (
            f"the cluster's secret has not changed yet at {late[0].name}: no authority has made the next "
            "one, or it cannot be stored. Both are tried again; the logs of this node and of the authorities "
            "say why."
        )
    if late:
        return (
            f"these nodes do not have the new secret yet: {', '.join(member.name for member in late)}. They "
            "get it as soon as they can be reached and can store it; `dios doctor` shows if they did."
        )
    away = [member.name for member in members if member.secret is not SecretState.CURRENT]
    more = f"; {', '.join(away)} will get it when they come back" if away else ""
    return f"the secret of the cluster is new on all nodes that answer{more}"
