"""The directories of a catalogue: an index of its entries by path.

A directory exists if a file is below it, or if it has an entry of its own: one without a name, whose file
ends in "/".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dios.errors import InvalidError
from dios.lib.catalogue import CatalogueEntry, Note, UnfinishedFile
from dios.lib.files.paths import parent_of, stored_path


class FileTree:
    """The files and directories of a catalogue. Of two entries with one path the later counts."""

    def __init__(
        self,
        entries: Iterable[CatalogueEntry],
        unfinished: Iterable[UnfinishedFile] = (),
        notes: Iterable[Note] = (),
    ) -> None:
        self.entries: Final = tuple(entries)
        self.unfinished: Final = {unfinished_file.file: unfinished_file for unfinished_file in unfinished}
        """The files that are not stored completely, by path; they are no files of the tree."""
        self.notes: Final = tuple(notes)
        """The former files whose objects are to be destroyed; they are no files of the tree."""
        self.files: Final[dict[str, CatalogueEntry]] = {}
        self.explicit_directories: Final[dict[str, CatalogueEntry]] = {}
        """The directories that have an entry of their own."""
        self._children: Final[dict[str, set[str]]] = {"": set()}
        for entry in self.entries:
            path = stored_path(entry.file)
            if is_directory(entry):
                self.explicit_directories[path] = entry
                self._enter(path)
            else:
                self.files[path] = entry
                self._children_of(parent_of(path)).add(path)

    def _children_of(self, directory: str) -> set[str]:
        children = self._children.get(directory)
        return self._enter(directory) if children is None else children

    def _enter(self, directory: str) -> set[str]:
        children = self._children.setdefault(directory, set())
        while directory:
            parent = parent_of(directory)
            known = self._children.get(parent)
            if known is not None:
                known.add(directory)
                break
            self._children[parent] = {directory}
            directory = parent
        return children

    def is_directory(self, path: str) -> bool:
        """Return True if a directory has this path; "" always is."""
        return path in self._children

    def is_file(self, path: str) -> bool:
        """Return True if a file has this path."""
        return path in self.files

    def children(self, directory: str) -> list[str]:
        """Return the paths in a directory, sorted."""
        return sorted(self._children[directory])

    def below(self, directory: str, depth: int | None = None) -> Iterator[str]:
        """Yield every path below a directory, at most ``depth`` levels deep; directories come first."""
        for path in self.children(directory):
            yield path
            if path in self._children and depth != 1:
                yield from self.below(path, None if depth is None else depth - 1)

    def require_room(self, path: str, *, directory: bool = False) -> None:
        """Check that a file, or a directory, can have this path.

        Raises IsADirectoryError, NotADirectoryError if a parent is a file, FileExistsError if a directory is
        to replace a file.
        """
        if not directory and path in self._children:
            raise IsADirectoryError(21, "a directory has this path", path)
        if directory and path in self.files:
            raise FileExistsError(17, "a file has this path", path)
        parent = parent_of(path)
        while parent:
            if parent in self.files:
                raise NotADirectoryError(20, "a file has the path of this directory", parent)
            parent = parent_of(parent)


def is_directory(entry: CatalogueEntry) -> bool:
    """Return True if an entry is a directory's own."""
    return not entry.name and entry.file.endswith("/")


def directory_entry(path: str, time_ns: int) -> CatalogueEntry:
    """Return the entry of a directory."""
    if not path:
        raise InvalidError("the root of a group always exists and cannot be made")
    return CatalogueEntry(f"{path}/", b"", 0, time_ns)
