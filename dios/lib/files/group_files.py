"""The files of one group: reading, moving and removing them. ``staging`` adds files.

A file is a durable object of its own, or several of them if it is large. They are never written again: new
content is a new object, which takes the path in one write of the catalogue. So a reader sees the old content
or the new, and never a part.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec

from dios import limits
from dios.client.blob_file import BlobFile
from dios.client.sync.node import Group, Node, Reference
from dios.errors import (
    BadReferenceError,
    DiosError,
    InvalidError,
    NotPermittedError,
    StaleError,
    UnreachableError,
)
from dios.lib.catalogue import CatalogueEntry, Note, UnfinishedFile
from dios.lib.files.cached_catalogue import CachedCatalogue
from dios.lib.files.catalogue_places import CataloguePlace
from dios.lib.files.catalogue_record import CatalogueRecord, CatalogueVersion
from dios.lib.files.parts import PartsFile, StoredParts
from dios.lib.files.tree import FileTree, is_directory
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Permission, Proximity

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

BATCH_OBJECTS: Final = 256
_RANGES_BYTES_MIN: Final = 16 * limits.MIB
_RANGE_BYTES: Final = 1 * limits.MIB
_ATTEMPTS: Final = 5
_BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.PRIVMEM_BLOB})


class Destroyed(NamedTuple):
    """The outcome of the destruction of one name."""

    replicas: int
    """The number of physical objects that were destroyed."""
    complete: bool
    """False if a node that may have another replica did not answer."""


class GroupFiles:
    """The files of one group."""

    def __init__(self, node: Node, group: Group, place: CataloguePlace) -> None:
        self.node: Final = node
        self.group: Final = group
        self._place: Final = place
        self._record: Final = CatalogueRecord(node, place.replicas)
        self._catalogue: CachedCatalogue[CatalogueVersion] | None = None

    def _known(self) -> CachedCatalogue[CatalogueVersion] | None:
        if self._catalogue is None and self._record.found():
            self._catalogue = CachedCatalogue(self._record)
        return self._catalogue

    @property
    def secrecy(self) -> tuple[str, ...]:
        """Return the tags of the group's catalogue, which files that are added get."""
        self._known()
        return self._record.secrecy

    @property
    def record(self) -> CatalogueRecord:
        """Return the catalogue as a record, with its replicas."""
        return self._record

    def tree(self) -> FileTree:
        """Return the present files and directories."""
        known = self._known()
        return FileTree(()) if known is None else known.tree()

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """Return the present entries of the catalogue, without keeping them in memory."""
        known = self._known()
        return () if known is None else known.entries()

    def edit(
        self,
        change: Callable[[FileTree], Iterable[CatalogueEntry]],
        unfinished: Callable[[FileTree], Iterable[UnfinishedFile]] | None = None,
        notes: Callable[[FileTree], Iterable[Note]] | None = None,
    ) -> None:
        """Change the catalogue in one write; see ``CachedCatalogue.edit``."""
        known = self._known()
        if known is None:
            self._place.create()
            known = self._known()
        if known is None:
            raise UnreachableError("the list of the group's files was made, and cannot be found. Try again.")
        known.edit(change, unfinished, notes)

    def hold_list(self, disks: int) -> None:
        """Make replicas of the catalogue until its latest version is on this number of disks.

        Raises UnreachableError if too few nodes take it.
        """
        if self._known() is not None:
            self._record.hold(disks)

    @property
    def is_replicated(self) -> bool:
        """True if the catalogue has several replicas, so that replaced files leave notes in it."""
        return self._known() is not None and self._record.is_replicated

    def list_is_complete(self) -> bool:
        """Return True if every node answered that may have the latest version of the catalogue."""
        return self._place.is_complete()

    # -- reading ------------------------------------------------------------------------------------
    def entry(self, path: str) -> CatalogueEntry:
        """Return the entry of a file; FileNotFoundError or IsADirectoryError without one."""
        tree = self.tree()
        found = tree.files.get(path)
        if found is not None:
            return found
        if tree.is_directory(path):
            raise IsADirectoryError(21, "this is a directory", path)
        raise FileNotFoundError(2, "there is no such file", path)

    def readable(self, path: str) -> CatalogueEntry:
        """Return the entry of a file whose bytes can be read: a tiered file is brought back first.

        Raises as ``entry`` and ``dios.lib.tier.inward.bring_back`` do.
        """
        entry = self.entry(path)
        if not entry.tiered:
            return entry
        return _inward().bring_back(self, path)

    def view(self, path: str, start: int | None = None, end: int | None = None) -> memoryview:
        """Return a view of a file's bytes, or of a range, which stays valid when the file is replaced.

        It needs no copy, unless a range is in several parts of a large file.
        """
        entry = self.readable(path)
        if not entry.in_parts:
            return self._read(path, self._view)[slice(start, end)]
        first, last, _ = slice(start, end).indices(entry.size)
        return self.parts(entry).range(first, max(first, last))

    def original(self, entry: CatalogueEntry) -> tuple[Callable[[int, int], memoryview], int]:
        """Return a function that views ranges of a file's present bytes, and their number."""
        if entry.in_parts:
            return self.parts(entry).range, entry.size
        whole = self.view(entry.file)
        return (lambda start, end: whole[start:end]), whole.nbytes

    def parts(self, entry: CatalogueEntry) -> StoredParts:
        """Return the parts of a large file."""
        return StoredParts(self.node, self.group, entry)

    def _view(self, reference: Reference) -> memoryview:
        """View the object's bytes and close the reference, in one message."""
        with self.node.batch() as batch:
            viewed = batch.add(reference.view_bytes)
            batch.add(reference.close)
        return viewed.result()

    def open(self, path: str) -> BlobFile | io.BufferedReader:
        """Open a file for reading: its bytes in place, or in ranges if it is large and on another node.

        A file in parts can be read until it is replaced or removed.
        """
        entry = self.readable(path)
        if not entry.in_parts:
            return self._read(path, lambda reference: self._opened(reference, path))
        parts = self.parts(entry)

        def open_part(number: int) -> io.BufferedIOBase:
            with parts.reference(number) as reference:
                return self._opened(reference, path)

        return io.BufferedReader(PartsFile(entry, open_part), _RANGE_BYTES)

    def _opened(self, reference: Reference, path: str) -> BlobFile | io.BufferedReader:
        if reference.proximity > Proximity.NODE and reference.size >= _RANGES_BYTES_MIN:
            copy = reference.copy()
            return io.BufferedReader(_RangeFile(copy), _RANGE_BYTES)
        return BlobFile(self._view(reference), path)

    def _read(self, path: str, read: Callable[[Reference], T]) -> T:
        """Look a file up and read it, once more if it was replaced in between."""
        for _ in range(_ATTEMPTS):
            entry = self.readable(path)
            found = self.node.lookup(entry.name, group=self.group, limit=1)
            if found:
                with found[0] as reference:
                    if reference.type not in _BLOBS:
                        raise InvalidError(f"{path!r} is a {reference.type.name}, not a file")
                    try:
                        return read(reference)
                    except (StaleError, BadReferenceError):
                        continue
            elif found.incomplete:
                raise UnreachableError(f"{path!r} is on a node that does not answer", call="lookup")
            elif self.entry(path).name == entry.name:
                break
        raise FileNotFoundError(2, "the object of the file was destroyed", path)

    # -- moving and removing ------------------------------------------------------------------------
    def move(self, pairs: Mapping[str, str]) -> None:
        """Give files and directories other paths, in one write: no object changes, and no byte is copied.

        A file that has the new path of another one is replaced. Raises FileNotFoundError if an old path does
        not exist, and the errors of ``FileTree.require_room``.
        """
        replaced: list[CatalogueEntry] = []

        def change(tree: FileTree) -> list[CatalogueEntry]:
            replaced.clear()
            moved: dict[int, CatalogueEntry] = {}
            for old, new in pairs.items():
                entry = tree.files.get(old) or tree.made.get(old)
                if entry is not None:
                    directory = is_directory(entry)
                    moved[id(entry)] = msgspec.structs.replace(entry, file=f"{new}/" if directory else new)
                elif not tree.is_directory(old):
                    raise FileNotFoundError(2, "there is no such file or directory", old)
            gone = {id(tree.files[new]) for new in pairs.values() if new in tree.files} - moved.keys()
            replaced.extend(entry for entry in tree.entries if id(entry) in gone)
            kept = [entry for entry in tree.entries if id(entry) not in gone and id(entry) not in moved]
            rest = FileTree(kept)
            for entry in moved.values():
                rest.require_room(entry.file.rstrip("/"), directory=is_directory(entry))
            return [*kept, *moved.values()]

        self.edit(change)
        self.destroy_unlisted(replaced)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and the own entries of directories, in one write; destroy the files' objects.

        Raises FileNotFoundError, NotPermittedError if an object may not be destroyed, and UnreachableError if
        a node that may have a replica of one did not answer: its file stays, to be removed later. The bytes
        of tiered files go first, and the errors of their store leave everything else as it is.
        """
        tree = self.tree()
        entries = [tree.files.get(path) or tree.made[path] for path in paths]
        tiered = [entry for entry in entries if entry.tier is not None]
        if tiered:
            _removal().remove_bytes(self, tiered)
        outcomes = destroy(self.node, [name for entry in entries for name in entry.local_names])
        left = [entry for entry in entries if not all(outcomes[name].complete for name in entry.local_names)]
        self.forget([entry for entry in entries if entry not in left])
        if left:
            shown = ", ".join(entry.file for entry in islice(left, 3))
            raise UnreachableError(
                f"{len(left)} files stay, because a node that may have a replica did not answer: {shown}"
            )

    def forget(self, entries: Iterable[CatalogueEntry]) -> None:
        """Remove entries from the catalogue in one write."""
        gone = {(entry.file, entry.name) for entry in entries}
        if gone:
            self.edit(lambda tree: [e for e in tree.entries if (e.file, e.name) not in gone])

    def destroy_unlisted(self, entries: Iterable[CatalogueEntry]) -> None:
        """Destroy the objects of entries that are no longer in the catalogue, and their bytes in stores."""
        gone = list(entries)
        self.destroy_unneeded([name for entry in gone for name in entry.local_names])
        tiered = [entry for entry in gone if entry.tier is not None]
        if tiered:
            _removal().remove_unneeded(self, tiered)

    def destroy_unneeded(self, names: Sequence[bytes]) -> None:
        """Destroy objects that no file has any more."""
        # The change is made and visible. An object that cannot be destroyed now stays without a path.
        with suppress(DiosError):
            destroy(self.node, names)

    def forget_unfinished(self, paths: Collection[str]) -> None:
        """Remove unfinished files from the catalogue in one write."""
        self.edit(
            lambda tree: tree.entries,
            lambda tree: [one for path, one in tree.unfinished.items() if path not in paths],
        )


class _Inward(Protocol):
    """The part of ``dios.lib.tier.inward`` that readers need."""

    def bring_back(self, files: GroupFiles, path: str, /) -> CatalogueEntry: ...


class _Removal(Protocol):
    """The part of ``dios.lib.tier.removal`` that the removal of files needs."""

    def remove_bytes(self, files: GroupFiles, entries: Iterable[CatalogueEntry], /) -> None: ...

    def remove_unneeded(self, files: GroupFiles, entries: Iterable[CatalogueEntry], /) -> None: ...


def _inward() -> _Inward:
    """Return the code that brings tiered files back. It needs this module, so it is loaded by its name."""
    return cast("_Inward", import_module("dios.lib.tier.inward"))


def _removal() -> _Removal:
    return cast("_Removal", import_module("dios.lib.tier.removal"))


def destroy(node: Node, names: Sequence[bytes]) -> dict[bytes, Destroyed]:
    """Destroy every replica of these names, in few messages; return the outcome for each name.

    Raises NotPermittedError before anything is destroyed if a reference lacks the right to delete.
    """
    outcomes: dict[bytes, Destroyed] = {}
    for start in range(0, len(names), BATCH_OBJECTS):
        outcomes |= _destroy_some(node, names[start : start + BATCH_OBJECTS])
    return outcomes


def _destroy_some(node: Node, names: Sequence[bytes]) -> dict[bytes, Destroyed]:
    with node.batch() as batch:
        asked = {name: batch.add(node.lookup, name) for name in names}
    found = {name: pending.result() for name, pending in asked.items()}
    # In a message with others a lookup does not wait for the other nodes of a cluster.
    partial = [name for name, given in found.items() if given.incomplete]
    if partial:
        with node.batch() as batch:
            for each in (each for name in partial for each in found[name]):
                batch.add(each.close)
        found |= {name: node.lookup(name) for name in partial}
    replicas = {name: {each.object_id: each for each in given} for name, given in found.items()}
    for name, objects in replicas.items():
        if not all(each.permissions & Permission.DELETE for each in objects.values()):
            raise NotPermittedError(f"the reference to {fingerprint(name)} lacks the right to delete")
    with node.batch() as batch:
        ends = [batch.add(each.destroy) for objects in replicas.values() for each in objects.values()]
    for end in ends:
        if end.error is not None and not isinstance(end.error, StaleError | BadReferenceError):
            raise end.error
    return {name: Destroyed(len(objects), not found[name].incomplete) for name, objects in replicas.items()}


class _RangeFile(io.RawIOBase):
    """A file on another node, of which only the ranges that are read come here."""

    def __init__(self, reference: Reference) -> None:
        self._reference: Final = reference
        self.size: Final = reference.size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        place = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        if place < 0:
            raise ValueError(f"cannot seek to {place}, before the beginning of the file")
        self._at = place
        return place

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        with memoryview(buffer) as given, given.cast("B") as target:
            size = min(target.nbytes, self.size - self._at)
            if size <= 0:
                return 0
            part = self._reference.read_bytes(size, self._at)
            target[: len(part)] = part
            self._at += len(part)
            return len(part)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._reference.close()
