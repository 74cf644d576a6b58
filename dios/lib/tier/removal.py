"""Removing bytes from the store that no file has any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from dios.errors import DiosError, UnreachableError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.group_files import GroupFiles
from dios.lib.tier.entries import came_back, release
from dios.lib.tier.marks import packs_of
from dios.lib.tier.store import TierStore, known_store


def remove_bytes(files: GroupFiles, entries: Iterable[CatalogueEntry]) -> None:
    """Remove what the stores have of these files, which are to be removed, too.

    Raises InvalidError, before anything is removed, if this machine does not know one of the stores;
    TargetError and OSError.
    """
    tiers = [(entry.tier, entry.size) for entry in entries if entry.tier is not None]
    stores = known_stores(files, (tier.place for tier, _ in tiers))
    for tier, size in tiers:
        stores[tier.place].remove(tier.mark, size)


def known_stores(files: GroupFiles, places: Iterable[str]) -> dict[str, TierStore]:
    """Return the stores of these places. Raises InvalidError if this machine does not know one of them."""
    return {place: known_store(place, files.group) for place in set(places)}


def remove_unneeded(files: GroupFiles, entries: Iterable[CatalogueEntry]) -> None:
    """Remove what the stores have of replaced files, unless a present file has it; errors change nothing."""
    needed = {entry.tier.mark for entry in files.tree().entries if entry.tier is not None}
    for entry in entries:
        if entry.tier is not None and entry.tier.mark not in needed:
            # The file is replaced already. `dios tier prune` finds what stays.
            with suppress(DiosError, OSError):
                remove_bytes(files, [entry])


def prune(files: GroupFiles, store: TierStore, moved: Callable[[int], object] = lambda _: None) -> int:
    """Remove the packs of the group's store that no file of the group needs; return their number.

    A file that was brought back needs them until it meets the promise of its replicas, and a former file
    until its replacement is kept. Raises UnreachableError if a node that may have a later list of files does
    not answer.
    """
    present = store.packs()
    # Read after the packs were listed: a mark is in the catalogue before its first pack is stored.
    if not files.list_is_complete():
        raise UnreachableError(
            "a node that may have a later list of the group's files does not answer. Nothing was removed. "
            "Repeat the command when `dios node ls` shows that all nodes are alive.",
            call="lookup",
        )
    release(files, came_back(files, store.place))
    formers = [note.former for note in files.tree().notes]
    for entry in (*files.entries(), *formers):
        if entry.tier is not None:
            present.difference_update(packs_of(entry.tier.mark, entry.size))
    for pack in present:
        store.remove_pack(pack)
        moved(1)
    return len(present)
