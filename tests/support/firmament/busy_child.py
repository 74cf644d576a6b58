"""A process that computes when it is told to, and waiting for what it does.

Not for: processes of nodes (``node_process``).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PATIENCE_S = 30
BUSY = "import sys; sys.stdin.readline(); [sum(range(1000)) for _ in iter(int, 1)]"
"""A program that computes for ever after a line."""


@contextmanager
def idle_child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has started, waits for a line and then computes for ever; killed at the end."""
    program = [sys.executable, "-c", f"print(flush=True); {BUSY}"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def begin(child: subprocess.Popen[bytes]) -> None:
    """Let it compute."""
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


def until(seconds: float = PATIENCE_S) -> Iterator[None]:
    """Turns of a loop that waits for something, until it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    pytest.fail(f"it did not happen within {seconds} s")
