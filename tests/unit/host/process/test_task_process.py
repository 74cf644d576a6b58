from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from dios.host.confinement.cgroups import ControlGroup, Hierarchy, MemoryEvents
from dios.host.containers.entry_points import EXCEPTION_STATUS
from dios.host.process.task_process import Exit, ProcessLimits, TaskProcess, _explain
from dios.host.process.zygote_messages import LOCKDOWN_FAILED_STATUS, ChildExited
from dios.wire.types import Brand, Cause

BOUNDS = ProcessLimits(memory_bytes=1 << 30, cpu_ms=2000, processes=16)


def explain(
    message: ChildExited,
    *,
    asked: bool = False,
    over_memory: bool = False,
    events: MemoryEvents | None = None,
) -> Exit:
    """The end of a process with these bounds."""
    return _explain(message, BOUNDS, kill_asked=asked, over_memory=over_memory, memory_events=events)


@pytest.mark.parametrize(
    ("status", "cpu_ms", "asked", "events", "cause"),
    [
        (0, 0, False, None, Cause.EXITED),
        (9 << 8, 0, True, None, Cause.EXITED),
        (EXCEPTION_STATUS << 8, 0, False, None, Cause.EXCEPTION),
        (LOCKDOWN_FAILED_STATUS << 8, 0, False, None, Cause.SPAWN),
        (signal.SIGSYS, 0, True, None, Cause.SANDBOX),
        (signal.SIGKILL, 0, True, None, Cause.KILLED),
        (signal.SIGKILL, 0, True, MemoryEvents(1, 1), Cause.KILLED),
        (signal.SIGKILL, 0, False, MemoryEvents(1, 1), Cause.MEMORY),
        (signal.SIGKILL, 0, False, MemoryEvents(1, 0), Cause.SIGNAL),
        (signal.SIGKILL, 0, False, MemoryEvents(0, 4), Cause.SIGNAL),
        (signal.SIGKILL, 2001, False, None, Cause.CPU),
        (signal.SIGXCPU, 2001, False, None, Cause.CPU),
        (signal.SIGKILL, 100, False, None, Cause.SIGNAL),
        (signal.SIGSEGV, 2001, False, None, Cause.SIGNAL),
        (signal.SIGRTMIN + 3, 0, False, None, Cause.SIGNAL),
    ],
)
def test_each_way_to_end_has_its_cause(
    status: int,
    cpu_ms: int,
    asked: bool,  # noqa: FBT001 - a table's column
    events: MemoryEvents | None,
    cause: Cause,
) -> None:
    """Status, CPU time, our own kill and the group's count decide the cause, in that order of certainty."""
    end = explain(ChildExited(1, status, cpu_ms), asked=asked, events=events)
    assert end.cause is cause
    assert bool(end.detail) == (status != 0)
    assert end.signal == (status if status < 128 else 0)


def test_the_refused_call_is_named_when_the_kernel_told() -> None:
    """A sandbox kill says which call it was, and what to do instead."""
    end = explain(ChildExited(1, signal.SIGSYS, 0, "bpf"))
    assert "bpf" in end.detail
    assert "limbo" in end.detail


def test_a_node_that_watches_memory_knows_the_cause_without_a_group() -> None:
    """The node measured more than the limit before it ended the process."""
    end = explain(ChildExited(1, signal.SIGKILL, 0), over_memory=True)
    assert (end.cause, str(BOUNDS.memory_bytes) in end.detail) == (Cause.MEMORY, True)


def test_a_container_that_did_not_report_the_end_of_its_task_is_explained() -> None:
    """Its runtime failed or was ended: the exit status is none that a program has chosen."""
    ended = ChildExited(1, 2 << 8, 0, has_ended=False)
    end = explain(ended)
    assert (end.cause, end.signal) == (Cause.SIGNAL, signal.SIGKILL)
    assert "its runtime failed, or its processes reached their limit" in end.detail
    assert explain(ended, asked=True).cause is Cause.KILLED
    assert explain(ended, events=MemoryEvents(1, 1)).cause is Cause.MEMORY
    failed = ChildExited(1, LOCKDOWN_FAILED_STATUS << 8, 0, has_ended=False)
    assert explain(failed).cause is Cause.SPAWN


@pytest.mark.parametrize(
    ("events", "known"),
    [
        (None, "The kernel's log lists the processes"),
        (MemoryEvents(0, 0), "counts no process that was ended for lack of memory"),
        (MemoryEvents(1, 0), "the kernel ended it for lack of memory, below its own limit"),
    ],
)
def test_the_signal_sigkill_is_explained_by_counts_alone(events: MemoryEvents | None, known: str) -> None:
    """Lack of memory is a cause where the kernel counted such an end, and nowhere else."""
    assert known in explain(ChildExited(1, signal.SIGKILL, 0), events=events).detail


async def test_the_time_of_a_container_is_that_of_its_group(tmp_path: Path) -> None:
    """Its first process has waited for no other when it is killed, and the group knows all of them."""
    ours, theirs = trio.socket.socketpair()
    reading, writing = os.pipe()
    os.close(writing)
    process = TaskProcess(1, Brand.PURE, BOUNDS, ours, reading)
    process.group = ControlGroup([(tmp_path, Hierarchy(tmp_path, 1, frozenset({"cpuacct"})))])
    (tmp_path / "cpuacct.usage").write_text("2100000000\n", encoding="ascii")
    process.ended(ChildExited(1, signal.SIGKILL, 9))
    assert process.exit is not None
    assert (process.exit.cause, process.exit.cpu_ms) == (Cause.CPU, 2_100)
    process.close()
    theirs.close()


@pytest.mark.parametrize(
    ("own_kernel", "status", "kills", "cause"),
    [
        (True, 1 << 8, 1, Cause.MEMORY),
        (True, 1 << 8, 0, Cause.EXITED),
        (True, 0, 1, Cause.EXITED),
        (False, 1 << 8, 1, Cause.EXITED),
    ],
)
async def test_a_kernel_of_which_a_process_was_killed_ends_its_task_with_any_status(
    tmp_path: Path,
    own_kernel: bool,  # noqa: FBT001 - a table's column
    status: int,
    kills: int,
    cause: Cause,
) -> None:
    """Memory is the cause then. In other containers a program may have been killed long before."""
    ours, theirs = trio.socket.socketpair()
    theirs.close()
    reading, writing = os.pipe()
    os.close(writing)
    process = TaskProcess(1, Brand.PURE, BOUNDS, ours, reading)
    process.has_own_kernel = own_kernel
    process.group = ControlGroup([(tmp_path, Hierarchy(tmp_path, 2, frozenset({"memory"})))])
    (tmp_path / "memory.events").write_text(f"max 5\noom 1\noom_kill {kills}\n", encoding="ascii")
    process.ended(ChildExited(1, status, 9))
    process.close()
    assert process.exit is not None
    assert process.exit.cause is cause
