"""Files that are stored but not visible yet: many files become visible in one write of the catalogue.

A large file is stored in parts, by ``uploads``.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.client.ops.handles import Data
from dios.client.sync.node import Reference
from dios.errors import (
    Busy,
    Conflict,
    DiosError,
    InvalidError,
    LimitError,
    NotPermittedError,
    UnreachableError,
)
from dios.lib.catalogue import CatalogueEntry, Note, Tiered, UnfinishedFile
from dios.lib.files.disks import copy_all, hold_on
from dios.lib.files.group_list import BATCH_OBJECTS, GroupList, destroy
from dios.lib.files.notes import unused
from dios.lib.files.paths import stored_path
from dios.lib.files.sources import LocalSource, MemorySource, Moved, PipeSource, Readable, Source
from dios.lib.files.tree import FileTree, directory_entry, is_directory
from dios.lib.files.uploads import PartsUpload
from dios.wire.types import ObjectType, Semantics

_CHUNK_BYTES: Final = 4 * limits.MIB
_WAITING_BYTES_MAX: Final = 4 * limits.MIB


class StagedFiles:
    """Files and directories that are added to a group together, or not at all.

    ``publish`` makes them visible, and ``discard`` destroys what was stored. ``suspend`` leaves the parts of
    large files as unfinished files, so that a later run continues with them. With ``listed`` False none of
    this is in the catalogue before ``publish``. ``secrecy`` are the tags of the new objects, in addition to
    those of the group's catalogue. With None they have these, or those of the caller if there are none.
    ``disks`` is the number of nodes whose disks acknowledge, by default the number that is promised.
    """

    def __init__(
        self,
        files: GroupList,
        *,
        listed: bool = True,
        secrecy: Sequence[str] | None = None,
        disks: int | None = None,
    ) -> None:
        self.files: Final = files
        self._disks = disks
        self._held: Final[dict[bytes, int]] = {}
        """The number of disks that objects were brought to, by name; the promise may change meanwhile."""
        self._listed: Final = listed
        self._given: Final = secrecy
        self._uploads: Final[dict[str, PartsUpload]] = {}
        self._entries: Final[dict[str, CatalogueEntry]] = {}
        self._unused: Final[list[CatalogueEntry]] = []
        self._waiting: Final[list[tuple[str, bytes]]] = []
        self._waiting_bytes = 0
        self._new: Final[set[str]] = set()
        self._expected: Final[dict[str, bytes]] = {}

    @property
    def _secrecy(self) -> Sequence[str] | None:
        of_group = self.files.secrecy
        return (*self._given, *of_group) if self._given is not None else of_group or None

    @property
    def disks(self) -> int:
        """The number of nodes whose disks acknowledge the files and the list of them."""
        return self.files.default_disks() if self._disks is None else self._disks

    def add_bytes(self, path: str, data: Data) -> None:
        """Store a file with these bytes, copied once."""
        view = memoryview(data).cast("B")
        if view.nbytes <= limits.INLINE_BYTES_MAX:
            self._waiting.append((path, bytes(view)))
            self._waiting_bytes += view.nbytes
            if len(self._waiting) >= BATCH_OBJECTS or self._waiting_bytes >= _WAITING_BYTES_MAX:
                self._store_waiting()
        elif view.nbytes > limits.FILE_WHOLE_BYTES_MAX:
            self.add_parts(path, MemorySource(view), view.nbytes)
        else:
            reference = self.files.node.create(
                ObjectType.DURABLE_BLOB, groups=[self.files.group], data=view, secrecy=self._secrecy
            )
            self._add(path, reference, view.nbytes, blake3(view).digest())

    def add_file(self, path: str, file: io.RawIOBase, size: int, moved: Moved = lambda _: None) -> None:
        """Store the next ``size`` bytes of an open local file, copied once; ``moved`` gets the progress.

        Raises InvalidError if the file has fewer bytes.
        """

        def read(view: memoryview) -> Iterator[memoryview]:
            while view.nbytes:
                with view[:_CHUNK_BYTES] as part:
                    got = os.readv(file.fileno(), [part])
                yield view[:got]
                view = view[got:]

        if size <= limits.INLINE_BYTES_MAX:
            data = file.read(size) or b""
            moved(len(data))
            self.add_bytes(path, data)
        elif size > limits.FILE_WHOLE_BYTES_MAX:
            self.add_parts(path, LocalSource(file.fileno()), size, moved)
        else:
            self._add(path, *self._stored_whole(path, size, read, moved))

    def add_source(self, path: str, source: Source, size: int) -> None:
        """Store a file with the ``size`` bytes of a source; ``publish`` brings it to further disks."""
        if size <= limits.INLINE_BYTES_MAX:
            self.add_bytes(path, b"".join(source.chunks(0, size)))
        elif size > limits.FILE_WHOLE_BYTES_MAX:
            self.add_parts(path, source, size)
        else:
            reference, size, digest = self._stored_whole(path, size, partial(_copy, source.chunks(0, size)))
            self.add_object(path, reference.name or b"", size, digest)
            reference.close()

    def add_pieces(self, path: str, pieces: Sequence[memoryview]) -> None:
        """Store a file with the bytes of these pieces, of at most FILE_WHOLE_BYTES_MAX, copied once."""
        size = sum(piece.nbytes for piece in pieces)
        if size <= limits.INLINE_BYTES_MAX or len(pieces) == 1:
            self.add_bytes(path, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        else:
            self._add(path, *self._stored_whole(path, size, partial(_copy, pieces)))

    def _stored_whole(
        self,
        path: str,
        size: int,
        fill: Callable[[memoryview], Iterable[memoryview]],
        moved: Moved = lambda _: None,
    ) -> tuple[Reference, int, bytes]:
        """Store a file as one object, and return it with its size and digest.

        ``fill`` writes it from the beginning on, and yields what it wrote.
        """
        reference = self.files.node.create(
            ObjectType.DURABLE_BLOB, groups=[self.files.group], secrecy=self._secrecy
        )
        try:
            with reference.write(size, Semantics.EXCL, replace=True, blank=True) as request:
                digest = blake3()
                for written in fill(request.view):
                    _require_more(path, written.nbytes)
                    digest.update(written)
                    moved(written.nbytes)
                    written.release()
        except BaseException:
            reference.destroy()
            raise
        return reference, size, digest.digest()

    def add_parts(self, path: str, source: Source, size: int | None, moved: Moved = lambda _: None) -> None:
        """Store a large file in parts; ``size`` is None if it is not known. See ``PartsUpload.store``."""
        self._replace(path, self._new_upload(path, size).store(source, moved))

    def begin_parts(self, path: str) -> PartsUpload:
        """Return the upload of a file whose parts the caller stores in any order before ``end_parts``."""
        upload = self._new_upload(path, None)
        upload.begin()
        return upload

    def _new_upload(self, path: str, size: int | None) -> PartsUpload:
        former = self._uploads.pop(path, None)
        if former is not None:
            former.discard()
            self._entries.pop(path, None)
        upload = self._uploads[path] = PartsUpload(
            self.files, path, size, listed=self._listed, secrecy=self._secrecy
        )
        return upload

    def end_parts(self, path: str, entry: CatalogueEntry) -> None:
        """Add the file whose parts are stored."""
        self._replace(path, entry)

    def add_pipe(self, path: str, pipe: Readable, moved: Moved = lambda _: None) -> None:
        """Store everything that can be read from a pipe, with one part of it in memory."""
        source = PipeSource(pipe)
        whole = source.first_part
        if whole is None:
            self.add_parts(path, source, None, moved)
        else:
            self.add_bytes(path, whole)
            moved(whole.nbytes)

    def add_object(self, path: str, name: bytes, size: int = 0, digest: bytes = b"") -> None:
        """Add an object that exists already."""
        self._replace(path, CatalogueEntry(path, name, size, time.time_ns(), digest))

    def add_directory(self, path: str) -> None:
        """Add a directory, if it does not exist."""
        if path:
            self._entries.setdefault(path, directory_entry(path, time.time_ns()))

    def change(self, path: str, *, put_ns: int, tier: Tiered) -> None:
        """Give a stored file the time and the place in a store that it had before it was brought back."""
        self._entries[path] = msgspec.structs.replace(self._entries[path], put_ns=put_ns, tier=tier)

    def require_new(self, path: str) -> None:
        """Let ``publish`` raise FileExistsError if a file has this path by then."""
        self._new.add(path)

    def require_unchanged(self, path: str, name: bytes) -> None:
        """Let ``publish`` raise Conflict if the file's object is not the one of ``name`` by then."""
        self._expected[path] = name

    def take(self, other: StagedFiles) -> None:
        """Take over everything that ``other`` has staged for the same group."""
        other._store_waiting()
        for path, entry in other._entries.items():
            self._replace(path, entry)
        self._unused.extend(other._unused)
        self._new.update(other._new)
        self._expected.update(other._expected)
        self._uploads.update(other._uploads)
        other._entries.clear()
        other._uploads.clear()

    def _add(self, path: str, reference: Reference, size: int, digest: bytes) -> None:
        self.add_object(path, reference.name or b"", size, digest)
        try:
            self._hold_new([reference])
        finally:
            reference.close()

    def _hold_new(self, stored: Sequence[Reference]) -> None:
        """Bring objects that have just been stored to further disks."""
        disks = self.disks
        copy_all(self.files.node, self.files.group, stored, disks)
        self._held.update((reference.name or b"", disks) for reference in stored)

    def _replace(self, path: str, entry: CatalogueEntry) -> None:
        former = self._entries.get(path)
        if former is not None:
            self._unused.append(former)
        self._entries[path] = entry

    def _store_waiting(self) -> None:
        """Create the small objects, in few messages."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        node, group = self.files.node, self.files.group
        if len(waiting) == 1:
            ((path, data),) = waiting
            stored = node.create(ObjectType.DURABLE_BLOB, groups=[group], data=data, secrecy=self._secrecy)
            self._add(path, stored, len(data), blake3(data).digest())
            return
        if not waiting:
            return
        with node.batch() as batch:
            asked = [
                (
                    path,
                    data,
                    batch.add(
                        node.create, ObjectType.DURABLE_BLOB, groups=[group], data=data, secrecy=self._secrecy
                    ),
                )
                for path, data in waiting
            ]
        created = [(path, data, pending.result()) for path, data, pending in asked if pending.error is None]
        for path, data, reference in created:
            self.add_object(path, reference.name or b"", len(data), blake3(data).digest())
        try:
            self._hold_new([reference for _, _, reference in created])
        finally:
            with node.batch() as batch:
                for _, _, reference in created:
                    batch.add(reference.close)
        for _, _, pending in asked:
            pending.result()

    def hold(self, disks: int) -> None:
        """Bring everything that is staged, and the catalogue, to this number of disks each.

        Raises UnreachableError if too few nodes take them. Nothing is visible then.
        """
        self._disks = disks
        self._hold(disks)

    def _hold(self, disks: int) -> None:
        if disks < 2:
            return
        for entry in self.stored():
            for name, digest in entry.objects:
                if self._held.get(name, 0) < disks:
                    hold_on(self.files.node, self.files.group, name, disks, digest)
                    self._held[name] = disks
        if not self.files.list_is_on(disks):
            self.files.hold_list(disks)

    def stored(self) -> list[CatalogueEntry]:
        """Return the entries of all staged files, whose objects exist then."""
        self._store_waiting()
        return [entry for entry in self._entries.values() if entry.name]

    def publish(self) -> list[CatalogueEntry]:
        """Make everything visible in one write, and return its entries. On an error nothing is visible.

        Before that the files are on as many disks as acknowledge them, and the list of them after it. Files
        that had these paths are replaced, and their objects destroyed: in a replicated catalogue when the new
        ones are kept, in another one at once. Raises FileExistsError, IsADirectoryError or NotADirectoryError
        if a path is taken, Conflict if another writer replaced a file that had to be unchanged, LimitError if
        the catalogue is full, and UnreachableError if too few disks take the files.
        """
        disks = self._hold_before()
        try:
            entries = dict(self._entries)
            own = FileTree(entries.values())
            if not entries:
                return []

            def change(tree: FileTree) -> Iterable[CatalogueEntry]:
                added = self._checked(tree, own, entries)
                if not any(path in tree.files for path in entries):
                    return [*tree.entries, *added]
                kept = [
                    entry
                    for entry in tree.entries
                    if is_directory(entry) or stored_path(entry.file) not in entries
                ]
                return [*kept, *added]

            self.files.change(change, self._still_unfinished, self._unused_objects)
        except (OSError, Busy, Conflict, InvalidError, LimitError, NotPermittedError) as error:
            if isinstance(error, UnreachableError):
                self._leave()
            else:
                self.suspend()
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        self._hold_list_after(disks)
        return list(entries.values())

    def _leave(self) -> None:
        """Leave all objects to the list: it has the files, or may have them if the answer was lost.

        So nothing destroys them from now on, whatever the caller does after an error.
        """
        self._entries.clear()
        self._unused.clear()
        self._uploads.clear()

    def _hold_before(self) -> int:
        """Bring the files to as many disks as acknowledge them, and return that number."""
        try:
            self._store_waiting()
            disks = self.disks
            self._hold(disks)
        except DiosError:
            self.suspend()
            raise
        return disks

    def _hold_list_after(self, disks: int) -> None:
        """Bring the list with the new files to further disks, in case that a node failed meanwhile."""
        if disks < 2:
            return
        try:
            self.files.hold_list(disks)
        except UnreachableError as error:
            raise UnreachableError(
                f"the files are visible and on {disks} disks each, but their list is not: {error.message}. "
                "Put one of them again when enough nodes answer."
            ) from None

    def _unused_objects(self, _: FileTree) -> Iterator[Note]:
        now = time.time_ns()
        for entry in self._unused:
            yield Note(entry, b"", now)
        for path, upload in self._uploads.items():
            yield from unused(path, upload.unused(), now)

    def _checked(
        self, tree: FileTree, own: FileTree, entries: dict[str, CatalogueEntry]
    ) -> list[CatalogueEntry]:
        for path, name in self._expected.items():
            present = tree.files.get(path)
            if present is None or present.name != name:
                raise Conflict(f"{path!r} was replaced by another writer meanwhile. Open it again.")
        self._require_files(tree, entries)
        for path in self._new & tree.files.keys():
            raise FileExistsError(17, "there is a file with this path", path)
        for upload in self._uploads.values():
            upload.require_listed(tree)
        added = []
        for path, entry in entries.items():
            directory = is_directory(entry)
            tree.require_room(path, directory=directory)
            own.require_room(path, directory=directory)
            if not directory or path not in tree.explicit_directories:
                added.append(entry)
        return added

    def _require_files(self, tree: FileTree, entries: dict[str, CatalogueEntry]) -> None:
        """Check that no log is replaced: an entry without bytes may be the one of a log."""
        files = tree.files
        for path in entries.keys() & files.keys():
            if files[path].size:
                continue
            reference = self.files.node.find(files[path].name, group=self.files.group)
            if reference is not None:
                with reference:
                    if reference.type is ObjectType.DURABLE_STREAM:
                        raise InvalidError(f"{path!r} is a log. Choose another path, or remove it first.")

    def _still_unfinished(self, tree: FileTree) -> list[UnfinishedFile]:
        return [
            unfinished_file for path, unfinished_file in tree.unfinished.items() if path not in self._uploads
        ]

    def suspend(self) -> int:
        """Destroy everything that is not visible but the parts of large files, which a later run finds.

        Return the number of bytes that stay.
        """
        kept = sum(upload.stored_bytes for upload in self._uploads.values()) if self._listed else 0
        for upload in self._uploads.values():
            upload.note()
        self._forget(self._uploads)
        return kept

    def discard(self) -> None:
        """Destroy everything that was stored and is not visible."""
        uploads = list(self._uploads.values())
        self._forget(self._uploads)
        for upload in uploads:
            with suppress(DiosError):
                upload.discard()

    def _forget(self, kept: Collection[str]) -> None:
        """Destroy the objects of all entries but those of the kept paths, and forget everything."""
        gone = [entry for path, entry in self._entries.items() if path not in kept]
        names = [name for entry in (*gone, *self._unused) for name in entry.names]
        self._entries.clear()
        self._unused.clear()
        self._waiting.clear()
        self._uploads.clear()
        # The error that led here is the one to report.
        with suppress(DiosError):
            destroy(self.files.node, names)


def _copy(pieces: Iterable[memoryview], view: memoryview) -> Iterator[memoryview]:
    """Copy pieces into a view, one after the other, and yield the parts of it that were written."""
    for piece in pieces:
        view[: piece.nbytes] = piece
        yield view[: piece.nbytes]
        view = view[piece.nbytes :]


def _require_more(path: str, got: int) -> None:
    if not got:
        raise InvalidError(f"{path} became shorter while it was read. Put it again.")
