"""Tests that the replicas that this user was promised are there, as the keeper of a running node says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.lib.kept.promises import Promises
from dios.node import daemon
from dios.node.settings import load


@dataclass(frozen=True, slots=True)
class ReplicasTest:
    """The result for one user; ``advice`` says what to do if promises are not kept."""

    detail: str
    advice: str = ""


def examine_replicas(data: Path) -> ReplicasTest | None:
    """Ask the node in ``data`` if the caller's promises are kept; None without a running node or promises."""
    try:
        socket = load(data).socket
        if daemon.find(socket) is None:
            return None
        with connect(str(socket), groups=()) as node:
            statuses = Promises(node).statuses()
    except DiosError:
        return None  # other tests show why the node does not answer
    if not statuses:
        return None
    short = [one for one in statuses if one.short or one.reason]
    if not short:
        objects = sum(one.objects for one in statuses)
        return ReplicasTest(f"{len(statuses)} promises for {objects} objects are kept")
    shown = "; ".join(
        f"{one.label or one.key}: {one.short} of {one.objects} objects since "
        f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(one.since))}, {one.reason}"
        for one in short[:4]
    )
    return ReplicasTest(shown, "see `dios group describe` and `dios node ls`; start or replace lost nodes")
