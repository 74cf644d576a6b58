"""The stores of backups: a local directory and a file system of fsspec behave alike."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.installation import extra_command
from dios.lib.packs.failures import DamagedBackupError, TargetError
from dios.lib.packs.targets import FsspecTarget, Target, open_target


@pytest.fixture(params=["directory", "file", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """An empty target."""
    if request.param == "memory":
        pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
        return open_target(f"memory://{tmp_path.name}/folder")
    place = str(tmp_path / "folder")
    return open_target(f"file://{place}" if request.param == "file" else place)


def test_files_are_written_once_and_read_whole(target: Target) -> None:
    """Nothing is ever written over, and a missing file is a missing file."""
    assert target.names("packs") == []
    target.write("packs/a", b"bytes")
    target.write("packs/b", b"more")
    target.write("config", b"c")
    assert sorted(target.names("packs")) == ["a", "b"]
    assert target.read("packs/a", 100) == b"bytes"
    with pytest.raises(FileExistsError):
        target.write("packs/a", b"other")
    with pytest.raises(FileNotFoundError):
        target.read("packs/c", 100)
    target.remove("packs/a")
    assert target.names("packs") == ["b"]
    with pytest.raises(FileNotFoundError):
        target.remove("packs/a")


def test_a_file_that_is_too_large_is_not_read_into_memory(target: Target) -> None:
    """A store that answers with endless bytes is refused after the bound."""
    target.write("config", bytes(11))
    assert target.read("config", 11) == bytes(11)
    with pytest.raises(DamagedBackupError, match="larger than"):
        target.read("config", 10)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local file that was being written is removed, or not listed if the machine stopped."""
    target = open_target(str(tmp_path))

    def stop(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        target.write("packs/a", b"bytes")
    assert list((tmp_path / "packs").iterdir()) == []
    (tmp_path / "packs" / ".new-left").touch()
    assert target.names("packs") == []


def test_urls_that_are_no_targets_say_why() -> None:
    """An unknown file system and a relative file:// URL have their own messages; no password is shown."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    with pytest.raises(InvalidError, match="available_protocols"):
        open_target("nothing://user:secret@bucket/folder")
    with pytest.raises(InvalidError) as refused:
        open_target("nothing://user:secret@bucket/folder")
    assert "secret" not in refused.value.message.partition(":")[0]
    with pytest.raises(InvalidError, match="file:///PATH"):
        open_target("file://folder")
    with pytest.raises(InvalidError, match="empty"):
        open_target("")


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fsspec other targets than directories are refused with the command that helps."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(TargetError, match=re.escape(extra_command("fsspec"))):
        open_target("s3://bucket")


def test_errors_of_a_file_system_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a file system raises is one error with the place and the next step."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    target = open_target("memory://broken")
    assert isinstance(target, FsspecTarget)

    def refuse(path: str, start: int, end: int) -> bytes:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(target._files, "cat_file", refuse)
    with pytest.raises(TargetError, match=r"cannot read config in memory://broken.*no credentials"):
        target.read("config", 10)


def test_the_folders_of_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops after a write has the file below folders that are new, too."""
    synced: set[Path] = set()
    sync = os.fsync

    def noting(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink())
        sync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    target = open_target(str(tmp_path / "store"))
    target.write("packs/a", b"bytes")
    assert {tmp_path, tmp_path / "store", tmp_path / "store" / "packs"} <= synced
    synced.clear()
    target.write("packs/b", b"bytes")
    assert tmp_path not in synced
