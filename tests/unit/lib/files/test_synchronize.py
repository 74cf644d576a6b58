"""Synchronizing goes on after a file that cannot be read, and then deletes nothing more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dios.errors import DamagedError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files import synchronize
from dios.lib.files.synchronize import SyncPlan
from dios.lib.files.tree import FileTree

if TYPE_CHECKING:
    from dios.lib.files.group_files import GroupFiles
    from dios.lib.files.sources import Moved


def files_of(*paths: str) -> GroupFiles:
    """The files of a group, all of one byte."""
    entries = [CatalogueEntry(path, path.encode().ljust(32), 1, 0, b"d" * 32) for path in paths]
    tree = FileTree(entries)
    return cast("GroupFiles", SimpleNamespace(tree=lambda: tree, entry=lambda path: tree.files[path]))


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were downloaded; "bad" has no sound replica."""
    done: list[str] = []

    def download(_files: GroupFiles, entry: CatalogueEntry, target: Path, _moved: Moved) -> None:
        if entry.file == "bad":
            raise DamagedError("no replica is sound")
        target.write_text("new")
        done.append(entry.file)

    monkeypatch.setattr(synchronize, "download", download)
    return done


def test_getting_goes_on_after_a_bad_file(tmp_path: Path, downloaded: list[str]) -> None:
    """The others are copied; what only the destination has stays, because it may be the last copy."""
    (tmp_path / "old").write_text("only here")
    failed: list[str] = []

    @contextmanager
    def going_on(path: str) -> Iterator[None]:
        with suppress(DamagedError):
            yield
            return
        failed.append(path)

    plan = SyncPlan({"a": 1, "bad": 1, "c": 1}, [], ["old"], 0)
    done = synchronize.get(files_of("a", "bad", "c"), "", tmp_path, plan, going_on=going_on)
    assert (downloaded, failed) == (["a", "c"], ["bad"])
    assert done == SyncPlan({"a": 1, "c": 1}, [], [], 0)
    assert (tmp_path / "old").exists()
    with pytest.raises(DamagedError):
        synchronize.get(files_of("bad"), "", tmp_path, SyncPlan({"bad": 1}, [], [], 0))
    done = synchronize.get(files_of("a"), "", tmp_path, SyncPlan({"a": 1}, [], ["old"], 0))
    assert done.deleted == ["old"]
    assert not (tmp_path / "old").exists()


def test_what_cannot_be_read_is_left_out_and_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the group at and below an unreadable local path stay, and all others are compared."""
    for path in ("good", "secret", "closed/in", "open/in"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    scan, access = os.scandir, os.access

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "secret" and access(path, mode))
    noted: dict[str, str] = {}
    group = files_of("good", "secret", "closed/in", "gone", "open/other")
    plan = synchronize.plan_put(
        tmp_path, group, "", lambda path, why: noted.update({path.name: why}), delete=True
    )
    assert noted == {"secret": "Permission denied", "closed": "Permission denied"}
    assert sorted(plan.copied) == ["good", "open/in"]
    assert plan.deleted == ["open/other", "gone"]
