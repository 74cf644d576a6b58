"""Bringing tiered files back: fetch, compare the digest, switch the entry, remove the bytes from the store.

A kill before the switch leaves the file in the store, and a later one leaves it here. A large file continues
after the parts that were fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NoReturn
from weakref import WeakValueDictionary

import msgspec
from blake3 import blake3

from dios.errors import Conflict, DiosError
from dios.lib.backup.failures import DamagedBackupError
from dios.lib.backup.records import FileRecord, RecordKind
from dios.lib.backup.restore import store_file
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.staging import StagedFiles
from dios.lib.tier.entries import finish
from dios.lib.tier.store import known_store


def bring_back(
    files: GroupFiles, path: str, moved: Callable[[int], object] = lambda _: None
) -> CatalogueEntry:
    """Make a tiered file local again, and return its entry; a local file stays as it is.

    Raises DamagedBackupError if the store's bytes are not those that were put, InvalidError if this machine
    does not know the store, TargetError, OSError, and the errors of storing a file. The file stays tiered
    then.
    """
    entry = files.entry(path)
    if entry.tier is None or not entry.tier.stored:
        return entry
    with _lock_of(entry.tier.mark):
        return _bring_back(files, path, moved)


_locks: Final[WeakValueDictionary[bytes, threading.Lock]] = WeakValueDictionary()
"""The locks of the files that threads bring back, by mark: each file is fetched once."""
_locks_lock: Final = threading.Lock()


def _lock_of(mark: bytes) -> threading.Lock:
    with _locks_lock:
        found = _locks.get(mark)
        if found is None:
            found = _locks[mark] = threading.Lock()
        return found


def _bring_back(files: GroupFiles, path: str, moved: Callable[[int], object]) -> CatalogueEntry:
    entry = files.entry(path)
    if entry.tier is None or not entry.tier.stored:
        return entry
    reader, chunks = known_store(entry.tier.place, files.group).chunks(entry)
    staged = StagedFiles(files)
    staged.require_unchanged(path, entry.name)
    record = FileRecord(RecordKind.FILE, path, entry.name, entry.size, entry.put_ns, 0, 0, ())
    try:
        store_file(reader, record, chunks, staged)
        made = next(each for each in staged.stored() if each.file == path)
        if made.digest != entry.digest:
            staged.discard()
            _refuse(entry, entry.tier.place)
        tier = msgspec.structs.replace(entry.tier, stored=False, left=True, manifest=b"")
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
    with suppress(DiosError, OSError):
        # Else a later run does it: the entry says that the store still has bytes.
        return finish(files, back)
    return back


def stored_pieces(files: GroupFiles, entry: CatalogueEntry) -> Iterator[memoryview]:
    """Yield the bytes of a tiered file, which stays tiered. Raises as ``bring_back``, at the end, too."""
    place = entry.tier.place if entry.tier else ""
    reader, chunks = known_store(place, files.group).chunks(entry)
    whole = blake3()
    for chunk in chunks:
        data = reader.read(chunk)
        whole.update(data)
        yield memoryview(data)
    if whole.digest() != entry.digest:
        _refuse(entry, place)


def _refuse(entry: CatalogueEntry, place: str) -> NoReturn:
    raise DamagedBackupError(
        f"the bytes of {entry.file} in {place} are not those that were put. The file stays tiered. Restore "
        "it from a backup."
    )
