"""Watches of files in a session: changes between two looks, bounds, and readers that are slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.lib.executor import frames
from dios.lib.sandbox.processes import watcher
from dios.lib.sandbox.processes.records import FileEvent, decoded_event
from tests.support.node.running_node import wait_until


class Watched:
    """A watch of a folder, with quick looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.watcher = watcher.Watcher(str(folder))
        self._buffer = frames.FrameBuffer()
        self._events: list[FileEvent] = []

    def event(self) -> tuple[str, str]:
        """The next event, with the path in the folder."""
        while not self._events:
            data = os.read(self.watcher.reading, 100)
            assert data
            self._events += [decoded_event(body) for _, body in self._buffer.feed(data)]
        event = self._events.pop(0)
        return event.kind, os.path.relpath(event.path, self.folder)

    def close(self) -> None:
        """End the watch."""
        self.watcher.end()
        os.close(self.watcher.reading)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A folder with a file, and a watch of it."""
    monkeypatch.setattr(watcher, "_PAUSE_S", 0.01)
    monkeypatch.setattr(watcher, "WATCHED_FILES_MAX", 10)
    (tmp_path / "old").write_text("1")
    own = Watched(tmp_path)
    yield own
    own.close()


def test_each_kind_of_change_is_an_event(watched: Watched) -> None:
    """Links are files and are not followed; the mode of a file counts, the time of a folder does not."""
    (watched.folder / "folder").mkdir()
    assert watched.event() == ("created", "folder")
    (watched.folder / "folder" / "file").write_text("")
    assert watched.event() == ("created", "folder/file")
    (watched.folder / "old").write_text("22")
    assert watched.event() == ("changed", "old")
    (watched.folder / "old").chmod(0o600)
    assert watched.event() == ("changed", "old")
    (watched.folder / "loop").symlink_to(watched.folder)
    assert watched.event() == ("created", "loop")
    (watched.folder / "old").unlink()
    assert watched.event() == ("removed", "old")


def test_too_many_files_are_one_event_and_then_the_difference(watched: Watched) -> None:
    """What changed meanwhile is in the difference when there are fewer again."""
    names = [f"{number:02}" for number in range(15)]
    for name in names:
        (watched.folder / name).write_text("")
    first: list[tuple[str, str]] = []
    while not first or first[-1][0] != "missed":
        first.append(watched.event())
    for name in names:
        (watched.folder / name).unlink()
    (watched.folder / "new").write_text("")
    later: list[tuple[str, str]] = []
    while ("created", "new") not in later:
        later.append(watched.event())
    known = {path for kind, path in first if kind == "created"}
    assert {path for kind, path in later if kind == "removed"} <= known | set(names)


def test_a_folder_that_is_too_large_at_first_is_refused(watched: Watched) -> None:
    """So is one that does not exist; no descriptor is left."""
    for number in range(20):
        (watched.folder / str(number)).write_text("")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (watched.folder, watched.folder / "nonesuch"):
        with pytest.raises(OSError, match=r"over|No such"):
            watcher.Watcher(str(path))
    wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before, "nothing is open")
