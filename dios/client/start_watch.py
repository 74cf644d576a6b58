"""Tells a node that starts slowly, because the machine is busy, from one that hangs.

A start has no limit of time: on a busy machine it takes as long as it takes. Its limits are the time in which
its processes do nothing, and the processor time that they use.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from dios import limits

_LOOK_S: Final = 1.0
_BUSY: Final = frozenset("RDT")
"""The states of processes that want to go on: they wait for a processor or a disk, or are stopped."""


class Activity(NamedTuple):
    """The processor time that the processes of a start have used, in ms; ``waits`` if one wants to go on."""

    cpu_ms: int
    waits: bool


class StartWatch:
    """Watches the processes of the session that the process ``pid`` leads, while a node starts in them."""

    def __init__(self, pid: int, activity: Callable[[int], Activity] | None = None) -> None:
        self._pid: Final = pid
        self._activity: Final = activity or activity_of
        self._cpu_ms = -1
        self._quiet = 0
        self._allowed_ms = limits.NODE_START_CPU_MS_MAX

    def wait(self, ready: int) -> bool:
        """Wait until the descriptor can be read; return False if the node hangs."""
        while not select.select([ready], [], [], _LOOK_S)[0]:
            if self.hangs():
                return False
        return True

    def hangs(self) -> bool:
        """Return True if the start made no progress at many calls in a row, about one each second.

        They are counted instead of the time, which also passes while this process cannot look.
        """
        cpu_ms, waits = self._activity(self._pid)
        self._quiet = 0 if waits or cpu_ms != self._cpu_ms else self._quiet + 1
        self._cpu_ms = cpu_ms
        return self._quiet >= limits.NODE_START_QUIET_MAX or cpu_ms > self._allowed_ms

    def progressed(self) -> None:
        """Note that the node has reported progress: it may use as much processor time again."""
        self._quiet = 0
        self._allowed_ms = max(0, self._cpu_ms) + limits.NODE_START_CPU_MS_MAX


def activity_of(session: int, processes: Path = Path("/proc")) -> Activity:
    """Return the activity of the processes of a session, with that of those that have ended."""
    ticks, waits = 0, False
    for folder in processes.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name of the program, in parentheses, may have spaces.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if fields[3] == str(session):
            ticks += sum(map(int, fields[11:15]))
            waits |= fields[0] in _BUSY
    return Activity(ticks * 1000 // os.sysconf("SC_CLK_TCK"), waits)
