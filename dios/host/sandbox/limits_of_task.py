"""Resource limits of one task: what the kernel counts for a process, without a cgroup.

Not for: limits over several processes (``dios.host.sandbox.cgroups``). Memory is limited as data
(RLIMIT_DATA), not as address space: mapped buffers and files are not the task's own memory, and a 64 GiB
blob may be mapped by a task of 64 MiB.
"""

from __future__ import annotations

import resource
from typing import Final

from dios import limits

_ZERO: Final = (0, 0)


def seconds_of(cpu_ms: int) -> int:
    """The kernel counts whole seconds; a started one is given whole."""
    return -(-cpu_ms // 1000)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def apply_to_zygote() -> None:
    """What is the same for every task of a zygote: it limits itself, and children inherit it."""
    _lower(resource.RLIMIT_NOFILE, limits.TASK_OPEN_FILES_MAX)
    resource.setrlimit(resource.RLIMIT_CORE, _ZERO)


def apply(*, memory_bytes: int, cpu_ms: int, processes: int, pure: bool) -> None:
    """Limit the calling process for good; 0 leaves memory and CPU as they are. Raises ``OSError``.

    ``processes`` counts threads too, and holds for a pure task only: an ordinary task shares its
    user's count with everything else that the user runs.
    """
    if memory_bytes:
        _lower(resource.RLIMIT_DATA, memory_bytes)
    if cpu_ms:
        _lower(resource.RLIMIT_CPU, seconds_of(cpu_ms))
    if pure:
        _lower(resource.RLIMIT_NPROC, processes)
        # The first thread's stack is not counted as data: where people's shells leave it unlimited, it
        # would be memory without a bound.
        _lower(resource.RLIMIT_STACK, limits.TASK_STACK_BYTES_MAX)
        resource.setrlimit(resource.RLIMIT_FSIZE, _ZERO)
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, _ZERO)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, _ZERO)


def tighten(pid: int, *, memory_bytes: int, cpu_ms: int, processes: int) -> None:
    """Lower the limits of a child that waits in the pool; 0 leaves one as it is. Raises ``OSError``."""
    for kind, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, seconds_of(cpu_ms)),
        (resource.RLIMIT_NPROC, processes),
    ):
        if value:
            resource.prlimit(pid, kind, (value, value))
