"""Destruction of many objects, which ``dios rm`` and ``dios group rm`` share: in portions, with progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from dios.cli.common.context import CataloguedFile, CommandContext
from dios.cli.common.failures import SHOWN_MAX, Failures
from dios.cli.common.output import progress, say
from dios.cli.nodes.members import silent
from dios.errors import DiosError, NotPermittedError
from dios.lib.catalogue import CatalogueEntry, Note, UnfinishedFile
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import BATCH_OBJECTS, Destroyed, destroy
from dios.wire.nametext import fingerprint


class Target(NamedTuple):
    """A file to destroy with all of its objects, or the own entry of a directory to remove.

    ``group`` is the alias of the group whose catalogue has it, "" of an object that is in none. It is one of
    the listed ``file``, the path of an ``unfinished`` one, and the note of a ``former`` one.
    """

    text: str
    names: list[bytes]
    group: str = ""
    file: CataloguedFile | None = None
    unfinished: str = ""
    former: Note | None = None

    @property
    def shown(self) -> str:
        """The path of the file; the fingerprint of an object of no catalogue, whose text may be its name."""
        return fingerprint(self.names[0]) if self.is_single else self.text

    @property
    def is_single(self) -> bool:
        """True for an object of no catalogue."""
        return not self.group


class Removed(NamedTuple):
    """The outcomes of targets.

    The ``later`` ones are not listed any more. By their notes, what is left of them is destroyed later.
    """

    gone: list[tuple[Target, Destroyed]]
    later: list[Target]


def file_target(file: CataloguedFile) -> Target:
    """Return the target for a file or the own entry of a directory."""
    return Target(f"{file.group}/{file.entry.file}", file.entry.local_names, file.group, file)


def unfinished_target(alias: str, unfinished: UnfinishedFile) -> Target:
    """Return the target for a file that was not stored completely."""
    names = [part.name for part in unfinished.parts]
    return Target(f"{alias}/{unfinished.file}", names, alias, unfinished=unfinished.file)


def all_targets(place: CommandContext, alias: str) -> list[Target]:
    """Return everything in a group: files, unfinished and former files, logs, and entries of directories."""
    entries = place.files(alias).entries()
    tree = place.files(alias).tree()
    return [
        *(file_target(CataloguedFile(alias, entry)) for entry in entries),
        *(unfinished_target(alias, unfinished) for unfinished in tree.unfinished.values()),
        *(
            Target(f"{alias}/{note.former.file}", note.former.local_names, alias, former=note)
            for note in tree.notes
        ),
    ]


def destroy_targets(place: CommandContext, targets: list[Target], failures: Failures) -> Removed:
    """Destroy objects and remove their entries, and note the objects that are left.

    In a group whose catalogue is replicated, entries go first and leave notes. In another one, objects that
    are gone after an interruption have no entries either.
    """
    outcomes: dict[bytes, Destroyed] = {}
    _remove_tiered(place, targets, failures)
    targets = [target for target in targets if target.shown not in failures.reasons]
    due = _unlist(place, targets, failures)
    targets = [target for target in targets if target.shown not in failures.reasons]
    _remove_unlisted(place, targets, due, failures)
    named = {target.names[0]: target for target in targets if target.names}
    shown = {
        name: f"{alias}/{note.former.file}"
        for alias, notes in due.items()
        for note in notes
        for name in note.former.local_names
    }
    shown |= {name: target.shown for target in named.values() for name in target.names}
    names = list(shown)
    copied = bool(due) or any(target.is_single for target in targets)
    try:
        with progress("destroying") as show:
            for start in range(0, len(names), BATCH_OBJECTS):
                some = names[start : start + BATCH_OBJECTS]
                outcomes |= _destroy_some(place, some, shown, failures, copied=copied)
                show(f"{len(outcomes):,} of {len(names):,}")
    finally:
        gone = [
            (target, _together(outcomes[name] for name in target.names))
            for target in named.values()
            if all(name in outcomes for name in target.names)
        ]
        complete = {target.names[0] for target, outcome in gone if outcome.complete}
        for alias, notes in due.items():
            with suppress(DiosError):  # a note that stays is executed later
                place.files(alias).end(notes, outcomes)
        _forget(
            place,
            (
                target.file
                for target in targets
                if target.file is not None
                and target.file.group not in due
                and (not target.names or target.names[0] in complete)
            ),
        )
    _note_moved(place, targets, failures)
    for gone_target, outcome in gone:
        if gone_target.is_single and outcome.complete and not outcome.replicas:
            failures.note(gone_target.shown, "it was destroyed, or is in no group of yours")
    incomplete = [target for target, outcome in gone if not outcome.complete]
    note_left(place, (target for target in incomplete if target.group not in due), failures)
    return Removed(gone, later=[target for target in incomplete if target.group in due])


def _unlist(place: CommandContext, targets: Iterable[Target], failures: Failures) -> dict[str, list[Note]]:
    """Remove what replicated catalogues list, and unfinished files from the others.

    Return the notes to execute, by the group of each replicated catalogue. What stays listed is noted.
    """
    for_group: dict[str, list[Target]] = {}
    for target in targets:
        if target.group:
            for_group.setdefault(target.group, []).append(target)
    due: dict[str, list[Note]] = {}
    for alias, given in for_group.items():
        files = place.files(alias)
        with failures.going_on(*(given_target.shown for given_target in given)):
            try:
                notes = _unlist_from(files, given)
            except NotPermittedError:
                notes = []
                for target in given:
                    with failures.going_on(target.shown):
                        notes += _unlist_from(files, [target]) or ()
            if notes is not None:
                due[alias] = notes
    return due


def _unlist_from(files: GroupFiles, targets: Sequence[Target]) -> list[Note] | None:
    """Unlist targets of a group; return the notes to execute, None if its catalogue has one replica."""
    begun = [target.unfinished for target in targets if target.unfinished]
    notes = files.unlist([target.file.entry for target in targets if target.file is not None], begun)
    if notes is not None:
        return [*notes, *(target.former for target in targets if target.former is not None)]
    if begun:
        # A later program cannot continue with an unfinished file whose parts go.
        files.forget_unfinished(begun)
    return None


def _destroy_some(
    place: CommandContext,
    names: Sequence[bytes],
    shown: Mapping[bytes, str],
    failures: Failures,
    *,
    copied: bool,
) -> dict[bytes, Destroyed]:
    """Destroy objects together, and each by itself if that fails: then the others go."""
    try:
        return destroy(place.node, names, copied=copied)
    except DiosError:
        outcomes: dict[bytes, Destroyed] = {}
        for name in names:
            with failures.going_on(shown[name]):
                outcomes |= destroy(place.node, [name], copied=copied)
        return outcomes


def _remove_tiered(place: CommandContext, targets: Iterable[Target], failures: Failures) -> None:
    """Remove the bytes of tiered files from their stores, before a catalogue without notes forgets them.

    The files of a store that fails are noted.
    """
    for_store: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        if target.file is not None and target.file.entry.tier is not None:
            for_store.setdefault((target.file.group, target.file.entry.tier.place), []).append(target)
    if for_store:
        from dios.lib.packs.tier_store import remove_bytes  # noqa: PLC0415 - loads cryptography

        for (alias, _), tiered in for_store.items():
            if place.files(alias).is_replicated:
                continue
            with failures.going_on(*(tiered_target.shown for tiered_target in tiered)):
                remove_bytes(
                    place.files(alias).group,
                    [tiered_target.file.entry for tiered_target in tiered if tiered_target.file is not None],
                )


def _remove_unlisted(
    place: CommandContext, targets: Iterable[Target], due: dict[str, list[Note]], failures: Failures
) -> None:
    """Remove the bytes of tiered files from their stores, when replicated catalogues do not list them."""
    tiered: dict[str, list[Target]] = {}
    for target in targets:
        if target.group in due and target.file is not None and target.file.entry.tier is not None:
            tiered.setdefault(target.group, []).append(target)
    for alias, several in tiered.items():
        with failures.going_on(*(tiered_target.shown for tiered_target in several)):
            entries = [
                tiered_target.file.entry for tiered_target in several if tiered_target.file is not None
            ]
            due[alias] = place.files(alias).remove_stored(due[alias], entries)


def _together(outcomes: Iterable[Destroyed]) -> Destroyed:
    """Return the outcome for a file from those of its objects."""
    several = list(outcomes)
    return Destroyed(
        sum(outcome.replicas for outcome in several), all(outcome.complete for outcome in several)
    )


def note_left(place: CommandContext, left: Iterable[Target], failures: Failures) -> None:
    """Note the objects that may have replicas on nodes that did not answer."""
    for target in left:
        failures.note(
            target.shown,
            f"{silent(place.node.nodes())} did not answer and may have replicas of it. Repeat the command "
            "when `dios node ls` shows that all nodes are alive.",
        )


def show_later(place: CommandContext, later: list[Target]) -> None:
    """Say which objects may have replicas that are destroyed when their nodes are back."""
    if later:
        shown = ", ".join(target.text for target in later[:SHOWN_MAX])
        say(
            f"{silent(place.node.nodes())} did not answer and may have replicas of {shown}. They are not "
            "listed any more, and what is left of them is destroyed when the nodes are back."
        )


def _note_moved(place: CommandContext, targets: Iterable[Target], failures: Failures) -> None:
    """Note the files that are listed still, because another program moved them to or from a store."""
    for_group: dict[str, list[CatalogueEntry]] = {}
    for target in targets:
        if target.file is not None:
            for_group.setdefault(target.file.group, []).append(target.file.entry)
    for alias, entries in for_group.items():
        with failures.going_on(alias):
            for entry in place.files(alias).moved(entries):
                failures.note(
                    f"{alias}/{entry.file}", "it was moved to or from a store meanwhile; remove it again"
                )


def _forget(place: CommandContext, gone: Iterable[CataloguedFile]) -> None:
    """Remove entries, in one write for each catalogue."""
    for_group: dict[str, list[CatalogueEntry]] = {}
    for file in gone:
        for_group.setdefault(file.group, []).append(file.entry)
    for alias, entries in for_group.items():
        place.files(alias).forget(entries)
