"""Runs the entry point of a task as a program, in a process that has nothing else to do.

It needs nothing of the daemon, because the first process of a container loads it, too.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

EntryPoint: TypeAlias = Callable[[], int | None]

EXCEPTION_STATUS: Final = 251
"""Exit status of a task that an exception ended; ``sys.exit(251)`` looks the same."""

_SIGNALLED: Final = 128
"""A container ends with this and the number of the signal that ended its task."""


def status_of_container(status: int) -> int:
    """Return the wait status of the task in a container from that of its runtime."""
    number = os.WEXITSTATUS(status) - _SIGNALLED if os.WIFEXITED(status) else 0
    # Filters of containers end nobody by SIGSYS: this is a status that a program has chosen.
    return number if 0 < number < signal.NSIG and number != signal.SIGSYS else status


def exit_of_container(status: int) -> int:
    """Return the exit status of a container for the wait status of its task."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _SIGNALLED - code


def run_entry_point(entry: EntryPoint) -> NoReturn:
    """Run the entry point as a program and end like the interpreter, without freeing memory page by page."""
    status = EXCEPTION_STATUS
    try:
        status = _guarded(entry)
        # The interpreter does the same at its end: wait for threads and executors, run exit functions.
        vars(threading)["_shutdown"]()
        vars(atexit)["_run_exitfuncs"]()
    except BaseException:  # noqa: BLE001 - an exit function's exception is the program's
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(status)


def _guarded(entry: EntryPoint) -> int:
    try:
        returned = entry()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - the program's exception is reported, never handled
        traceback.print_exc()
        return EXCEPTION_STATUS
    return (returned or 0) & 0xFF
