"""The files of a session, as it describes them: a hostile one may send anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox.protocol import ListFolder
from dios.lib.sandbox.result import SandboxFile, files_of
from dios.lib.sandbox.session import _changed, opened_file

HONEST = {"name": "a", "kind": "file", "size": 1, "mode": 0o644}


@pytest.mark.parametrize(
    "change",
    [
        *({"name": name} for name in ("", ".", "..", "/", "../a", "a/b", "a\0", "a\nb", "\x1b[2J", "\u202e")),
        {"name": b"a"},
        {"kind": "device"},
        {"size": -1},
        {"size": 1 << 62},
        {"size": 1.5},
        {"mode": -1},
        {"mode": 0o10000},
        {"mode": True},
    ],
)
def test_a_file_that_no_session_has_is_refused(change: dict[str, object]) -> None:
    """A name is one part of a path without control characters; numbers are in their ranges."""
    assert files_of([HONEST]) == [SandboxFile("a", "file", 1, 0o644)]
    with pytest.raises(UntrustedResultError):
        files_of([HONEST, HONEST | change])


@pytest.mark.parametrize("rows", [None, {}, [1], [{}], "ab"])
def test_something_else_than_files_is_refused(rows: object) -> None:
    """The whole list is."""
    with pytest.raises(UntrustedResultError):
        files_of(rows)


def test_every_name_that_a_folder_can_have_is_listed(tmp_path: Path) -> None:
    """Letters that cannot be printed are escaped by the session."""
    for name in (b"plain", "größe".encode(), b"two\nlines", b"no \xff text", "\u202eturned".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("plain")
    files = {file.name: file.kind for file in files_of(_changed(ListFolder(str(tmp_path))))}
    escaped = ("two\\nlines", "no \\udcff text", "\\u202eturned")
    assert files == dict.fromkeys(("plain", "größe", *escaped), "file") | {"folder": "folder", "link": "link"}


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """Nothing waits for another process that opens it, or reads what is meant for one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def require_refusals() -> None:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            with pytest.raises(OSError, match="pipe"):
                opened_file(str(pipe), flags)

    require_refusals()
    other = os.open(pipe, os.O_RDWR)
    require_refusals()
    os.close(other)


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    """As one that ``open`` makes."""
    path = tmp_path / "file"
    with open(path, "wb", opener=opened_file) as file:
        file.write(b"1")
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    with open(path, "rb", opener=opened_file) as file:
        assert file.read() == b"1"
