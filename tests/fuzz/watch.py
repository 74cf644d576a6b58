"""Figures of a daemon from the operating system, which must stay flat, and error lines in its log."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.node.running_node import RunningNode

BAD: Final = re.compile(
    r"^Traceback|Exception ignored|\w+Warning:|^\S+ (error|critical) |never awaited|^Fatal Python"
)
WARNING: Final = re.compile(r"^\S+ warning ")
EXPECTED: Final = (
    "a connection was closed",
    "a session ended early",
    "the machine lacks a mechanism",
    "weaker sandbox",
    "pure tasks are refused",
)
SETTLED_S: Final = 10.0


class Figures(NamedTuple):
    """The daemon at one moment: own resident memory in KiB, descriptors, mappings, threads, children."""

    memory_kib: int
    descriptors: int
    mappings: int
    threads: int
    children: int


def figures(node: RunningNode) -> Figures:
    """Return the current figures."""
    status = Path(f"/proc/{node.running.pid}/status").read_text()

    def number(word: str) -> int:
        match = re.search(rf"^{word}:\s+(\d+)", status, re.MULTILINE)
        return int(match[1]) if match else 0

    return Figures(
        number("RssAnon"), node.descriptors(), node.mappings(), number("Threads"), len(node.descendants())
    )


def settled(node: RunningNode, descriptors_max: int) -> Figures:
    """Return the figures at rest: connections are closed and children end after a moment.

    Waits until two samples are equal and descriptors are at most ``descriptors_max``, within a limit.
    """
    deadline = time.monotonic() + SETTLED_S
    before = figures(node)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = figures(node)
        if now[1:] == before[1:] and now.descriptors <= descriptors_max:
            return now
        before = now
    return before


class LogReader:
    """A reader of a daemon's log that finds error lines."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._offset = 0

    def bad_lines(self) -> list[str]:
        """Return new lines that indicate a defect."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        lines = data.decode(errors="replace").splitlines()
        return [
            "\n".join(lines[max(0, place - 1) : place + 30])
            for place, line in enumerate(lines)
            if BAD.search(line) or (WARNING.search(line) and not any(words in line for words in EXPECTED))
        ]
