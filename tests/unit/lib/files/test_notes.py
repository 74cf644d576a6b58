"""Notes of former files: a model of many changes, and each rule by itself."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dios import limits
from dios.lib.catalogue import CatalogueEntry, Note, Part, Tiered, decode_all, encode, pack_parts
from dios.lib.files.notes import added, followed, unused
from dios.lib.files.tree import FileTree, directory_entry

PATHS = ("a", "b", "d/c")
MARK = b"\x0c" * 32


def file(path: str, number: int, **more: object) -> CatalogueEntry:
    """A file whose object and digest are a number."""
    name = number.to_bytes(limits.NAME_BYTES, "big")
    return msgspec.structs.replace(CatalogueEntry(path, name, 10, 20, name), **more)


def noted(tree: FileTree, after: list[CatalogueEntry], now_ns: int = 1) -> FileTree:
    """The catalogue after a change, as it is stored and read again."""
    notes = (*followed(tree, after), *added(tree, after, now_ns))
    return FileTree(*decode_all(encode(after, [], notes)))


def wanted(tree: FileTree) -> dict[int, int | None]:
    """The number of each former file, and that of the file that it waits for."""
    return {
        int.from_bytes(note.former.name): int.from_bytes(note.until[: limits.NAME_BYTES])
        if note.until
        else None
        for note in tree.notes
    }


class Changes(RuleBasedStateMachine):
    """Users change files, and a keeper makes replicas and executes notes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = FileTree(())
        self.numbers = count(1)
        self.stored: set[bytes] = set()
        self.kept: set[bytes] = set()
        self.after: dict[bytes, set[bytes]] = {}
        """The objects that took the path of each former one: several, if it was put back in between."""
        self.removed: set[bytes] = set()
        """The objects that the user removed, with those before them."""

    def later(self, name: bytes) -> set[bytes]:
        """The object and those that replaced it, one after the other."""
        names, open_ones = {name}, [name]
        while open_ones:
            new = self.after.get(open_ones.pop(), set()) - names
            names |= new
            open_ones.extend(new)
        return names

    def change(self, after: list[CatalogueEntry]) -> None:
        """Change the entries."""
        present = {entry.name for entry in after}
        at = {entry.file: entry.name for entry in after}
        gone = [entry for entry in self.tree.entries if entry.name not in present]
        ended = {entry.name for entry in gone if entry.file not in at}
        for entry in gone:
            if entry.file in at:
                self.after.setdefault(entry.name, set()).add(at[entry.file])
        every = self.stored | self.after.keys()
        self.removed |= {name for name in every if ended & self.later(name)} - present
        self.tree = noted(self.tree, after)

    @rule(path=st.sampled_from(PATHS))
    def put(self, path: str) -> None:
        """Store a file on one disk."""
        new = file(path, next(self.numbers))
        self.stored.add(new.name)
        self.change([*(entry for entry in self.tree.entries if entry.file != path), new])

    @rule(paths=st.permutations(PATHS))
    def move(self, paths: list[str]) -> None:
        """Move a file, over another one if there is one."""
        old = self.tree.files.get(paths[0])
        if old is not None:
            rest = [entry for entry in self.tree.entries if entry.file not in paths[:2]]
            self.change([*rest, msgspec.structs.replace(old, file=paths[1])])

    @rule(paths=st.permutations(PATHS))
    def swap(self, paths: list[str]) -> None:
        """Exchange the paths of two files."""
        other = {paths[0]: paths[1], paths[1]: paths[0]}
        self.change(
            [
                msgspec.structs.replace(entry, file=other.get(entry.file, entry.file))
                for entry in self.tree.entries
            ]
        )

    @rule(path=st.sampled_from(PATHS))
    def remove(self, path: str) -> None:
        """Remove a file."""
        self.change([entry for entry in self.tree.entries if entry.file != path])

    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """Give a former file its path again."""
        if self.tree.notes:
            former = data.draw(st.sampled_from(self.tree.notes)).former
            self.removed.discard(former.name)
            rest = [entry for entry in self.tree.entries if entry.file != former.file]
            self.change([*rest, former])

    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """Make the promised replicas of a listed file."""
        if self.tree.entries:
            self.kept.add(data.draw(st.sampled_from(self.tree.entries)).name)

    @rule()
    def execute(self) -> None:
        """Destroy the former files whose notes are due."""
        due = [note for note in self.tree.notes if all(part.name in self.kept for part in note.replacement)]
        self.stored -= {note.former.name for note in due}
        left = [note for note in self.tree.notes if note not in due]
        self.tree = FileTree(self.tree.entries, (), left)

    @invariant()
    def what_is_listed_or_noted_is_stored(self) -> None:
        """Nothing that can be reached is destroyed, and everything that is stored can be reached."""
        names = [entry.name for entry in self.tree.entries]
        names += [note.former.name for note in self.tree.notes]
        assert len(names) == len(set(names))
        assert set(names) == self.stored

    @invariant()
    def a_version_that_was_kept_has_a_kept_one_after_it(self) -> None:
        """Whatever was kept once, and was not removed, is there in that or a later version that is kept."""
        for name in self.kept - self.removed:
            assert self.kept & self.stored & self.later(name)

    @invariant()
    def notes_end(self) -> None:
        """When every listed file is kept, every note is due."""
        listed = {entry.name for entry in self.tree.entries}
        for note in self.tree.notes:
            assert {part.name for part in note.replacement} <= listed


TestChanges = Changes.TestCase
TestChanges.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_former_file_waits_for_the_latest_replacement() -> None:
    """The first version waits for the third, when that replaces the second; so does the second."""
    tree = noted(FileTree([file("a", 1)]), [file("a", 2)])
    assert wanted(tree) == {1: 2}
    tree = noted(tree, [file("a", 3)])
    assert wanted(tree) == {1: 3, 2: 3}


def test_a_file_that_the_user_removes_waits_for_nothing() -> None:
    """Neither do the versions before it."""
    tree = noted(FileTree([file("a", 1), file("b", 9)]), [file("a", 2), file("b", 9)])
    assert wanted(noted(tree, [file("b", 9)])) == {1: None, 2: None}


def test_a_note_goes_when_its_file_is_back() -> None:
    """And the file that it waited for has a note instead."""
    tree = noted(FileTree([file("a", 1)]), [file("a", 2)])
    assert wanted(noted(tree, [file("a", 1)])) == {2: 1}


def test_a_replacement_is_followed_to_its_new_path() -> None:
    """The file that a note waits for was moved, and is replaced there."""
    tree = noted(FileTree([file("a", 1)]), [file("a", 2)])
    tree = noted(tree, [file("b", 2)])
    assert wanted(tree) == {1: 2}
    tree = noted(tree, [file("a", 8), file("b", 3)])
    assert wanted(tree) == {1: 3, 2: 3}


def test_a_moved_file_leaves_no_note_and_a_replaced_one_waits_for_it() -> None:
    """Only the file whose path was taken is former; directories have no objects."""
    before = FileTree([file("a", 1), file("b", 2), directory_entry("d", 1)])
    assert wanted(noted(before, [file("b", 1)])) == {2: 1}


def test_a_replacement_in_a_store_is_safe() -> None:
    """A note waits for nothing when the new file is tiered: its bytes were read back from the store."""
    tree = noted(FileTree([file("a", 1)]), [file("a", 2)])
    stored = Tiered("/s", MARK, stored=True)
    assert wanted(noted(tree, [file("a", 2, tier=stored)])) == {1: None}


@pytest.mark.parametrize(("left", "number"), [(True, 1), (False, 0)])
def test_what_a_store_has_of_a_file_that_was_brought_back_is_not_former(*, left: bool, number: int) -> None:
    """The local entry has it. Local objects that tiering has left are noted, without the store."""
    tiered = file("a", 1, tier=Tiered("/s", MARK, stored=True, left=left))
    back = file("a", 2, tier=Tiered("/s", MARK, stored=False, left=True))
    notes = added(FileTree([tiered]), [back], 1)
    assert [(note.former.tier, note.until) for note in notes] == [(None, back.packed_objects)] * number


def test_a_tiered_file_that_is_replaced_waits_with_its_store() -> None:
    """What the store has is the former version."""
    tiered = file("a", 1, tier=Tiered("/s", MARK, stored=True))
    new = file("a", 2)
    assert added(FileTree([tiered]), [new], 7) == [Note(tiered, new.packed_objects, 7)]


def test_every_part_of_a_large_replacement_is_waited_for() -> None:
    """A note has the names and digests of all parts."""
    parts = [Part(bytes([number]) * 32, bytes([number]) * 32) for number in (2, 3)]
    large = CatalogueEntry("a", parts[0].name, 5, 9, b"\x08" * 32, 4, pack_parts(parts))
    (note,) = added(FileTree([file("a", 1)]), [large], 1)
    assert note.replacement == tuple(parts)


def test_objects_without_a_file_have_one_note() -> None:
    """It waits for nothing; without objects there is none."""
    names = [bytes([number]) * 32 for number in (1, 2)]
    (note,) = unused("a", names, 5)
    assert (note.former.local_names, note.until) == (names, b"")
    assert unused("a", [], 5) == []
