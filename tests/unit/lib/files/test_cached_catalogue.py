from __future__ import annotations

import pytest

from dios import limits
from dios.errors import Conflict
from dios.lib.catalogue import CatalogueEntry, decode, edit, encode
from dios.lib.files.cached_catalogue import CachedCatalogue
from dios.lib.files.tree import FileTree


def entry(file: str, number: int = 0) -> CatalogueEntry:
    """An entry with a name of its own."""
    return CatalogueEntry(file, number.to_bytes(32, "big"), 10, 20)


class Memory:
    """A stored catalogue in memory; ``interrupt`` is run once between a read and the write after it.

    ``near`` are the content and the version as the node of the program knows them, if others have changed it.
    """

    def __init__(self) -> None:
        self.data = b""
        self.number = 0
        self.reads = 0
        self.interrupt: list[CatalogueEntry] = []
        self.always = False
        self.near: tuple[bytes, int] | None = None

    def version(self) -> int:
        """The present version."""
        return self.number

    def likely_version(self) -> int:
        """The version as the node knows it."""
        return self.number if self.near is None else self.near[1]

    def read_likely(self) -> tuple[bytes, int] | None:
        """Content and version as the node knows them."""
        return self.near

    def read(self) -> tuple[bytes, int]:
        """Content and version."""
        self.reads += 1
        return self.data, self.number

    def replace(self, data: bytes, version: int) -> int:
        """Write, if the version is the one that was read; another writer may come first."""
        if self.interrupt:
            other = self.interrupt if self.always else [self.interrupt.pop()]
            self.data, self.number = encode([*decode(self.data), *other]), self.number + 1
        if version != self.number:
            raise Conflict("somebody wrote")
        self.data, self.number = data, version + 1
        return self.number


def test_an_edit_that_was_overtaken_keeps_both() -> None:
    """When another writer comes between read and write, the edit is repeated on the new content."""
    stored = Memory()
    stored.interrupt = [entry("theirs", 1)]
    catalogue = CachedCatalogue(stored)
    catalogue.edit(lambda tree: [*tree.entries, entry("mine", 2)])
    assert [listed.file for listed in decode(stored.data)] == ["theirs", "mine"]
    assert sorted(catalogue.tree().files) == ["mine", "theirs"]


def test_an_edit_that_others_have_changed_again_is_read_again() -> None:
    """Their changes are not lost with the next edit, which begins with what is stored then."""

    class Followed(Memory):
        def replace(self, data: bytes, version: int) -> int | None:  # type: ignore[override]
            super().replace(data, version)
            self.data = encode([*decode(self.data), entry("theirs", self.number)])
            return None

    stored = Followed()
    catalogue = CachedCatalogue(stored)
    for number in (10, 11):
        catalogue.edit(lambda tree, number=number: [*tree.entries, entry("mine", number)])  # type: ignore[misc]
    assert [listed.file for listed in decode(stored.data)] == ["mine", "theirs", "mine", "theirs"]


def test_an_edit_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that is overtaken every time ends with Conflict and writes nothing of its own."""
    monkeypatch.setattr(limits, "CATALOGUE_EDIT_S", 0.1)
    stored = Memory()
    stored.interrupt, stored.always = [entry("theirs")], True
    with pytest.raises(Conflict):
        CachedCatalogue(stored).edit(lambda tree: [*tree.entries, entry("mine")])
    assert "mine" not in {listed.file for listed in decode(stored.data)}


def test_an_edit_begins_with_what_the_node_knows() -> None:
    """It reads nothing of others while they have changed nothing, and else its write is refused."""
    stored = Memory()
    stored.replace(encode([entry("a", 1)]), 0)
    stored.near = stored.data, stored.number
    catalogue = CachedCatalogue(stored)
    catalogue.edit(lambda tree: [*tree.entries, entry("b", 2)])
    assert stored.reads == 0
    # The node still knows the first version only.
    catalogue = CachedCatalogue(stored)
    catalogue.edit(lambda tree: [*tree.entries, entry("c", 3)])
    assert stored.reads == 1
    assert [listed.file for listed in decode(stored.data)] == ["a", "b", "c"]


def test_an_error_by_what_the_node_knows_ends_no_edit() -> None:
    """A file that others have removed prevents nothing, and one that is there still does."""

    def only(tree: FileTree) -> list[CatalogueEntry]:
        if tree.is_file("a"):
            raise FileExistsError("a")
        return [*tree.entries, entry("b", 2)]

    stored = Memory()
    stored.replace(encode([entry("a", 1)]), 0)
    stored.near = stored.data, stored.number
    with pytest.raises(FileExistsError):
        CachedCatalogue(stored).edit(only)
    stored.replace(encode([]), stored.number)
    catalogue = CachedCatalogue(stored)
    assert catalogue.likely_tree().is_file("a")
    catalogue.edit(only)
    assert [listed.file for listed in decode(stored.data)] == ["b"]


def test_an_edit_of_a_list_that_was_overtaken_keeps_both() -> None:
    """The same without a cache; equal files may be in it several times."""
    stored = Memory()
    stored.interrupt = [entry("same", 1)]
    edit(stored, lambda entries: [*entries, entry("same", 2)])
    assert [listed.name[-1] for listed in decode(stored.data)] == [1, 2]
    stored.interrupt, stored.always = [entry("theirs")], True
    with pytest.raises(Conflict):
        edit(stored, lambda entries: [*entries, entry("mine")])


def test_it_is_read_again_only_when_it_has_changed() -> None:
    """Lookups after a read or an own edit take no call; the edit of another writer is seen."""
    stored = Memory()
    catalogue = CachedCatalogue(stored)
    catalogue.edit(lambda tree: [*tree.entries, entry("a")])
    assert "a" in catalogue.tree().files
    assert catalogue.tree() is catalogue.tree()
    assert stored.reads == 1
    stored.replace(encode([entry("b")]), stored.number)
    assert list(catalogue.tree().files) == ["b"]
    assert stored.reads == 2


def test_a_list_of_the_entries_keeps_none_of_them() -> None:
    """The entries are read each time, unless the tree of the present version is there already."""
    stored = Memory()
    stored.replace(encode([entry("a"), entry("b")]), 0)
    catalogue = CachedCatalogue(stored)
    for reads in (1, 2):
        assert [listed.file for listed in catalogue.entries()] == ["a", "b"]
        assert stored.reads == reads
    assert catalogue.entries() == catalogue.tree().entries
    assert catalogue.entries() is catalogue.tree().entries
    assert stored.reads == 4
    stored.replace(encode([entry("c")]), stored.number)
    assert [listed.file for listed in catalogue.entries()] == ["c"]
