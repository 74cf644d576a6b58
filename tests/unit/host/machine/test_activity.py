"""A process that is starved or stopped is not taken for one that hangs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dios.host.machine.activity import IdleWatch

SAMPLES = 3
_WAIT = "import os, signal; os.write(1, b'x'); signal.pause()"
_SPIN = "import os; os.write(1, b'x')\nwhile True: pass"
_CHILD_SPINS = f"import os, signal, sys; os.fork() or exec({_SPIN!r}); signal.pause()"


@contextmanager
def session(code: str) -> Iterator[int]:
    """The number of a session that runs this code, and has begun to."""
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def in_state(pid: int, states: str) -> None:
    """Return once the process is in one of these states."""
    while True:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - opened again and again
            if file.read().rpartition(")")[2].split()[0] in states:
                return
        select.select([], [], [], 0.001)


def is_ever_stuck(watch: IdleWatch) -> bool:
    """Whether more samples than the limit find the session stuck."""
    return True in [watch.is_stuck() for _ in range(3 * SAMPLES)]


def test_a_process_that_only_waits_is_stuck() -> None:
    """Not at the first sample, which has no other to compare with."""
    with session(_WAIT) as number:
        in_state(number, "S")
        watch = IdleWatch(number, SAMPLES)
        assert [watch.is_stuck() for _ in range(SAMPLES + 1)] == [False] * SAMPLES + [True]


@pytest.mark.parametrize("code", [_SPIN, _CHILD_SPINS])
def test_a_process_that_computes_is_not_stuck(code: str) -> None:
    """Also if it is a child that computes, and also if it waits for a processor."""
    with session(code) as number:
        assert not is_ever_stuck(IdleWatch(number, SAMPLES))


def test_a_process_that_was_stopped_is_not_stuck() -> None:
    """Whoever stopped it may let it continue."""
    with session(_WAIT) as number:
        os.kill(number, signal.SIGSTOP)
        in_state(number, "T")
        assert not is_ever_stuck(IdleWatch(number, SAMPLES))
