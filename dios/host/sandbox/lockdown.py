"""The order in which a fresh child gives up everything; after it, untrusted code may run.

Not for: making the child (``dios.host.process.zygote_main``). Each step needs something that a later one
takes
away, which is why this is one list and not a set of options.
"""

from __future__ import annotations

import os
import select
import signal
from typing import Final

from dios.host.process.zygote_messages import Make
from dios.host.sandbox import kernel, landlock, limits_of_task, namespaces, policy, privileges
from dios.host.sandbox.seccomp import Filter, program

STDIN: Final = 0
CONSOLE: Final = (1, 2)
SOCKET: Final = 3
FIRST_CLOSED: Final = 4


class Prepared:
    """What the zygote makes once and every child uses."""

    def __init__(self, available: frozenset[str], trees: list[str], null: int, own_pidfd: int) -> None:
        self.available = available
        self.null = null
        self.own_pidfd = own_pidfd
        self.tid_address = kernel.tid_address()
        self.flags = namespaces.flags_for(available)
        self.last_capability = privileges.last_capability()
        self.rules = landlock.ruleset(trees) if "landlock" in available else -1
        self._filter = self._filter_for(policy.INIT_PID) if {"seccomp", "pid"} <= available else None

    def _filter_for(self, pid: int) -> Filter:
        return Filter(program(pid, memory_is_counted="cgroup_memory" in self.available))

    def install_filter(self) -> None:
        """Put the calling child under the filter for good. Raises ``OSError``."""
        # Outside a pid namespace the filter names this very process, so it is made here.
        (self._filter or self._filter_for(os.getpid())).install()


def die_with_the_zygote(zygote_pidfd: int) -> None:
    """End when the zygote ends, also when that has just happened. Raises ``OSError``."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([zygote_pidfd], [], [], 0)[0]:
        os._exit(1)


def nothing_to_read() -> int:
    """A standard input that is at its end, and that this task shares with nobody. Raises ``OSError``."""
    # The zygote's /dev/null would be one open file in all tasks, whose flags each can set and read: a way
    # to talk to each other.
    read_end, write_end = os.pipe()
    os.close(write_end)
    return read_end


def place_descriptors(stdin: int, console: int, socket: int) -> None:
    """Leave 0 (stdin), 1 and 2 (console) and 3 (the DIOS socket) open, and nothing else.

    The arguments must be 4 or higher. Raises ``OSError``.
    """
    os.dup2(stdin, STDIN)
    for number in CONSOLE:
        os.dup2(console, number)
    os.dup2(socket, SOCKET, inheritable=False)
    kernel.syscall("close_range", FIRST_CLOSED, 0xFFFF_FFFF, 0)


def pure(prepared: Prepared, make: Make, socket: int, console: int) -> None:
    """Lock the calling child down as a pure task. Raises ``OSError`` at the first step that fails."""
    available = prepared.available
    die_with_the_zygote(prepared.own_pidfd)
    os.setsid()
    limits_of_task.apply(
        memory_bytes=make.memory_bytes, cpu_ms=make.cpu_ms, processes=make.processes, pure=True
    )
    privileges.no_new_privileges()
    if prepared.rules >= 0:
        landlock.restrict_self(prepared.rules)
    place_descriptors(nothing_to_read(), console, socket)
    if "user" in available:
        privileges.drop_everything(prepared.last_capability)
    else:
        privileges.set_capabilities(())
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    if "seccomp" in available:
        prepared.install_filter()


def limbo(prepared: Prepared, make: Make, socket: int, console: int) -> None:
    """Prepare the calling child as a limbo task: an ordinary process that gains no privilege."""
    die_with_the_zygote(prepared.own_pidfd)
    os.setsid()
    # Its orphans become its own children first; when it has ended, the zygote's, which ends them.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    limits_of_task.apply(
        memory_bytes=make.memory_bytes, cpu_ms=make.cpu_ms, processes=make.processes, pure=False
    )
    privileges.no_new_privileges()
    place_descriptors(prepared.null, console, socket)
