"""The list of one group's files: reading and changing it, moving and removing files, destroying former ones.

A file is a durable object of its own, or several of them if it is large. They are never written again: new
content is a new object, which takes the path in one write of the catalogue. So a reader sees the old content
or the new, and never a part. ``group_files`` reads files, and ``staging`` adds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from dios import limits
from dios.client.sync.node import Group, Node, Reference
from dios.errors import BadReferenceError, DiosError, NotPermittedError, StaleError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, Note, UnfinishedFile
from dios.lib.files.cached_catalogue import CachedCatalogue
from dios.lib.files.catalogue_places import CataloguePlace
from dios.lib.files.catalogue_record import CatalogueRecord, CatalogueVersion
from dios.lib.files.disks import attainable_disks, has_kept_copies, promised_disks
from dios.lib.files.notes import added, followed, unneeded
from dios.lib.files.notes import unused as unused_objects
from dios.lib.files.paths import stored_path
from dios.lib.files.tree import FileTree, is_directory
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import KeptPromise
from dios.wire.nametext import fingerprint
from dios.wire.types import Permission

BATCH_OBJECTS: Final = 256


class Destroyed(NamedTuple):
    """The outcome of the destruction of one name."""

    replicas: int
    """The number of physical objects that were destroyed."""
    complete: bool
    """False if a node that may have another replica did not answer."""


class _Noted(NamedTuple):
    """The notes of a catalogue after a change, and former files to destroy at once; ``noted`` if by notes."""

    notes: tuple[Note, ...] = ()
    due: Sequence[Note] = ()
    noted: bool = False


class GroupList:
    """The list of one group's files."""

    def __init__(self, node: Node, group: Group, place: CataloguePlace) -> None:
        self.node: Final = node
        self.group: Final = group
        self._place: Final = place
        self._record: Final = CatalogueRecord(node, place.replicas)
        self._catalogue: CachedCatalogue[CatalogueVersion] | None = None
        self._disks: tuple[float, int] | None = None

    def _known(self) -> CachedCatalogue[CatalogueVersion] | None:
        if self._catalogue is None and self._record.exists():
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

    def likely_tree(self) -> FileTree:
        """Return files and directories as this node knows them, if it does: others may know later ones."""
        known = self._known()
        return FileTree(()) if known is None else known.likely_tree()

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

    def list_is_on(self, disks: int) -> bool:
        """Return True if the catalogue has replicas on this number of nodes, as far as this node knows."""
        return self._known() is not None and self._record.is_on(disks)

    def hold_list(self, disks: int) -> None:
        """Make replicas of the catalogue until its latest version is on this number of disks.

        Raises UnreachableError if too few nodes take it.
        """
        if self._known() is not None:
            self._record.hold(disks)

    def default_disks(self) -> int:
        """Return the number of disks that acknowledge new files by default: that which is promised.

        It is not more than ``attainable_disks``, and 1 for tasks, which do not know the promise, and if no
        node that answers has the promises. A change of the promise is noticed after CATALOGUE_LOOK_MS. Raises
        the errors of reading the promises.
        """
        now = time.monotonic()
        if self._disks is None or self._disks[0] < now:
            disks = Promises(self.node).promised(self.group)
            if disks > 1:
                disks = min(disks, attainable_disks(self.node.nodes()))
            self._disks = now + limits.CATALOGUE_LOOK_MS / 1000, disks
        return self._disks[1]

    @property
    def is_replicated(self) -> bool:
        """True if the catalogue has replicas, or had them, so that replaced files leave notes in it."""
        return self._known() is not None and self._record.is_replicated

    def list_is_complete(self) -> bool:
        """Return True if every node answered that may have the latest version of the catalogue."""
        return self._place.is_complete()

    def entry(self, path: str) -> CatalogueEntry:
        """Return the entry of a file; FileNotFoundError or IsADirectoryError without one."""
        tree = self.tree()
        entry = tree.files.get(path)
        if entry is not None:
            return entry
        if tree.is_directory(path):
            raise IsADirectoryError(21, "this is a directory", path)
        raise FileNotFoundError(2, "there is no such file", path)

    # -- moving and removing ------------------------------------------------------------------------
    def move(self, pairs: Mapping[str, str]) -> None:
        """Give files and directories other paths, in one write: no object changes, and no byte is copied.

        A file that has the new path of another one is replaced, but not by a directory. Raises OSError for a
        directory that is to be in itself, FileNotFoundError if an old path does not exist, and the errors of
        ``FileTree.require_room``.
        """

        def change(tree: FileTree) -> list[CatalogueEntry]:
            moved: dict[int, CatalogueEntry] = {}
            for old, new in pairs.items():
                if tree.is_directory(old) and new.startswith(f"{old}/"):
                    raise OSError(22, "a directory cannot be moved into itself", new)
                entry = tree.files.get(old) or tree.explicit_directories.get(old)
                if entry is not None:
                    directory = is_directory(entry)
                    moved[id(entry)] = msgspec.structs.replace(entry, file=f"{new}/" if directory else new)
                elif not tree.is_directory(old):
                    raise FileNotFoundError(2, "there is no such file or directory", old)
            replaced = (new for old, new in pairs.items() if old in tree.files)
            gone = {id(tree.files[new]) for new in replaced if new in tree.files} - moved.keys()
            kept = [entry for entry in tree.entries if id(entry) not in gone and id(entry) not in moved]
            rest = FileTree(kept)
            for entry in moved.values():
                rest.require_room(entry.file.rstrip("/"), directory=is_directory(entry))
            return [*kept, *moved.values()]

        self.change(change)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and the own entries of directories, in one write; destroy the files' objects.

        Replicas on nodes that do not answer are destroyed later, by a note in a replicated catalogue. Without
        one their file stays, to be removed later, and UnreachableError says so. Raises FileNotFoundError, and
        NotPermittedError if an object may not be destroyed. If a store fails, a replicated catalogue does not
        list the files any more, and UnreachableError says what remains; another one lists them still.
        """
        tree = self.tree()
        entries = [
            tree.files.get(path) or tree.explicit_directories.get(path) or self.entry(path) for path in paths
        ]
        while entries:
            self._remove(entries)
            entries = self.moved(entries)  # only then it is certain that they are removed

    def _remove(self, entries: Sequence[CatalogueEntry]) -> None:
        due = self.unlist(entries)
        if due is not None:
            try:
                due = self.remove_stored(due, entries)
            finally:
                with suppress(DiosError):
                    self._destroy(due)
            return
        if any(entry.tier for entry in entries):
            _remove_stored_bytes(self.group, entries)
        outcomes = destroy(self.node, [name for entry in entries for name in entry.local_names])
        left = [entry for entry in entries if not all(outcomes[name].complete for name in entry.local_names)]
        self.forget([entry for entry in entries if entry not in left])
        if left:
            shown = ", ".join(entry.file for entry in islice(left, 3))
            raise UnreachableError(
                f"{len(left)} files stay, because a node that may have a replica did not answer: {shown}"
            )

    def remove_stored(self, due: list[Note], entries: Iterable[CatalogueEntry]) -> list[Note]:
        """Remove what stores have of files that were unlisted; return their notes, which need no store then.

        Bytes stay that a listed file has: another program may have brought the file back meanwhile. Raises
        UnreachableError if a store fails. `dios tier prune` removes what it keeps.
        """
        tiered = {entry.tier.mark: entry for entry in entries if entry.tier is not None}
        for present in self.tree().entries if tiered else ():
            if present.tier is not None:
                tiered.pop(present.tier.mark, None)
        if not tiered:
            return due
        try:
            _remove_stored_bytes(self.group, tiered.values())
        except (DiosError, OSError) as error:
            why = error.message if isinstance(error, DiosError) else str(error)
            raise UnreachableError(
                f"the store keeps bytes of files that are removed: {why}. `dios tier prune` removes them."
            ) from None
        return [
            note.without_store() if note.former.tier and note.former.tier.mark in tiered else note
            for note in due
        ]

    def moved(self, entries: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
        """Return the present entries of those files whose bytes another program moved to or from a store."""
        files = self.tree().files
        pairs = [(entry, files.get(stored_path(entry.file))) for entry in entries if entry.name]
        return [
            present
            for entry, present in pairs
            if present is not None and present.name != entry.name and present.digest == entry.digest
        ]

    def unlist(
        self, entries: Sequence[CatalogueEntry], unfinished: Collection[str] = ()
    ) -> list[Note] | None:
        """Remove files, and unfinished ones by their paths, from a replicated catalogue in one write.

        It leaves notes. Return None, and change nothing, if the catalogue has one replica; else the notes
        that have nothing to wait for: of these files, and of former ones that they had replaced. Before
        anything is changed, it raises NotPermittedError if an object may not be destroyed, and InvalidError
        if this machine does not know the store of a file.
        """
        if not self.is_replicated:
            return None
        _require_destroyable(self.node, [name for entry in entries for name in entry.local_names])
        if any(entry.tier for entry in entries):
            from dios.lib.packs.tier_store import known_stores  # noqa: PLC0415 - loads cryptography

            known_stores(self.group, entries)
        gone = {(entry.file, entry.name) for entry in entries}

        def unused_parts(tree: FileTree) -> Iterable[Note]:
            for file in tree.unfinished.values():
                if file.file in unfinished:
                    yield from unused_objects(file.file, [part.name for part in file.parts], time.time_ns())

        done = self._edit_noted(
            lambda tree: [e for e in tree.entries if (e.file, e.name) not in gone],
            lambda tree: [file for path, file in tree.unfinished.items() if path not in unfinished],
            unused_parts,
        )
        return list(done.due)

    def forget(self, entries: Iterable[CatalogueEntry]) -> None:
        """Remove entries from the catalogue in one write."""
        gone = {(entry.file, entry.name) for entry in entries}
        if gone:
            self.edit(lambda tree: [e for e in tree.entries if (e.file, e.name) not in gone])

    # -- former files -------------------------------------------------------------------------------
    def change(
        self,
        change: Callable[[FileTree], Iterable[CatalogueEntry]],
        unfinished: Callable[[FileTree], Iterable[UnfinishedFile]] | None = None,
        unused: Callable[[FileTree], Iterable[Note]] | None = None,
    ) -> None:
        """Change the catalogue in one write, as ``edit`` does, and destroy what no file has any more.

        In a replicated catalogue the files that go leave notes, and those that others replace stay until
        their replacements are kept. ``unused`` returns notes of further objects that no file needs.
        """
        done = self._edit_noted(change, unfinished, unused)
        # The change is made and visible. An object without a note that cannot be destroyed now stays.
        with suppress(DiosError):
            self._destroy(done.due, noted=done.noted)
            self._sweep_old(done.notes)

    def _edit_noted(
        self,
        change: Callable[[FileTree], Iterable[CatalogueEntry]],
        unfinished: Callable[[FileTree], Iterable[UnfinishedFile]] | None = None,
        unused: Callable[[FileTree], Iterable[Note]] | None = None,
    ) -> _Noted:
        done = _Noted()
        after: tuple[CatalogueEntry, ...] = ()

        def entries(tree: FileTree) -> Iterable[CatalogueEntry]:
            nonlocal after
            after = tuple(change(tree))
            return after

        def notes(tree: FileTree) -> Sequence[Note]:
            nonlocal done
            kept = followed(tree, after)
            new = added(tree, after, time.time_ns())
            for note in unused(tree) if unused else ():
                # A run that was overtaken may take the parts of a file for its own.
                rest = unneeded(note.former.local_names, after, (*kept, *new))
                new += unused_objects(note.former.file, rest, note.noted_ns)
            freed = [note for note in kept if not note.until and note not in tree.notes] if kept else []
            if new and self.is_replicated:
                due = [*freed, *(note for note in new if not note.until)]
                done = _Noted((*kept, *new), due, noted=True)
            else:
                done = _Noted(kept, [*freed, *new], noted=bool(freed))
            return done.notes

        self.edit(entries, unfinished, notes)
        return done

    def _destroy(self, due: Collection[Note], *, noted: bool = True) -> int:
        names = [name for note in due for name in note.former.local_names]
        return self.end(due, destroy(self.node, names, copied=self.is_replicated), noted=noted)

    def end(self, due: Collection[Note], outcomes: Mapping[bytes, Destroyed], *, noted: bool = True) -> int:
        """Remove the stored bytes of former files whose objects were destroyed, and drop their notes.

        Return the number of those of which nothing is left. The others keep their notes, if they are
        ``noted``.
        """
        tiered = [note.former for note in due if note.former.tier is not None]
        needed = {entry.tier.mark for entry in self.tree().entries if entry.tier} if tiered else set()
        for entry in tiered:
            if entry.tier is not None and entry.tier.mark not in needed:
                # The file is replaced already. `dios tier prune` finds what stays.
                with suppress(DiosError, OSError):
                    _remove_stored_bytes(self.group, [entry])
        gone = {
            note.former.name
            for note in due
            if all(name in outcomes and outcomes[name].complete for name in note.former.local_names)
        }
        if noted:
            self.drop_notes(gone)
        return len(gone)

    def drop_notes(self, names: Collection[bytes]) -> None:
        """Drop the notes of former files with these names, whose objects are destroyed."""
        if names:
            self.edit(
                lambda tree: tree.entries,
                None,
                lambda tree: [note for note in tree.notes if note.former.name not in names],
            )

    def sweep(self) -> int:
        """Destroy the former files whose replacements are kept, and return their number.

        A replacement is kept if as many nodes as are promised have the bytes of each of its objects, one
        without a promise. The keeper of replicas does the same where a promise is, but for files in stores.
        Raises the errors of looking up and of destroying.
        """
        tree = self.tree()
        if not tree.notes:
            return 0
        promises = Promises(self.node).known()
        present = {entry.name: entry for entry in tree.entries}
        kept = {b"": True}
        for until in {note.until for note in tree.notes if note.until}:
            entry = present.get(until[: limits.NAME_BYTES])
            kept[until] = entry is not None and self._is_kept(entry, promises)
        due = [note for note in tree.notes if kept[note.until] and note.former.name not in present]
        return self._destroy(due)

    def _is_kept(self, entry: CatalogueEntry, promises: Iterable[KeptPromise]) -> bool:
        if entry.digest or entry.in_parts:
            disks = promised_disks(promises, self.group, entry)
            return has_kept_copies(self.node, self.group, entry, disks)
        # A log, or a file of a catalogue of version 1: nothing says which bytes are right.
        reference = self.node.find(entry.name, group=self.group)
        if reference is None:
            return False
        reference.close()
        return True

    def _sweep_old(self, notes: Iterable[Note]) -> None:
        """Execute old notes that no keeper executes: without a promise, and of files in a store."""
        oldest = time.time_ns() - limits.NOTE_SWEEP_MS * 1_000_000
        old = [note for note in notes if note.noted_ns < oldest]
        if any(note.former.tier for note in old) or (old and Promises(self.node).promise(self.group) is None):
            self.sweep()

    def formers(self, path: str) -> list[CatalogueEntry]:
        """Return the former files of a path that stay until their replacements are kept, the latest first."""
        waiting = [note for note in self.tree().notes if note.until]
        waiting.sort(key=lambda note: note.noted_ns, reverse=True)
        return [note.former for note in waiting if stored_path(note.former.file) == path]

    def forget_unfinished(self, paths: Collection[str]) -> None:
        """Remove unfinished files from the catalogue in one write."""
        self.edit(
            lambda tree: tree.entries,
            lambda tree: [file for path, file in tree.unfinished.items() if path not in paths],
        )


def _remove_stored_bytes(group: Group, entries: Iterable[CatalogueEntry]) -> None:
    from dios.lib.packs.tier_store import remove_bytes  # noqa: PLC0415 - loads cryptography

    remove_bytes(group, entries)


def destroy(node: Node, names: Sequence[bytes], *, copied: bool = False) -> dict[bytes, Destroyed]:
    """Destroy every replica of these names, in few messages; return the outcome for each name.

    With ``copied`` a keeper may be making a replica meanwhile. It looks for others when its replica is made,
    and removes it if there is none. So a second look, when the others are gone, leaves none behind. A second
    look also shows if a replica is gone whose reference was refused: its node may have started again.

    Raises NotPermittedError before anything is destroyed if a reference lacks the right to delete.
    """
    outcomes: dict[bytes, Destroyed] = {}
    for start in range(0, len(names), BATCH_OBJECTS):
        some = names[start : start + BATCH_OBJECTS]
        first, refused_at_first = _destroy_some(node, some)
        outcomes |= first
        later, refused_again = _destroy_some(node, some if copied else refused_at_first)
        for name, outcome in later.items():
            complete = outcome.complete and name not in refused_again
            outcomes[name] = Destroyed(outcomes[name].replicas + outcome.replicas, complete)
    return outcomes


def _require_destroyable(node: Node, names: Sequence[bytes]) -> None:
    """Raise NotPermittedError if a reference to one of these names lacks the right to delete."""
    for start in range(0, len(names), BATCH_OBJECTS):
        with node.batch() as batch:
            asked = {name: batch.add(node.lookup, name) for name in names[start : start + BATCH_OBJECTS]}
        lookups = {name: pending.result() for name, pending in asked.items()}
        with node.batch() as batch:
            for reference in (replica for given in lookups.values() for replica in given):
                batch.add(reference.close)
        for name, given in lookups.items():
            _require_deletable(name, given)


def _require_deletable(name: bytes, objects: Iterable[Reference]) -> None:
    if not all(reference.permissions & Permission.DELETE for reference in objects):
        raise NotPermittedError(f"the reference to {fingerprint(name)} lacks the right to delete")


def _destroy_some(node: Node, names: Sequence[bytes]) -> tuple[dict[bytes, Destroyed], list[bytes]]:
    """Destroy what a look finds; return the outcomes, and the names with a replica that was not there."""
    if not names:
        return {}, []
    with node.batch() as batch:
        asked = {name: batch.add(node.lookup, name) for name in names}
    lookups = {name: pending.result() for name, pending in asked.items()}
    # In a message with others a lookup does not wait for the other nodes of a cluster.
    partial = [name for name, given in lookups.items() if given.incomplete]
    if partial:
        with node.batch() as batch:
            for reference in (replica for name in partial for replica in lookups[name]):
                batch.add(reference.close)
        lookups |= {name: node.lookup(name) for name in partial}
    replicas = {name: {replica.object_id: replica for replica in given} for name, given in lookups.items()}
    for name, objects in replicas.items():
        _require_deletable(name, objects.values())
    with node.batch() as batch:
        ends = [
            (name, batch.add(replica.destroy))
            for name, objects in replicas.items()
            for replica in objects.values()
        ]
    refused: list[bytes] = []
    for name, end in ends:
        if isinstance(end.error, StaleError | BadReferenceError):
            refused.append(name)
        elif end.error is not None:
            raise end.error
    outcomes = {
        name: Destroyed(len(objects), not lookups[name].incomplete) for name, objects in replicas.items()
    }
    return outcomes, refused
