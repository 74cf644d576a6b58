"""The counters of processor and kernel for one task, by perf_event_open(2) (§6.5.3, Table 6.4).

They give cycles, instructions and cache misses, from which CPI and IPMA are computed. Many virtual machines
refuse these counters. The reading has the reason then, and ``task_probe`` measures by procfs alone.

A counter follows a thread and all that it starts later. Reading a counter stops no task.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Self

from dios import limits
from dios.firmament.knowledge.samples import Metric
from dios.host.confinement import linux_calls
from dios.host.machine import procfs

_HARDWARE: Final = 0
_SOFTWARE: Final = 1
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQ")
"""The first version of perf_event_attr: type, size, config, period, kind of sample, format, flags, rest."""

_TIMES: Final = 0b11
"""Read with the times it was wanted and was running: there may be more counters than the processor has."""

_INHERIT: Final = 1 << 1
_EXCLUDE_KERNEL: Final = 1 << 5
_EXCLUDE_HYPERVISOR: Final = 1 << 6
_CLOSE_ON_EXEC: Final = 1 << 3
_READING: Final = struct.Struct("=QQQ")
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")


class Counter(Enum):
    """The counters, each with the kernel's type and number."""

    CYCLES = (_HARDWARE, 0)
    INSTRUCTIONS = (_HARDWARE, 1)
    LLC_REFERENCES = (_HARDWARE, 2)
    LLC_MISSES = (_HARDWARE, 3)
    TASK_CLOCK = (_SOFTWARE, 1)
    """Nanoseconds on a processor."""
    MIGRATIONS = (_SOFTWARE, 4)


METRICS: Final = {
    Counter.CYCLES: Metric.CYCLES,
    Counter.INSTRUCTIONS: Metric.INSTRUCTIONS,
    Counter.LLC_REFERENCES: Metric.LLC_REFERENCES,
    Counter.LLC_MISSES: Metric.LLC_MISSES,
    Counter.TASK_CLOCK: Metric.CPU_NS,
    Counter.MIGRATIONS: Metric.MIGRATIONS,
}
"""The metrics of samples that come from counters."""

Open = Callable[[Counter, int, bool], int]
"""Opens a counter of a thread, with or without the kernel's part; returns a descriptor or raises OSError."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The values counted since the counters were opened."""

    values: dict[Counter, int] = field(default_factory=dict)
    reasons: dict[Counter, str] = field(default_factory=dict)
    """The reasons for missing counters."""
    shares: dict[Counter, float] = field(default_factory=dict)
    """The share of the time (0 to 1) that each was running; below 1 the value is scaled up from it."""
    user_only: bool = False
    """True if the kernel's part of the work is not counted, because this process may not."""

    def metrics(self, before: CounterReading | None = None) -> dict[Metric, int]:
        """Return the values for a sample, since ``before`` or since the counters were opened."""
        old = before.values if before is not None else {}
        return {
            metric: max(self.values[counter] - old.get(counter, 0), 0)
            for counter, metric in METRICS.items()
            if counter in self.values
        }


def open_counter(counter: Counter, thread: int, user_only: bool) -> int:  # noqa: FBT001 - an Open
    """Return a descriptor that counts for a thread (0: the current thread) and all that it starts.

    Raises:
        OSError: the kernel refuses the counter.
    """
    flags = _INHERIT | (_EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR if user_only else 0)
    kind, number = counter.value
    attributes = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, number, 0, 0, _TIMES, flags, 0, 0, 0)
    return linux_calls.syscall("perf_event_open", attributes, thread, -1, -1, _CLOSE_ON_EXEC)


class TaskCounters:
    """The counters of one task; close it, or use it as a context.

    Args:
        pids: its processes. Threads and processes that these start later are counted too. Work before the
            counters were opened is not counted.
        wanted: the counters to open.
        proc: the path of procfs.
        opener: the function that opens a counter.
    """

    def __init__(
        self,
        pids: Iterable[int],
        wanted: Iterable[Counter] = tuple(Counter),
        proc: str | Path = "/proc",
        opener: Open = open_counter,
    ) -> None:
        self._open = opener
        self._fds: dict[Counter, list[int]] = {}
        self._reasons: dict[Counter, str] = {}
        self._user_only = False
        threads = _threads(Path(proc), pids)
        try:
            for counter in wanted:
                self._follow(counter, threads)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop counting. It may be called again."""
        for fds in self._fds.values():
            while fds:
                os.close(fds.pop())

    def read(self) -> CounterReading:
        """Return the values of all threads since the start; nothing after ``close``."""
        reading = CounterReading({}, dict(self._reasons), {}, self._user_only)
        for counter, fds in self._fds.items():
            total, wanted, ran = 0, 0, 0
            for fd in fds:
                value, enabled, running = _READING.unpack(os.read(fd, _READING.size))
                total += value * enabled // running if running else 0
                wanted += enabled
                ran += running
            if fds and wanted and not ran:
                reading.reasons[counter] = "all counters of the processor are in use by other programs"
            elif fds:
                reading.values[counter] = total
                reading.shares[counter] = ran / wanted if wanted else 1.0
        return reading

    def _follow(self, counter: Counter, threads: list[int]) -> None:
        fds = self._fds[counter] = []
        if not threads:
            self._reasons[counter] = "the task has no processes"
        for thread in threads:
            if sum(map(len, self._fds.values())) >= limits.COUNTER_DESCRIPTORS_MAX:
                self._refuse(counter, f"over {limits.COUNTER_DESCRIPTORS_MAX} counters for one task")
                return
            try:
                fd, self._user_only = _opened(self._open, counter, thread, user_only=self._user_only)
                fds.append(fd)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    # This thread has ended meanwhile; others may still run.
                    continue
                self._refuse(counter, reason(counter, error.errno or 0))
                return
        if threads and not fds:
            self._reasons[counter] = "the task has ended"

    def _refuse(self, counter: Counter, why: str) -> None:
        """Drop a counter: the value of a part of the threads would be wrong."""
        fds = self._fds[counter]
        while fds:
            os.close(fds.pop())
        self._reasons[counter] = why


def survey(opener: Open = open_counter) -> dict[Counter, str]:
    """Return for each counter why this machine refuses it; empty if it does not."""
    problems: dict[Counter, str] = {}
    for counter in Counter:
        try:
            os.close(_opened(opener, counter, 0, user_only=False)[0])
            problems[counter] = ""
        except OSError as error:
            problems[counter] = reason(counter, error.errno or 0)
    return problems


def reason(counter: Counter, number: int) -> str:
    """Return why the kernel refuses a counter, with the errno's name and a remedy."""
    name = errno.errorcode.get(number, str(number))
    if number in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
        cause = "the processor, or the virtual machine, has no such counter"
    elif number in {errno.EACCES, errno.EPERM}:
        cause = "not permitted: give CAP_PERFMON, or set kernel.perf_event_paranoid lower than " + (
            procfs.text(_PARANOID) or "it is"
        )
    elif number == errno.ENOSYS:
        cause = "this kernel has no counters, or a filter of system calls hides them"
    elif number in {errno.EMFILE, errno.ENFILE}:
        cause = "too many open files"
    else:
        cause = os.strerror(number)
    return f"{counter.name.lower()}: {name}: {cause}"


def _opened(opener: Open, counter: Counter, thread: int, *, user_only: bool) -> tuple[int, bool]:
    """Return a descriptor, and True if it does not count the kernel's part, which may not be permitted."""
    try:
        return opener(counter, thread, user_only), user_only
    except OSError as error:
        if user_only or error.errno not in {errno.EACCES, errno.EPERM}:
            raise
    return opener(counter, thread, True), True


def _threads(proc: Path, pids: Iterable[int]) -> list[int]:
    return [thread for pid in pids for thread in procfs.listed_numbers(proc / str(pid) / "task")]
