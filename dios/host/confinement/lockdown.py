"""The sequence of steps by which a new child gives up its rights; untrusted code may run after it.

The order is fixed, because each step needs something that a later step removes.
"""

from __future__ import annotations

import functools
import os
import select
import signal
from collections.abc import Callable
from typing import Final

from dios.host.confinement import (
    landlock,
    limits_of_task,
    linux_calls,
    namespaces,
    policy,
    private_folder,
    privileges,
    view,
)
from dios.host.confinement.limits_of_task import LimitsOfTask
from dios.host.confinement.seccomp import SeccompFilter, program

STDIN: Final = 0
CONSOLE: Final = (1, 2)
SOCKET: Final = 3
FIRST_CLOSED: Final = 4


class LockdownState:
    """The state that the zygote prepares once for all its children."""

    def __init__(
        self,
        available: frozenset[str],
        trees: list[str],
        null: int,
        own_pidfd: int,
        executable: tuple[str, ...] = (),
    ) -> None:
        self.available = available
        self.for_programs = bool(executable)
        self.memory_is_counted = "cgroup_memory" in available
        self.null = null
        self.own_pidfd = own_pidfd
        self.tid_address = linux_calls.tid_address()
        self.flags = namespaces.flags_for(available)
        self.last_capability = privileges.last_capability()
        # A zygote of limbo tasks has no view, and so no place for the folders.
        self.has_folder = bool(trees) and private_folder.is_available(available)
        writable = (private_folder.HOLDER,) if self.has_folder else ()
        devices = (view.NULL,) if self.has_folder and view.has_null() else ()
        self.rules = -1
        if "landlock" in available:
            self.rules = landlock.ruleset(trees, writable, executable, devices)
        self._filter = self._filter_for(policy.INIT_PID) if {"seccomp", "pid"} <= available else None

    @functools.cached_property
    def template_filter(self) -> SeccompFilter:
        """The filter for the processes of templates; built by the supervisor alone."""
        return SeccompFilter(
            program(memory_is_counted=self.memory_is_counted, has_folder=True, for_template=True)
        )

    @functools.cached_property
    def forkable_filter(self) -> SeccompFilter:
        """The filter for sessions that can be forked; built by the supervisor alone."""
        return SeccompFilter(
            program(memory_is_counted=self.memory_is_counted, has_folder=True, for_forkable=True)
        )

    def _filter_for(self, pid: int) -> SeccompFilter:
        return SeccompFilter(
            program(
                pid,
                memory_is_counted=self.memory_is_counted,
                has_folder=self.has_folder,
                for_programs=self.for_programs,
            )
        )

    def install_filter(self) -> None:
        """Install the system-call filter in the calling child for good. Raise ``OSError``."""
        # Outside a pid namespace the filter contains the process's own id, so it is built here.
        (self._filter or self._filter_for(os.getpid())).install()


def die_with_the_zygote(zygote_pidfd: int) -> None:
    """End this process when the zygote ends, or now if it has just ended. Raise ``OSError``."""
    linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([zygote_pidfd], [], [], 0)[0]:
        os._exit(1)


def open_empty_stdin() -> int:
    """Return a standard input that is at its end and shared with no other task. Raise ``OSError``."""
    # The zygote's /dev/null would be one open file for all tasks. Its flags can be set and read, so tasks
    # could communicate through them.
    read_end, write_end = os.pipe()
    os.close(write_end)
    return read_end


def place_descriptors(stdin: int, console: int, socket: int) -> None:
    """Leave descriptors 0 (stdin), 1 and 2 (console) and 3 (the DIOS socket) open, and no others.

    The arguments must be 4 or higher. Raise ``OSError``.
    """
    os.dup2(stdin, STDIN)
    for number in CONSOLE:
        os.dup2(console, number)
    os.dup2(socket, SOCKET, inheritable=False)
    linux_calls.close_range(FIRST_CLOSED, 0xFFFF_FFFF)


def pure(prepared: LockdownState, limits: LimitsOfTask, socket: int, console: int, folder: int) -> None:
    """Lock the calling child down as a pure task. Raise ``OSError`` at the first step that fails.

    ``folder`` is the mount of its private folder, or -1 for a task without one.
    """
    die_with_the_zygote(prepared.own_pidfd)
    os.setsid()
    if folder >= 0:
        private_folder.place(folder)
        private_folder.enter()
    _give_up_rights(prepared, limits, socket, console, has_folder=folder >= 0)


def session(prepared: LockdownState, limits: LimitsOfTask, socket: int, console: int) -> None:
    """Lock down a child of a template as a pure task, with its private folder mounted. Raise ``OSError``.

    It ends with the supervisor already (PR_SET_PDEATHSIG), and has the rules of Landlock from the template.
    """
    os.setsid()
    private_folder.enter()
    _give_up_rights(prepared, limits, socket, console, has_folder=True)


def forkable_session(
    prepared: LockdownState, limits: LimitsOfTask, socket: int, console: int, hand_over: Callable[[int], None]
) -> None:
    """Lock down a child of a template that can be forked later, with its private folder mounted.

    ``hand_over`` gives the listener of its filter to the supervisor; then it is closed here. Raise
    ``OSError``.

    It differs from ``session`` in three points. It keeps CAP_SYS_ADMIN in its own user namespace, because a
    mount namespace for a fork needs it, and the calls that use it otherwise are refused. It stays dumpable,
    because the supervisor looks at forks before they go on. Its limit of processes is that of all its forks.
    """
    os.setsid()
    private_folder.enter()
    _limit(prepared, limits, has_folder=True)
    privileges.no_new_privileges()
    privileges.drop_everything(prepared.last_capability, (privileges.CAP_SYS_ADMIN,))
    hand_over(prepared.forkable_filter.install_with_listener())
    place_descriptors(open_empty_stdin(), console, socket)


def _limit(prepared: LockdownState, limits: LimitsOfTask, *, has_folder: bool) -> None:
    limits_of_task.apply(memory_bytes=limits.memory_bytes, cpu_ms=limits.cpu_ms)
    limits_of_task.apply_to_pure(
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        file_bytes=limits.memory_bytes if has_folder else 0,
        memory_is_counted=prepared.memory_is_counted,
    )


def _give_up_rights(
    prepared: LockdownState, limits: LimitsOfTask, socket: int, console: int, *, has_folder: bool
) -> None:
    available = prepared.available
    _limit(prepared, limits, has_folder=has_folder)
    privileges.no_new_privileges()
    if prepared.rules >= 0:
        landlock.restrict_self(prepared.rules)
    place_descriptors(open_empty_stdin(), console, socket)
    if "user" in available:
        privileges.drop_everything(prepared.last_capability)
    else:
        privileges.set_capabilities(())
    linux_calls.prctl(linux_calls.PR_SET_DUMPABLE, 0)
    if "seccomp" in available:
        prepared.install_filter()


def template(prepared: LockdownState, memory_bytes: int, link: int, null: int, folder: int) -> None:
    """Lock the calling child down as the process of a template, which loads modules. Raise ``OSError``.

    It holds less than a task: descriptor 3 is its link to the supervisor, and its console leads nowhere.
    """
    die_with_the_zygote(prepared.own_pidfd)
    os.setsid()
    private_folder.place(folder)
    private_folder.enter()
    limits_of_task.apply_to_template(memory_bytes=memory_bytes, memory_is_counted=prepared.memory_is_counted)
    privileges.no_new_privileges()
    landlock.restrict_self(prepared.rules)
    place_descriptors(open_empty_stdin(), null, link)
    # It stays dumpable, because the supervisor enters the mount namespaces of its sessions. No task can make
    # the calls that would look into the memory of a template.
    privileges.drop_everything(prepared.last_capability)
    prepared.template_filter.install()


def limbo(prepared: LockdownState, limits: LimitsOfTask, socket: int, console: int, folder: int) -> None:
    """Prepare the calling child as a limbo task: an ordinary process that cannot gain privileges."""
    del folder  # it has the machine's files
    die_with_the_zygote(prepared.own_pidfd)
    os.setsid()
    # Orphans become children of the task first and, when it has ended, of the zygote, which ends them.
    linux_calls.prctl(linux_calls.PR_SET_CHILD_SUBREAPER, 1)
    limits_of_task.apply(memory_bytes=limits.memory_bytes, cpu_ms=limits.cpu_ms)
    privileges.no_new_privileges()
    place_descriptors(prepared.null, console, socket)
