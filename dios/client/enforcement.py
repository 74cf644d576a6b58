"""Texts about the needs of a task that its node enforces, and those that are advisory there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dios.wire.messages import Work

PIN: Final = "pin"
NET: Final = "net"
_IN_LIMBO: Final = {
    PIN: "a task in limbo can choose its processors",
    NET: "a task in limbo can open connections of its own",
}


def wanted_of(work: Work) -> tuple[str, ...]:
    """Return the words of the resources that a run names, as nodes list them."""
    named = (
        ("cpu", work.cpus_milli),
        ("memory", work.memory_bytes),
        ("disk-io", work.disk_io),
        (NET, work.network),
        (PIN, work.pinned),
        ("device", work.devices),
    )
    return tuple(word for word, amount in named if amount)


def enforcement_text(wanted: Iterable[str], enforcement: Mapping[str, object], *, limbo: bool) -> str:
    """Return the resources that a node enforces, and those that are advisory there with the reasons.

    ``enforcement`` is what the node reports: by resource, the reason why it is not enforced, or "".
    """
    enforced, advisory = sorted_out(wanted, enforcement, limbo=limbo)
    parts = [f"enforced: {', '.join(enforced) or 'nothing'}"]
    if advisory:
        parts.append("advisory: " + ", ".join(f"{word} ({why})" for word, why in advisory.items()))
    return "; ".join(parts)


def sorted_out(
    wanted: Iterable[str], enforcement: Mapping[str, object], *, limbo: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the enforced resources, and the advisory ones with the reasons."""
    reasons = {word: str(enforcement.get(word, "the node does not report it")) for word in wanted}
    if limbo:
        reasons = {word: why or _IN_LIMBO.get(word, "") for word, why in reasons.items()}
    return [word for word, why in reasons.items() if not why], {w: why for w, why in reasons.items() if why}


def lines_of(
    wanted: tuple[str, ...], nodes: Iterable[Mapping[str, object]], host: str, *, limbo: bool
) -> list[str]:
    """Return a line for all nodes that enforce the same; it names them if others do not.

    ``nodes`` are the rows of `dios sched status`; with a ``host`` only that node counts.
    """
    by_text: dict[str, list[str]] = {}
    for row in nodes:
        if host and row["node"] != host:
            continue
        known = row.get("enforcement")
        text = enforcement_text(wanted, known if isinstance(known, Mapping) else {}, limbo=limbo)
        by_text.setdefault(text, []).append(str(row["node"]))
    if len(by_text) == 1:
        return list(by_text)
    return [f"on {', '.join(names)}: {text}" for text, names in by_text.items()]
