"""Looks for changes of files again and again, on the side of the session.

The programs of an image have no inotify, because devices and the node's Python are files that other programs
of the machine open, too (``dios.host.containers.calls``). Whoever reads slowly gets fewer and later changes,
and no queue grows: the next look compares with the last one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from dios.client.plain_text import plain
from dios.lib.executor import frames
from dios.lib.sandbox.processes.records import PATH_CHARS_MAX, RECORD, FileEvent
from dios.limits import WATCHED_FILES_MAX

_PAUSE_S: Final = 0.5
_REST: Final = 10
"""A pause is at least this number of times as long as the look before it."""


class _State(NamedTuple):
    """The state of a file that changes with it."""

    inode: int
    mode: int
    size: int
    changed_ns: int


class TooManyFilesError(OSError):
    """There are more files than a watch can have."""


class Watcher:
    """A thread that writes the changes of files to a pipe, from the state at its making on."""

    def __init__(self, path: str) -> None:
        """Look for the first time. Raise OSError."""
        os.lstat(path)
        self._path: Final = path
        self._states = _states_of(path)
        self._ended: Final = threading.Event()
        self.reading, self._writing = os.pipe2(os.O_CLOEXEC)
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def end(self) -> None:
        """Let the thread end."""
        self._ended.set()

    def _run(self) -> None:
        pause_s, is_over = _PAUSE_S, False
        try:
            while not self._ended.wait(pause_s):
                began = time.monotonic()
                try:
                    states = _states_of(self._path)
                except TooManyFilesError:
                    if not is_over:
                        self._send(FileEvent("missed", self._shown(self._path)))
                    is_over = True
                else:
                    is_over = False
                    for event in self._changes(states):
                        self._send(event)
                    self._states = states
                pause_s = max(_PAUSE_S, _REST * (time.monotonic() - began))
        except OSError:
            pass  # nobody reads any more
        finally:
            os.close(self._writing)

    def _changes(self, states: dict[str, _State]) -> Iterator[FileEvent]:
        for path in sorted(self._states.keys() | states.keys()):
            before, now = self._states.get(path), states.get(path)
            if before != now:
                shown = self._shown(path)
                if before is None:
                    yield FileEvent("created", shown)
                else:
                    yield FileEvent("removed" if now is None else "changed", shown)

    @staticmethod
    def _shown(path: str) -> str:
        return plain(path)[:PATH_CHARS_MAX]

    def _send(self, event: FileEvent) -> None:
        data = memoryview(frames.frame(RECORD, msgspec.msgpack.encode(event)))
        while data:
            data = data[os.write(self._writing, data) :]


def _states_of(path: str) -> dict[str, _State]:
    """Return the states of a file, or of a folder and all in it, without following links.

    Raise TooManyFilesError.
    """
    states: dict[str, _State] = {}
    left = [path]
    while left:
        place = left.pop()
        try:
            info = os.lstat(place)
            is_folder = _is_folder(info.st_mode)
            # The size and time of a folder change with the files in it, which have events of their own.
            size, changed_ns = (0, 0) if is_folder else (info.st_size, info.st_mtime_ns)
            states[place] = _State(info.st_ino, info.st_mode, size, changed_ns)
            if is_folder:
                left += [os.path.join(place, name) for name in os.listdir(place)]  # noqa: PTH118, PTH208 - as short as the code of a cell would be
        except OSError:
            continue  # it was removed meanwhile
        if len(states) + len(left) > WATCHED_FILES_MAX:
            raise TooManyFilesError(f"there are over {WATCHED_FILES_MAX:,} files: watch a part of them")
    return states


def _is_folder(mode: int) -> bool:
    return mode & 0o170000 == 0o040000
