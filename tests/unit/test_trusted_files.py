"""Which files may be obeyed: nobody else can write them, nor put another one in their place."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dios.trusted_files import UntrustedError, require_trusted, trusted_users, weakness, weakness_within

STRANGER = 65_532

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a folder in a folder, all of this user."""
    path = tmp_path / "outer" / "inner" / "file"
    path.parent.mkdir(parents=True, mode=0o755)
    path.write_text("x")
    path.chmod(0o644)
    return path


def _open_file(file: Path) -> None:
    file.chmod(0o646)


def _open_folder(file: Path) -> None:
    file.parent.chmod(0o777)


def _open_grandparent(file: Path) -> None:
    file.parent.parent.chmod(0o777)


def _open_to_strange_group(file: Path) -> None:
    os.chown(file.parent, -1, STRANGER)
    file.parent.chmod(0o775)


def _foreign_file(file: Path) -> None:
    os.chown(file, STRANGER, -1)


def _foreign_folder(file: Path) -> None:
    os.chown(file.parent.parent, STRANGER, -1)


def _foreign_file_in_sticky_folder(file: Path) -> None:
    file.parent.chmod(0o1777)
    os.chown(file, STRANGER, -1)


def _link_through_open_folder(file: Path) -> None:
    elsewhere = file.parent.parent.parent / "elsewhere"
    elsewhere.mkdir()
    file.rename(elsewhere / "file")
    elsewhere.chmod(0o777)
    file.symlink_to(elsewhere / "file")


def _foreign_link_in_sticky_folder(file: Path) -> None:
    file.parent.chmod(0o1777)
    file.rename(file.with_name("real"))
    file.symlink_to("real")
    os.chown(file, STRANGER, -1, follow_symlinks=False)


def _endless_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("file")


@as_root
@pytest.mark.parametrize(
    "spoil",
    [
        _open_file,
        _open_folder,
        _open_grandparent,
        _open_to_strange_group,
        _foreign_file,
        _foreign_folder,
        _foreign_file_in_sticky_folder,
        _link_through_open_folder,
        _foreign_link_in_sticky_folder,
        _endless_link,
    ],
)
def test_a_file_that_others_can_change_is_refused(file: Path, spoil: Callable[[Path], None]) -> None:
    """Its owner, its mode, those of each folder above it, and of every link on the way count."""
    assert weakness(file) == ""
    spoil(file)
    assert weakness(file)
    with pytest.raises(UntrustedError, match=r"the file of tests .* is not trusted"):
        require_trusted(file, "the file of tests")


def test_a_sticky_folder_protects_the_files_of_others(file: Path) -> None:
    """In a folder like /tmp nobody can replace a file of another user; the folder itself is everybody's."""
    file.parent.chmod(0o1777)
    assert weakness(file) == ""
    assert weakness(file.parent)


def test_links_of_ones_own_are_followed(file: Path) -> None:
    """A relative link, an absolute one, and a path with two dots lead to the file, which counts."""
    (file.parent / "relative").symlink_to("../inner/file")
    (file.parent / "absolute").symlink_to(file)
    for path in ("relative", "absolute", "../inner/file"):
        assert weakness(file.parent / path) == ""
    file.chmod(0o666)
    for path in ("relative", "absolute", "../inner/file"):
        assert weakness(file.parent / path)


def test_a_group_of_one_is_no_other_user(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group in which only this user is may write; one with another member may not."""
    group = grp.struct_group(("own", "x", file.stat().st_gid, []))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    monkeypatch.setattr(pwd, "getpwall", list)
    file.parent.chmod(0o775)
    assert weakness(file) == ""
    friend = pwd.struct_passwd(("friend", "x", STRANGER, file.stat().st_gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [friend])
    assert weakness(file)


def test_a_missing_file_is_no_weakness_but_its_folder_is(tmp_path: Path) -> None:
    """What does not exist obeys nobody; a folder in which others could create it does."""
    assert weakness(tmp_path / "missing" / "file") == ""
    tmp_path.chmod(0o777)
    assert weakness(tmp_path / "missing" / "file")


@as_root
def test_the_files_of_a_folder_are_examined_to_a_depth(tmp_path: Path) -> None:
    """A foreign file is found in the folder and below it; sockets are left to their servers."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "file").touch()
    assert weakness_within(tmp_path, 2) == ""
    os.chown(inner / "file", STRANGER, -1)
    assert weakness_within(tmp_path, 2)
    assert weakness_within(tmp_path, 1) == ""
    os.mknod(tmp_path / "socket", 0o666 | stat.S_IFSOCK)
    assert weakness_within(tmp_path, 1) == ""


def test_root_and_oneself_are_trusted() -> None:
    """Root, this process's user and the owner of the root folder."""
    assert {0, os.geteuid(), Path("/").stat().st_uid} == trusted_users()
