"""A catalogue that is read again only when it has changed, and edited without losing the edits of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from dios import limits
from dios.errors import Busy, Conflict
from dios.lib.catalogue import (
    CatalogueEntry,
    CatalogueObject,
    Note,
    UnfinishedFile,
    decode,
    decode_all,
    encode,
)
from dios.lib.files.notes import followed
from dios.lib.files.tree import FileTree
from dios.lib.retrying import Pauses

V = TypeVar("V")


class _Known(NamedTuple, Generic[V]):
    version: V
    tree: FileTree


class CachedCatalogue(Generic[V]):
    """The tree of a catalogue, with the version from which it was made. Threads may share it."""

    def __init__(self, stored: CatalogueObject[V]) -> None:
        self._stored: Final = stored
        self._known: _Known[V] | None = None
        self._lock: Final = threading.RLock()

    def tree(self) -> FileTree:
        """Return the present tree. It takes no call while nobody writes, if the catalogue is on this node."""
        return self._current().tree

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """Return the present entries. Unlike the tree, they are not kept in memory."""
        known = self._known
        if known is not None and known.version == self._stored.version():
            return known.tree.entries
        with self._lock:
            data, _ = self._read()
        return decode(data)

    def likely_tree(self) -> FileTree:
        """Return a tree that needs no answer of other nodes, if possible: they may know a later one."""
        return self._likely().tree

    def _likely(self) -> _Known[V]:
        known, version = self._known, self._stored.likely_version()
        if known is not None and known.version == version:
            return known
        with self._lock:
            likely = self._stored.read_likely()
            return self._current() if likely is None else self._noted(*likely)

    def _current(self) -> _Known[V]:
        known = self._known
        if known is not None and known.version == self._stored.version():
            return known
        with self._lock:
            return self._noted(*self._read())

    def _noted(self, data: bytes, version: V) -> _Known[V]:
        known = self._known
        if known is None or known.version != version:
            known = self._known = _Known(version, FileTree(*decode_all(data)))
        return known

    def _read(self) -> tuple[bytes, V]:
        pauses = _pauses()
        while True:
            try:
                return self._stored.read()
            except (Busy, Conflict) as conflict:
                if pauses.is_over:
                    raise
                pauses.wait(conflict)

    def edit(
        self,
        change: Callable[[FileTree], Iterable[CatalogueEntry]],
        unfinished: Callable[[FileTree], Iterable[UnfinishedFile]] | None = None,
        notes: Callable[[FileTree], Iterable[Note]] | None = None,
    ) -> None:
        """Replace the entries by those that ``change`` returns, even if others edit them at the same time.

        ``unfinished`` returns the unfinished files, by default the present ones, and ``notes`` the notes, by
        default those that ``followed`` returns. All may be called several times, ``change`` first; an
        exception that they raise ends the edit. Raises LimitError if the catalogue is full, and Busy or
        Conflict after CATALOGUE_EDIT_S.
        """
        with self._lock:
            pauses = _pauses()
            likely = True
            while True:
                # The replacement fails if others know a later version than this node.
                known = self._likely() if likely else self._current()
                try:
                    entries = tuple(change(known.tree))
                    begun = known.tree.unfinished.values() if unfinished is None else unfinished(known.tree)
                    noted = followed(known.tree, entries) if notes is None else notes(known.tree)
                    after = FileTree(entries, begun, noted)
                    data = encode(after.entries, after.unfinished.values(), after.notes)
                except Exception:
                    if not likely or self._current() is known:
                        raise
                    likely = False
                    continue
                likely = False
                try:
                    version = self._stored.replace(data, known.version)
                except (Busy, Conflict) as conflict:
                    self._known = None
                    if pauses.is_over:
                        raise
                    pauses.wait(conflict)
                else:
                    # Of a version that has changes of others, too, the content is not known.
                    self._known = None if version is None else _Known(version, after)
                    return


def _pauses() -> Pauses:
    return Pauses(limits.CATALOGUE_EDIT_S, most_us=limits.CATALOGUE_PAUSE_US_MAX)
