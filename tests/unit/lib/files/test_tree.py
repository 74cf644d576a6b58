from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.tree import FileTree, directory_entry


def file(path: str, number: int = 1) -> CatalogueEntry:
    """An entry of a file."""
    return CatalogueEntry(path, number.to_bytes(32, "big"), 10, 20)


def test_directories_are_made_of_paths_and_of_their_own_entries() -> None:
    """A directory exists with a file below it, or with an entry; the root always does."""
    tree = FileTree([file("a/b/c"), file("d"), directory_entry("a/empty/deep", 1)])
    assert tree.children("") == ["a", "d"]
    assert tree.children("a") == ["a/b", "a/empty"]
    assert list(tree.below("a")) == ["a/b", "a/b/c", "a/empty", "a/empty/deep"]
    assert list(tree.below("", 1)) == ["a", "d"]
    assert tree.is_directory("a/empty")
    assert not tree.is_directory("d")
    assert FileTree(()).children("") == []


def test_of_two_entries_with_one_path_the_later_counts() -> None:
    """Catalogues of earlier releases may have a file twice."""
    assert FileTree([file("a", 1), file("/a", 2)]).files["a"].name[-1] == 2


def test_no_path_is_a_file_and_a_directory() -> None:
    """Neither can replace the other, nor can a file have something below it."""
    tree = FileTree([file("a/b"), file("c")])
    with pytest.raises(IsADirectoryError):
        tree.require_room("a")
    with pytest.raises(NotADirectoryError):
        tree.require_room("c/d/e")
    with pytest.raises(FileExistsError):
        tree.require_room("c", directory=True)
    tree.require_room("c")
    tree.require_room("a/new")


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join), max_size=12))
def test_below_lists_each_path_once(paths: list[str]) -> None:
    """Whatever the entries are, every file and every parent is below the root exactly once."""
    tree = FileTree(map(file, paths))
    expected = {"/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 2)}
    listed = list(tree.below(""))
    assert len(listed) == len(set(listed))
    assert set(listed) == expected
