"""The files of one group: reading them. ``group_list`` moves and removes files, and ``staging`` adds them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final, TypeVar

from dios.client.blob_file import BlobFile
from dios.client.sync.node import Group, Node
from dios.errors import DamagedError, StaleError, UnreachableError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import CataloguePlace
from dios.lib.files.group_list import GroupList
from dios.lib.files.parts import PartsFile, StoredParts
from dios.lib.files.paths import stored_path
from dios.lib.files.sound_replicas import RANGE_BYTES, Notice, SoundReplicas, WantedObject, log_notice

T = TypeVar("T")

_ATTEMPTS: Final = 5


class GroupFiles(GroupList):
    """The files of one group; ``notice`` is called when a reader passed over bad replicas of a file."""

    def __init__(self, node: Node, group: Group, place: CataloguePlace, notice: Notice = log_notice) -> None:
        super().__init__(node, group, place)
        self._notice: Final = notice

    def readable(self, path: str) -> CatalogueEntry:
        """Return the entry of a file whose bytes can be read: a tiered file is brought back first.

        So is one that was brought back before and has lost an object, while its store has it. Raises as
        ``entry`` and ``dios.lib.files.tier.inward.bring_back`` do.
        """
        entry = self.entry(path)
        if entry.tiered:
            from dios.lib.files.tier.inward import bring_back  # noqa: PLC0415 - loads cryptography

            return bring_back(self, path)
        return self.fetched_again(entry) if entry.in_store and not self._has_objects(entry) else entry

    def _has_objects(self, entry: CatalogueEntry) -> bool:
        """Return True if every object of a local file is on a node that answers."""
        for name in entry.names:
            references = self.node.lookup(name, group=self.group, limit=1)
            for reference in references:
                reference.close()
            if not references:
                return False
        return True

    def fetched_again(self, entry: CatalogueEntry) -> CatalogueEntry:
        """Return a file that is ``in_store``, too, after it was brought back once more.

        For readers that found no sound object of it. Raises as ``tier.inward.bring_back`` does.
        """
        from dios.lib.files.tier.inward import fetch_again  # noqa: PLC0415 - loads cryptography

        return fetch_again(self, entry)

    def read_again(self, entry: CatalogueEntry, read: Callable[[CatalogueEntry], T]) -> T:
        """Read a file, and once more from its store if its objects are damaged and the store has it."""
        try:
            return read(entry)
        except (DamagedError, UnreachableError):
            if not entry.in_store:
                raise
            return read(self.fetched_again(entry))

    def view(self, path: str, start: int | None = None, end: int | None = None) -> memoryview:
        """Return a view of a file's bytes, or of a range, which stays valid when the file is replaced.

        It needs no copy, unless a range is in several parts of a large file.
        """
        entry = self.readable(path)
        if not entry.in_parts:
            return self._read(path, SoundReplicas.view)[slice(start, end)]
        first, last, _ = slice(start, end).indices(entry.size)
        return self.read_again(entry, lambda current: self.parts(current).range(first, max(first, last)))

    def checked_view(self, entry: CatalogueEntry) -> memoryview:
        """Return a view of a file that is one object, all bytes of which have the digest of the catalogue.

        If the file was replaced meanwhile, these are the present bytes.
        """
        try:
            return self.replicas(entry).checked_view()
        except StaleError:
            return self._read(stored_path(entry.file), SoundReplicas.checked_view)

    def original(self, entry: CatalogueEntry) -> tuple[Callable[[int, int], memoryview], int]:
        """Return a function that views ranges of a file's present bytes, and their number."""
        if entry.in_parts:
            return self.parts(entry).range, entry.size
        whole = self.view(entry.file)
        return (lambda start, end: whole[start:end]), whole.nbytes

    def parts(self, entry: CatalogueEntry) -> StoredParts:
        """Return the parts of a large file."""
        return StoredParts(self.node, self.group, entry, self._notice)

    def replicas(self, entry: CatalogueEntry) -> SoundReplicas:
        """Return the replicas of a file that is one object, of which a sound one is read."""
        wanted = WantedObject(entry.file, entry.name, entry.size, entry.digest)
        return SoundReplicas(self.node, self.group, wanted, self._notice)

    def open(self, path: str) -> BlobFile | io.BufferedReader:
        """Open a file for reading: its bytes in place, or in ranges if it is large and on another node.

        A file in parts can be read until it is replaced or removed.
        """
        entry = self.readable(path)
        if not entry.in_parts:
            return self._read(path, lambda replicas: replicas.open(path))
        return io.BufferedReader(PartsFile(entry, self.parts(entry).open), RANGE_BYTES)

    def _read(self, path: str, read: Callable[[SoundReplicas], T]) -> T:
        """Read a file from a sound replica, and again if the file was replaced meanwhile.

        Raises FileNotFoundError, and DamagedError or UnreachableError if no replica is sound; see
        ``SoundReplicas``.
        """
        for _ in range(_ATTEMPTS):
            entry = self.readable(path)
            try:
                return read(self.replicas(entry))
            except StaleError:
                continue
            except (DamagedError, UnreachableError):
                if self.entry(path).name != entry.name:
                    continue
                if not entry.in_store:
                    raise
                self.fetched_again(entry)
        raise FileNotFoundError(2, "the object of the file was destroyed", path)
