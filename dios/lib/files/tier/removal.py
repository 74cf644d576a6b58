"""Removing bytes from the store that no file has any more."""

from __future__ import annotations

from dios.errors import UnreachableError
from dios.lib.files.group_list import GroupList
from dios.lib.files.sources import Moved
from dios.lib.files.tier.entries import came_back, release
from dios.lib.packs.tier_store import TierStore, packs_of


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
