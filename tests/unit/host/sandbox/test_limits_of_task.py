from __future__ import annotations

import resource

import pytest

from dios import limits
from dios.host.sandbox import limits_of_task
from tests.support.node.subprocess_lines import lines_of

APPLIED = """
import resource, sys
from dios.host.sandbox import limits_of_task
limits_of_task.apply_to_zygote()
limits_of_task.apply(memory_bytes=%d, cpu_ms=%d, processes=%d, pure=%s)
for name in sys.argv[1:]:
    print(*resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
"""
MEMORY = 128 * limits.MIB


def applied(*names: str, memory: int = MEMORY, cpu_ms: int = 1500, pure: bool = True) -> list[str]:
    """The kernel's limits of a process that limited itself, soft and hard, by name."""
    return lines_of(APPLIED % (memory, cpu_ms, 7, pure), *names)


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
from dios.host.sandbox import limits_of_task
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
limits_of_task.apply(memory_bytes=1 << 40, cpu_ms=0, processes=5, pure=True)
print(*resource.getrlimit(resource.RLIMIT_DATA))
"""
    assert lines_of(program) == [f"{1 << 30} {1 << 30}"]
