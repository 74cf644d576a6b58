"""The file system raises the error of a list that cannot be read; it is neither empty nor absent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from dios.errors import DamagedError, DiosError, UnreachableError
from dios.lib.files.filesystem import DiosFileSystem
from dios.lib.files.tree import FileTree


def files_of(error: DiosError | None) -> DiosFileSystem:
    """The file system with one group, whose list cannot be read if there is an error."""

    def tree() -> FileTree:
        if error is not None:
            raise error
        return FileTree(())

    filesystem = DiosFileSystem("nowhere", skip_instance_cache=True)
    groups = SimpleNamespace(files=lambda _: SimpleNamespace(tree=tree), aliases=lambda: ["papers"])
    object.__setattr__(filesystem, "_groups", groups)
    return filesystem


@pytest.mark.parametrize("error", [DamagedError("lost"), UnreachableError("silent")])
@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.ls("papers"),
        lambda files: files.find("papers"),
        lambda files: files.find(""),
        lambda files: files.info("papers/a"),
        lambda files: files.exists("papers/a"),
        lambda files: files.isfile("papers/a"),
        lambda files: files.isdir("papers"),
        lambda files: files.touch("papers/a", truncate=False),
    ],
)
def test_an_unreadable_list_is_an_error(call: Callable[[DiosFileSystem], object], error: DiosError) -> None:
    """Whatever is asked about its files; the group itself is listed."""
    files = files_of(error)
    with pytest.raises(type(error)):
        call(files)
    assert files.ls("", detail=False) == ["papers"]


def test_a_path_of_an_empty_group_is_absent() -> None:
    """Without an error."""
    files = files_of(None)
    assert files.ls("papers") == []
    assert not files.exists("papers/a")
    assert not files.isfile("papers/a")
    assert files.isdir("papers")
    assert not files.isdir("papers/a")
