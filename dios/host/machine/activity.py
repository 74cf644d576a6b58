"""The activity of the processes of a session, by which a starved process differs from one that hangs.

On a busy machine a process may need any time for its next step. A process hangs if it waits for something and
uses no processor time. Only such a process is given up; a wall-clock limit would give up the others, too.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

_WAITING: Final = frozenset("SI")
"""States of a process that waits for an event. Others run, wait for a processor or a disk, or are stopped."""
_STATE, _SESSION, _USER_TICKS, _END_OF_TICKS = 0, 3, 11, 15
"""Places of fields after the command in /proc/PID/stat (proc(5))."""


class Activity(NamedTuple):
    """The processor time of a session's processes in clock ticks, and True if all of them wait."""

    ticks: int
    waits: bool


def activity_of(session: int) -> Activity:
    """Return the activity of the processes in a session, without those that have ended."""
    ticks, waits = 0, True
    for name in os.listdir("/proc"):  # noqa: PTH208 - before pathlib is loaded
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - the same
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[_STATE] != "Z" and int(fields[_SESSION]) == session:
            ticks += sum(map(int, fields[_USER_TICKS:_END_OF_TICKS]))
            waits = waits and fields[_STATE] in _WAITING
    return Activity(ticks, waits)


class IdleWatch:
    """Watches a session for a time without any progress. Call ``is_stuck`` about once a second.

    The watch counts its own samples and not seconds, so that a watcher that was stopped concludes nothing.
    """

    def __init__(self, session: int, samples_max: int) -> None:
        self._session: Final = session
        self._samples_max: Final = samples_max
        self._last: Activity | None = None
        self._idle_samples = 0

    def is_stuck(self) -> bool:
        """Return True if all processes waited, without processor time, in all of the last samples."""
        present = activity_of(self._session)
        is_idle = present.waits and present == self._last
        self._idle_samples = self._idle_samples + 1 if is_idle else 0
        self._last = present
        return self._idle_samples >= self._samples_max
