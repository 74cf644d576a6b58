"""The list of changed files, as a session sends it: read from a folder as the kernel keeps one."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.lib.sandbox import changes
from dios.lib.sandbox.changes import send_changes, stopped_processes
from dios.wire.environments import LENGTH
from dios.wire.images import ChangeManifest, EntryKind, decode_changes


@pytest.fixture(autouse=True)
def no_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests stop no process of the machine."""
    monkeypatch.setattr(changes, "_running", set)


def read(folder: Path) -> tuple[ChangeManifest, bytes]:
    """What a session sends of a folder."""
    parts: list[bytes] = []
    send_changes(parts.append, str(folder))
    data = b"".join(parts)
    (length,) = LENGTH.unpack_from(data)
    end = LENGTH.size + length
    return decode_changes(data[LENGTH.size : end]), data[end:]


def test_files_are_described_and_sent(tmp_path: Path) -> None:
    """Folders come before their files, and a second path of a file is a link."""
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b" / "file").write_bytes(b"12")
    (tmp_path / "b" / "file").chmod(0o4751)
    os.link(tmp_path / "b" / "file", tmp_path / "b" / "other")
    (tmp_path / "a").symlink_to("/etc/shadow")
    (tmp_path / "empty").write_bytes(b"")
    manifest, contents = read(tmp_path)
    rows = [(entry.path, entry.kind, entry.mode, entry.size, entry.target) for entry in manifest.entries]
    assert rows == [
        ("a", EntryKind.SYMLINK, 0, 0, "/etc/shadow"),
        ("b", EntryKind.FOLDER, 0o700, 0, ""),
        ("empty", EntryKind.FILE, stat.S_IMODE((tmp_path / "empty").stat().st_mode), 0, ""),
        ("b/file", EntryKind.FILE, 0o751, 2, ""),
        ("b/other", EntryKind.HARD_LINK, 0, 0, "b/file"),
    ]
    assert contents == b"12"
    assert manifest.entries[3].modified_ns == (tmp_path / "b" / "file").stat().st_mtime_ns


def test_mounts_inputs_pipes_and_sockets_are_left_out(tmp_path: Path) -> None:
    """They are of this sandbox alone; a folder of the same name elsewhere is not."""
    for name in (".dios-python", ".dios-changes", "proc", "inputs", "outputs", "srv/proc"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(os.path.relpath(tmp_path / "socket"))
        manifest, _ = read(tmp_path)
    assert [entry.path for entry in manifest.entries] == ["srv", "srv/proc", "srv/proc/file"]


def test_marks_of_the_kernel_become_kinds(tmp_path: Path) -> None:
    """A removed file, and a folder that hides that of the image; attributes of users stay."""
    if os.geteuid():
        pytest.skip("only root makes the mark of a removed file")
    os.mknod(tmp_path / "gone", stat.S_IFCHR, os.makedev(0, 0))
    (tmp_path / "own").mkdir()
    for name in ("user.overlay.opaque", "user.overlay.origin"):
        os.setxattr(tmp_path / "own", name, b"y")
    os.setxattr(tmp_path / "own", "user.mark", b"kept")
    os.setxattr(tmp_path / "own", "user.long", b"x" * 4_000)
    manifest, _ = read(tmp_path)
    assert [entry.kind for entry in manifest.entries] == [EntryKind.REMOVED, EntryKind.REPLACED_FOLDER]
    assert [name for name, _ in manifest.entries[1].attributes] == ["user.long", "user.mark"]


def test_too_many_files_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session says so itself; a path that no node takes, too."""
    monkeypatch.setattr(changes, "IMAGE_ENTRIES_MAX", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(OSError, match="over 2 files"):
        read(tmp_path)
    (tmp_path / "a").rmdir()
    (tmp_path / "b").rmdir()
    monkeypatch.setattr(changes, "IMAGE_ENTRIES_MAX", 100)
    (tmp_path / "c").joinpath(*"d" * 70).mkdir(parents=True)
    with pytest.raises(InvalidError, match="no path"):
        read(tmp_path)


def test_only_running_processes_are_stopped_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a program has stopped itself stay so; one that begins meanwhile is stopped, too."""
    looks = iter([{7, 8}, {8, 9}, set()])
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(changes, "_running", lambda: next(looks))
    monkeypatch.setattr(os, "kill", lambda number, name: signals.append((number, name)))
    with stopped_processes():
        assert {number for number, _ in signals} == {7, 8, 9}
        assert len(signals) == 3
        signals.clear()
    assert {number for number, _ in signals} == {7, 8, 9}
