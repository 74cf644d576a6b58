"""Starts the process of a zygote, which then loads its modules while the daemon does something else.

``dios.host.process.zygote_link`` is the connection to it. This module needs no event loop, so that a daemon
can start the process before it loads one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Final, NamedTuple, Protocol

from dios import limits
from dios.host.process.zygote_messages import ZygoteModules, encode
from dios.wire.types import Brand

_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_PURE_ENVIRONMENT: Final = {**_ENVIRONMENT, "JOBLIB_MULTIPROCESSING": "0"}
"""A pure task is one process. Without this variable joblib finds that out by itself, and warns each time."""

_PLACES: Final = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
"""With these, limbo tasks look for files and compiled kernels where the commands of the daemon's user do."""


class StartedProcess(Protocol):
    """A child process: what its connection needs of it."""

    @property
    def pid(self) -> int:
        """The process id."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the status."""

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""


class TakenProcess:
    """A child that this process started before its program was replaced. Only its connection reaps it."""

    def __init__(self, pid: int) -> None:
        self.pid: Final = pid
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the status; the zygote ends when its connection is closed."""
        del timeout
        if self._status is None:
            try:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self._status = 0  # it was reaped
        return self._status

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class StartedZygote(NamedTuple):
    """A process that loads modules, then waits for a ``ZygoteSetup`` on its socket."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    def close(self) -> None:
        """End the process and wait for its end. Do nothing if it has ended."""
        self.control.close()
        try:
            self.process.wait(limits.ZYGOTE_STOP_MS_MAX / 1000)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_zygote(brand: Brand, modules: ZygoteModules) -> StartedZygote:
    """Start a zygote, which loads ``modules``. Raise ``OSError`` if the machine cannot start a process.

    The zygote ends with the thread that calls this (PR_SET_PDEATHSIG).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # Before the start: the other end is open in this process, so the message waits in the socket.
        ours.send(encode(modules))
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "dios.host.process.zygote_start", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(brand),
                cwd="/",
                start_new_session=True,
            )
    except OSError:
        ours.close()
        theirs.close()
        raise
    return StartedZygote(process, ours)


def _environment(brand: Brand) -> dict[str, str]:
    """Return the environment of a task. Only limbo tasks get the places of the daemon's user."""
    if brand is Brand.PURE:
        return _PURE_ENVIRONMENT
    return {**_ENVIRONMENT, **{name: os.environ[name] for name in _PLACES if name in os.environ}}
