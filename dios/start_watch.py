"""Distinguishes a process that starts slowly, because the machine is busy, from one that hangs.

A start has no limit of time: on a busy machine it takes as long as it takes. Its limits are the time in which
the process and its children do nothing, and the processor time that they use.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from dios import limits

LOOK_S: Final = 1.0
_TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
ALARM_S: Final = 60
_QUIET_ALARMS: Final = 2
_PROGRESS_MS: Final = 100
"""More processor time than a look at the processes needs."""

_BUSY: Final = frozenset("RDT")
"""The states of processes that want to go on: they wait for a processor or a disk, or are stopped."""


class Activity(NamedTuple):
    """The processor time of a process and its children, in ms; ``waits`` if one of them wants to go on."""

    cpu_ms: int
    waits: bool


class StartWatch:
    """Watches the process ``pid`` and those below it, while something starts in them."""

    def __init__(self, pid: int, activity: Callable[[int], Activity] | None = None) -> None:
        self._pid: Final = pid
        self._activity: Final = activity or activity_of
        self._cpu_ms = -1
        self._quiet = 0
        self._allowed_ms = limits.START_CPU_MS_MAX

    def wait(self, ready: int) -> bool:
        """Wait until the descriptor can be read; return False if the start hangs."""
        while not select.select([ready], [], [], LOOK_S)[0]:
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
        return self._quiet >= limits.START_QUIET_MAX or cpu_ms > self._allowed_ms

    def progressed(self) -> None:
        """Note that the process has reported progress: it may use as much processor time again."""
        self._quiet = 0
        self._allowed_ms = max(0, self._cpu_ms) + limits.START_CPU_MS_MAX


class HangAlarm:
    """The handler of the alarms of a process that starts: it ends the process by SIGALRM if the start hangs.

    The process must have used some processor time between two alarms, which are ALARM_S apart.
    """

    def __init__(self, activity: Callable[[int], Activity] | None = None) -> None:
        self._activity: Final = activity or activity_of
        self._cpu_ms = 0
        self._quiet = 0

    def install(self) -> None:
        """Handle the alarms from now on, until ``signal.alarm(0)``. Call this on the main thread."""
        signal.signal(signal.SIGALRM, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Set the next alarm, or end the process."""
        del number, frame
        cpu_ms = self._activity(os.getpid()).cpu_ms
        self._quiet = 0 if cpu_ms - self._cpu_ms >= _PROGRESS_MS else self._quiet + 1
        self._cpu_ms = cpu_ms
        if self._quiet >= _QUIET_ALARMS or cpu_ms > limits.START_CPU_MS_MAX:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGALRM)
        signal.alarm(ALARM_S)


def activity_of(pid: int, processes: Path = Path("/proc")) -> Activity:
    """Return the activity of a process and of those below it, with that of children that have ended."""
    seen: dict[int, tuple[int, Activity]] = {}
    for folder in processes.iterdir():
        if folder.name.isdigit():
            # A process may have ended. Its name, in parentheses, may have spaces.
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks = sum(map(int, fields[11:15]))
                seen[int(folder.name)] = int(fields[1]), Activity(ticks * _TICK_MS, fields[0] in _BUSY)
    below = {pid}
    while more := {child for child, (parent, _) in seen.items() if parent in below} - below:
        below |= more
    activities = [seen[number][1] for number in below & seen.keys()]
    return Activity(
        sum(activity.cpu_ms for activity in activities), any(activity.waits for activity in activities)
    )
