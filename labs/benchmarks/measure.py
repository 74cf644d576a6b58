"""Clocks, processors and memory: the methods of measurement of all sections."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

CLIENT_CPU: Final = 0
SERVER_CPU: Final = 1
_TICK_SECONDS: Final = 1 / os.sysconf("SC_CLK_TCK")

clock = time.perf_counter_ns
"""CLOCK_MONOTONIC in nanoseconds, equal in all processes of the machine."""


def cpus() -> list[int]:
    """Return the processors that this run may use, in order."""
    return sorted(os.sched_getaffinity(0))


def pin(which: int, pid: int = 0) -> None:
    """Bind all threads of a process to one processor, counted among those of this run."""
    usable = ALL_CPUS
    chosen = {usable[which % len(usable)]}
    threads = [0] if not pid else [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    for thread in threads:
        os.sched_setaffinity(thread, chosen)


def unpin() -> None:
    """Let this process run on all processors again."""
    os.sched_setaffinity(0, ALL_CPUS)


ALL_CPUS: Final = cpus()


# -- calls ------------------------------------------------------------------------------------------
def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    calls: int = 200,
    between: Callable[[str], object] = lambda _: None,
) -> dict[str, float]:
    """Return the median microseconds of one call of each contender, measured in turns under equal conditions.

    ``between`` is called, unmeasured, with the name of a contender after each of its turns.
    """
    samples: dict[str, list[int]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds + 1):
            for name, call in contenders.items():
                taken = _turn(call, calls)
                if turn:
                    samples[name] += taken
                between(name)
    finally:
        gc.enable()
    return {name: statistics.median(taken) / 1000 for name, taken in samples.items()}


def _turn(call: Callable[[], object], calls: int) -> list[int]:
    taken: list[int] = []
    append = taken.append
    now = clock
    for _ in range(calls):
        before = now()
        call()
        append(now() - before)
    return taken


def once(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    before = clock()
    call()
    return (clock() - before) / 1e9


def median(values: list[float]) -> float:
    """Return the median, or NaN if there are no values."""
    return statistics.median(values) if values else float("nan")


# -- processes --------------------------------------------------------------------------------------
def descendants(root: int) -> list[int]:
    """Return all processes below ``root``, without itself."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    pids: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        pids += below
        queue += below
    return pids


def oldest(pids: Iterable[int]) -> int:
    """Return the process that was started first, 0 if none of them lives. Numbers are used again."""
    started: list[tuple[int, int]] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            started.append((int(stat.rpartition(")")[2].split()[19]), pid))
    return min(started, default=(0, 0))[1]


def pss_kib(pid: int) -> int:
    """Return the proportional memory of a process in KiB, or 0 if it cannot be read."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def tree_pss_mb(root: int) -> float:
    """Return the proportional memory of a process and its descendants, in MB of a million bytes."""
    return sum(pss_kib(pid) for pid in [root, *descendants(root)]) * 1024 / 1e6


def tree_cpu_seconds(root: int) -> float:
    """Return the processor seconds of a process and its descendants, with the children they waited for."""
    total = 0.0
    for pid in [root, *descendants(root)]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total * _TICK_SECONDS


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process without its children, those of ended threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS


class PeakMemory:
    """A thread that measures the peak proportional memory of a process tree; MB of a million bytes.

    It cannot measure its own process, because each sample costs memory and stops the process.
    """

    def __init__(self, root: int, period_s: float = 0.25) -> None:
        self._root: Final = root
        self._period_s: Final = period_s
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._period_s):
            self.peak_mb = max(self.peak_mb, tree_pss_mb(self._root))


@contextlib.contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """Run ``work`` in a child process; kill it if the context ends before it."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
