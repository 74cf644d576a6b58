"""One list made of several that differ: nothing is dropped, and each object is listed once."""

from __future__ import annotations

from itertools import permutations

import pytest
from blake3 import blake3

from dios import limits
from dios.lib.catalogue import (
    CatalogueEntry,
    Listed,
    Note,
    Part,
    Tiered,
    UnfinishedFile,
    decode_all,
    encode,
    pack_parts,
)
from dios.lib.files.list_repair import ListRepair, UnitedFile, unite
from dios.lib.files.tree import FileTree, directory_entry

NOW = 1_000


def name_of(number: int) -> bytes:
    """Return the name of an object."""
    return blake3(b"name %d" % number).digest()


def entry(path: str, number: int, text: str, put_ns: int = 1) -> CatalogueEntry:
    """Return a file with these bytes in the object of this number."""
    return CatalogueEntry(path, name_of(number), len(text), put_ns, blake3(text.encode()).digest())


def united(*lists: Listed) -> tuple[FileTree, ListRepair]:
    """Return the united list, which is the same in whatever order the lists come, and can be stored."""
    results = [unite(order, NOW) for order in permutations(lists)]
    trees = {
        (frozenset(listed.entries), frozenset(listed.unfinished), frozenset(listed.notes))
        for listed, _ in results
    }
    assert len(trees) == 1
    listed, repair = results[0]
    names = [file.name for file in listed.entries if file.name]
    assert len(names) == len(set(names)), "an object is listed twice"
    stored = decode_all(encode(listed.entries, listed.unfinished, listed.notes))
    assert stored == listed
    return FileTree(*stored), repair


def test_files_of_all_lists_are_in_the_one() -> None:
    """A file that is in both lists is no difference, and one that is in one of them is shown."""
    both, left, right = entry("both", 1, "1"), entry("left", 2, "2"), entry("d/right", 3, "3")
    tree, repair = united(Listed((both, left)), Listed((right, both)))
    assert tree.files == {"both": both, "left": left, "d/right": right}
    assert (repair.lists, repair.files) == (2, 3)
    assert set(repair.united) == {UnitedFile(left, 1), UnitedFile(right, 1)}


def test_versions_of_one_path_are_kept_under_two_names() -> None:
    """The latest one has the path, and the names of the others have the beginning of their digests."""
    early, late = entry("d/a.tar.gz", 1, "early", 1), entry("d/a.tar.gz", 2, "late", 2)
    tree, repair = united(Listed((early,)), Listed((late,)))
    other = f"d/a.tar (conflict {early.digest.hex()[:8]}).gz"
    assert set(tree.files) == {"d/a.tar.gz", other}
    assert tree.files["d/a.tar.gz"] == late
    assert tree.files[other].name == early.name
    assert [(change.path, change.former_path) for change in repair.united] == [
        ("d/a.tar.gz", None),
        (other, "d/a.tar.gz"),
    ]


def test_a_name_that_is_taken_gets_more_of_the_digest() -> None:
    """Also if it is taken by a file that was put under such a name."""
    early, late = entry("a", 1, "early", 1), entry("a", 2, "late", 2)
    digest = early.digest.hex()
    third = entry(f"a (conflict {digest[:8]})", 3, "third")
    tree, _ = united(Listed((early,)), Listed((late, third)))
    assert tree.files[third.file] == third
    assert tree.files[f"a (conflict {digest[:9]})"].name == early.name


def test_a_name_of_the_greatest_length_is_made_shorter() -> None:
    """A path that is made can be stored, and ends no letter in its middle."""
    path = f"d/{'ä' * ((limits.TEXT_BYTES_MAX - 6) // 2)}.txt"
    early, late = entry(path, 1, "early", 1), entry(path, 2, "late", 2)
    tree, repair = united(Listed((early,)), Listed((late,)))
    shortened = repair.united[1].path
    assert len(shortened.encode()) <= limits.TEXT_BYTES_MAX
    assert shortened.endswith(f"ä (conflict {early.digest.hex()[:8]}).txt")
    assert set(tree.files) == {path, shortened}


def test_a_name_in_a_directory_of_the_greatest_length_goes_up() -> None:
    """There is no room for a longer name in the directory."""
    path = f"d/{'e' * (limits.TEXT_BYTES_MAX - 4)}/f"
    tree, repair = united(Listed((entry(path, 1, "early", 1),)), Listed((entry(path, 2, "late", 2),)))
    assert repair.united[1].path.startswith("d/f (conflict ")
    assert set(tree.files) == {path, repair.united[1].path}


def test_equal_bytes_in_other_objects_are_one_file() -> None:
    """The later objects stay listed; the others are destroyed when these are kept."""
    early, late = entry("a", 1, "same", 1), entry("a", 2, "same", 2)
    tree, repair = united(Listed((early,)), Listed((late,)))
    assert tree.files == {"a": late}
    assert tree.notes == (Note(early, late.packed_objects, NOW),)
    assert repair.united == (UnitedFile(late, 2, copies=1),)


def test_a_file_that_was_moved_in_one_list_is_listed_once() -> None:
    """It has the path that most of the lists have, and the other one is shown."""
    old, new = entry("old", 1, "1"), entry("new", 1, "1")
    tree, repair = united(Listed((old,)), Listed((new,)), Listed((old, entry("b", 2, "2"))))
    assert tree.files["old"] == old
    assert "new" not in tree.files
    assert UnitedFile(old, 3, also=("new",)) in repair.united


def test_a_file_that_has_the_path_of_a_directory_gets_another_name() -> None:
    """As an entry of its own and as the parent of a file or directory."""
    file = entry("a", 1, "1")
    for others in ((directory_entry("a", 1),), (entry("a/b", 2, "2"),), (directory_entry("a/c", 1),)):
        tree, repair = united(Listed((file,)), Listed(others))
        new_path = f"a (conflict {file.digest.hex()[:8]})"
        assert tree.is_directory("a")
        assert not tree.is_file("a")
        assert tree.files[new_path].name == file.name
        assert next(change for change in repair.united if change.path == new_path).former_path == "a"


def test_files_without_a_digest_differ_by_their_objects() -> None:
    """As logs and files of the first version of catalogues do."""
    first, second = CatalogueEntry("a", name_of(1), 1, 1), CatalogueEntry("a", name_of(2), 1, 2)
    tree, _ = united(Listed((first,)), Listed((first, second)))
    assert {file.name for file in tree.files.values()} == {first.name, second.name}


TIER = Tiered("s3://x", bytes(32), stored=True, left=False, manifest=b"m")


@pytest.mark.parametrize("local", [None, Tiered("s3://x", bytes(32), stored=False)])
def test_a_file_that_was_tiered_in_one_list_is_found_in_both_places(local: Tiered | None) -> None:
    """Readers take local objects if they are there, and else what the store has."""
    plain = entry("a", 1, "1")
    here = CatalogueEntry(plain.file, plain.name, 1, 1, plain.digest, tier=local)
    there = CatalogueEntry(plain.file, plain.name, 1, 1, plain.digest, tier=TIER)
    tree, _ = united(Listed((here,)), Listed((there,)))
    file = tree.files["a"]
    assert file.in_store
    assert not file.tiered
    assert file.tier is not None
    assert file.tier.left


def test_notes_are_united_and_destroy_nothing_that_is_listed() -> None:
    """One of a file that another list still has goes; one that waits goes before one that does not."""
    new, other = entry("a", 1, "new", 2), entry("b", 4, "b")
    gone, listed = entry("a", 2, "old"), entry("c", 3, "c")
    waiting = Note(gone, new.packed_objects, 5)
    tree, _ = united(
        Listed((new, other), (), (waiting, Note(listed, b"", 5))),
        Listed((new, listed), (), (Note(gone, b"", 6),)),
    )
    assert tree.notes == (waiting,)
    assert set(tree.files) == {"a", "b", "c"}


def unfinished(path: str, run: bytes, *parts: Part, begun_ns: int = 1) -> UnfinishedFile:
    """Return a large file that is being stored."""
    return UnfinishedFile(path, run, 30, begun_ns, 10, pack_parts(parts))


def test_unfinished_files_are_united() -> None:
    """The parts of one run are put together, and of two runs the earlier gets another name."""
    parts = [Part(name_of(number), bytes([number]) * 32) for number in range(1, 5)]
    lists = (
        Listed((), (unfinished("a", b"1", parts[0], Part(parts[1].name, b"")),)),
        Listed((), (unfinished("a", b"1", parts[0], parts[1]), unfinished("b", b"3", parts[3]))),
        Listed((), (unfinished("a", b"2", parts[2], begun_ns=2),)),
    )
    tree, _ = united(*lists)
    assert set(tree.unfinished) == {"a", "b", f"a (conflict {blake3(b'1').hexdigest()[:8]})"}
    assert tree.unfinished["a"].run == b"2"
    first = next(upload for upload in tree.unfinished.values() if upload.run == b"1")
    assert set(first.parts) == set(parts[:2])


def test_a_file_that_is_finished_in_one_list_is_not_unfinished() -> None:
    """Removing it as unfinished would destroy the parts of the file; parts that it lacks are of no use."""
    parts = [Part(name_of(number), bytes([number]) * 32) for number in range(1, 4)]
    whole = CatalogueEntry("a", parts[0].name, 20, 1, bytes(32), 10, pack_parts(parts[:2]))
    tree, _ = united(Listed((whole,)), Listed((), (unfinished("a", b"1", *parts),)))
    assert not tree.unfinished
    assert tree.files == {"a": whole}
    assert [note.former.local_names for note in tree.notes] == [[parts[2].name]]
