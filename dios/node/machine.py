"""The machine, or the container around the node: its memory and its name."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dios import limits
from dios.errors import DiosError

if TYPE_CHECKING:
    from dios.wire.messages import ThreadPlace

_TASK_DESCRIPTORS: Final = 5
"""The descriptors of the node for a task: its connection, process, output, page, and until it starts the
task's own descriptor of its page."""

_DAEMON_NICE: Final = -10
"""The nice value of the session of a daemon: it has nine times the share of a task, if it needs that."""

_GROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """Return the machine's memory, or the limit of the control group around this process if lower."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in group_limits:
        # The file contains "max" if there is no limit; only one of the two files exists.
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(path.read_text()))
    return min(sizes)


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


class MachineInsides(NamedTuple):
    """The hardware threads for tasks with the parts of the machine, and texts about what is not known."""

    threads: tuple[ThreadPlace, ...]
    missing: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of sockets, NUMA nodes, last-level caches, cores and threads."""
        return {
            "sockets": len({thread.socket for thread in self.threads}),
            "numa_nodes": len({thread.numa for thread in self.threads}),
            "last_level_caches": len({thread.cache for thread in self.threads}),
            "cores": len({thread.core for thread in self.threads}),
            "threads": len(self.threads),
        }


def insides(root: Path = Path("/sys"), proc: Path = Path("/proc")) -> MachineInsides:
    """Read the parts of this machine that have threads on which this process may run.

    A machine that does not show them is taken for one socket, with a core for each thread.
    """
    # Imported late: commands that read settings do not need them.
    from dios.core.calls import threads  # noqa: PLC0415 - see above
    from dios.host.machine.topology import Element, Part, read_topology  # noqa: PLC0415 - see above
    from dios.wire.messages import ThreadPlace  # noqa: PLC0415 - see above

    allowed = sorted(os.sched_getaffinity(0))[: limits.TOPOLOGY_CPUS_MAX]
    try:
        topology = read_topology(root, proc)
    except (DiosError, OSError, ValueError) as error:
        return MachineInsides(threads.flat(allowed), (str(error),))
    places: dict[int, ThreadPlace] = {}
    numbers = dict.fromkeys(Part, -1)

    def visit(element: Element, around: dict[Part, int]) -> None:
        # Of nested caches, the outer one counts.
        if element.part is not Part.CACHE or Part.CACHE not in around:
            numbers[element.part] += 1
            around = {**around, element.part: numbers[element.part]}
        if element.part is Part.THREAD:
            core, cache, numa, package = (
                max(0, around.get(part, 0)) for part in (Part.CORE, Part.CACHE, Part.NUMA, Part.PACKAGE)
            )
            places[element.number] = ThreadPlace(element.number, core, cache, numa, package)
        for child in element.children:
            visit(child, around)

    visit(topology.tree, {})
    if not set(allowed) <= places.keys():
        return MachineInsides(threads.flat(allowed), ("sysfs does not show all processors of this process",))
    return MachineInsides(tuple(places[thread] for thread in allowed), topology.missing)
