"""Tests that the replicas that this user was promised are there, as the keeper of a running node says."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.lib.kept.promises import KeptStatus, Promises
from dios.lib.kept.records import ShortObject
from dios.node import daemon
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import load
from dios.wire.nametext import fingerprint

_TEST: Final = DoctorTest("replicas", "each object has as many replicas as you promised for it")


def examine_replicas(data: Path) -> DoctorFinding | None:
    """Ask the node in ``data`` if the caller's promises are kept; None without a running node or promises."""
    try:
        socket = load(data).socket
        if daemon.find(socket) is None:
            return None
        with connect(str(socket), groups=()) as node:
            promises = Promises(node)
            statuses = promises.statuses()
            lists = {
                fingerprint(promise.target): promise.label
                for promise in promises.known()
                if not promise.is_single
            }
            divided = [
                lists[short_object.fingerprint]
                for short_object in promises.short_objects()
                if _is_divided(short_object, lists)
            ]
    except DiosError:
        return None  # other tests show why the node does not answer
    if not statuses:
        return None
    short = [status for status in statuses if status.short or status.reason]
    if not short:
        objects = sum(status.objects for status in statuses)
        return _TEST.result(f"{len(statuses)} promises for {objects} objects are kept")
    shown = "; ".join(_text(status) for status in short[:4])
    repair = "".join(f"`dios group repair {label}` unites its list of files; " for label in sorted(divided))
    return _TEST.result(
        shown, f"{repair}see `dios group describe` and `dios node ls`; start or replace lost nodes"
    )


def _is_divided(short_object: ShortObject, lists: Collection[str]) -> bool:
    """Return True if an object is a list of files whose replicas differ."""
    return bool(short_object.conflict) and short_object.fingerprint in lists


def _text(status: KeptStatus) -> str:
    """Return how far a promise is kept: without a number of objects if the list of them cannot be read."""
    label = status.label or status.key
    if not status.short:
        return f"{label}: its list of files cannot be read: {status.reason}"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.since))
    return f"{label}: {status.short} of {status.objects} objects since {since}, {status.reason}"
