from __future__ import annotations

import pytest

from dios.errors import InvalidError
from dios.lib.files.paths import checked_path, path_of_local, split_group, stored_path


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("dios://group/a/b.txt", ("group", "a/b.txt")),
        ("group/a//b/", ("group", "a/b")),
        ("/group/./a", ("group", "a")),
        ("group", ("group", "")),
        ("dios://", ("", "")),
    ],
)
def test_a_path_is_a_group_and_a_path_in_it(text: str, meaning: tuple[str, str]) -> None:
    """The protocol, doubled slashes and dots do not matter."""
    assert split_group(text) == meaning


@pytest.mark.parametrize("text", ["a/../b", "..", "", "/", "a\nb", "\x1b[2J", "x/" * 3000])
def test_paths_that_leave_the_group_or_garble_a_terminal_are_refused(text: str) -> None:
    """No stored path has "..", control characters or more than the bound."""
    with pytest.raises(InvalidError):
        checked_path(text)


@pytest.mark.parametrize(
    ("local", "stored"),
    [
        ("data/a.txt", "data/a.txt"),
        ("./a", "a"),
        ("/tmp/x/a", "tmp/x/a"),
        ("../../x/a", "x/a"),
        ("b/../a", "a"),
    ],
)
def test_local_files_have_paths_inside_of_the_group(local: str, stored: str) -> None:
    """The root, and everything up to "..", is left out."""
    assert path_of_local(local) == stored


def test_entries_of_earlier_releases_have_a_path() -> None:
    """An absolute file name, or one that leaves its directory, is found inside of the group."""
    assert stored_path("/etc/x") == "etc/x"
    assert stored_path("../../x") == "x"
    assert stored_path("dir/") == "dir"
