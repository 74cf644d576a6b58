"""Stops and continues the processes that the first process of a task has started, as a container does.

A process that is stopped removes no child that ended, so that the number of a child stays its own. So
parents are stopped before their children, and continued after them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def stop_descendants(pid: int) -> None:
    """Stop all descendants of a process that is stopped. Those of a process without any take one look."""
    for child in _children(pid):
        _signal(child, signal.SIGSTOP)
        stop_descendants(child)


def continue_descendants(pid: int) -> None:
    """Continue all descendants of a process that is still stopped."""
    for child in _children(pid):
        continue_descendants(child)
        _signal(child, signal.SIGCONT)


def _children(pid: int) -> Iterator[int]:
    known: set[int] = set()
    # A process is stopped a moment after its signal, and may start others until then.
    while further := _present_children(pid) - known:
        known |= further
        yield from sorted(further)


def _present_children(pid: int) -> set[int]:
    numbers: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                numbers.update(map(int, (thread / "children").read_text(encoding="ascii").split()))
    return numbers


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
