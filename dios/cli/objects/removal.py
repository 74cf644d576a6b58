"""Destruction of many objects, which ``dios rm`` and ``dios group rm`` share: in portions, with progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dios.cli.common.context import SHOWN_MAX, CataloguedFile, CommandContext
from dios.cli.common.output import progress
from dios.cli.nodes.members import silent
from dios.errors import InvalidError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, UnfinishedFile
from dios.lib.files.group_files import BATCH_OBJECTS, Destroyed, destroy
from dios.wire.nametext import fingerprint


class Target(NamedTuple):
    """A file to destroy with all of its objects, or the own entry of a directory to remove.

    ``unfinished`` is the group and the path of a file that was not stored completely.
    """

    text: str
    names: list[bytes]
    found: CataloguedFile | None
    unfinished: tuple[str, str] | None = None


def unfinished_target(alias: str, one: UnfinishedFile) -> Target:
    """Return the target for a file that was not stored completely."""
    return Target(f"{alias}/{one.file}", [part.name for part in one.parts], None, (alias, one.file))


def all_targets(place: CommandContext, alias: str) -> list[Target]:
    """Return everything that is in a group: files, unfinished files, logs, and the entries of directories."""
    entries = place.files(alias).entries()
    begun = place.files(alias).tree().unfinished.values()
    return [
        *(Target(f"{alias}/{each.file}", each.local_names, CataloguedFile(alias, each)) for each in entries),
        *(unfinished_target(alias, one) for one in begun),
    ]


def destroy_targets(
    place: CommandContext, targets: list[Target]
) -> tuple[list[tuple[Target, Destroyed]], list[Target]]:
    """Destroy objects and remove their entries; return the outcomes, and the objects that are left.

    After an interruption, the objects that are gone have no entries either.
    """
    outcomes: dict[bytes, Destroyed] = {}
    named = {each.names[0]: each for each in targets if each.names}
    _remove_tiered(place, targets)
    # A later program cannot continue with an unfinished file whose parts go.
    _forget_unfinished(place, targets)
    names = list(dict.fromkeys(name for each in named.values() for name in each.names))
    try:
        with progress("destroying") as show:
            for start in range(0, len(names), BATCH_OBJECTS):
                outcomes |= destroy(place.node, names[start : start + BATCH_OBJECTS])
                show(f"{len(outcomes):,} of {len(names):,}")
    finally:
        gone = [
            (each, _together(outcomes[name] for name in each.names))
            for each in named.values()
            if all(name in outcomes for name in each.names)
        ]
        complete = {each.names[0] for each, outcome in gone if outcome.complete}
        _forget(place, (each for each in targets if not each.names or each.names[0] in complete))
    for each, outcome in gone:
        if each.found is None and each.unfinished is None and not outcome.replicas and outcome.complete:
            raise InvalidError(
                f"cannot find {fingerprint(each.names[0])}: it was destroyed, or is in no group of yours"
            )
    return gone, [each for each, outcome in gone if not outcome.complete]


def _remove_tiered(place: CommandContext, targets: Iterable[Target]) -> None:
    """Remove the bytes of tiered files from their stores. Nothing else is removed if that fails."""
    for_group: dict[str, list[CatalogueEntry]] = {}
    for each in targets:
        if each.found is not None and each.found.entry.tier is not None:
            for_group.setdefault(each.found.group, []).append(each.found.entry)
    if for_group:
        from dios.lib.tier.removal import remove_bytes  # noqa: PLC0415 - other groups need no store

        for alias, entries in for_group.items():
            remove_bytes(place.files(alias), entries)


def _together(outcomes: Iterable[Destroyed]) -> Destroyed:
    """Return the outcome for a file from those of its objects."""
    several = list(outcomes)
    return Destroyed(sum(one.replicas for one in several), all(one.complete for one in several))


def _forget_unfinished(place: CommandContext, targets: Iterable[Target]) -> None:
    for_group: dict[str, list[str]] = {}
    for each in targets:
        if each.unfinished is not None:
            for_group.setdefault(each.unfinished[0], []).append(each.unfinished[1])
    for alias, paths in for_group.items():
        place.files(alias).forget_unfinished(paths)


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
