"""Destruction of many objects, which ``dios rm`` and ``dios group rm`` share: in portions, with progress."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from dios.cli.common.context import SHOWN_MAX, CataloguedFile, CommandContext
from dios.cli.common.output import progress, say
from dios.cli.nodes.members import silent
from dios.errors import DiosError, InvalidError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Note, UnfinishedFile
from dios.lib.files.group_files import BATCH_OBJECTS, Destroyed, destroy
from dios.wire.nametext import fingerprint


class Target(NamedTuple):
    """A file to destroy with all of its objects, or the own entry of a directory to remove.

    ``group`` is the alias of the group whose catalogue has it, "" of an object that is in none. It is one of
    the ``found`` file, the path of an ``unfinished`` one, and the note of a ``former`` one.
    """

    text: str
    names: list[bytes]
    group: str = ""
    found: CataloguedFile | None = None
    unfinished: str = ""
    former: Note | None = None


class Removed(NamedTuple):
    """The outcomes of targets, and those that are left because a node did not answer.

    The ``later`` ones are not listed any more. By their notes, what is left of them is destroyed later.
    """

    gone: list[tuple[Target, Destroyed]]
    left: list[Target]
    later: list[Target]


def file_target(found: CataloguedFile) -> Target:
    """Return the target for a file or the own entry of a directory."""
    return Target(f"{found.group}/{found.entry.file}", found.entry.local_names, found.group, found)


def unfinished_target(alias: str, one: UnfinishedFile) -> Target:
    """Return the target for a file that was not stored completely."""
    names = [part.name for part in one.parts]
    return Target(f"{alias}/{one.file}", names, alias, unfinished=one.file)


def all_targets(place: CommandContext, alias: str) -> list[Target]:
    """Return everything in a group: files, unfinished and former files, logs, and entries of directories."""
    entries = place.files(alias).entries()
    tree = place.files(alias).tree()
    return [
        *(file_target(CataloguedFile(alias, each)) for each in entries),
        *(unfinished_target(alias, one) for one in tree.unfinished.values()),
        *(
            Target(f"{alias}/{note.former.file}", note.former.local_names, alias, former=note)
            for note in tree.notes
        ),
    ]


def destroy_targets(place: CommandContext, targets: list[Target]) -> Removed:
    """Destroy objects and remove their entries.

    In a group whose catalogue is replicated, entries go first and leave notes. In another one, objects that
    are gone after an interruption have no entries either.
    """
    outcomes: dict[bytes, Destroyed] = {}
    named = {each.names[0]: each for each in targets if each.names}
    _remove_tiered(place, targets)
    due = _unlist(place, targets)
    freed = (name for notes in due.values() for note in notes for name in note.former.local_names)
    names = list(dict.fromkeys([*(name for each in named.values() for name in each.names), *freed]))
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
        for alias, notes in due.items():
            with suppress(DiosError):  # a note that stays is executed later
                place.files(alias).end(notes, outcomes)
        _forget(
            place,
            (
                each.found
                for each in targets
                if each.found is not None
                and each.found.group not in due
                and (not each.names or each.names[0] in complete)
            ),
        )
    for each, outcome in gone:
        if not each.group and not outcome.replicas and outcome.complete:
            raise InvalidError(
                f"cannot find {fingerprint(each.names[0])}: it was destroyed, or is in no group of yours"
            )
    incomplete = [each for each, outcome in gone if not outcome.complete]
    return Removed(
        gone,
        left=[each for each in incomplete if each.group not in due],
        later=[each for each in incomplete if each.group in due],
    )


def _unlist(place: CommandContext, targets: Iterable[Target]) -> dict[str, list[Note]]:
    """Remove what replicated catalogues list, and unfinished files from the others.

    Return the notes to execute, by the group of each replicated catalogue.
    """
    for_group: dict[str, list[Target]] = {}
    for each in targets:
        if each.group:
            for_group.setdefault(each.group, []).append(each)
    due: dict[str, list[Note]] = {}
    for alias, given in for_group.items():
        files = place.files(alias)
        begun = [each.unfinished for each in given if each.unfinished]
        notes = files.unlist([each.found.entry for each in given if each.found is not None], begun)
        if notes is not None:
            due[alias] = [*notes, *(each.former for each in given if each.former is not None)]
        elif begun:
            files.forget_unfinished(begun)
    return due


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


def require_none_left(place: CommandContext, left: list[Target]) -> None:
    """Raise UnreachableError if objects may have replicas on nodes that did not answer."""
    if left:
        shown = ", ".join(each.text for each in left[:SHOWN_MAX])
        raise UnreachableError(
            f"{silent(place.node.nodes())} did not answer and may have replicas of {shown}. "
            "Repeat the command when `dios node ls` shows that all nodes are alive."
        )


def show_later(place: CommandContext, later: list[Target]) -> None:
    """Say which objects may have replicas that are destroyed when their nodes are back."""
    if later:
        shown = ", ".join(each.text for each in later[:SHOWN_MAX])
        say(
            f"{silent(place.node.nodes())} did not answer and may have replicas of {shown}. They are not "
            "listed any more, and what is left of them is destroyed when the nodes are back."
        )


def _forget(place: CommandContext, gone: Iterable[CataloguedFile]) -> None:
    """Remove entries, in one write for each catalogue."""
    for_group: dict[str, list[CatalogueEntry]] = {}
    for each in gone:
        for_group.setdefault(each.group, []).append(each.entry)
    for alias, entries in for_group.items():
        place.files(alias).forget(entries)
