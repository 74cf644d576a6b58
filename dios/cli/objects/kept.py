"""Promises of replicas as text, for the commands that show them."""

from __future__ import annotations

from collections.abc import Sequence

from dios.cli.common.output import counted, time_text
from dios.lib.kept.promises import KeptStatus


def kept_text(promise: KeptStatus) -> str:
    """Return one line: if a promise is kept, or how many objects are short of it and since when."""
    if not promise.leader:
        return "not known: no node has begun to keep it"
    if promise.short:
        conflicts = f", {promise.conflicts} of them in conflict" if promise.conflicts else ""
        verb = "is" if promise.short == 1 else "are"
        short = f"{promise.short} of {counted(promise.objects, 'object')} {verb} short{conflicts}"
        return f"{short}, since {time_text(promise.since * 10**9)}: {promise.reason}"
    if promise.reason:
        return f"not known: {promise.reason}"
    if not promise.checked:
        return "not known yet: the objects are being looked at"
    kept = f"yes, for {counted(promise.objects, 'object')}"
    if not promise.unverified:
        return kept
    return f"{kept}; the bytes of {promise.unverified} of them are still being compared"


def why_text(reason: str, conflict: Sequence[str]) -> str:
    """Return why an object is short of its promise, with the versions of replicas in conflict."""
    return f"{reason} ({', '.join(conflict)})" if conflict else reason
