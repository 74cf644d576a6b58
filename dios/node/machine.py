"""The machine, or the container around the node: its memory and its name."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
from pathlib import Path
from typing import Final

from dios import limits

_TASK_DESCRIPTORS: Final = 4
"""The descriptors of the node for a task: its connection, process, output, and its page until it starts."""

_DAEMON_NICE: Final = -10
"""The nice value of the session of a daemon: it has nine times the share of a task, if it needs that."""

_GROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """Return the machine's memory, or the limit of the control group around this process if lower."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in group_limits:
        # The file contains "max" if there is no limit; only one of the two files exists.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)


def free_memory_bytes(told: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes usable without swapping, as the system estimates, or 0 if it does not."""
    for line in told.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * limits.KIB
    return 0


def volatile_bytes() -> int:
    """Return the default limit for objects and buffers in memory."""
    share = memory_bytes() * limits.VOLATILE_PERCENT // 100
    return min(max(share, limits.VOLATILE_BYTES_MIN), limits.VOLATILE_BYTES_MAX)


def remote_cache_bytes() -> int:
    """Return the default limit for kept versions of other nodes' objects."""
    return min(memory_bytes() * limits.REMOTE_CACHE_PERCENT // 100, limits.REMOTE_CACHE_BYTES_MAX)


def tasks_max() -> int:
    """Return the default limit of tasks at the same time: a small task uses about TASK_BYTES_TYPICAL."""
    fit = memory_bytes() // limits.TASK_BYTES_TYPICAL
    return min(max(fit, limits.TASKS_MAX_LEAST), limits.TASKS_MAX)


def object_descriptors(tasks_max: int) -> int:
    """Return the number of descriptors for objects and buffers.

    The others are the node's own, more of them for many tasks, but at most half of all.
    """
    every = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    every = limits.OPEN_FILES_MAX if every == resource.RLIM_INFINITY else min(every, limits.OPEN_FILES_MAX)
    own = max(limits.NODE_DESCRIPTORS, limits.NODE_DESCRIPTORS // 2 + _TASK_DESCRIPTORS * tasks_max)
    return every - min(own, every // 2)


def host_name() -> str:
    """Return the machine's name up to the first dot, as a valid name for a node; "node" if there is none."""
    first = socket.gethostname().partition(".")[0]
    fit = re.sub(r"[^A-Za-z0-9_-]", "-", first).strip("-_")
    return fit[: limits.NODE_NAME_BYTES_MAX] or "node"


def come_before_tasks(proc: Path = Path("/proc/self")) -> bool:
    """Give this process a larger share of the processors than its tasks have; return True if it has that.

    That works where the kernel divides processors by sessions (autogroup), if this process leads a session
    and may raise its priority. Otherwise each task that computes has as much as the daemon, and calls wait.
    """
    if os.getsid(0) != os.getpid():
        return False  # other programs of its user are in the session
    try:
        (proc / "autogroup").write_text(str(_DAEMON_NICE))
    except OSError:
        return False
    return True
