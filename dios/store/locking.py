"""A file lock that a process which was just killed may still seem to hold.

A forked child that has not executed its own program yet holds the locks of its parent. If the parent is
killed at that moment, the child holds them some milliseconds longer.
"""

from __future__ import annotations

import fcntl
import time

from dios import limits

_LOOK_SECONDS = 0.01


def lock_file(fd: int) -> bool:
    """Lock an open file for this process; return False if another one holds it for LOCK_TIMEOUT_MS."""
    deadline = time.monotonic() + limits.LOCK_TIMEOUT_MS / 1000
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        else:
            return True


def try_to_share(fd: int) -> bool:
    """Return True if no process has locked an open file. It is then locked until ``fd`` is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
