"""Stops and continues the processes that the first process of a task has started, as a container does.

A process that is stopped removes no child that ended, so that the number of a child stays its own. So
parents are stopped before their children, and continued after them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Process(NamedTuple):
    """A process, and its descriptor by which it is told apart from a later one with its number."""

    pid: int
    pidfd: int


def stop_descendants(pid: int, pidfd: int) -> None:
    """Stop all descendants of a process that is stopped. Those of a process without any take one look."""
    for child in _children(_Process(pid, pidfd)):
        _signal(child, signal.SIGSTOP)
        stop_descendants(*child)


def continue_descendants(pid: int, pidfd: int) -> None:
    """Continue all descendants of a process that is still stopped."""
    for child in _children(_Process(pid, pidfd)):
        continue_descendants(*child)
        _signal(child, signal.SIGCONT)


def _children(parent: _Process) -> Iterator[_Process]:
    known: set[int] = set()
    # A process is stopped a moment after its signal, and may start others until then.
    while further := _present_children(parent) - known:
        known |= further
        for number in sorted(further):
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(number)
                try:
                    # The number may have become that of another process before the descriptor was opened.
                    if number in _present_children(parent):
                        yield _Process(number, pidfd)
                finally:
                    os.close(pidfd)


def _present_children(parent: _Process) -> set[int]:
    numbers: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{parent.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                numbers.update(map(int, (thread / "children").read_text(encoding="ascii").split()))
    # If it has ended by now, they may be those of another process.
    return set() if _has_ended(parent) else numbers


def _has_ended(process: _Process) -> bool:
    poll = select.poll()
    poll.register(process.pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _signal(process: _Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(process.pidfd, number)
