"""Bringing tiered files back: fetch, compare the digest, switch the entry, and later leave the store.

A kill before the switch leaves the file in the store, and a later one leaves it in both places. It leaves the
store when the local objects meet the promise of replicas: here if there is none, else by ``entries.release``.
A large file continues after the parts that were fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from dios.errors import Conflict, DiosError, UnreachableError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.disks import hold_on, promised_disks
from dios.lib.files.group_list import GroupList
from dios.lib.files.paths import stored_path
from dios.lib.files.sources import Moved
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tier.entries import finish, kept_ones, release, stored_again, switch
from dios.lib.kept.promises import Promises
from dios.lib.packs.chunks import ChunkSource
from dios.lib.packs.tier_store import known_store, refuse_bytes


def bring_back(files: GroupList, path: str, moved: Moved = lambda _: None) -> CatalogueEntry:
    """Make a tiered file local again, and return its entry; a local file stays as it is.

    With a promise of replicas that is not met the file stays in the store, too, until ``release``. Raises
    DamagedBackupError if the store's bytes are not those that were put, InvalidError if this machine does not
    know the store, TargetError, OSError, and the errors of storing a file. The file stays tiered then.
    """
    entry = files.entry(path)
    if entry.tier is None or not entry.tier.stored:
        return entry
    with _lock_of(entry.tier.mark):
        return _bring_back(files, path, moved)


def fetch_again(files: GroupList, entry: CatalogueEntry) -> CatalogueEntry:
    """Bring a local file back once more, because its objects are lost or damaged, and return its entry.

    Raises as ``bring_back``. The file stays as it is if its store does not answer.
    """
    if entry.tier is not None and not entry.tiered:
        known_store(entry.tier.place, files.group).chunks(entry)
        switch(files, {entry: stored_again(entry)})
    return bring_back(files, stored_path(entry.file))


_locks: Final[WeakValueDictionary[bytes, threading.Lock]] = WeakValueDictionary()
"""The locks of the files that threads bring back, by mark: each file is fetched once."""
_locks_lock: Final = threading.Lock()


def _lock_of(mark: bytes) -> threading.Lock:
    with _locks_lock:
        lock = _locks.get(mark)
        if lock is None:
            lock = _locks[mark] = threading.Lock()
        return lock


def _bring_back(files: GroupList, path: str, moved: Moved) -> CatalogueEntry:
    entry = files.entry(path)
    if entry.tier is None or not entry.tier.stored:
        return entry
    reader, chunks = known_store(entry.tier.place, files.group).chunks(entry)
    staged = StagedFiles(files)
    staged.require_unchanged(path, entry.name)
    try:
        staged.add_source(path, ChunkSource(reader, chunks), entry.size)
        stored_entry = next(candidate for candidate in staged.stored() if candidate.file == path)
        if stored_entry.digest != entry.digest:
            staged.discard()
            refuse_bytes(entry)
        # Of no use from now on if one disk is enough; else the store keeps the file until the promise is met.
        manifest = b"" if kept_ones(files, [stored_entry]) else entry.tier.manifest
        tier = msgspec.structs.replace(entry.tier, stored=False, left=True, manifest=manifest)
        staged.change(path, put_ns=entry.put_ns, tier=tier)
        moved(entry.size)
        staged.publish()
    except Conflict:
        staged.suspend()
        present = files.entry(path)
        if present.tiered:
            raise Conflict(f"another program brings {path} back at this moment. Read it again.") from None
        # Another reader has brought it back, or somebody replaced it.
        return present
    except BaseException:
        staged.suspend()
        raise
    back = files.entry(path)
    if not back.in_store:
        with suppress(DiosError, OSError):
            # Else a later run does it: the entry says that the store still has bytes.
            return finish(files, back)
    return back


def leave_store(files: GroupList, entries: Collection[CatalogueEntry]) -> dict[str, str]:
    """Make the promised replicas of local files, and remove from their stores what is of no use then.

    Return the paths of the files that stay in the store, too, with the reason. Raises as ``finish``.
    """
    reasons: dict[str, str] = {}
    back = [entry for entry in entries if entry.in_store and not entry.tiered]
    for entry in entries:
        if not entry.in_store:
            finish(files, entry)
    for entry in back:
        try:
            disks = promised_disks(Promises(files.node).known(), files.group, entry)
            for name in entry.names:
                hold_on(files.node, files.group, name, disks)
        except UnreachableError as error:
            reasons[stored_path(entry.file)] = error.message
    staying = [stored_path(entry.file) for entry in release(files, back)]
    return {path: reasons.get(path, "a replica does not have its bytes") for path in staying}
