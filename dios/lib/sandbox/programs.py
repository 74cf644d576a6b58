"""Runs a program in a session, on the side of the session: its output goes on as it comes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Final

from dios.lib.sandbox.protocol import STDERR, STDOUT, RunProgram
from dios.limits import KIB

_CHUNK: Final = 64 * KIB


def run_program(order: RunProgram, show: Callable[[int, bytes], None]) -> int:
    """Run a program, and return its exit status; the negative number of a signal that ended it.

    ``show`` gets its output with the number of the stream. What it has started may go on after its end,
    without its streams: a write to them fails then. Only an exception, such as the KeyboardInterrupt of a
    time limit, ends that too, unless it has left the process group. Raise OSError if the program cannot be
    started.
    """
    process = subprocess.Popen(
        order.arguments,
        stdin=subprocess.PIPE if order.data else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=order.folder or None,
        env=None if order.variables is None else os.environ | order.variables,
        process_group=0,
    )
    try:
        _exchange(process, order.data, show)
    except BaseException:
        # It may lead no group any more, or be the last of it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()
    return process.returncode


def _exchange(process: subprocess.Popen[bytes], data: bytes, show: Callable[[int, bytes], None]) -> None:
    """Write the input and show the output of a process until it has ended."""
    streams = {process.stdout: STDOUT, process.stderr: STDERR}
    ended = end_of(process.pid)
    left = memoryview(data)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            for stream in streams:
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE)
            is_running = True
            while is_running:
                for key, _ in selector.select():
                    if key.fileobj == ended:
                        is_running = False
                    elif key.fileobj is process.stdin:
                        left = _written(process, left)
                        if not left:
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif not _read(key.fd, streams[key.fileobj], show):  # type: ignore[index]  # one of them
                        selector.unregister(key.fileobj)
        # What it wrote last is in the pipes; a process that it has started may write to them for ever.
        for stream, number in streams.items():
            if stream is not None:
                _read(stream.fileno(), number, show, fcntl.fcntl(stream, fcntl.F_GETPIPE_SZ))
    finally:
        os.close(ended)


def end_of(pid: int) -> int:
    """Return a descriptor that is readable when a child has ended; it is not reaped."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    # gVisor had no such call at first.
    reading, writing = os.pipe()

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writing)

    threading.Thread(target=wait, name="end of a program", daemon=True).start()
    return reading


def _written(process: subprocess.Popen[bytes], data: memoryview) -> memoryview:
    assert process.stdin is not None, "it has data"  # noqa: S101 - by the caller
    try:
        return data[os.write(process.stdin.fileno(), data[:_CHUNK]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[len(data) :]  # it reads no more


def _read(descriptor: int, stream: int, show: Callable[[int, bytes], None], size: int = _CHUNK) -> bool:
    """Show what there is to read. Return False if there is nothing, or nothing more."""
    try:
        data = os.read(descriptor, size)
    except BlockingIOError:
        return False
    if data:
        show(stream, data)
    return bool(data)
