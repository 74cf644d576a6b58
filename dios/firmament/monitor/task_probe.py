"""Measurements of the tasks of this machine by procfs (§6.5.3, Table 6.4).

The coordinator reads its tasks now and then and makes samples of the readings. The processor's counters are
in ``counters``, the load of the whole machine in ``machine_load``.

A reading takes up to a tenth of a millisecond for each thread. A process that has ended meanwhile is not an
error; its work stays counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dios import limits
from dios.firmament.knowledge.samples import Metric, derived
from dios.firmament.monitor.counters import Counter, CounterReading
from dios.host.machine import procfs

_NS: Final = 1_000_000_000
_TICK_NS: Final = _NS // os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STAT_FIELDS: Final = 22
_TOO_MANY: Final = "the task has too many processes or threads; some were not measured"
_ENDED: Final = frozenset("ZX")
"""The kernel's letters for the states zombie and dead."""

_SWITCHES: Final = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A row of Table 6.4: a metric of the thesis, and the metric here that corresponds to it."""

    name: str
    kind: str
    """Sampled while the task runs, or an aggregate once it has ended."""
    source: str
    metric: Metric
    counters: tuple[Counter, ...] = ()
    """The counters without which it is not known."""


_COUNTED: Final = (Counter.CYCLES, Counter.INSTRUCTIONS, Counter.LLC_REFERENCES, Counter.LLC_MISSES)
_CYCLES, _INSTRUCTIONS, _REFERENCES, _MISSES = _COUNTED

TABLE_6_4: Final = (
    CounterRow("Virtual memory size", "sampled", "procfs", Metric.VIRTUAL),
    CounterRow("Real memory size", "sampled", "procfs", Metric.RESIDENT),
    CounterRow("Time runnable and scheduled", "sampled", "procfs", Metric.CPU_NS),
    CounterRow("Time runnable and waiting", "sampled", "procfs", Metric.WAIT_NS),
    CounterRow("Total runtime", "aggregate", "timer", Metric.RUNTIME_NS),
    CounterRow("Total cycles", "aggregate", "HW counter", Metric.CYCLES, (_CYCLES,)),
    CounterRow("Total instructions", "aggregate", "HW counter", Metric.INSTRUCTIONS, (_INSTRUCTIONS,)),
    CounterRow("LLC references", "aggregate", "HW counter", Metric.LLC_REFERENCES, (_REFERENCES,)),
    CounterRow("LLC misses", "aggregate", "HW counter", Metric.LLC_MISSES, (_MISSES,)),
    CounterRow(
        "Cycles per instruction (CPI)", "aggregate", "calculated", Metric.CPI_MILLI, (_CYCLES, _INSTRUCTIONS)
    ),
    CounterRow(
        "Memory accesses per instruction (MAI)",
        "aggregate",
        "calculated",
        Metric.MAI_MICRO,
        (_MISSES, _INSTRUCTIONS),
    ),
    CounterRow(
        "Instructions per memory access (IPMA)",
        "aggregate",
        "calculated",
        Metric.IPMA,
        (_MISSES, _INSTRUCTIONS),
    ),
)
"""The thesis' metrics of each task. Each miss of the last-level cache is one memory access."""


def unmeasured(reasons: dict[Counter, str]) -> dict[str, str]:
    """Return the rows of Table 6.4 that this machine cannot measure, each with the reason.

    Args:
        reasons: the reason for each refused counter, from ``counters.survey`` or a reading; empty or absent
            for a counter that works.
    """
    missing: dict[str, str] = {}
    for row in TABLE_6_4:
        why = [reason for counter in row.counters if (reason := reasons.get(counter, ""))]
        if why:
            missing[row.name] = "; ".join(why)
    return missing


@dataclass(frozen=True, slots=True)
class TaskReading:
    """The state of a task at one moment; counters count since its processes started."""

    at_ns: int
    """On the caller's clock."""
    processes: int
    threads: int
    virtual: int
    """Bytes of all processes together, like the next two."""
    resident: int
    peak: int
    """The maximum of real memory: of all processes in a reading, or of one by the kernel's record."""
    proportional: int | None
    cpu_ns: int
    wait_ns: int
    """Time in which it was runnable but waited for a processor."""
    minor_faults: int
    major_faults: int
    read: int
    """Bytes from disks; ``written`` likewise."""
    written: int
    yields: int
    preemptions: int
    missing: tuple[str, ...] = ()
    """Texts that describe the values that could not be read completely."""


class _Counts(NamedTuple):
    """The counters of a thread, a process or a task."""

    run_ns: int = 0
    wait_ns: int = 0
    yields: int = 0
    preemptions: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    read: int = 0
    written: int = 0


@dataclass(slots=True)
class _Process:
    """One process: the counts of its running threads, and the last known counts of those that ended."""

    start: int
    threads: dict[int, _Counts] = field(default_factory=dict)
    ended: _Counts = field(default_factory=_Counts)
    own: _Counts = field(default_factory=_Counts)
    """The kernel's counts for the whole process: the run time in ticks, faults and bytes."""
    virtual: int = 0
    resident: int = 0
    parent: int = 0
    children: frozenset[int] = frozenset()
    zombie: bool = False

    def totals(self) -> _Counts:
        """Return the sum over its threads and the counts of the process."""
        threads = _sum([*self.threads.values(), self.ended])
        # Ticks are coarse, but only they include threads that started and ended between two readings.
        run_ns = max(threads.run_ns, self.own.run_ns)
        return _sum([threads, self.own])._replace(run_ns=run_ns)


class TaskProbe:
    """Measures a task repeatedly.

    Args:
        proc: the path of procfs.
        group: a control group that contains only the task, if it has one. Its members are the task's
            processes, and its record of processor time includes even the shortest processes.
    """

    def __init__(self, proc: str | Path = "/proc", group: str | Path | None = None) -> None:
        self._proc = Path(proc)
        self._group = Path(group) if group is not None else None
        self._known: dict[tuple[int, int], _Process] = {}
        self._start_times: dict[int, int] = {}
        self._descendants: set[int] = set()
        """Processes found as children of others, and not given by the caller; they may have ended."""
        self._gone = _Counts()
        self._peak = 0
        self._missing: set[str] = set()

    def read(self, now_ns: int, pids: Iterable[int] = (), *, proportional: bool = False) -> TaskReading:
        """Read the task's present state.

        Args:
            now_ns: the time.
            pids: its processes. Those in the control group are added, and all that any of them started. If
                a process has ended and another process has its number now, the new process does not count.
            proportional: also measure memory with shared pages in proportion. The kernel visits all pages
                for this, so it is skipped above ``PROFILE_PROPORTIONAL_BYTES_MAX`` of real memory.
        """
        self._missing = set()
        members = set(self._members())
        followed, self._descendants = self._descendants, set()
        candidates = {*pids, *members, *followed}
        self._start_times = {pid: start for pid, start in self._start_times.items() if pid in candidates}
        living: dict[int, _Process] = {}
        threads = 0
        waiting = sorted(candidates, reverse=True)
        while waiting:
            pid = waiting.pop()
            if pid in living:
                continue
            if len(living) >= limits.PROFILE_PROCESSES_MAX or threads >= limits.PROFILE_THREADS_MAX:
                self._missing.add(_TOO_MANY)
                # Keep its earlier counts: a later reading may include it again.
                living |= {key[0]: process for key, process in self._known.items() if key[0] == pid}
                self._descendants |= followed.intersection({pid})
                continue
            process = self._process(pid, member=pid in members)
            if process is None:
                continue
            living[pid] = process
            threads += len(process.threads)
            children = process.children.difference(living)
            self._descendants |= children | followed.intersection({pid})
            members |= children
            waiting.extend(children)
        self._retire(living)
        return self._reading(now_ns, threads, proportional=proportional)

    def _retire(self, living: dict[int, _Process]) -> None:
        """Keep the counts of the processes that have ended."""
        for (pid, start), process in self._known.items():
            if pid in living and living[pid].start == start:
                continue
            counts = process.totals()
            if process.parent in living:
                # The kernel adds a child's bytes to the parent that waits for it.
                counts = counts._replace(read=0, written=0)
            self._gone = _sum([self._gone, counts])
        self._known = {(pid, process.start): process for pid, process in living.items()}

    def _reading(self, now_ns: int, threads: int, *, proportional: bool) -> TaskReading:
        totals = _sum([self._gone, *(process.totals() for process in self._known.values())])
        resident = sum(process.resident for process in self._known.values())
        self._peak = max(self._peak, resident)
        return TaskReading(
            at_ns=now_ns,
            processes=sum(not process.zombie for process in self._known.values()),
            threads=threads,
            virtual=sum(process.virtual for process in self._known.values()),
            resident=resident,
            peak=self._peak,
            proportional=self._proportional(resident) if proportional else None,
            cpu_ns=max(totals.run_ns, self._group_cpu_ns()),
            wait_ns=totals.wait_ns,
            minor_faults=totals.minor_faults,
            major_faults=totals.major_faults,
            read=totals.read,
            written=totals.written,
            yields=totals.yields,
            preemptions=totals.preemptions,
            missing=tuple(sorted(self._missing)),
        )

    def _members(self) -> frozenset[int]:
        if self._group is None:
            return frozenset()
        words = procfs.text(self._group / "cgroup.procs").split()
        return frozenset(int(word) for word in words[: limits.PROFILE_PROCESSES_MAX + 1] if word.isdecimal())

    def _process(self, pid: int, *, member: bool) -> _Process | None:
        """Read a process and update its record; return None if it has ended or is not the task's."""
        folder = self._proc / str(pid)
        stat = procfs.text(folder / "stat").rpartition(")")[2].split()
        if len(stat) < _STAT_FIELDS:
            return None
        start = int(stat[19])
        # A process in the group, or a child, belongs to the task. The number of a process that the caller
        # gave may have passed to an unrelated process, so its start time must match.
        if member:
            self._start_times[pid] = start
        elif self._start_times.setdefault(pid, start) != start:
            return None
        process = self._known.get((pid, start))
        if stat[0] in _ENDED:
            return self._ended(process) if process is not None else None
        process = process or _Process(start)
        process.parent = int(stat[1])
        read, written = self._io(folder, process)
        ticks = int(stat[11]) + int(stat[12])
        process.own = _Counts(ticks * _TICK_NS, 0, 0, 0, int(stat[7]), int(stat[9]), read, written)
        process.virtual, process.resident = int(stat[20]), int(stat[21]) * _PAGE
        self._read_threads(folder, process)
        self._peak = max(self._peak, procfs.rows(procfs.text(folder / "status")).get("VmHWM", 0) * limits.KIB)
        return process

    @staticmethod
    def _ended(process: _Process) -> _Process:
        """Update the record of a zombie: it has no threads or memory, but keeps its counts."""
        process.ended = _sum([process.ended, *process.threads.values()])
        process.threads = {}
        process.virtual = process.resident = 0
        process.children = frozenset()
        process.zombie = True
        return process

    def _io(self, folder: Path, process: _Process) -> tuple[int, int]:
        text = procfs.text(folder / "io")
        if not text:
            self._missing.add("bytes read and written: /proc/PID/io is not permitted, or the process ended")
            return process.own.read, process.own.written
        rows = procfs.rows(text)
        return rows.get("read_bytes", 0), rows.get("write_bytes", 0)

    def _read_threads(self, folder: Path, process: _Process) -> None:
        tids = procfs.listed_numbers(folder / "task")
        if len(tids) > limits.PROFILE_THREADS_MAX:
            self._missing.add(_TOO_MANY)
        living: dict[int, _Counts] = {}
        children: list[str] = []
        for tid in tids[: limits.PROFILE_THREADS_MAX]:
            schedstat = procfs.text(folder / f"task/{tid}/schedstat")
            switches = procfs.rows(procfs.text(folder / f"task/{tid}/status"))
            if not switches:
                # It ended after the listing.
                continue
            run, wait = procfs.numbers(schedstat, 2)
            counts = _Counts(run, wait, *(switches.get(kind, 0) for kind in _SWITCHES))
            last = process.threads.get(tid)
            if last is not None and counts.run_ns < last.run_ns:
                # A new thread has the number of one that ended.
                process.ended = _sum([process.ended, last])
            living[tid] = counts
            children += procfs.text(folder / f"task/{tid}/children").split()
        process.ended = _sum(
            [process.ended, *(last for tid, last in process.threads.items() if tid not in living)]
        )
        process.threads = living
        process.children = frozenset(int(child) for child in children if child.isdecimal())

    def _proportional(self, resident: int) -> int | None:
        if resident > limits.PROFILE_PROPORTIONAL_BYTES_MAX:
            self._missing.add("proportional memory: there is too much memory to visit each page")
            return None
        total = 0
        for (pid, _), process in self._known.items():
            if process.zombie:
                continue
            text = procfs.text(self._proc / str(pid) / "smaps_rollup")
            if not text:
                self._missing.add("proportional memory: smaps_rollup is not permitted, or the process ended")
                return None
            total += procfs.rows(text).get("Pss", 0) * limits.KIB
        return total

    def _group_cpu_ns(self) -> int:
        """Return the group's processor time (version 2 in microseconds, 1 in nanoseconds), or 0."""
        if self._group is None:
            return 0
        usage = procfs.rows(procfs.text(self._group / "cpu.stat"), " ").get("usage_usec", 0) * 1000
        return usage or procfs.numbers(procfs.text(self._group / "cpuacct.usage"), 1)[0]


def values(
    before: TaskReading,
    after: TaskReading,
    counted: CounterReading | None = None,
    counted_before: CounterReading | None = None,
) -> dict[Metric, int]:
    """Return the values of a sample: a task's sizes at its end, and counts and rates between two readings.

    Counters take precedence over procfs, because they include short-lived threads.

    Raises:
        ValueError: the second reading is not later than the first.
    """
    elapsed = after.at_ns - before.at_ns
    if elapsed <= 0:
        raise ValueError(f"the readings are {elapsed} ns apart; the second must be later")
    metrics = {
        Metric.CPU_NS: max(after.cpu_ns - before.cpu_ns, 0),
        Metric.WAIT_NS: max(after.wait_ns - before.wait_ns, 0),
        Metric.VIRTUAL: after.virtual,
        Metric.RESIDENT: after.resident,
        Metric.MINOR_FAULTS: max(after.minor_faults - before.minor_faults, 0),
        Metric.MAJOR_FAULTS: max(after.major_faults - before.major_faults, 0),
        Metric.READ_S: max(after.read - before.read, 0) * _NS // elapsed,
        Metric.WRITTEN_S: max(after.written - before.written, 0) * _NS // elapsed,
        Metric.YIELDS: max(after.yields - before.yields, 0),
        Metric.PREEMPTIONS: max(after.preemptions - before.preemptions, 0),
    }
    if after.proportional is not None:
        metrics[Metric.PROPORTIONAL] = after.proportional
    if counted is not None:
        metrics.update(counted.metrics(counted_before))
    metrics[Metric.CPU_MILLI] = metrics[Metric.CPU_NS] * 1000 // elapsed
    return derived(metrics, elapsed)


def _sum(parts: Iterable[_Counts]) -> _Counts:
    columns = zip(*parts, strict=True)
    return _Counts(*map(sum, columns))
