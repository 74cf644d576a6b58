"""A module of a template whose sessions leave out what would limit them, and hand over no listener.

The limit of processes of a session says what it hands over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from dios.host.confinement import linux_calls, lockdown, private_folder
from dios.host.confinement.limits_of_task import LimitsOfTask

FIRST: Final = 20
"""The limit of processes of the first way to cheat."""

CHEATS: Final[dict[str, Callable[[], object]]] = {
    "what is always readable": lambda: linux_calls.syscall("eventfd2", 1, 0),
    "its link": lambda: lockdown.SOCKET,
    "a number of nothing": lambda: 4_000,
    "no number": lambda: "listener",
    "a number without end": lambda: "9" * 500,
}
"""What a session hands over for the listener of its filter."""


def _loosely(prepared: lockdown.LockdownState, limits: LimitsOfTask, socket: int, console: int) -> None:
    """Take the descriptors of a task, and keep limits and the filter of the template."""
    del prepared, limits
    os.setsid()
    private_folder.enter()
    lockdown.place_descriptors(lockdown.open_empty_stdin(), console, socket)


def _without_listener(
    prepared: lockdown.LockdownState,
    limits: LimitsOfTask,
    socket: int,
    console: int,
    hand_over: Callable[[object], None],
) -> None:
    hand_over(list(CHEATS.values())[limits.processes - FIRST]())
    _loosely(prepared, limits, socket, console)


lockdown.session = _loosely
lockdown.forkable_session = _without_listener  # type: ignore[assignment] # it hands over anything
