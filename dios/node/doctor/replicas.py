"""Tests that the replicas that this user was promised are there, as the keeper of a running node says."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.lib.kept.promises import KeptStatus, Promises, ShortObject
from dios.node import daemon
from dios.node.settings import load
from dios.wire.nametext import fingerprint


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
            promises = Promises(node)
            statuses = promises.statuses()
            lists = {fingerprint(one.target): one.label for one in promises.known() if not one.is_single}
            divided = [lists[one.fingerprint] for one in promises.short_objects() if _is_divided(one, lists)]
    except DiosError:
        return None  # other tests show why the node does not answer
    if not statuses:
        return None
    short = [one for one in statuses if one.short or one.reason]
    if not short:
        objects = sum(one.objects for one in statuses)
        return ReplicasTest(f"{len(statuses)} promises for {objects} objects are kept")
    shown = "; ".join(_text(one) for one in short[:4])
    repair = "".join(f"`dios group repair {label}` unites its list of files; " for label in sorted(divided))
    return ReplicasTest(
        shown, f"{repair}see `dios group describe` and `dios node ls`; start or replace lost nodes"
    )


def _is_divided(one: ShortObject, lists: Collection[str]) -> bool:
    """Return True if an object is a list of files whose replicas differ."""
    return bool(one.conflict) and one.fingerprint in lists


def _text(one: KeptStatus) -> str:
    """Return how far a promise is kept: without a number of objects if the list of them cannot be read."""
    label = one.label or one.key
    if not one.short:
        return f"{label}: its list of files cannot be read: {one.reason}"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.since))
    return f"{label}: {one.short} of {one.objects} objects since {since}, {one.reason}"
