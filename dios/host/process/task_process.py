"""One task's process in the view of the daemon: its socket, its console, its end and the reason for it.

``dios.host.process.zygote_pool`` creates processes. The core knows the task by its object's id.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from msgspec import structs

from dios import limits
from dios.host.confinement.cgroups import ControlGroup, GroupFolder, MemoryEvents
from dios.host.containers.entry_points import EXCEPTION_STATUS
from dios.host.handover.format import Child, Group
from dios.host.process.descendants import continue_descendants, stop_descendants
from dios.host.process.zygote_messages import LOCKDOWN_FAILED_STATUS, ChildExited
from dios.wire.types import Brand, Cause

if TYPE_CHECKING:
    from dios.host.confinement.cgroups import GroupShare

# The kernel compares the limit with time that it samples by ticks. On a busy machine this is far above the
# exact time that it reports at the end.
_CPU_NEARLY: Final = 0.5
"""The kernel enforces the CPU limit with sampled ticks but reports exact run time; on a busy or virtual
machine the two differ by several percent. A killed task that used this share of its limit counts as ended by
the limit."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of a task's process: bytes, milliseconds (0 is none), processes including threads."""

    memory_bytes: int
    cpu_ms: int
    processes: int

    def exceed(self, other: ProcessLimits) -> bool:
        """Return True if any of these limits is above that of ``other``; a CPU limit of 0 is none."""
        return (
            self.memory_bytes > other.memory_bytes
            or self.processes > other.processes
            or (other.cpu_ms > 0 and not 0 < self.cpu_ms <= other.cpu_ms)
        )

    def with_kernel(self) -> ProcessLimits:
        """Return these limits with those of a kernel in processes of its own, which are extra."""
        return replace(
            self,
            memory_bytes=self.memory_bytes + limits.OWN_KERNEL_BYTES,
            processes=self.processes + limits.OWN_KERNEL_THREADS,
        )


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a task's process; ``detail`` gives advice.

    ``cpu_ms`` is the CPU time used and ``memory_bytes`` the peak memory: of all processes of the task if a
    control group counts them, else of its first process. 0 means unknown.
    """

    cause: Cause
    exit_code: int = 0
    signal: int = 0
    detail: str = ""
    cpu_ms: int = 0
    memory_bytes: int = 0


class TaskProcess:
    """The process of a started task. ``close`` it after its socket and console have been drained."""

    def __init__(
        self,
        number: int,
        brand: Brand,
        bounds: ProcessLimits,
        socket: trio.socket.SocketType,
        console_fd: int,
    ) -> None:
        self.number: Final = number
        self.brand: Final = brand
        self.bounds = bounds
        self.socket: Final = socket
        self.console_fd: Final = console_fd
        self.pid = 0
        self.group: ControlGroup | None = None
        self.share: GroupShare | None = None
        self.has_own_kernel = False
        """True if its container has a kernel of its own, in processes of its group."""
        self._pidfd = -1
        self._folder = -1
        self._kill_asked = False
        self._over_memory = False
        self._closed = False
        self._ended = trio.Event()
        self._exit: Exit | None = None

    def __repr__(self) -> str:
        state = "ended" if self._exit else "running"
        return f"<TaskProcess {self.brand.name.lower()} pid={self.pid} {state}>"

    # -- the successor of this process -----------------------------------------------------------------
    def hand_over(self) -> Child:
        """Describe the process for a successor. It has started and not ended."""
        return Child(
            self.number,
            self.brand,
            self.pid,
            self._pidfd,
            self._folder,
            self.console_fd,
            self.bounds.memory_bytes,
            self.bounds.cpu_ms,
            self.bounds.processes,
            ()
            if self.group is None
            else tuple(_described(group_folder) for group_folder in self.group.hand_over()),
            self._kill_asked,
            self._over_memory,
        )

    @classmethod
    def taken_over(cls, child: Child) -> TaskProcess:
        """Return a process of a predecessor. It is connected already, so its own socket is closed."""
        ours, theirs = trio.socket.socketpair()
        ours.close()
        theirs.close()
        bounds = ProcessLimits(child.memory_bytes, child.cpu_ms, child.processes)
        process = cls(child.number, child.brand, bounds, ours, child.console)
        process.started(child.pid, child.pidfd, child.folder)
        process._kill_asked, process._over_memory = child.kill_asked, child.over_memory
        if child.groups:
            process.group = ControlGroup.taken_over(
                GroupFolder(Path(group.folder), group.version, group.controllers) for group in child.groups
            )
        return process

    @property
    def folder(self) -> int:
        """The descriptor of the private folder, or -1 if a control group counts it or there is none."""
        return self._folder

    def detach_folder(self) -> int:
        """Return the descriptor of the private folder for the caller to close, or -1."""
        folder, self._folder = self._folder, -1
        return folder

    @property
    def ended_event(self) -> trio.Event:
        """Set when the process has ended and was reaped."""
        return self._ended

    @property
    def exit(self) -> Exit | None:
        """The end of the process, or None while it runs."""
        return self._exit

    def kill(self) -> None:
        """End the task and all its processes. Do nothing if it has ended."""
        self._kill_asked = True
        self._signal(signal.SIGKILL)

    def kill_for_memory(self) -> None:
        """End the task because it uses more memory than its limit."""
        self._over_memory = True
        self._signal(signal.SIGKILL)

    def end_if_over_time(self) -> None:
        """End the task if all its processes together have used more processor time than its limit.

        The limit of each process is the same one, and bounds nothing together.
        """
        if self.group is not None and 0 < self.bounds.cpu_ms < self.group.cpu_ms():
            self._signal(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop every thread and process of the task until ``resume``."""
        self._signal_all(signal.SIGSTOP)
        if self.brand is Brand.PURE and self._pidfd >= 0:
            stop_descendants(self.pid, self._pidfd)

    def resume(self) -> None:
        """Continue a suspended task."""
        if self.brand is Brand.PURE and self._pidfd >= 0:
            continue_descendants(self.pid, self._pidfd)
        self._signal_all(signal.SIGCONT)

    async def wait(self) -> Exit:
        """Wait until the process has ended and was reaped; its end of the socket is closed then."""
        await self._ended.wait()
        assert self._exit is not None, "the event is set with the exit"  # noqa: S101 - holds by construction
        return self._exit

    def close(self) -> None:
        """Close the daemon's ends of socket and console; kill the process if it still runs. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._exit is None:
            self.kill()
        self.socket.close()
        os.close(self.console_fd)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _signal_all(self, number: signal.Signals) -> None:
        self._signal(number)
        # A pure task is one process, or a container. The processes of a limbo task are in its session.
        if self.brand is not Brand.PURE and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    # -- for the zygote's client alone ------------------------------------------------------------
    def started(self, pid: int, pidfd: int, folder: int = -1) -> None:
        """Set the ids of the process, which exists now, and its private folder if nothing else counts it."""
        self.pid, self._pidfd, self._folder = pid, pidfd, folder
        if self._kill_asked:
            self._signal(signal.SIGKILL)

    def ended(self, message: ChildExited) -> None:
        """Set the exit of the process, which was reaped."""
        # A file of the kernel is read only for an end that it may explain.
        is_killed = os.WIFSIGNALED(message.status) or not message.has_ended
        is_killed = is_killed or (self.has_own_kernel and message.status != 0)
        events = self.group.memory_events() if self.group is not None and is_killed else None
        if self.has_own_kernel and events is not None and all(events):
            # The machine has killed a process of that kernel, which ends the task with any status.
            message = structs.replace(message, status=int(signal.SIGKILL))
        peak = self.group.peak_bytes() if self.group else 0
        if self.group is not None and self.group.counts_time:
            # A killed runtime has waited for none of its processes.
            message = structs.replace(message, cpu_ms=max(message.cpu_ms, self.group.cpu_ms()))
        end = _explain(
            message,
            self.bounds,
            kill_asked=self._kill_asked,
            over_memory=self._over_memory,
            memory_events=events,
        )
        self._finish(replace(end, cpu_ms=message.cpu_ms, memory_bytes=peak or message.memory_bytes))

    def lost(self, why: str) -> None:
        """Set the exit of a task whose zygote ended; the kernel ended the task with its zygote."""
        if self._exit is None:
            cause = Cause.KILLED if self._kill_asked else Cause.NODE
            self._finish(Exit(cause, signal=int(signal.SIGKILL), detail=why))

    def _finish(self, end: Exit) -> None:
        self._exit = end
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._ended.set()


def _described(group: GroupFolder) -> Group:
    return Group(str(group.folder), group.version, group.controllers)


def _explain(
    message: ChildExited,
    bounds: ProcessLimits,
    *,
    kill_asked: bool,
    over_memory: bool,
    memory_events: MemoryEvents | None,
) -> Exit:
    """Return the end of a process with the known cause.

    ``over_memory`` if the node ended it for the memory that it used. ``memory_events``: the counts of its
    control group, None if there are none.
    """
    code = os.waitstatus_to_exitcode(message.status)
    if code >= 0 and (message.has_ended or code == LOCKDOWN_FAILED_STATUS):
        return _explain_status(code)
    # The end of a container kills what is in it.
    number = int(signal.SIGKILL) if code >= 0 else -code
    over = bool(bounds.cpu_ms) and message.cpu_ms >= _CPU_NEARLY * bounds.cpu_ms
    if number == signal.SIGSYS:
        call = message.refused_call or "a forbidden system call"
        detail = f"the sandbox ended it because it made {call}. Run the task as limbo if it needs this call."
        return Exit(Cause.SANDBOX, signal=number, detail=detail)
    if number == signal.SIGKILL and kill_asked:
        return Exit(Cause.KILLED, signal=number, detail="it was ended on request")
    oom_kills, limit_hits = memory_events or (0, 0)
    if over_memory or (oom_kills and limit_hits):
        detail = f"its processes needed more than {bounds.memory_bytes} bytes. Give it a higher memory limit."
        return Exit(Cause.MEMORY, signal=number, detail=detail)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and over):
        detail = f"it used its {bounds.cpu_ms} ms of CPU time. Give it a higher CPU limit."
        return Exit(Cause.CPU, signal=number, detail=detail)
    if oom_kills:
        detail = (
            "the kernel ended it for lack of memory, below its own limit: the machine, or the group of the "
            "node, had no more. Run fewer tasks at once, or give the node more memory."
        )
        return Exit(Cause.SIGNAL, signal=number, detail=detail)
    if code >= 0:
        detail = (
            "its container ended before the task in it: its runtime failed, or its processes reached their "
            f"limit, {bounds.processes}. Its last console lines may show the reason."
        )
        return Exit(Cause.SIGNAL, signal=number, detail=detail)
    if number == signal.SIGKILL:
        detail = "SIGKILL ended it, without a request to this node. "
        if memory_events is None:
            detail += "The kernel's log lists the processes that it ended for lack of memory."
        else:
            detail += "Its control group counts no process that was ended for lack of memory."
        return Exit(Cause.SIGNAL, signal=number, detail=detail)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    detail = f"{name} ended it. Its last console lines may show the reason."
    return Exit(Cause.SIGNAL, signal=number, detail=detail)


def _explain_status(code: int) -> Exit:
    if code == LOCKDOWN_FAILED_STATUS:
        detail = "its sandbox could not be set up, so it ran nothing. Its console shows the step that failed."
        return Exit(Cause.SPAWN, exit_code=code, detail=detail)
    if code == EXCEPTION_STATUS:
        detail = "an exception ended its program; the traceback is on its console"
        return Exit(Cause.EXCEPTION, exit_code=1, detail=detail)
    detail = "" if code == 0 else "its program chose this exit code"
    return Exit(Cause.EXITED, exit_code=code, detail=detail)
