from __future__ import annotations

import signal

import pytest

from dios.host.process.task_process import ProcessLimits, _explain
from dios.host.process.zygote_messages import EXCEPTION_STATUS, LOCKDOWN_FAILED_STATUS, ChildExited
from dios.wire.types import Cause

BOUNDS = ProcessLimits(memory_bytes=1 << 30, cpu_ms=2000, processes=16)


@pytest.mark.parametrize(
    ("status", "cpu_ms", "asked", "oom", "cause"),
    [
        (0, 0, False, 0, Cause.EXITED),
        (9 << 8, 0, True, 0, Cause.EXITED),
        (EXCEPTION_STATUS << 8, 0, False, 0, Cause.EXCEPTION),
        (LOCKDOWN_FAILED_STATUS << 8, 0, False, 0, Cause.SPAWN),
        (signal.SIGSYS, 0, True, 0, Cause.SANDBOX),
        (signal.SIGKILL, 0, True, 0, Cause.KILLED),
        (signal.SIGKILL, 0, True, 1, Cause.KILLED),
        (signal.SIGKILL, 0, False, 1, Cause.MEMORY),
        (signal.SIGKILL, 2001, False, 0, Cause.CPU),
        (signal.SIGXCPU, 2001, False, 0, Cause.CPU),
        (signal.SIGKILL, 100, False, 0, Cause.SIGNAL),
        (signal.SIGSEGV, 2001, False, 0, Cause.SIGNAL),
        (signal.SIGRTMIN + 3, 0, False, 0, Cause.SIGNAL),
    ],
)
def test_each_way_to_end_has_its_cause(
    status: int,
    cpu_ms: int,
    asked: bool,  # noqa: FBT001 - a table's column
    oom: int,
    cause: Cause,
) -> None:
    """Status, CPU time, our own kill and the group's count decide the cause, in that order of certainty."""
    end = _explain(ChildExited(1, status, cpu_ms), BOUNDS, kill_asked=asked, oom_kills=oom)
    assert end.cause is cause
    assert bool(end.detail) == (status != 0)
    assert end.signal == (status if status < 128 else 0)


def test_the_refused_call_is_named_when_the_kernel_told() -> None:
    """A sandbox kill says which call it was, and what to do instead."""
    end = _explain(ChildExited(1, signal.SIGSYS, 0, "bpf"), BOUNDS, kill_asked=False, oom_kills=0)
    assert "bpf" in end.detail
    assert "limbo" in end.detail
