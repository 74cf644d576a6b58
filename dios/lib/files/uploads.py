"""Storing a large file in parts, so that an interrupted run is continued by the next one.

Before bytes are stored, the objects for them are listed in the catalogue as parts of an unfinished file. So
a run that is killed leaves no object that nobody knows. A later run for the same path finds the parts that
are stored by their digests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.client.sync.node import Reference
from dios.errors import Conflict, DiosError, InvalidError, LimitError, StaleError
from dios.lib.catalogue import CatalogueEntry, Part, UnfinishedFile, pack_parts
from dios.lib.files.group_list import GroupList, destroy
from dios.lib.files.notes import unneeded, unused
from dios.lib.files.sources import Moved, Source
from dios.lib.files.tree import FileTree
from dios.wire.types import ObjectType, Semantics

_RUN_BYTES: Final = 16


def part_bytes_for(size: int | None) -> int:
    """Return the size of the parts of a file of ``size`` bytes; None is a file of unknown size.

    Raises InvalidError for a file that is too large.
    """
    part_bytes = limits.FILE_PART_BYTES
    while size is not None and size > part_bytes * limits.FILE_PARTS_MAX:
        part_bytes *= 2
    if part_bytes > limits.BLOB_BYTES_MAX:
        raise InvalidError(
            f"a file of {size} bytes is too large: it can have "
            f"{limits.BLOB_BYTES_MAX * limits.FILE_PARTS_MAX}"
        )
    return part_bytes


class PartsUpload:
    """The storing of one file of ``size`` bytes, None if that is not known.

    With ``listed`` False the catalogue stays as it is, and nothing can be continued. After ``store`` the
    file is complete, and ``publish`` of the staged files makes it visible. With ``secrecy``, the tags of the
    new objects, the parts of an earlier run are not used: they may have other ones.
    """

    def __init__(
        self,
        files: GroupList,
        path: str,
        size: int | None,
        *,
        listed: bool = True,
        secrecy: Sequence[str] | None = None,
    ) -> None:
        self._files: Final = files
        self._secrecy: Final = secrecy
        self._path: Final = path
        self._size: Final = size
        self._listed: Final = listed
        self._begun: Final = UnfinishedFile(
            path, os.urandom(_RUN_BYTES), size or 0, time.time_ns(), part_bytes_for(size)
        )
        self._parts: Final[list[Part]] = []
        self._found: Final[dict[bytes, bytes]] = {}
        """The names of parts that an earlier run stored, by digest."""
        self._empty: Final[list[Reference]] = []
        """The objects that are listed and have no bytes yet."""
        self._announced = False
        """True if the list had the file as an unfinished one of this run."""
        self._useless: Final[list[bytes]] = []
        """The names of parts that no file needs, which a node that is away may still have."""

    def store(self, source: Source, moved: Moved = lambda _: None) -> CatalogueEntry:
        """Store the bytes of a source, and return the entry of the file; ``moved`` gets the progress.

        Raises InvalidError if the file became shorter or changed meanwhile, Conflict if another run stores
        the same path, and LimitError.
        """
        size, part_bytes = self._size, self._begun.part_bytes
        if self._listed:
            self._continue_earlier()
        whole, done = blake3(), 0
        while size is None or done < size:
            wanted = part_bytes if size is None else min(part_bytes, size - done)
            try:
                got = self._store_part(source, done, wanted, whole)
            except StaleError:
                raise self._taken_over() from None
            done += got
            moved(got)
            if got < wanted:
                if size is not None:
                    raise InvalidError(f"{self._path} became shorter while it was read. Put it again.")
                break
        return self.entry_of(self._parts, done, whole.digest())

    def begin(self) -> None:
        """List the file as unfinished, and take over the parts of an earlier run, before ``store_page``."""
        if self._listed:
            self._continue_earlier()

    def store_page(self, data: memoryview) -> Part:
        """Store the bytes of a part of a file that is written in any order. Raise as ``store`` does."""
        if len(self._parts) == limits.FILE_PARTS_MAX:
            raise self._too_long(limits.FILE_PARTS_MAX * self._begun.part_bytes)
        digest = blake3(data).digest()
        name = self._found.pop(digest, None)
        if name is not None and self._is_stored(name, data.nbytes):
            part = Part(name, digest)
        else:
            try:
                reference = self._next_object()
            except StaleError:
                raise self._taken_over() from None
            with reference.write(data.nbytes, Semantics.EXCL, replace=True, blank=True) as request:
                request.fill(data)
            self._empty.remove(reference)
            part = Part(reference.name or b"", digest)
            reference.close()
        self._parts.append(part)
        return part

    def drop_page(self, part: Part) -> None:
        """Destroy a part whose bytes are not those of the file any more."""
        self._parts.remove(part)
        self._destroy([part.name])

    def entry_of(self, parts: Sequence[Part], size: int, digest: bytes) -> CatalogueEntry:
        """Return the entry of a file of these parts, of ``size`` bytes, whose whole digest is given."""
        return CatalogueEntry(
            self._path,
            parts[0].name,
            size,
            time.time_ns(),
            digest,
            self._begun.part_bytes,
            pack_parts(parts),
        )

    def _too_long(self, size: int) -> LimitError:
        return LimitError(
            f"{self._path} has more than {size} bytes, the most for a file whose size is not known before. "
            "Store it from a file."
        )

    @property
    def stored_bytes(self) -> int:
        """The number of bytes that are stored, at most."""
        return len(self._parts) * self._begun.part_bytes

    def unused(self) -> list[bytes]:
        """Return the names of objects that a complete file does not need."""
        return [*self._found.values(), *(part.name or b"" for part in self._empty), *self._useless]

    def require_listed(self, tree: FileTree) -> None:
        """Raise Conflict if another run has taken over the path."""
        present = tree.unfinished.get(self._path)
        if self._listed and (present is None or present.run != self._begun.run):
            raise self._taken_over()

    def _taken_over(self) -> Conflict:
        return Conflict(
            f"another program began to store {self._path!r} meanwhile, or removed its parts. Let one program "
            "store it, and put it again."
        )

    def note(self) -> None:
        """Note the digests of the parts that are stored, so that the next run need not compute them.

        If another run has taken over the path, note what it does not know of.
        """
        if self._listed:
            with suppress(DiosError):
                try:
                    self._list_own(self._with_own)
                except Conflict:
                    self._list(lambda tree: tree.unfinished.values())

    def discard(self) -> None:
        """Destroy everything that was stored, and forget the unfinished file.

        Parts that another run has taken over stay: they are parts of its file.
        """
        names = [part.name for part in self._parts] + self.unused()
        if not self._listed:
            destroy(self._files.node, names, copied=self._files.is_replicated)
            return
        self._files.change(
            lambda tree: tree.entries,
            lambda tree: [
                unfinished_file
                for unfinished_file in tree.unfinished.values()
                if unfinished_file.run != self._begun.run
            ],
            lambda tree: unused(self._path, self._not_taken(tree, names), time.time_ns()),
        )

    def _not_taken(self, tree: FileTree, names: Iterable[bytes]) -> list[bytes]:
        """Return the names without those of parts that another run has, or a file, present or former."""
        present = tree.unfinished.get(self._path)
        others = present.parts if present is not None and present.run != self._begun.run else ()
        taken = {part.name for part in others}
        return unneeded((name for name in names if name not in taken), tree.entries, tree.notes)

    # -- one part -----------------------------------------------------------------------------------
    def _store_part(self, source: Source, offset: int, size: int, whole: blake3) -> int:
        """Store the bytes of a part, unless an earlier run has stored them; return their number."""
        if len(self._parts) == limits.FILE_PARTS_MAX:
            raise self._too_long(offset)
        known = b""
        if self._found or self._size is None:
            digest, got = blake3(), 0
            for chunk in source.chunks(offset, size):
                digest.update(chunk)
                whole.update(chunk)
                got += chunk.nbytes
            if not got:
                return 0
            known, size = digest.digest(), got
            name = self._found.pop(known, None)
            if name is not None and self._is_stored(name, size):
                self._parts.append(Part(name, known))
                return size
        reference = self._next_object()
        digest, done = blake3(), 0
        with reference.write(size, Semantics.EXCL, replace=True, blank=True) as request:
            for chunk in source.chunks(offset, size):
                digest.update(chunk)
                if not known:
                    whole.update(chunk)
                request.view[done : done + chunk.nbytes] = chunk
                done += chunk.nbytes
            if done < size or (known and digest.digest() != known):
                raise InvalidError(f"{self._path} was changed while it was read. Put it again.")
        self._empty.remove(reference)
        self._parts.append(Part(reference.name or b"", digest.digest()))
        reference.close()
        return size

    def _is_stored(self, name: bytes, size: int) -> bool:
        """Return True if a part of an earlier run can be used; else no file needs it."""
        reference = self._files.node.find(name, group=self._files.group)
        if reference is not None:
            with reference:
                if reference.size == size:
                    return True
        self._useless.append(name)
        return False

    def _next_object(self) -> Reference:
        """Return an object without bytes that is listed as a part."""
        if not self._empty:
            most = limits.FILE_PARTS_MAX
            if self._size is not None:
                most = -(-self._size // self._begun.part_bytes)
            left = min(limits.FILE_PARTS_ANNOUNCED, most - len(self._parts))
            node, group = self._files.node, self._files.group
            with node.batch() as batch:
                asked = [
                    batch.add(node.create, ObjectType.DURABLE_BLOB, groups=[group], secrecy=self._secrecy)
                    for _ in range(left)
                ]
            self._empty.extend(creation.result() for creation in asked if creation.error is None)
            for pending in asked:
                pending.result()
            surplus = len(self._parts) + len(self._found) + len(self._empty) - limits.FILE_PARTS_MAX
            self._destroy([self._found.popitem()[1] for _ in range(surplus)])
            if self._listed:
                self._announce()
        return self._empty[0]

    def _announce(self) -> None:
        """List the objects that were made last, or destroy them: nobody else may know of them.

        If they are listed in spite of an error, the next run does not find them, and needs none.
        """
        try:
            self._list_own(self._with_own)
        except DiosError:
            names: list[bytes] = []
            while self._empty:
                with self._empty.pop() as reference:
                    names.append(reference.name or b"")
            self._destroy(names)
            raise

    def _destroy(self, names: list[bytes]) -> None:
        """Destroy objects that no file needs. The next change of the list notes those that may be left."""
        try:
            if self._listed:
                names = self._not_taken(self._files.tree(), names)
            outcomes = destroy(self._files.node, names, copied=self._files.is_replicated)
        except DiosError:
            self._useless.extend(names)
        else:
            self._useless.extend(name for name in names if not outcomes[name].complete)

    # -- the catalogue ------------------------------------------------------------------------------
    def _list_own(self, unfinished: Callable[[FileTree], Iterable[UnfinishedFile]]) -> None:
        """Change the unfinished files of the list so that they include this file."""
        self._list(unfinished)
        self._announced = True

    def _list(self, unfinished: Callable[[FileTree], Iterable[UnfinishedFile]]) -> None:
        """Change the unfinished files, and note the parts that no file needs."""
        useless = list(self._useless)
        self._files.change(
            lambda tree: tree.entries,
            unfinished,
            lambda tree: unused(self._path, self._not_taken(tree, useless), time.time_ns()),
        )
        del self._useless[: len(useless)]

    def _with_own(self, tree: FileTree) -> list[UnfinishedFile]:
        """Return the unfinished files, with the present parts of this file.

        Raises Conflict if another run has taken over the path, whether or not it has finished its file.
        """
        if self._announced or self._path in tree.unfinished:
            self.require_listed(tree)
        parts = [
            *self._parts,
            *(Part(name, digest) for digest, name in self._found.items()),
            *(Part(reference.name or b"", b"") for reference in self._empty),
        ]
        return self._replaced(tree, parts)

    def _replaced(self, tree: FileTree, parts: Iterable[Part]) -> list[UnfinishedFile]:
        own = msgspec.structs.replace(self._begun, packed_parts=pack_parts(parts))
        return [
            *(unfinished_file for path, unfinished_file in tree.unfinished.items() if path != self._path),
            own,
        ]

    def _continue_earlier(self) -> None:
        """Take over the parts of an earlier run, which cannot make its file visible from then on."""
        if self._path not in self._files.tree().unfinished:
            return
        earlier: list[Part] = []

        def take(tree: FileTree) -> list[UnfinishedFile]:
            earlier.clear()
            former = tree.unfinished.get(self._path)
            if former is not None:
                earlier.extend(former.parts)
            return self._replaced(tree, earlier)

        self._list_own(take)
        useless: list[bytes] = []
        for part in earlier:
            digest = b"" if self._secrecy is not None else part.digest or self._digest_of(part.name)
            if digest and digest not in self._found:
                self._found[digest] = part.name
            else:
                useless.append(part.name)
        self._destroy(useless)

    def _digest_of(self, name: bytes) -> bytes:
        """Return the digest of a part that the earlier run did not note; empty if it has no bytes."""
        reference = self._files.node.find(name, group=self._files.group)
        if reference is None:
            return b""
        with reference:
            return blake3(reference.view_bytes()).digest() if reference.size else b""
