"""Changes of the entries of tiered files, the end of changes that broke off, and removal from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from dios.errors import UnreachableError
from dios.lib.catalogue import CatalogueEntry, Tiered
from dios.lib.files.disks import has_kept_copies, promised_disks
from dios.lib.files.group_list import GroupList
from dios.lib.files.sources import Moved
from dios.lib.files.tree import FileTree
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import KeptPromise
from dios.lib.packs.tier_store import TierStore, known_store, known_stores, packs_of


def switch(files: GroupList, changed: Mapping[CatalogueEntry, CatalogueEntry]) -> list[CatalogueEntry]:
    """Replace entries in one write, those that are still as they were; return the new ones that are there."""
    done: list[CatalogueEntry] = []
    if not changed:
        return done

    def change(tree: FileTree) -> Iterable[CatalogueEntry]:
        done.clear()
        after: list[CatalogueEntry] = []
        for entry in tree.entries:
            new = changed.get(entry) if entry.size else None
            after.append(entry if new is None else new)
            if new is not None:
                done.append(new)
        return after

    files.edit(change)
    return done


def stored_again(entry: CatalogueEntry) -> CatalogueEntry:
    """Return the entry of a file that was brought back and whose bytes are those in the store again."""
    tier = None if entry.tier is None else msgspec.structs.replace(entry.tier, stored=True, left=True)
    return msgspec.structs.replace(entry, tier=tier)


def forget(files: GroupList, entry: CatalogueEntry) -> None:
    """Forget the store of a file: one that is stored there is lost, and a local one stays."""
    if entry.tiered:
        files.forget([entry])
    else:
        switch(files, {entry: msgspec.structs.replace(entry, tier=None)})


def finish(files: GroupList, entry: CatalogueEntry) -> CatalogueEntry:
    """Remove from the store what it has of a local file, and return the entry without it.

    A file that was brought back and does not meet the promise of its replicas stays in the store, too.

    Raises InvalidError if this machine does not know the store, TargetError and OSError.
    """
    tier = entry.tier
    if tier is None or tier.stored:
        return entry
    cleared = msgspec.structs.replace(entry, tier=None)
    if tier.left:
        return entry if release(files, [entry]) else cleared
    store = known_store(tier.place, files.group)
    # First the entry: the run that stores these bytes, if it is alive, cannot switch to them any more.
    if switch(files, {entry: cleared}):
        store.remove(tier.mark, entry.size)
    return cleared


def release(files: GroupList, entries: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Remove from their stores the files that were brought back and meet the promise of their replicas.

    The bytes of the replicas are compared with the digest before. Return the files that stay in the store,
    too, because the promise is not met, or not known. Raises as ``finish``.
    """
    back = [(entry, entry.tier) for entry in entries if entry.tier is not None and _is_back(entry.tier)]
    stores = known_stores(files.group, (entry for entry, _ in back))
    waiting = [entry for entry, tier in back if tier.manifest]
    kept = set(kept_ones(files, waiting))
    # First the entries: a reader that finds no sound object fetches the file only if its entry says so.
    noted = switch(
        files,
        {
            entry: msgspec.structs.replace(entry, tier=msgspec.structs.replace(tier, manifest=b""))
            for entry, tier in back
            if entry in kept
        },
    )
    due = [entry for entry, tier in back if not tier.manifest] + noted
    for entry in due:
        if entry.tier is not None:
            stores[entry.tier.place].remove(entry.tier.mark, entry.size)
    switch(files, {entry: msgspec.structs.replace(entry, tier=None) for entry in due})
    return [entry for entry in waiting if entry not in kept]


def kept_ones(files: GroupList, entries: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Return the local files whose replicas have the bytes and meet the promise; none if it is not known."""
    kept: list[CatalogueEntry] = []
    promises: list[KeptPromise] | None = None
    for entry in entries:
        with suppress(UnreachableError):
            promises = Promises(files.node).known() if promises is None else promises
            disks = promised_disks(promises, files.group, entry)
            if has_kept_copies(files.node, files.group, entry, disks):
                kept.append(entry)
    return kept


def came_back(files: GroupList, place: str) -> list[CatalogueEntry]:
    """Return the local files that were brought back from this store, which still has something of them."""
    return [
        entry
        for entry in files.entries()
        if entry.tier is not None and _is_back(entry.tier) and entry.tier.place == place
    ]


def _is_back(tier: Tiered) -> bool:
    return tier.left and not tier.stored


def prune(files: GroupList, store: TierStore, moved: Moved = lambda _: None) -> int:
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
