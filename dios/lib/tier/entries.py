"""Changes of the entries of tiered files, and the end of changes that broke off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.tree import FileTree
from dios.lib.tier.store import known_store


def switch(files: GroupFiles, changed: Mapping[CatalogueEntry, CatalogueEntry]) -> list[CatalogueEntry]:
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


def forget(files: GroupFiles, entry: CatalogueEntry) -> None:
    """Forget the store of a file: one that is stored there is lost, and a local one stays."""
    if entry.tiered:
        files.forget([entry])
    else:
        switch(files, {entry: msgspec.structs.replace(entry, tier=None)})


def finish(files: GroupFiles, entry: CatalogueEntry) -> CatalogueEntry:
    """Remove from the store what it has of a local file, and return the entry without it.

    Raises InvalidError if this machine does not know the store, TargetError and OSError.
    """
    tier = entry.tier
    if tier is None or tier.stored:
        return entry
    store = known_store(tier.place, files.group)
    cleared = msgspec.structs.replace(entry, tier=None)
    if tier.left:
        store.remove(tier.mark, entry.size)
        switch(files, {entry: cleared})
    elif switch(files, {entry: cleared}):
        # First the entry: the run that stores these bytes, if it is alive, cannot switch to them any more.
        store.remove(tier.mark, entry.size)
    return cleared
