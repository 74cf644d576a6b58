"""Destruction of many objects, which ``dios rm`` and ``dios group rm`` share: in portions, with progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dios.cli.common.context import SHOWN_MAX, CataloguedFile, CommandContext
from dios.cli.common.output import progress
from dios.cli.nodes.members import silent
from dios.errors import InvalidError, UnreachableError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.group_files import BATCH_OBJECTS, Destroyed, destroy
from dios.wire.nametext import fingerprint


class Target(NamedTuple):
    """An object to destroy, or the own entry of a directory to remove."""

    text: str
    name: bytes
    found: CataloguedFile | None


def all_targets(place: CommandContext, alias: str) -> list[Target]:
    """Return everything that is in a group: files, logs, and the entries of directories."""
    entries = place.files(alias).entries()
    return [Target(f"{alias}/{each.file}", each.name, CataloguedFile(alias, each)) for each in entries]


def destroy_targets(
    place: CommandContext, targets: list[Target]
) -> tuple[list[tuple[Target, Destroyed]], list[Target]]:
    """Destroy objects and remove their entries; return the outcomes, and the objects that are left.

    After an interruption, the objects that are gone have no entries either.
    """
    gone: list[tuple[Target, Destroyed]] = []
    named = list({each.name: each for each in targets if each.name}.values())
    try:
        with progress("destroying") as show:
            for start in range(0, len(named), BATCH_OBJECTS):
                some = named[start : start + BATCH_OBJECTS]
                outcomes = destroy(place.node, [each.name for each in some])
                gone += [(each, outcomes[each.name]) for each in some]
                show(f"{len(gone):,} of {len(named):,}")
    finally:
        complete = {each.name for each, outcome in gone if outcome.complete}
        _forget(place, (each for each in targets if not each.name or each.name in complete))
    for each, outcome in gone:
        if each.found is None and not outcome.replicas and outcome.complete:
            raise InvalidError(
                f"cannot find {fingerprint(each.name)}: it was destroyed, or is in no group of yours"
            )
    return gone, [each for each, outcome in gone if not outcome.complete]


def require_none_left(place: CommandContext, left: list[Target]) -> None:
    """Raise UnreachableError if objects may have replicas on nodes that did not answer."""
    if left:
        shown = ", ".join(each.text for each in left[:SHOWN_MAX])
        raise UnreachableError(
            f"{silent(place.node.nodes())} did not answer and may have replicas of {shown}. "
            "Repeat the command when `dios node ls` shows that all nodes are alive."
        )


def _forget(place: CommandContext, gone: Iterable[Target]) -> None:
    """Remove entries, in one write for each catalogue."""
    for_group: dict[str, list[CatalogueEntry]] = {}
    for each in gone:
        if each.found is not None:
            for_group.setdefault(each.found.group, []).append(each.found.entry)
    for alias, entries in for_group.items():
        place.files(alias).forget(entries)
