"""What this machine, or the container around the node, has: its memory, and what it is called.

Not for: memory of single tasks (``dios.host.sandbox``).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Final

from dios import limits

_GROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """What there is, or what a control group at the root of our own view leaves of it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in group_limits:
        # "max" where nothing is limited; files that are not there where the other version is.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)


def free_memory_bytes(told: Path = Path("/proc/meminfo")) -> int:
    """How much of it could be used now without swapping, as the system estimates; 0 where it does not."""
    for line in told.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * limits.KIB
    return 0


def volatile_bytes() -> int:
    """How much of it objects and buffers in memory may take unless a setting says so."""
    share = memory_bytes() * limits.VOLATILE_PERCENT // 100
    return min(max(share, limits.VOLATILE_BYTES_MIN), limits.VOLATILE_BYTES_MAX)


def host_name() -> str:
    """The machine's name up to the first dot, as a node may be called; "node" when there is nothing fit."""
    first = socket.gethostname().partition(".")[0]
    fit = re.sub(r"[^A-Za-z0-9_-]", "-", first).strip("-_")
    return fit[: limits.NODE_NAME_BYTES_MAX] or "node"
