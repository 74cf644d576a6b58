"""One task's process as the daemon sees it: its socket, its console, its end and what that means.

Not for: making processes (``dios.host.process.zygote_pool``) or for what is said on the socket. Everything
here is
about one kernel process; a task object of the core is known by its id elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from dios.host.process.zygote_messages import EXCEPTION_STATUS, LOCKDOWN_FAILED_STATUS, Ended
from dios.wire.types import Brand, Cause

if TYPE_CHECKING:
    from dios.host.sandbox.cgroups import Group

_CPU_NEARLY: Final = 0.75
"""The limit is enforced by sampled ticks and reported by exact run time; on a busy or virtual machine the
two differ by several percent. A task that was killed with this share of its limit used was ended by it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that a task's process has: bytes, milliseconds (0 is none), processes with threads."""

    memory_bytes: int
    cpu_ms: int
    processes: int


@dataclass(frozen=True, slots=True)
class Exit:
    """How a task's process ended; ``detail`` says what to try.

    ``cpu_ms`` is what it used, ``memory_bytes`` its peak: of all its processes where a group counts
    them, else of the one; 0 where nobody knows.
    """

    cause: Cause
    exit_code: int = 0
    signal: int = 0
    detail: str = ""
    cpu_ms: int = 0
    memory_bytes: int = 0


class TaskProcess:
    """A task that has been started; ``close`` it when its socket and console have been drained."""

    def __init__(
        self, number: int, brand: Brand, bounds: Bounds, socket: trio.socket.SocketType, console_fd: int
    ) -> None:
        self.number: Final = number
        self.brand: Final = brand
        self.bounds = bounds
        self.socket: Final = socket
        self.console_fd: Final = console_fd
        self.pid = 0
        self.group: Group | None = None
        self._pidfd = -1
        self._kill_asked = False
        self._closed = False
        self._ended = trio.Event()
        self._exit: Exit | None = None

    def __repr__(self) -> str:
        state = "ended" if self._exit else "running"
        return f"<TaskProcess {self.brand.name.lower()} pid={self.pid} {state}>"

    @property
    def exit(self) -> Exit | None:
        """How it ended, once it has."""
        return self._exit

    def kill(self) -> None:
        """End the task and all that it started; nothing happens if it has ended."""
        self._kill_asked = True
        self._signal(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop every thread and process of the task until ``resume``."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended task run on."""
        self._signal_all(signal.SIGCONT)

    async def wait(self) -> Exit:
        """Wait until the process is gone and reaped; then its socket's peer is closed too."""
        await self._ended.wait()
        assert self._exit is not None, "the event is set with the exit"  # noqa: S101 - holds by construction
        return self._exit

    def close(self) -> None:
        """Close the daemon's ends of socket and console; may be called again. Kills what still runs."""
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
        # A pure task is one process. A limbo task may have started others, which stand in its session.
        if self.brand is not Brand.PURE and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    # -- for the zygote's client alone ------------------------------------------------------------
    def started(self, pid: int, pidfd: int) -> None:
        """The process exists."""
        self.pid, self._pidfd = pid, pidfd
        if self._kill_asked:
            self._signal(signal.SIGKILL)

    def ended(self, message: Ended) -> None:
        """The process was reaped."""
        oom = self.group.oom_kills() if self.group else 0
        peak = self.group.peak_bytes() if self.group else 0
        end = _explain(message, self.bounds, kill_asked=self._kill_asked, oom_kills=oom)
        self._finish(replace(end, cpu_ms=message.cpu_ms, memory_bytes=peak or message.memory_bytes))

    def lost(self, why: str) -> None:
        """The zygote is gone, and with it, by the kernel's hand, every child of it."""
        if self._exit is None:
            cause = Cause.KILLED if self._kill_asked else Cause.NODE
            self._finish(Exit(cause, signal=int(signal.SIGKILL), detail=why))

    def _finish(self, end: Exit) -> None:
        self._exit = end
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._ended.set()


def _explain(message: Ended, bounds: Bounds, *, kill_asked: bool, oom_kills: int) -> Exit:
    code = os.waitstatus_to_exitcode(message.status)
    if code >= 0:
        return _explain_status(code)
    number = -code
    over = bool(bounds.cpu_ms) and message.cpu_ms >= _CPU_NEARLY * bounds.cpu_ms
    if number == signal.SIGSYS:
        call = message.refused_call or "a system call that only an attack on the machine needs"
        detail = f"the sandbox ended it for {call}; a task that needs this must run as limbo"
        return Exit(Cause.SANDBOX, signal=number, detail=detail)
    if number == signal.SIGKILL and kill_asked:
        return Exit(Cause.KILLED, signal=number, detail="it was asked to end")
    if oom_kills:
        detail = f"its processes needed more than {bounds.memory_bytes} bytes; give it a higher memory limit"
        return Exit(Cause.MEMORY, signal=number, detail=detail)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and over):
        detail = f"it used its {bounds.cpu_ms} ms of CPU time; give it a higher CPU limit"
        return Exit(Cause.CPU, signal=number, detail=detail)
    if number == signal.SIGKILL:
        detail = "it was killed from outside; if the machine was short of memory, its kernel did it"
        return Exit(Cause.SIGNAL, signal=number, detail=detail)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    detail = f"{name} ended it; its last console lines may say where"
    return Exit(Cause.SIGNAL, signal=number, detail=detail)


def _explain_status(code: int) -> Exit:
    if code == LOCKDOWN_FAILED_STATUS:
        detail = "it could not be locked down and ran nothing; its console says which step failed"
        return Exit(Cause.SPAWN, exit_code=code, detail=detail)
    if code == EXCEPTION_STATUS:
        detail = "an exception left its program; the traceback is on its console"
        return Exit(Cause.EXCEPTION, exit_code=1, detail=detail)
    detail = "" if code == 0 else "its program chose this exit code"
    return Exit(Cause.EXITED, exit_code=code, detail=detail)
