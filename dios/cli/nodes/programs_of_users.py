"""Programs that a command of root runs as another user: their output is bounded, and believed by nobody."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dios.errors import LimitError, NotPermittedError, TimeLimitError

if TYPE_CHECKING:
    from pwd import struct_passwd


def output_of_user(
    command: Sequence[str],
    user: struct_passwd,
    environment: Mapping[str, str],
    *,
    seconds: float,
    bytes_max: int,
) -> bytes:
    """Run a command as a user of this machine; return its output, of at most ``bytes_max`` bytes.

    The user controls that process. It gets no terminal, no input, and no open file of the caller, and nothing
    waits for it longer than ``seconds``. Raises LimitError for a longer output or message, TimeLimitError,
    NotPermittedError with the last line of its message if it fails, OSError.
    """
    with subprocess.Popen(
        command,
        cwd="/",
        env=dict(environment),
        extra_groups=[],
        group=user.pw_gid,
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        umask=0o077,
        user=user.pw_uid,
    ) as process:
        try:
            output, message = _read(process, time.monotonic() + seconds, bytes_max)
        finally:
            # Its number is its own until it is waited for; it may have ended.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        reason = message.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotPermittedError(f"the user's key cannot be made: {reason}. Let the user run `dios user key`.")
    return output


def _read(process: subprocess.Popen[bytes], deadline: float, bytes_max: int) -> tuple[bytes, bytes]:
    """Return the output and the message of a process that has ended."""
    assert process.stdout is not None  # noqa: S101 - both are pipes
    assert process.stderr is not None  # noqa: S101 - the same
    parts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for fd in parts:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeLimitError("making the key took too long. Let the user run `dios user key`.")
            for key, _ in ready:
                data = os.read(key.fd, bytes_max + 1 - len(parts[key.fd]))
                parts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if len(parts[key.fd]) > bytes_max:
                    raise LimitError(f"the user's program printed more than {bytes_max} bytes")
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeLimitError("making the key took too long. Let the user run `dios user key`.") from None
    output, message = parts.values()
    return bytes(output), bytes(message)
