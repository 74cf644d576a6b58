"""The archives that a user's programs keep, and the folders in which they are built."""

from __future__ import annotations

import fcntl
import importlib.util
import os
from pathlib import Path

import pytest

from dios.errors import InvalidError, NotSupportedError, TimeLimitError
from dios.host.environments.unpacking import ArchiveReader, read_manifest
from dios.lib.environments import archives, building
from dios.lib.environments.requests import request_for
from dios.lib.environments.sources import WheelFolder
from dios.wire.environments import Manifest, Package
from tests.support.wheels import make_wheel

PACKAGES = [Package("fruit", "1.0")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test alone; its folder of archives."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dios" / "environments"


def packed(request: str, text: str = "x") -> archives.EnvironmentArchive:
    """An archive for a request with one file, one link and one pipe."""
    with archives.building_folder() as folder:
        packages = folder / "packages"
        packages.mkdir()
        (packages / "fruit.py").write_text(text, encoding="utf-8")
        (packages / "link").symlink_to("/etc/passwd")
        os.mkfifo(packages / "pipe")
        return archives.pack(packages, PACKAGES, "python", request)


def test_an_archive_has_regular_files_alone() -> None:
    """A link would lead out of the environment; what is packed can be read again."""
    archive = packed("a" * 32)
    manifest = read_manifest(ArchiveReader(archive.path.read_bytes()))
    assert isinstance(manifest, Manifest)
    assert [(file.path, file.size) for file in manifest.files] == [("fruit.py", 1)]
    assert manifest.packages == tuple(PACKAGES)


def test_a_request_has_one_archive_and_equal_packages_have_equal_names() -> None:
    """A later archive for the same request replaces the former one."""
    first = packed("a" * 32)
    assert archives.kept("a" * 32) == first
    assert archives.kept("b" * 32) is None
    assert packed("b" * 32).name == first.name
    second = packed("a" * 32, "y")
    assert second.name != first.name
    assert archives.kept("a" * 32) == second
    assert not first.path.exists()


def test_the_oldest_archives_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one stays, even if it is over the bound alone."""
    first = packed("a" * 32)
    size = first.path.stat().st_size
    second = packed("b" * 32)
    os.utime(first.path, ns=(5, 5))
    monkeypatch.setattr(archives, "ENVIRONMENT_CACHE_BYTES", 2 * size)
    third = packed("c" * 32)
    assert not first.path.exists()
    assert second.path.exists()
    monkeypatch.setattr(archives, "ENVIRONMENT_CACHE_BYTES", 1)
    fourth = packed("d" * 32)
    assert [second.path.exists(), third.path.exists(), fourth.path.exists()] == [False, False, True]


def test_the_folder_of_a_killed_program_is_removed(cache: Path) -> None:
    """That of a program that still builds stays."""
    with archives.building_folder() as busy:
        killed = cache / "building-killed"
        killed.mkdir()
        (killed / "lock").touch()
        (killed / "half").touch()
        with archives.building_folder() as other:
            assert {path.name for path in cache.iterdir()} == {busy.name, other.name}
        with (busy / "lock").open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not list(cache.iterdir())


def test_a_folder_that_others_can_change_is_refused(cache: Path) -> None:
    """They could replace an archive, and so the code of this user's tasks."""
    archives.folder_of_archives().chmod(0o777)
    with pytest.raises(InvalidError, match="other users"):
        archives.kept("a" * 32)
    cache.rmdir()
    cache.write_text("", encoding="utf-8")
    with pytest.raises(InvalidError, match="XDG_CACHE_HOME"):
        archives.kept("a" * 32)


def test_an_installation_that_takes_too_long_is_ended(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is ended, and nothing of it is left."""
    make_wheel(tmp_path / "wheels", "fruit", "1.0", {"fruit.py": ""})
    monkeypatch.setattr(building, "ENVIRONMENT_INSTALL_S_MAX", -1)
    monkeypatch.setattr(building, "_LOOK_S", 0)
    with pytest.raises(TimeLimitError, match="took over"):
        building.build(request_for(["fruit"], WheelFolder(tmp_path / "wheels")))
    assert not list(cache.iterdir())


def test_without_pip_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of uv has none."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NotSupportedError, match="install pip"):
        building.build(request_for(["fruit"], WheelFolder(tmp_path)))
