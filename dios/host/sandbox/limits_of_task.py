"""Resource limits of one task: limits that the kernel enforces per process, without a control group.

Limits of several processes together are in ``dios.host.sandbox.cgroups``. Memory is limited as data
(RLIMIT_DATA), not as address space: mapped buffers and files are not the task's own memory, and a task of 64
MiB may map a blob of 64 GiB.
"""

from __future__ import annotations

import resource
from typing import Final

from dios import limits

_ZERO: Final = (0, 0)


def seconds_of(cpu_ms: int) -> int:
    """Return a CPU limit in the whole seconds that the kernel counts, rounded up."""
    return -(-cpu_ms // 1000)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def apply_to_zygote() -> None:
    """Set the limits that are the same for all tasks of a zygote, which inherit them from it."""
    _lower(resource.RLIMIT_NOFILE, limits.TASK_OPEN_FILES_MAX)
    resource.setrlimit(resource.RLIMIT_CORE, _ZERO)


def apply(*, memory_bytes: int, cpu_ms: int, processes: int, pure: bool) -> None:
    """Limit the calling process for good; 0 leaves memory and CPU unlimited. Raise ``OSError``.

    ``processes`` includes threads and applies to pure tasks only: an ordinary task shares its user's count
    with all other programs of the user.
    """
    if memory_bytes:
        _lower(resource.RLIMIT_DATA, memory_bytes)
    if cpu_ms:
        _lower(resource.RLIMIT_CPU, seconds_of(cpu_ms))
    if pure:
        _lower(resource.RLIMIT_NPROC, processes)
        # The stack of the first thread does not count as data. Where it is unlimited by default, a task
        # would get memory without a bound.
        _lower(resource.RLIMIT_STACK, limits.TASK_STACK_BYTES_MAX)
        resource.setrlimit(resource.RLIMIT_FSIZE, _ZERO)
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, _ZERO)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, _ZERO)


def tighten(pid: int, *, memory_bytes: int, cpu_ms: int, processes: int) -> None:
    """Lower the limits of a child that waits in the pool; 0 leaves a limit unchanged. Raise ``OSError``."""
    for kind, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, seconds_of(cpu_ms)),
        (resource.RLIMIT_NPROC, processes),
    ):
        if value:
            resource.prlimit(pid, kind, (value, value))
