"""Resource limits of one task: limits that the kernel enforces per process, without a control group.

Limits of several processes together are in ``dios.host.confinement.cgroups``. Memory is limited as data
(RLIMIT_DATA), not as address space: mapped buffers and files are not the task's own memory, and a task of 64
MiB may map a blob of 64 GiB.

RLIMIT_DATA bounds ordinary programs. A hostile one can keep memory that it does not count: pages that are no
longer writable, grown stacks, and page tables. So without a control group the daemon also reads the memory
that the task uses (``used_bytes``) and ends it above its limit, and what the kernel keeps for descriptors is
bounded by their number.
"""

from __future__ import annotations

import functools
import os
import resource
from typing import Final, Protocol

from dios import limits

_ZERO: Final = (0, 0)
_KERNEL_BYTES_PER_FILE: Final = 2 * limits.KIB
_LAST_PIECE_BYTES: Final = 48 * limits.KIB
"""The piece that enters the buffer of a socket when little room is left."""
_ENDED_FIRST: Final = "1000"
"""The largest ``oom_score_adj``; that of other tasks is 500."""
_OWN: Final = frozenset({b"RssAnon:", b"VmSwap:", b"VmPTE:"})


class LimitsOfTask(Protocol):
    """The limits of a new task; 0 means no limit."""

    @property
    def memory_bytes(self) -> int:
        """The memory of all its processes."""

    @property
    def cpu_ms(self) -> int:
        """The processor time of its first process."""

    @property
    def processes(self) -> int:
        """The number of its processes."""


def seconds_of(cpu_ms: int) -> int:
    """Return a CPU limit in the whole seconds that the kernel counts, rounded up."""
    return -(-cpu_ms // 1000)


def _lower(kind: int, value: int) -> None:
    """Set a limit of the calling process to at most ``value``.

    The zygote may lower it at the same time (``tighten``): then the kernel refuses the greater one.
    """
    while True:
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (bound, bound))
        except (ValueError, OSError):  # Python reports EPERM as ValueError
            if resource.getrlimit(kind)[1] == hard:
                raise
        else:
            return


def apply_to_zygote(*, pure: bool) -> None:
    """Set the limits that are the same for all tasks of a zygote, which inherit them from it.

    The zygote's own limit of processes becomes that of the user namespaces of its pure tasks: all of them,
    with the other processes of the user, leave the machine half of its process numbers.
    """
    _lower(resource.RLIMIT_NOFILE, limits.TASK_OPEN_FILES_MAX)
    resource.setrlimit(resource.RLIMIT_CORE, _ZERO)
    if pure:
        _lower(resource.RLIMIT_NPROC, process_numbers() // 2)
        bytes_of_full_socket()  # its tasks cannot read it


def give_memory_back_first(pid: int) -> None:
    """Let the kernel end a process before all others when the machine has no memory left.

    This is a preference: only root can set it for a confined process. Processes that it starts inherit it.
    """
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - no pathlib here
            file.write(_ENDED_FIRST)
    except OSError:
        return


def process_numbers() -> int:
    """Return the number of processes and threads that this machine can have."""
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:  # noqa: PTH123 - no pathlib here
            return int(file.read())
    except OSError:
        return limits.PROCESS_NUMBERS_DEFAULT


def apply(*, memory_bytes: int, cpu_ms: int) -> None:
    """Limit the calling process for good; 0 leaves memory and CPU unlimited. Raise ``OSError``."""
    if memory_bytes:
        _lower(resource.RLIMIT_DATA, memory_bytes)
    if cpu_ms:
        _lower(resource.RLIMIT_CPU, seconds_of(cpu_ms))


def apply_to_pure(*, memory_bytes: int, processes: int, memory_is_counted: bool, file_bytes: int = 0) -> None:
    """Limit what only a pure task need not share with other programs of its user. Raise ``OSError``.

    ``processes`` includes threads. ``file_bytes`` is the greatest size of a file that it writes.
    ``memory_is_counted`` means that a control group limits all memory of the task, including the kernel's
    memory for its descriptors.
    """
    _lower(resource.RLIMIT_NPROC, processes)
    # The stack of the first thread does not count as data. Where it is unlimited by default, a task would get
    # memory without a bound.
    _lower(resource.RLIMIT_STACK, limits.TASK_STACK_BYTES_MAX)
    # Waiting signals count for all processes of the user together.
    _lower(resource.RLIMIT_SIGPENDING, limits.TASK_SIGNALS_MAX)
    _lower(resource.RLIMIT_FSIZE, file_bytes)
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, _ZERO)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, _ZERO)
    if not memory_is_counted and memory_bytes:
        _lower(resource.RLIMIT_NOFILE, descriptors_for(memory_bytes))
        _lower(resource.RLIMIT_AS, memory_bytes + limits.TASK_MAPPED_BYTES_MAX)


def apply_to_template(*, memory_bytes: int, memory_is_counted: bool) -> None:
    """Limit the process of a template, from which sessions are forked. Raise ``OSError``.

    A session may get more memory than its template, and a hard limit can never be raised. So these limits are
    soft: they end honest mistakes. A hostile module can raise them up to those of the zygote. It is held by
    the control group, or by the daemon, which reads its memory.
    """
    _soften(resource.RLIMIT_DATA, memory_bytes)
    _soften(resource.RLIMIT_FSIZE, memory_bytes)
    if not memory_is_counted:
        _soften(resource.RLIMIT_NOFILE, descriptors_for(memory_bytes))
        _soften(resource.RLIMIT_AS, memory_bytes + limits.TASK_MAPPED_BYTES_MAX)
    _lower(resource.RLIMIT_STACK, limits.TASK_STACK_BYTES_MAX)
    _lower(resource.RLIMIT_SIGPENDING, limits.TASK_SIGNALS_MAX)
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, _ZERO)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, _ZERO)


def _soften(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


@functools.cache
def bytes_of_full_socket() -> int:
    """Return the memory that the kernel keeps for a socket with a full buffer, at most.

    DESCRIPTOR_KERNEL_BYTES is that with the kernel's own settings. The owner of the machine may have set
    larger buffers (``net.core.wmem_default``), and a task cannot make its own smaller.
    """
    try:
        with open("/proc/sys/net/core/wmem_default", encoding="ascii") as file:  # noqa: PTH123 - no pathlib here
            return max(int(file.read()) + _LAST_PIECE_BYTES, limits.DESCRIPTOR_KERNEL_BYTES)
    except OSError:
        return limits.DESCRIPTOR_KERNEL_BYTES


def descriptors_for(memory_bytes: int) -> int:
    """Return the number of descriptors of a task whose memory no control group counts.

    All of them as full sockets together keep about as much as the task's memory limit at most.
    """
    number = memory_bytes // bytes_of_full_socket()
    return min(max(number, limits.TASK_OPEN_FILES_MIN), limits.TASK_OPEN_FILES_UNCOUNTED_MAX)


def tighten(pid: int, *, memory_bytes: int, cpu_ms: int, processes: int, memory_is_counted: bool) -> None:
    """Lower the limits of a child that waits in the pool; 0 leaves a limit unchanged. Raise ``OSError``."""
    uncounted = 0 if memory_is_counted else memory_bytes
    for kind, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, seconds_of(cpu_ms)),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, uncounted and descriptors_for(uncounted)),
        (resource.RLIMIT_AS, uncounted and uncounted + limits.TASK_MAPPED_BYTES_MAX),
    ):
        if value:
            hard = resource.prlimit(pid, kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(pid, kind, (bound, bound))


def used_bytes(pid: int) -> int:
    """Return the memory that a process has for itself alone: private pages, swapped ones, and page tables.

    Return 0 for a process that has ended. Raise ``PermissionError`` if this machine hides it (hidepid).
    """
    try:
        own_bytes = _own_bytes(f"/proc/{pid}/status")
        if own_bytes is not None:
            return own_bytes
        # The first thread has ended. Other threads may go on, and have the same memory.
        threads = (_own_bytes(f"/proc/{pid}/task/{name}/status") for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - no pathlib in the zygote
        return next((size for size in threads if size is not None), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _own_bytes(path: str) -> int | None:
    """Return the private memory in a ``status`` file, None if it shows none. Raise ``OSError``."""
    with open(path, "rb") as file:  # noqa: PTH123 - the zygote loads no pathlib
        rows = [line.split() for line in file]
    sizes = [int(row[1]) * limits.KIB for row in rows if row and row[0] in _OWN]
    return sum(sizes) if sizes else None


def bytes_of_folder(folder: int) -> int:
    """Return the memory that the files of a private folder take, by a descriptor of it. Raise ``OSError``."""
    usage = os.fstatvfs(folder)
    files = usage.f_files - usage.f_ffree
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize + files * _KERNEL_BYTES_PER_FILE
