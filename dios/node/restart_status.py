"""The file in which a running node says how far the replacement of its program is, and the request for one.

The request is a signal, so only the node's own user and root can make it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DiosError, NotSupportedError, TimeLimitError, UnreachableError
from dios.trusted_files import require_trusted

FILE: Final = "restart.json"
SIGNAL: Final = signal.SIGUSR2

READY: Final = "ready"
TRYING: Final = "trying the new program"
STOPPING: Final = "stopping at a step"
REPLACING: Final = "replacing the program"
CONTINUED: Final = "continued"
REFUSED: Final = "refused"

_FILE_BYTES_MAX: Final = 64 * limits.KIB
_LOOK_S: Final = 0.02

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Short = Annotated[str, Meta(max_length=limits.TEXT_BYTES_MAX)]


class RefusedError(DiosError):
    """The node goes on with its present program; the message has the reason."""


class RestartStatus(Struct, frozen=True):
    """The state of the last request, of which ``attempt`` is the number, and the result."""

    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    attempt: Number
    state: Short
    detail: Short = ""
    version: Short = ""
    pause_ms: Number = 0
    tasks: Number = 0
    sessions: Number = 0


def write(data: Path, status: RestartStatus) -> None:
    """Replace the file. A full disk must not end the node, so errors are ignored."""
    path = data / FILE
    fresh = data / f".{FILE}.{os.getpid()}"
    with contextlib.suppress(OSError):
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - of a descriptor, not of a path
            file.write(msgspec.json.encode(status))
        fresh.replace(path)


def remove(data: Path) -> None:
    """Remove the file at the end of the node."""
    with contextlib.suppress(OSError):
        (data / FILE).unlink(missing_ok=True)


def read(data: Path) -> RestartStatus | None:
    """Return the content of the file; None without one. Raise UntrustedError if others could change it."""
    path = data / FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:  # noqa: PTH123 - of a descriptor, not of a path
        require_trusted(path, "the file about restarts")
        try:
            return msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=RestartStatus)
        except msgspec.DecodeError:
            return None


def request(
    pid: int, data: Path, *, limit_ms: int, show: Callable[[str], None] = lambda _: None
) -> RestartStatus:
    """Let a running node replace its program, and return the result. ``show`` gets each state.

    Raise RefusedError if the node goes on with its present program, NotSupportedError if it is of a version
    that cannot do that, UnreachableError if it ended, TimeLimitError after ``limit_ms``.
    """
    before = read(data)
    if before is None or before.pid != pid:
        raise NotSupportedError(
            f"the node in {data} cannot be continued by another program: it is of an earlier version. "
            "Stop it with `dios-node stop` and start it again, which ends its tasks."
        )
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        raise _ended(data) from None
    deadline = time.monotonic() + limit_ms / 1000
    try:
        try:
            signal.pidfd_send_signal(process, SIGNAL)
        except ProcessLookupError:
            raise _ended(data) from None
        except PermissionError:
            raise UnreachableError(
                f"cannot restart process {pid}: it is another user's. Run this as that user or root."
            ) from None
        shown = ""
        while time.monotonic() < deadline:
            status = read(data)
            if status is not None and status.attempt > before.attempt:
                if status.state == REFUSED:
                    raise RefusedError(f"the node goes on with its present program: {status.detail}")
                if status.state == CONTINUED:
                    return status
                if status.state != shown:
                    shown = status.state
                    show(shown)
            # A pidfd is readable once its process has ended.
            if select.select([process], [], [], _LOOK_S)[0]:
                raise _ended(data)
    finally:
        os.close(process)
    raise TimeLimitError(
        f"the node did not finish its restart within {limit_ms // 1000} s. "
        "`dios-node status` shows if it answers, and its log has the reason."
    )


def _ended(data: Path) -> UnreachableError:
    return UnreachableError(
        f"the node in {data} ended. Everything acknowledged is on its disk. See its log, then start it again."
    )
