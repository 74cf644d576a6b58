"""The state of the replicas of a list of files, and its repair if they differ or no member is left.

A repair drops nothing.

Lists of earlier releases have no history that says which of two is the later one. So the repaired list has
the entries of all of them. Files that have one path and different bytes are kept under two names, and each
object is listed once, because a command that destroys a file destroys its objects.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from dios import limits
from dios.errors import DamagedError, InvalidError
from dios.lib.catalogue import CatalogueEntry, Listed, Note, UnfinishedFile, decode_all, encode, pack_parts
from dios.lib.files.catalogue_record import CatalogueRecord
from dios.lib.files.group_list import GroupList
from dios.lib.files.notes import followed, unused
from dios.lib.files.paths import parent_of, stored_path
from dios.lib.files.tree import FileTree, is_directory

_MARK_CHARACTERS: Final = 8


class UnitedFile(NamedTuple):
    """A file that not all lists had in the same way.

    ``listed`` is the number of lists that had these bytes. ``former_path`` is the path there, if a different
    file or a directory has that now. ``also`` are further paths that the same objects had. ``copies`` is the
    number of further objects with the same bytes, which stay until those of the entry are kept.
    """

    entry: CatalogueEntry
    listed: int
    former_path: str | None = None
    also: tuple[str, ...] = ()
    copies: int = 0

    @property
    def path(self) -> str:
        """The path in the repaired list."""
        return stored_path(self.entry.file)


class ListRepair(NamedTuple):
    """A repaired list: the number of lists that were united, its files, and those that differed."""

    lists: int
    files: int
    united: tuple[UnitedFile, ...]


def repair_list(files: GroupList) -> ListRepair | None:
    """Make the list of a group's files sound; return None, and change nothing, if it is.

    Raises UnreachableError unless every node that may have a replica answers, DamagedError if no replica can
    be read, and LimitError if the lists together are too long.
    """
    record = files.record
    if not record.exists():
        return None
    repair: ListRepair | None = None

    def merge(contents: Sequence[bytes]) -> bytes:
        nonlocal repair
        listed, repair = unite([decode_all(content) for content in contents], time.time_ns())
        return encode(listed.entries, listed.unfinished, listed.notes)

    try:
        content = record.unite(merge).content or b""
    except InvalidError:
        return None
    except DamagedError as error:
        try:
            content = record.restore(merge).content or b""
        except InvalidError:
            raise error from None
    if repair is None:
        entries = decode_all(content).entries
        repair = ListRepair(1, sum(not is_directory(entry) for entry in entries), ())
    return repair


def unite(lists: Sequence[Listed], now_ns: int) -> tuple[Listed, ListRepair]:
    """Return one list with the content of all, and the files that differed."""
    versions, also = _versions(lists)
    directories = _directories(lists)
    paths = {*directories, *(parent for path in (*versions, *directories) for parent in _parents(path))}
    taken = {*versions, *paths}
    entries: list[CatalogueEntry] = list(directories.values())
    notes: list[Note] = []
    united: list[UnitedFile] = []
    for path, several in versions.items():
        for number, version in enumerate(several):
            entry, former_path = version.entry, None
            if number or path in paths:
                former_path, renamed = path, _free_path(path, _digest_of(entry), taken)
                taken.add(renamed)
                entry = msgspec.structs.replace(entry, file=renamed)
            entries.append(entry)
            notes += [Note(other, entry.packed_objects, now_ns) for other in version.others]
            count = min(version.listed, len(lists))
            file = UnitedFile(entry, count, former_path, also[entry.name], len(version.others))
            if file != UnitedFile(entry, len(lists)):
                united.append(file)
    unfinished, leftover = _unfinished(lists, entries, now_ns)
    all_entries = [entry for file_list in lists for entry in file_list.entries]
    known = _distinct_notes([*notes, *leftover, *(note for file_list in lists for note in file_list.notes)])
    needed = {name for entry in entries for name in entry.local_names}
    needed |= {part.name for unfinished_file in unfinished for part in unfinished_file.parts}
    free = [note for note in known if needed.isdisjoint(note.former.local_names)]
    kept = followed(FileTree([*all_entries, *entries], (), free), entries)
    number_of_files = sum(not is_directory(entry) for entry in entries)
    return (
        Listed(tuple(entries), tuple(unfinished), kept),
        ListRepair(len(lists), number_of_files, tuple(united)),
    )


# -- files ------------------------------------------------------------------------------------------
class _Version(NamedTuple):
    """A file with certain bytes: the entry that stays, and ``others`` that have the bytes in other objects.

    ``listed`` is the number of lists that had one of them.
    """

    entry: CatalogueEntry
    others: tuple[CatalogueEntry, ...]
    listed: int


def _versions(lists: Sequence[Listed]) -> tuple[dict[str, list[_Version]], dict[bytes, tuple[str, ...]]]:
    """Return the versions of each path, the latest first, and by object the paths that it does not get."""
    by_name: dict[bytes, list[CatalogueEntry]] = defaultdict(list)
    for file_list in lists:
        for entry in file_list.entries:
            if not is_directory(entry):
                by_name[entry.name].append(entry)
    also: dict[bytes, tuple[str, ...]] = {}
    chosen: dict[str, dict[bytes, list[tuple[CatalogueEntry, int]]]] = {}
    for name, several in by_name.items():
        count: dict[str, int] = defaultdict(int)
        for entry in several:
            count[stored_path(entry.file)] += 1
        # A file that was moved in one of the lists has the path that most of them have.
        path = min(count, key=lambda candidate: (-count[candidate], candidate))
        also[name] = tuple(sorted(count.keys() - {path}))
        entry = _one_of(path, several)
        bytes_of = entry.digest or pack_parts(entry.objects) or name
        chosen.setdefault(path, {}).setdefault(bytes_of, []).append((entry, len(several)))
    versions: dict[str, list[_Version]] = {}
    for path, by_bytes in chosen.items():
        several_versions = []
        for same in by_bytes.values():
            same.sort(key=lambda pair: (not pair[0].tiered, pair[0].put_ns, pair[0].name), reverse=True)
            others = tuple(entry for entry, _ in same[1:])
            several_versions.append(_Version(same[0][0], others, sum(listed for _, listed in same)))
        several_versions.sort(key=lambda version: (version.entry.put_ns, version.entry.name), reverse=True)
        versions[path] = several_versions
    return versions, also


def _one_of(path: str, several: Sequence[CatalogueEntry]) -> CatalogueEntry:
    """Return the entry of an object that has this path in some list.

    If a store has the bytes according to one list, the file is local, and brought back from there if its
    objects are gone: nothing says which of the lists is later.
    """
    entry = next(candidate for candidate in several if stored_path(candidate.file) == path)
    stored = next((candidate.tier for candidate in several if candidate.in_store), None)
    if stored is None or all(candidate.tier == stored for candidate in several):
        return entry
    return msgspec.structs.replace(entry, tier=msgspec.structs.replace(stored, stored=False, left=True))


def _directories(lists: Sequence[Listed]) -> dict[str, CatalogueEntry]:
    directories: dict[str, CatalogueEntry] = {}
    for file_list in lists:
        for path, entry in FileTree(file_list.entries).explicit_directories.items():
            directories.setdefault(path, entry)
    return directories


def _parents(path: str) -> Iterator[str]:
    while path := parent_of(path):
        yield path


def _digest_of(entry: CatalogueEntry) -> str:
    return (entry.digest or blake3(entry.name).digest()).hex()


def _free_path(path: str, digest: str, taken: Collection[str]) -> str:
    """Return the path of a version next to another one: with the beginning of its digest.

    A name that would be too long is cut, and goes up if its directory alone is.
    """
    directory, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".") if "." in name.lstrip(".") else (name, "", "")
    for length in range(_MARK_CHARACTERS, len(digest) + 1):
        tail = f" (conflict {digest[:length]}){dot}{suffix}"
        room = limits.TEXT_BYTES_MAX - len(f"{directory}{slash}{tail}".encode())
        if room < 0 and directory:
            return _free_path(f"{parent_of(directory)}/{name}".lstrip("/"), digest, taken)
        free_path = f"{directory}{slash}{stem.encode()[: max(room, 0)].decode(errors='ignore')}{tail}"
        if free_path not in taken:
            return free_path
    raise DamagedError(f"the lists have so many versions of {path!r} that they cannot be named")


# -- unfinished files and notes ---------------------------------------------------------------------
def _unfinished(
    lists: Sequence[Listed], entries: Iterable[CatalogueEntry], now_ns: int
) -> tuple[list[UnfinishedFile], list[Note]]:
    """Return the unfinished files of all lists, and notes of objects that none of them needs.

    A file that is finished according to one of the lists is not unfinished.
    """
    finished = {name for entry in entries for name in entry.local_names}
    by_run: dict[tuple[str, bytes], UnfinishedFile] = {}
    for unfinished_file in (begun for several in lists for begun in several.unfinished):
        known = by_run.get((unfinished_file.file, unfinished_file.run))
        if known is None:
            by_run[unfinished_file.file, unfinished_file.run] = unfinished_file
        else:
            parts = {part.name: part for part in (*known.parts, *unfinished_file.parts)}
            # A part without a digest may be empty.
            parts.update({part.name: part for part in known.parts if part.digest})
            packed = pack_parts(parts.values())
            by_run[unfinished_file.file, unfinished_file.run] = msgspec.structs.replace(
                known, packed_parts=packed
            )
    kept: dict[str, UnfinishedFile] = {}
    notes: list[Note] = []
    for unfinished_file in sorted(by_run.values(), key=lambda run: (run.begun_ns, run.run), reverse=True):
        names = [part.name for part in unfinished_file.parts]
        if not finished.isdisjoint(names):
            notes += unused(unfinished_file.file, [name for name in names if name not in finished], now_ns)
            continue
        file = unfinished_file.file
        if file in kept:
            file = _free_path(file, blake3(unfinished_file.run).hexdigest(), kept)
        kept[file] = msgspec.structs.replace(unfinished_file, file=file)
    return list(kept.values()), notes


def _distinct_notes(notes: Iterable[Note]) -> list[Note]:
    """Return one note of each former file: one that waits for a replacement, if there is one."""
    distinct: dict[bytes, Note] = {}
    for note in notes:
        known = distinct.get(note.former.name)
        if known is None or (note.until and not known.until):
            distinct[note.former.name] = note
    return list(distinct.values())


class ReplicaHealth(StrEnum):
    """The state of one replica of a list."""

    CURRENT = "current"
    EARLIER = "earlier"
    """It was read, and has an earlier version."""
    DAMAGED = "damaged"
    MISSING = "missing"
    """Its node does not answer, or has lost it."""


class ListState(NamedTuple):
    """The replicas of a list, by the names of their nodes; ``divided`` ones differ and have no history."""

    replicas: dict[str, ReplicaHealth]
    divided: bool

    @property
    def nodes(self) -> list[str]:
        """The nodes that have the latest version."""
        return [node for node, health in self.replicas.items() if health is ReplicaHealth.CURRENT]


def list_state(record: CatalogueRecord) -> ListState:
    """Read all replicas of a list. Raises as ``CatalogueRecord.read``."""
    reading = record.read_record()
    holders = {member.node for member in reading.holders}
    sound = {member.node for member in reading.sound}

    def health(node: str) -> ReplicaHealth:
        if node in holders:
            return ReplicaHealth.CURRENT
        if node in sound:
            return ReplicaHealth.EARLIER
        damaged = isinstance(reading.unread.get(node), DamagedError)
        return ReplicaHealth.DAMAGED if damaged else ReplicaHealth.MISSING

    nodes = sorted({member.node for member in reading.value.members})
    return ListState({node: health(node) for node in nodes}, bool(reading.divided))
