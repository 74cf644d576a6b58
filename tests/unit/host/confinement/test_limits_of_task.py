from __future__ import annotations

import errno
import mmap
import os
import resource

import pytest

from dios import limits
from dios.host.confinement import limits_of_task
from tests.support.node.subprocess_lines import lines_of

APPLIED = """
import resource, sys
from dios.host.confinement import limits_of_task
limits_of_task.apply_to_zygote(pure=%s)
memory, processes = %d, %d
limits_of_task.apply(memory_bytes=memory, cpu_ms=%d)
if %s:
    limits_of_task.apply_to_pure(memory_bytes=memory, processes=processes, memory_is_counted=%s)
for name in sys.argv[1:]:
    print(*resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
"""
SIGNALLED = """
import ctypes, os, signal
from dios import limits
from dios.host.confinement import limits_of_task
limits_of_task.apply_to_zygote(pure=True)
limits_of_task.apply(memory_bytes=128 << 20, cpu_ms=1500)
limits_of_task.apply_to_pure(memory_bytes=128 << 20, processes=7, memory_is_counted=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
libc = ctypes.CDLL(None, use_errno=True)
sent = 0
while sent <= 2 * limits.TASK_SIGNALS_MAX and not libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None):
    sent += 1
print(sent)
print(ctypes.get_errno())
"""
MEMORY = 128 * limits.MIB


def applied(
    *names: str, memory: int = MEMORY, cpu_ms: int = 1500, pure: bool = True, counted: bool = True
) -> list[str]:
    """The kernel's limits of a process that limited itself, soft and hard, by name."""
    return lines_of(APPLIED % (pure, memory, 7, cpu_ms, pure, counted), *names)


def test_a_pure_task_is_limited_in_everything_that_it_could_take() -> None:
    """Memory, CPU, threads, descriptors and stack have a bound; files, cores and queues none left."""
    names = ("DATA", "CPU", "NPROC", "NOFILE", "STACK", "FSIZE", "CORE", "MSGQUEUE", "MEMLOCK")
    data, cpu, processes, descriptors, stack, *nothing = applied(*names)
    assert data == f"{MEMORY} {MEMORY}"
    assert cpu == "2 2"
    assert processes == "7 7"
    assert int(descriptors.split()[1]) <= limits.TASK_OPEN_FILES_MAX
    assert 0 < int(stack.split()[1]) <= limits.TASK_STACK_BYTES_MAX
    assert nothing == ["0 0"] * len(nothing)


def test_waiting_signals_have_a_bound() -> None:
    """The kernel keeps no more signals for a pure task than its limit; a limbo task has its user's."""
    assert applied("SIGPENDING") == [f"{limits.TASK_SIGNALS_MAX} {limits.TASK_SIGNALS_MAX}"]
    before = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    assert applied("SIGPENDING", pure=False) == [f"{before[0]} {before[1]}"]
    sent, why = lines_of(SIGNALLED)
    assert 0 < int(sent) <= limits.TASK_SIGNALS_MAX
    assert int(why) == errno.EAGAIN


def test_without_a_control_group_more_has_a_bound() -> None:
    """The kernel's memory behind descriptors, and page tables, are bounded by other limits then."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert applied("AS") == [f"{before[0]} {before[1]}"]
    descriptors, space = applied("NOFILE", "AS", counted=False)
    expected = MEMORY // limits.DESCRIPTOR_KERNEL_BYTES
    assert descriptors == f"{expected} {expected}"
    assert space == " ".join([str(MEMORY + limits.TASK_MAPPED_BYTES_MAX)] * 2)


@pytest.mark.parametrize(
    ("memory", "descriptors"),
    [
        (limits.TASK_MEMORY_BYTES_MIN, 256),
        (limits.MIB, limits.TASK_OPEN_FILES_MIN),
        (limits.TASK_MEMORY_BYTES_MAX, limits.TASK_OPEN_FILES_UNCOUNTED_MAX),
    ],
)
def test_descriptors_follow_the_memory_limit(memory: int, descriptors: int) -> None:
    """A task has a useful number of descriptors whatever its limit, and no more than the uncounted bound."""
    assert limits_of_task.descriptors_for(memory) == descriptors


def test_where_sockets_have_larger_buffers_a_task_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps more for each: their number follows, down to the least that a task can use."""
    assert limits_of_task.bytes_of_full_socket() >= limits.DESCRIPTOR_KERNEL_BYTES
    monkeypatch.setattr(limits_of_task, "bytes_of_full_socket", lambda: limits.MIB)
    assert limits_of_task.descriptors_for(1_000 * limits.MIB) == 1_000
    assert limits_of_task.descriptors_for(limits.TASK_MEMORY_BYTES_MIN) == limits.TASK_OPEN_FILES_MIN


def test_used_memory_is_private_memory() -> None:
    """Written private pages are counted; an ended process has none."""
    before = limits_of_task.used_bytes(os.getpid())
    size = 16 * limits.MIB
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:
        kept[:] = b"x" * size
        assert limits_of_task.used_bytes(os.getpid()) - before > size // 2
    assert limits_of_task.used_bytes(2**22 + 1) == 0


def test_all_pure_tasks_together_leave_process_numbers() -> None:
    """The zygote of pure tasks, whose limit their namespaces have, takes half of the numbers at most."""
    program = """
import resource
from dios.host.confinement import limits_of_task
limits_of_task.apply_to_zygote(pure=True)
print(resource.getrlimit(resource.RLIMIT_NPROC)[0] <= limits_of_task.process_numbers() // 2)
"""
    assert lines_of(program) == ["True"]


def test_a_limbo_task_keeps_what_ordinary_programs_need() -> None:
    """It shares its user's count of processes, and may write files."""
    before = (resource.getrlimit(resource.RLIMIT_NPROC), resource.getrlimit(resource.RLIMIT_FSIZE))
    said = applied("NPROC", "FSIZE", pure=False)
    assert said == [f"{soft} {hard}" for soft, hard in before]


def test_no_limit_asked_for_leaves_it_as_it_is() -> None:
    """0 is no limit, for memory and for CPU."""
    before = (resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_CPU))
    said = applied("DATA", "CPU", memory=0, cpu_ms=0)
    assert said == [f"{soft} {hard}" for soft, hard in before]


@pytest.mark.parametrize(("cpu_ms", "seconds"), [(0, 0), (1, 1), (1000, 1), (1001, 2)])
def test_a_started_second_is_given_whole(cpu_ms: int, seconds: int) -> None:
    """The kernel counts whole seconds; nobody gets less than was asked for."""
    assert limits_of_task.seconds_of(cpu_ms) == seconds


def test_limits_are_only_ever_lowered() -> None:
    """More than the hard limit is the hard limit, without an error."""
    program = """
import resource
from dios.host.confinement import limits_of_task
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
limits_of_task.apply(memory_bytes=1 << 40, cpu_ms=0)
print(*resource.getrlimit(resource.RLIMIT_DATA))
"""
    assert lines_of(program) == [f"{1 << 30} {1 << 30}"]


def test_a_limit_that_the_zygote_lowers_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a limit and its change: the lower limit holds, and the child goes on."""
    hards = [64, 256]  # what the process has, and what it had when it looked first

    def getrlimit(_: int) -> tuple[int, int]:
        return (hards[-1], hards.pop() if len(hards) > 1 else hards[0])

    def setrlimit(_: int, bounds: tuple[int, int]) -> None:
        if bounds[1] > hards[0]:
            raise ValueError
        hards[0] = bounds[1]

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    limits_of_task.apply(memory_bytes=128, cpu_ms=0)
    assert hards == [64]
