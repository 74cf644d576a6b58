"""Notes of former files: those that a change of the catalogue adds, and those that it changes or drops.

A note says that the objects of a former file are to be destroyed when the file that replaced it is kept. So
whatever is destroyed has a replacement that was verified, or a user who removed it. These functions have no
effects; ``GroupList`` and the keeper of replicas execute notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dios import limits
from dios.lib.catalogue import CatalogueEntry, Note, Part, pack_parts
from dios.lib.files.paths import stored_path
from dios.lib.files.tree import FileTree


def followed(before: FileTree, after: Iterable[CatalogueEntry]) -> tuple[Note, ...]:
    """Return the notes of a catalogue after a change of its entries.

    A note waits for the file that has replaced the one that it waited for, and for nothing if the user
    removed that one, or if a store outside of the cluster has its bytes. A note of a file that is back goes.
    """
    if not before.notes:
        return ()
    present = {entry.name: entry for entry in after}
    lost = {note.until[: limits.NAME_BYTES] for note in before.notes} - present.keys()
    paths = (
        {entry.name: stored_path(entry.file) for entry in before.entries if entry.name in lost}
        if lost
        else {}
    )
    at = {stored_path(entry.file): entry for entry in present.values() if entry.name} if lost else {}

    def until(note: Note) -> bytes:
        name = note.until[: limits.NAME_BYTES]
        holder = present.get(name) or at.get(paths.get(name, stored_path(note.former.file)))
        return holder.packed_objects if note.until and holder is not None else b""

    return tuple(
        note if note.until == waits_for else msgspec.structs.replace(note, until=waits_for)
        for note in before.notes
        if note.former.name not in present
        for waits_for in [until(note)]
    )


def added(before: FileTree, after: Sequence[CatalogueEntry], now_ns: int) -> list[Note]:
    """Return a note of each file of ``before`` whose objects no entry has any more.

    It waits for the file that has the path now, and for nothing if there is none.
    """
    same = set(map(id, after))
    gone = [entry for entry in before.entries if id(entry) not in same and entry.name]
    if not gone:
        return []
    known = set(map(id, before.entries))
    at = {stored_path(entry.file): entry for entry in after if id(entry) not in known and entry.name}
    former = {entry.name for entry in gone}
    names = {entry.name for entry in after if entry.name in former}
    stored = any(entry.tier is not None for entry in gone)
    marks = {entry.tier.mark for entry in after if entry.tier is not None} if stored else set()
    notes: list[Note] = []
    for entry in gone:
        if entry.name in names:
            continue
        new = at.get(stored_path(entry.file))
        note = Note(entry, b"" if new is None else new.packed_objects, now_ns)
        if entry.tier is None or entry.tier.mark not in marks:
            notes.append(note)
        elif not entry.tiered or entry.tier.left:
            # The file was brought back, and the new entry has what the store has of it.
            notes.append(note.without_store())
    return notes


def unused(path: str, names: Sequence[bytes], now_ns: int) -> list[Note]:
    """Return the note of objects that were stored for a file, and that no file needs; none without names."""
    if not names:
        return []
    packed = pack_parts(Part(name, b"") for name in names)
    return [Note(CatalogueEntry(path, names[0], 0, 0, packed_parts=packed), b"", now_ns)]


def unneeded(names: Iterable[bytes], entries: Iterable[CatalogueEntry], notes: Iterable[Note]) -> list[bytes]:
    """Return the names of the objects that no entry has, and no former file that a note keeps."""
    rest = dict.fromkeys(names)
    for holder in (*entries, *(note.former for note in notes)):
        if not rest:
            break
        for name in holder.local_names:
            rest.pop(name, None)
    return list(rest)
