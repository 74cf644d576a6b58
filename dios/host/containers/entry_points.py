"""Runs the entry point of a task as a program, in a process that has nothing else to do.

It needs nothing of the daemon, because the first process of a container loads it, too.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

EntryPoint: TypeAlias = Callable[[], int | None]

EXCEPTION_STATUS: Final = 251
"""Exit status of a task that an exception ended; ``sys.exit(251)`` looks the same."""

_SIGNALLED: Final = 128

STATUS: Final = struct.Struct("<H")
"""The wait status of a task, as the first process of its container reports it."""


def status_of_container(status: int, report: bytes) -> int:
    """Return the wait status of the task in a container from that of its runtime and the report.

    Without a report the runtime has failed, or something outside ended its container: then it ends with 128
    and the number of the signal. Programs of a container can write another report, which says no more than
    they could reach by their own end.
    """
    if os.WIFSIGNALED(status):
        return status
    if len(report) != STATUS.size:
        number = os.WEXITSTATUS(status) - _SIGNALLED
        return number if 0 < number < signal.NSIG and number != signal.SIGSYS else status
    reported: int = STATUS.unpack(report)[0]
    if os.WIFEXITED(reported):
        return reported
    # Filters of containers end nobody by SIGSYS: a program has chosen this end.
    is_signal = os.WIFSIGNALED(reported) and os.WTERMSIG(reported) != signal.SIGSYS
    return os.WTERMSIG(reported) if is_signal else status


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
