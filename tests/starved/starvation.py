"""A machine that has no time: processes that compute beside the nodes, and processes that are stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

_POLL_S: Final = 0.005
_SEEN_S_MAX: Final = 120.0
_PRIORITY: Final = -15


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Run as many programs that always want a processor, until the end of the block."""
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def command_of(pid: int) -> str:
    """Return the command line of a process, with spaces between its arguments; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processes() -> dict[int, int]:
    """Return the parent of each process of this machine."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    return parents


def find(words: tuple[str, ...], place: Path) -> int | None:
    """Return a process whose command has all words, and that is below a process whose command has the place.

    ``place`` is a folder of the caller, so that no process of anybody else is found.
    """
    parents = processes()
    for pid in sorted(parents):
        if not all(word in command_of(pid) for word in words):
            continue
        above = pid
        while above > 1:
            if str(place) in command_of(above):
                return pid
            above = parents.get(above, 0)
    return None


class Stop:
    """Stops the first process of a kind that appears, or the one with a number, for some seconds."""

    def __init__(self, words: tuple[str, ...], place: Path, seconds: float, known: int | None = None) -> None:
        self._known: Final = known
        self._words: Final = words
        self._place: Final = place
        self._seconds: Final = seconds
        self._is_over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, daemon=True)
        self.pid = 0
        """The process that was stopped, 0 if none was."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # This thread alone comes before the busy loops: it must see a process that lives only shortly.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)
        until = time.monotonic() + _SEEN_S_MAX
        while not self._is_over.is_set() and time.monotonic() < until:
            pid = self._known or find(self._words, self._place)
            if pid is not None:
                self._hold(pid)
                return
            self._is_over.wait(_POLL_S)

    def _hold(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.pid = pid
            try:
                # The whole time, whatever the command does meanwhile.
                time.sleep(self._seconds)
            finally:
                os.kill(pid, signal.SIGCONT)
